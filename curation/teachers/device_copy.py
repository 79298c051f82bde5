"""Asynchronous copies between host and device."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from curation.heavy import torch


def send_arrays(arrays: Sequence[npt.ArrayLike], device: "torch.device") -> "list[torch.Tensor]":
    """Return arrays of integers on the device, int64, sent in one copy from pinned memory.

    PyTorch reuses the pinned memory only after the copy has finished.
    """
    parts = [np.asarray(array, dtype=np.int64) for array in arrays]
    flat = torch.from_numpy(np.concatenate([part.ravel() for part in parts]))
    if device.type == "cuda":
        flat = flat.pin_memory().to(device, non_blocking=True)
    pieces = torch.split(flat, [part.size for part in parts])
    return [piece.view(part.shape) for piece, part in zip(pieces, parts, strict=True)]


class Fetched:
    """An asynchronous copy of a tensor to the host."""

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
        """Return the tensor on the host after the copy has finished."""
        if self._event is not None:
            self._event.synchronize()
        return self._host
