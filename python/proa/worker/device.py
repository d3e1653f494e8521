"""A torch device and how host arrays get there. Owns nothing; knows no model."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from proa.executor.interface import StartFailed
from proa.worker.host import num_cores

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class Device:
    """Where a model runs.

    Attributes:
        torch_device: as torch names it.
        capability: compute capability on CUDA, else None.
    """

    torch_device: torch.device
    capability: tuple[int, int] | None = None

    @property
    def name(self) -> str:
        """`cpu` or `cuda`."""
        return str(self.torch_device.type)

    @property
    def is_cuda(self) -> bool:
        """Whether steps run on a stream."""
        return self.name == "cuda"

    def upload(self, array: NDArray[Any]) -> Tensor:
        """Return the array on the device. On the CPU it shares the array's memory; on CUDA the copy joins the stream.

        The array must stay as it is until the step that reads it has been collected.
        """
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        if not self.is_cuda:
            return tensor
        return tensor.pin_memory().to(self.torch_device, non_blocking=True)

    def load(self, values: NDArray[Any], stored: str, dtype: torch.dtype) -> Tensor:
        """Return weights on the device in `dtype`; on the CPU, without a change of type, they stay mapped.

        Args:
            stored: dtype of the numbers; bfloat16 comes as bits in uint16.
        """
        with warnings.catch_warnings():
            # Mapped files are read-only, and nothing writes to weights.
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            tensor = torch.from_numpy(values)
        if stored == "bfloat16":
            tensor = tensor.view(torch.bfloat16)
        return tensor.to(self.torch_device, dtype)


def open_device(name: str, threads: int | None) -> Device:
    """Return the device of a name, ready for use. Raises `StartFailed` of kind start_device."""
    if name == "cpu":
        torch.set_num_threads(threads or num_cores())
        return Device(torch.device("cpu"))
    if not torch.cuda.is_available():
        raise StartFailed("start_device", "torch finds no CUDA device here")
    device = torch.device("cuda", torch.cuda.current_device())
    return Device(device, torch.cuda.get_device_capability(device))
