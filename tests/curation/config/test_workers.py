"""Training workers have a GPU each; what cannot train together is refused with the value and the mend."""

import pytest

from curation.config import SftConfig, TrustConfig


def test_a_worker_has_at_most_one_gpu_and_workers_share_none() -> None:
    section = SftConfig
    with pytest.raises(ValueError, match=r"num_workers\n.*Extra inputs are not permitted"):
        TrustConfig(num_workers=2)
    with pytest.raises(ValueError, match="gpus_per_worker\n  Input should be less than or equal to 1"):
        section(gpus_per_worker=2, num_workers=3)
    with pytest.raises(ValueError, match=r"gpus_per_worker: 0.5 of 2 workers: .* set gpus_per_worker: 1, or num_work"):
        section(gpus_per_worker=0.5, num_workers=2)
    assert section(gpus_per_worker=0.5).per_worker["GPU"] == 0.5
    assert section(gpus_per_worker=1, num_workers=2).takes["GPU"] == 2
