"""A Ray that does not start: the message gives Ray's reason, and asks about load only where the start took too long."""

from typing import Any

import pytest
import ray

from curation.cluster import session
from curation.config import RayConfig
from curation.errors import RunFailedError


def test_a_refused_start_does_not_ask_about_load(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**settings: Any) -> None:
        raise ValueError("the object store needs at least 75 MiB")

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(RunFailedError) as refused:
        session._start_ray(RayConfig(num_cpus=1))
    assert str(refused.value) == "Ray did not start: ValueError: the object store needs at least 75 MiB"
