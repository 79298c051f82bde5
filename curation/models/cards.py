"""The memory of GPUs by the names that Ray gives them (``ray.util.accelerators``)."""

from curation.errors import ConfigError

GIB_OF = {
    "T4": 15,
    "A10G": 23,
    "L4": 23,
    "V100": 32,
    "A100-40G": 40,
    "L40S": 45,
    "A100": 80,
    "A100-80G": 80,
    "H100": 80,
    "H20": 96,
    "RTX-PRO-6000": 96,
    "H200": 140,
    "B200": 180,
}
"""GiB that a driver shows at most; of a name that stands for several cards (V100, A100) the larger one's."""


def gib_of(name: str) -> int:
    """Return the memory of a card.

    Raises:
        ConfigError: the name is not known.
    """
    if name not in GIB_OF:
        raise ConfigError(f"--gpu: {name!r} is no card whose memory is known; give one of {', '.join(GIB_OF)}")
    return GIB_OF[name]
