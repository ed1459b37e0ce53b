"""Samples in an array, in memory or mapped from a file."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kronlearn.core.source import Source, sample_dtype

__all__ = ["ArraySource", "check_shape", "check_size", "real_array"]


class ArraySource(Source):
    """Samples of an array ``(N, m_1, …, m_d)``, read in blocks of C-contiguous floats.

    Blocks are views where the array is C-contiguous float32 or float64; anything else (integers,
    other byte or memory orders) is converted a block at a time. float32 stays float32, everything
    else becomes float64.

    Parameters
    ----------
    Y : array of shape (N, m_1, …, m_d) or (N, m_1·…·m_d)
    patch_shape : tuple of int
        ``(m_1, …, m_d)``.
    name : str
        What errors call the array.
    """

    def __init__(self, Y: ArrayLike, patch_shape: tuple[int, ...], name: str = "Y") -> None:
        self.array = real_array(Y, name)
        self.patch_shape, self.name = patch_shape, name
        check_shape(self.array.shape, patch_shape, name)
        self.dtype = sample_dtype(self.array.dtype)
        self.is_rows = self.array.ndim == 2

    def __len__(self) -> int:
        return len(self.array)

    @property
    def is_direct(self) -> bool:
        """Whether the array can be used as it is, without copies."""
        return bool(
            self.array.dtype == self.dtype
            and self.array.dtype.isnative
            and self.array.flags.c_contiguous
            and self.array.flags.aligned
        )

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Consecutive samples; a view where the array can be used as it is."""
        block = np.ascontiguousarray(self.array[start:stop], dtype=self.dtype)
        return block.reshape(-1, self.n_features)

    def take(self, rows: NDArray[np.intp]) -> NDArray[Any]:
        """Some samples ``(len(rows), m_1·…·m_d)``, in any order."""
        chosen = np.ascontiguousarray(self.array[rows], dtype=self.dtype)
        return chosen.reshape(-1, self.n_features)

    def whole(self, start: int, stop: int) -> NDArray[Any] | None:
        """Consecutive samples if they need no conversion."""
        return self.read(start, stop) if self.is_direct else None


def check_shape(shape: tuple[int, ...], patch_shape: tuple[int, ...], name: str = "Y") -> None:
    """Raise unless an array of this shape holds samples of that shape, or their rows."""
    n_features = math.prod(patch_shape)
    if shape[1:] == patch_shape or (len(shape) == 2 and shape[1] == n_features):
        return
    hint = f" For a single sample pass {name}[None]." if shape == patch_shape else ""
    flat = f" or (N, {n_features})" if len(patch_shape) > 1 else ""
    raise ValueError(
        f"{name} has shape {shape}; samples of shape {patch_shape} are needed, as an array "
        f"(N, {', '.join(map(str, patch_shape))}){flat}.{hint}"
    )


def real_array(Y: ArrayLike, name: str = "Y") -> NDArray[Any]:
    """Y as an array of real numbers with at least two dimensions and one sample."""
    if hasattr(Y, "toarray"):
        raise TypeError(
            f"{name} is a sparse {type(Y).__name__}; samples must be dense, pass {name}.toarray()."
        )
    if isinstance(Y, np.ma.MaskedArray) and np.ma.is_masked(Y):
        raise ValueError(
            f"{name} is a masked array; fill in what is masked, or code with sparse_code, which "
            f"takes {name}.filled(0) with weights=~{name}.mask."
        )
    try:
        array = np.asarray(Y)
    except ValueError:
        raise ValueError(
            f"{name} has samples of different shapes; pass an array (N, m_1, …, m_d)."
        ) from None
    if array.dtype.kind == "c":
        raise ValueError(
            f"Complex data not supported: {name} has dtype {array.dtype}; pass real numbers."
        )
    if array.dtype.kind in "mM":
        raise TypeError(f"{name} has dtype {array.dtype}, which is no number; pass real numbers.")
    if array.dtype.kind not in "fiub":
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError) as error:
            # Not the error's own class: its subclasses are made from other things than a text.
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(
                f"{name} has dtype {array.dtype}, which does not convert to numbers ({error}); "
                "pass float32 or float64."
            ) from None
    check_size(array.shape, name)
    return array


def check_size(shape: tuple[int, ...], name: str = "Y") -> None:
    """Raise unless an array of this shape has at least two dimensions and one sample."""
    if len(shape) < 2:
        raise ValueError(
            f"{name} has shape {shape}; an array of samples (N, m_1, …, m_d) is needed. "
            f"Reshape your data: {name}.reshape(-1, 1) for samples of one number, {name}[None] (or "
            f"{name}.reshape(1, -1)) for a single sample."
        )
    if shape[0] == 0:
        raise ValueError(
            f"{name} has 0 sample(s) (shape={shape}) while a minimum of 1 is required."
        )
    if 0 in shape:
        raise ValueError(
            f"0 feature(s) (shape={shape}) while a minimum of 1 is required: {name} is empty."
        )
