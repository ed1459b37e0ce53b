"""Arrays on a GPU: how they are recognised, exchanged with other libraries, and read as samples.

This module imports CuPy only once an array on a GPU is passed, or CuPy is asked for.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.core.source import Source, check_shape, check_size, sample_dtype
from kronlearn.cuda.memory import free_memory

__all__ = [
    "DeviceSource",
    "as_cupy",
    "cupy",
    "gpu_of",
    "in_memory",
    "is_on_gpu",
    "returned_as",
]

# DLPack's numbers for the memory of a GPU, and for memory that a GPU and the processor share.
_CUDA, _CUDA_MANAGED = 2, 13
# Bytes that kernels read at a time.
_ALIGNMENT = 16


def is_on_gpu(array: Any) -> bool:
    """Whether an array of CuPy, PyTorch or another library is in the memory of a GPU."""
    try:
        if hasattr(array, "__cuda_array_interface__"):
            return True
    except RuntimeError:
        # PyTorch raises this for tensors on a GPU that require gradients.
        return True
    dlpack_device = getattr(array, "__dlpack_device__", None)
    return dlpack_device is not None and dlpack_device()[0] in (_CUDA, _CUDA_MANAGED)


@cache
def cupy() -> Any:
    """The module CuPy, after checking that a GPU is available.

    Raises
    ------
    ImportError
        If CuPy is not installed.
    RuntimeError
        If there is no GPU, or its driver does not respond.
    """
    try:
        import cupy
    except ImportError as problem:
        raise ImportError(
            f'device="cuda" needs CuPy, which cannot be imported ({problem}): '
            "pip install '.[cuda13]' in the checkout of kronlearn, or '.[cuda12]' where the driver "
            "is too old for CUDA 13."
        ) from None
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as problem:
        raise RuntimeError(
            f'device="cuda" needs an NVIDIA GPU and its driver ({problem}); pass device="cpu".'
        ) from None
    if count == 0:
        raise RuntimeError('device="cuda" found no GPU; pass device="cpu".')
    return cupy


def gpu_of(array: Any) -> AbstractContextManager[Any]:
    """A context that makes the GPU of an array the current one, and does nothing for others."""
    if not is_on_gpu(array):
        return nullcontext()
    xp = cupy()
    if hasattr(array, "__dlpack_device__"):
        number = array.__dlpack_device__()[1]
    else:
        number = xp.asarray(array).device.id
    device: AbstractContextManager[Any] = xp.cuda.Device(number)
    return device


def as_cupy(xp: Any, array: Any) -> Any:
    """An array on the current GPU as an array of CuPy, ``xp``, that shares its memory.

    DLPack is preferred: CuPy's stream then waits until the other library has written the array,
    which PyTorch's ``__cuda_array_interface__`` does not ensure.
    """
    if not isinstance(array, xp.ndarray):
        if getattr(array, "requires_grad", False):
            array = array.detach()
        array = xp.from_dlpack(array) if hasattr(array, "__dlpack__") else xp.asarray(array)
    own = getattr(getattr(array, "device", None), "id", None)
    if own is not None and own != xp.cuda.Device().id:
        raise ValueError(
            f"An array is on GPU {own}, and the current one is {xp.cuda.Device().id}: "
            f"call cupy.cuda.Device({own}).use() first."
        )
    return array


def in_memory(array: Any) -> Any:
    """A copy of an array on a GPU, or of a list with such arrays, in the memory of the processor.

    Anything else is returned unchanged.
    """
    if isinstance(array, list | tuple) and any(map(is_on_gpu, array)):
        return [in_memory(part) for part in array]
    if not is_on_gpu(array):
        return array
    with gpu_of(array):
        return cupy().asnumpy(as_cupy(cupy(), array))


def returned_as(given: Any, result: Any) -> Any:
    """A result of CuPy or NumPy as an array of the library of the input, sharing memory."""
    library = sys.modules.get(type(given).__module__.partition(".")[0])
    if isinstance(given, type(result)) or not hasattr(library, "from_dlpack"):
        return result
    return library.from_dlpack(result)  # type: ignore[union-attr]


class DeviceSource(Source):
    """Samples in an array on a GPU.

    Parameters
    ----------
    array : array of CuPy, PyTorch or another library, of shape (N, m_1, …, m_d) or (N, m_1·…·m_d)
        Not copied if it is C-contiguous float32 or float64 and begins at a multiple of 16 bytes.
    patch_shape : tuple of int
    name : str
        The name of the array in error messages.

    Attributes
    ----------
    array : array of CuPy of shape (N, m_1·…·m_d)
    """

    device = "cuda"

    def __init__(self, array: Any, patch_shape: tuple[int, ...], name: str = "Y") -> None:
        self.xp, self.patch_shape, self.name = cupy(), patch_shape, name
        array = as_cupy(self.xp, array)
        check_size(array.shape, name)
        check_shape(array.shape, patch_shape, name)
        if array.dtype.kind not in "fiub":
            raise ValueError(f"{name} has dtype {array.dtype}; pass float32 or float64.")
        self.dtype = sample_dtype(array.dtype)
        self.is_rows = array.ndim == 2
        rows = array.reshape(len(array), -1)
        self.array = self.xp.ascontiguousarray(rows, dtype=self.dtype)
        if self.array.__cuda_array_interface__["data"][0] % _ALIGNMENT:
            self.array = self.array.copy()

    def __len__(self) -> int:
        return int(self.array.shape[0])

    def scaled(self, roots: NDArray[np.float64]) -> DeviceSource | None:
        """The samples times the roots of their weights, as a source on the GPU.

        None if they would take more than half of the free memory.
        """
        if self.array.nbytes > free_memory(self.xp) // 2:
            return None
        column = self.xp.asarray(roots.astype(self.dtype))[:, None]
        scaled = DeviceSource(self.array * column, self.patch_shape, self.name)
        scaled.is_rows, scaled.sqrt_weights = self.is_rows, roots
        return scaled

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Consecutive samples, copied to the memory of the processor."""
        copy: NDArray[Any] = self.xp.asnumpy(self.array[start:stop])
        return copy

    def take(self, rows: Any) -> NDArray[Any]:
        """Some samples, copied to the memory of the processor."""
        copy: NDArray[Any] = self.xp.asnumpy(self.array[self.xp.asarray(rows)])
        return copy
