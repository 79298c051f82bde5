"""Copies between host and device that neither side waits for."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from curation.heavy import torch


def send_arrays(arrays: Sequence[npt.ArrayLike], device: "torch.device") -> "list[torch.Tensor]":
    """Return whole numbers on the device, int64, in one copy from pinned memory.

    PyTorch gives pinned memory out again only once the copy out of it is done.
    """
    parts = [np.asarray(array, dtype=np.int64) for array in arrays]
    flat = torch.from_numpy(np.concatenate([part.ravel() for part in parts]))
    if device.type == "cuda":
        flat = flat.pin_memory().to(device, non_blocking=True)
    pieces = torch.split(flat, [part.size for part in parts])
    return [piece.view(part.shape) for piece, part in zip(pieces, parts, strict=True)]


class Fetched:
    """A copy of a tensor on its way to the host."""

    def __init__(self, tensor: "torch.Tensor") -> None:
        self._event: Any = None
        if tensor.is_cuda:
            self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._host.copy_(tensor, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()
        else:
            self._host = tensor.clone()

    def wait(self) -> "torch.Tensor":
        """Return the tensor on the host once it has arrived."""
        if self._event is not None:
            self._event.synchronize()
        return self._host
