"""The instructions of a processor for half precision: whether a CPU computes bfloat16 faster than float32."""

from functools import cache
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
FLAGS = ("avx512_bf16", "amx_bf16", "bf16")
"""Instructions for products in bfloat16: of x86 processors, and of ARM's."""


@cache
def bfloat16_flag(cpuinfo: Path = CPUINFO) -> str | None:
    """Return the flag of this processor's instructions for bfloat16; ``None`` where it has none, or does not say.

    Without them a product in bfloat16 takes several times as long as one in float32
    (``python -m benchmarks.cpu_dtypes``).
    """
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return None
    words = {word for line in lines if line.lower().startswith(("flags", "features")) for word in line.split()}
    return next((flag for flag in FLAGS if flag in words), None)
