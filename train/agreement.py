"""Agreement between the workers of a training; a single worker uses its own values."""

from typing import Any, TypeVar

import torch

T = TypeVar("T")


def count_workers() -> int:
    """Return the number of workers of this training."""
    return torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1


def gather_values(value: T) -> list[T]:
    """Return the values of all workers, by rank; every worker gets the same list."""
    if count_workers() == 1:
        return [value]
    found: list[Any] = [None] * count_workers()
    torch.distributed.all_gather_object(found, value)
    return found
