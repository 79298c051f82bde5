"""Agreement between the workers of a training; a single worker uses its own values."""

from typing import TypeVar

import torch

T = TypeVar("T")


def gather_values(value: T) -> list[T]:
    """Return the values of all workers, by rank; every worker gets the same list."""
    if not torch.distributed.is_initialized() or torch.distributed.get_world_size() == 1:
        return [value]
    found: list[T | None] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(found, value)
    return [each for each in found if each is not None]


def combine_flags(flags: list[bool], device: torch.device) -> list[bool]:
    """Return for each flag whether it is true in any worker; every worker gets the same list."""
    if not torch.distributed.is_initialized() or torch.distributed.get_world_size() == 1:
        return flags
    found = torch.tensor(flags, dtype=torch.int32, device=device)
    torch.distributed.all_reduce(found, op=torch.distributed.ReduceOp.MAX)
    return [bool(flag) for flag in found.tolist()]
