"""Files of a shared run directory can be read by others, whatever a library thinks of it."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from curation.storage.cache import staged


def test_weights_have_the_mode_of_a_new_file(tmp_path: Path):
    usual = tmp_path / "usual"
    usual.touch()
    with staged(tmp_path / "fit") as local:
        local.mkdir()
        save_file({"weight": np.zeros(3, dtype=np.float32)}, local / "weights.safetensors")
        (local / "run.sh").touch(mode=0o755)
        assert (local / "weights.safetensors").stat().st_mode & 0o777 == 0o600  # else there is nothing to mend
    assert (tmp_path / "fit/weights.safetensors").stat().st_mode == usual.stat().st_mode
    assert (tmp_path / "fit/run.sh").stat().st_mode & 0o700 == 0o700  # a mode that somebody else chose stays


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600)])
def test_the_umask_decides(umask: int, mode: int, tmp_path: Path):
    code = (
        "import os, sys; from pathlib import Path\n"
        "from curation.storage.files import open_to_readers\n"
        "path = Path(sys.argv[1]); os.close(os.open(path, os.O_CREAT, 0o600)); open_to_readers(path)\n"
        "print(oct(path.stat().st_mode & 0o777), oct(os.umask(0)))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "file")]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, preexec_fn=lambda: os.umask(umask) and None
    )
    assert done.stdout.split() == [oct(mode), oct(umask)]
