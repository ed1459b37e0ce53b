"""Lazy coding of Dask arrays: from chunks of samples to chunks of sparse codes, and back."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from kronlearn.core.coder import Coder
from kronlearn.core.dictionary import Dictionary
from kronlearn.core.source import sample_dtype
from kronlearn.engines.selection import local_engine
from kronlearn.io.arrays import ArraySource

__all__ = ["dense_codes", "has_unknown_length", "lazy_codes", "lazy_samples"]


def lazy_codes(samples: Any, dictionary: Dictionary, coder: Coder, device: str = "cpu") -> Any:
    """A Dask array ``(N, n_codes)`` of sparse codes, with one chunk per chunk of samples."""
    whole = samples.rechunk(dict.fromkeys(range(1, samples.ndim), -1))
    dtype = sample_dtype(samples.dtype)
    return whole.map_blocks(
        _codes,
        dictionary,
        coder,
        device,
        dtype=dtype,
        drop_axis=list(range(1, whole.ndim)),
        new_axis=[1],
        chunks=(whole.chunks[0], (dictionary.n_codes,)),
        meta=sparse.csr_array((0, dictionary.n_codes), dtype=dtype),
    )


def dense_codes(codes: Any) -> Any:
    """Convert sparse codes, or a Dask array of them, to dense ones."""
    if not type(codes).__module__.startswith("dask"):
        return codes.toarray()
    return codes.map_blocks(lambda block: block.toarray(), meta=np.empty((0, 0), codes.dtype))


def has_unknown_length(samples: Any) -> bool:
    """Whether samples are a Dask array of unknown length."""
    is_lazy = type(samples).__module__.startswith("dask.array")
    return is_lazy and samples.ndim > 0 and math.isnan(samples.shape[0])


def lazy_samples(codes: Any, dictionary: Dictionary, sample_shape: tuple[int, ...]) -> Any:
    """A Dask array ``(N, *sample_shape)`` of the samples that a Dask array of codes represents."""
    whole = codes.rechunk({1: -1})
    return whole.map_blocks(
        _samples,
        dictionary,
        sample_shape,
        dtype=dictionary.dtype,
        drop_axis=[1],
        new_axis=list(range(1, 1 + len(sample_shape))),
        chunks=(whole.chunks[0], *((length,) for length in sample_shape)),
        meta=np.empty((0,) * (1 + len(sample_shape)), dictionary.dtype),
    )


def _codes(
    block: NDArray[Any],
    dictionary: Dictionary,
    coder: Coder,
    device: str,
    block_info: Any = None,
) -> sparse.csr_array:
    if len(block) == 0:
        return sparse.csr_array((0, dictionary.n_codes), dtype=sample_dtype(block.dtype))
    source = ArraySource(block, dictionary.patch_shape)
    first = block_info[0]["array-location"][0][0]
    if not math.isnan(first):
        source.first = first
    return local_engine(source, 1, device).codes(dictionary, coder)


def _samples(block: Any, dictionary: Dictionary, sample_shape: tuple[int, ...]) -> NDArray[Any]:
    return dictionary.reconstruct(block).reshape(-1, *sample_shape)
