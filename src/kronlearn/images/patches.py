"""Take patches out of images of any dimension, and make images of patches, block by block."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from kronlearn.core.source import Source, sample_dtype
from kronlearn.images.overlap import OverlapAverage
from kronlearn.images.patch_grid import PatchGrid, means_dtype, means_of, sizes_per_axis

__all__ = ["Patches", "extract_patches", "reconstruct_from_patches"]

# The size of a block, in numbers, where the caller does not choose one.
_BLOCK_NUMBERS = 1 << 19


class Patches:
    """The patches of an image, cut out on demand: an array that takes no memory.

    Returned by :func:`extract_patches`. Patches are in C order of their positions. An index
    gives one patch; a slice, a list of indices or a boolean mask gives an array
    ``(n, *patch_shape)``. ``fit``, ``transform``, ``score`` and :func:`kronlearn.sparse_code` read
    patches block by block; ``np.asarray(patches)`` copies all of them at once.

    Parameters
    ----------
    image : array
        The image; it is not copied.
    grid : PatchGrid
        The grid of its patches.

    Attributes
    ----------
    shape : tuple of int
        The shape of the array of all patches, ``(N, *patch_shape)``.
    dtype : dtype
        The dtype of the patches.
    patch_shape, stride, image_shape : tuple of int
        Size of a patch, distance between patches, and size of the image.
    grid_shape : tuple of int
        The number of positions along each axis; their product is N.
    starts : tuple of arrays of int
        The positions along each axis.

    Examples
    --------
    >>> import numpy as np
    >>> import kronlearn as kl
    >>> patches = kl.images.extract_patches(np.arange(30).reshape(5, 6), (2, 3), stride=2)
    >>> patches.shape, [starts.tolist() for starts in patches.starts]
    ((9, 2, 3), [[0, 2, 3], [0, 2, 3]])
    >>> patches[-1]
    array([[21, 22, 23],
           [27, 28, 29]])
    >>> [block.shape for block in patches.blocks(4)]
    [(4, 2, 3), (4, 2, 3), (1, 2, 3)]
    """

    def __init__(self, image: NDArray[Any], grid: PatchGrid) -> None:
        self.image, self.grid = image, grid
        self.image_shape, self.patch_shape, self.stride = grid.shape, grid.patch, grid.stride
        self.starts, self.grid_shape = grid.starts, grid.grid_shape
        self.dtype = means_dtype(image.dtype) if grid.remove_means else image.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array of all patches, ``(N, *patch_shape)``."""
        return (math.prod(self.grid_shape), *self.patch_shape)

    @property
    def ndim(self) -> int:
        """The number of axes, one more than the image has."""
        return len(self.patch_shape) + 1

    @property
    def positions(self) -> NDArray[np.intp]:
        """The first pixel of each patch: an array ``(N, d)``, computed at every access."""
        return np.stack(self.grid.corners(np.arange(len(self))), axis=-1)

    def blocks(self, size: int) -> Iterator[NDArray[Any]]:
        """Iterate over the patches in blocks.

        Parameters
        ----------
        size : int
            Patches per block; the last block may have fewer.

        Yields
        ------
        array of shape (size, m_1, …, m_d)
            Consecutive patches.

        Examples
        --------
        >>> import numpy as np
        >>> import kronlearn as kl
        >>> patches = kl.images.extract_patches(np.zeros((10, 10)), 8)
        >>> [len(block) for block in patches.blocks(5)]
        [5, 4]
        """
        step = operator.index(size)
        if step < 1:
            raise ValueError(f"size={size} is not a number of patches; pass at least 1.")
        for start in range(0, len(self), step):
            yield self[start : start + step]

    def as_source(self) -> Source:
        """Return the patches as a source of samples.

        Returns
        -------
        Source
            The form in which ``fit`` and ``sparse_code`` read samples.

        Examples
        --------
        >>> import numpy as np
        >>> import kronlearn as kl
        >>> patches = kl.images.extract_patches(np.zeros((10, 10)), 8)
        >>> patches.as_source().read(0, 2).shape
        (2, 64)
        """
        return _PatchSource(self)

    def __len__(self) -> int:
        return len(self.grid)

    def __getitem__(self, index: Any) -> NDArray[Any]:
        if isinstance(index, slice):
            numbers = np.arange(*index.indices(len(self)))
        else:
            numbers = self._patch_numbers(index)
        patches = np.asarray(self.grid.cut(self.image, np.atleast_1d(numbers)))
        return patches if numbers.ndim else patches[0]

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("The patches are not in memory; an array of them is always a copy.")
        patches = np.asarray(self.grid.cut(self.image))
        return patches.astype(self.dtype if dtype is None else dtype, copy=False)

    def __repr__(self) -> str:
        return (
            f"Patches(shape={self.shape}, dtype={self.dtype.name}, "
            f"image_shape={self.image_shape}, stride={self.stride})"
        )

    def _patch_numbers(self, index: Any) -> NDArray[np.intp]:
        """Return the patches that an index selects, without negative numbers."""
        if isinstance(index, tuple):
            raise IndexError("Patches take one index, over the patches; index the result further.")
        numbers = np.asarray(index)
        if numbers.dtype == bool and numbers.shape == (len(self),):
            return np.flatnonzero(numbers)
        if numbers.size == 0:
            numbers = numbers.astype(np.intp)
        if numbers.dtype.kind not in "iu" or numbers.ndim > 1:
            raise IndexError(
                "Patches are chosen by an integer, a slice, a list of integers or a boolean mask "
                f"({len(self)},)."
            )
        outside = (numbers < -len(self)) | (numbers >= len(self))
        if outside.any():
            raise IndexError(
                f"Patch {numbers[outside].flat[0]} does not exist; there are {len(self)} patches."
            )
        return np.where(numbers < 0, numbers + len(self), numbers).astype(np.intp)


class _PatchSource(Source):
    """Patches as floats, of which a block is in memory at a time."""

    name = "image"

    def __init__(self, patches: Patches) -> None:
        self.patches = patches
        self.patch_shape, self.dtype = patches.patch_shape, sample_dtype(patches.dtype)

    def __len__(self) -> int:
        return len(self.patches)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return consecutive patches, flattened."""
        return self.take(np.arange(start, stop))

    def take(self, rows: NDArray[np.intp]) -> NDArray[Any]:
        """Return the patches ``rows``, flattened."""
        cut = self.patches.grid.cut(self.patches.image, rows)
        return np.ascontiguousarray(cut, self.dtype).reshape(-1, self.n_features)

    def step(self, multiple_of: int) -> int:
        """Return the size of a block: small, because cutting patches out costs next to nothing."""
        return -(-_block_size(self.patch_shape) // multiple_of) * multiple_of


@overload
def extract_patches(
    image: ArrayLike,
    patch_shape: int | tuple[int, ...],
    stride: int | tuple[int, ...] = 1,
    *,
    remove_means: Literal[False] = False,
) -> Patches: ...
@overload
def extract_patches(
    image: ArrayLike,
    patch_shape: int | tuple[int, ...],
    stride: int | tuple[int, ...] = 1,
    *,
    remove_means: Literal[True],
) -> tuple[Patches, NDArray[Any]]: ...
def extract_patches(
    image: ArrayLike,
    patch_shape: int | tuple[int, ...],
    stride: int | tuple[int, ...] = 1,
    *,
    remove_means: bool = False,
) -> Patches | tuple[Patches, NDArray[Any]]:
    """Take the patches out of an image.

    Patches start at 0, stride, 2·stride, … along every axis; where the stride misses the border,
    one more patch ends there. So every pixel is in a patch, unless a stride is larger than the
    patch. Nothing is copied until patches are read.

    Parameters
    ----------
    image : array of shape (s_1, …, s_d)
        An image of any real dtype; NaN is allowed. Patches show later changes to it.
    patch_shape : int or tuple of int
        One size per axis of the image, including colour channels: ``(8, 8, 3)`` for patches of an
        RGB image. A single number applies to every axis.
    stride : int or tuple of int, default 1
        Distance between patches, for all axes or one each.
    remove_means : bool, default False
        Subtract its mean from each patch, in float32 for float32 images and in float64 for others.

    Returns
    -------
    Patches
        All patches in C order of their positions, cut out on demand.
    means : array of shape (N,)
        The means of the patches, only with ``remove_means=True``.

    Examples
    --------
    >>> import numpy as np
    >>> import kronlearn as kl
    >>> image = np.random.default_rng(0).normal(size=(100, 90))
    >>> patches = kl.images.extract_patches(image, (8, 8), stride=3)
    >>> patches.shape
    (928, 8, 8)
    >>> np.array_equal(kl.images.reconstruct_from_patches(patches, image.shape, stride=3), image)
    True

    Learning reads them block by block:

    >>> model = kl.KroneckerDictionaryLearning((12, 12), max_iter=3, random_state=0)
    >>> model.fit(patches).patch_shape_
    (8, 8)
    """
    array = _real(image, "image")
    if array.ndim == 0 or array.size == 0:
        raise ValueError(
            f"image has shape {array.shape}; it needs at least one pixel along every axis."
        )
    sizes = sizes_per_axis("patch_shape", patch_shape, array.shape)
    steps = sizes_per_axis("stride", stride, array.shape)
    patches = Patches(array, PatchGrid(array.shape, sizes, steps))
    if not remove_means:
        return patches
    means = [means_of(block) for block in patches.blocks(_block_size(sizes))]
    return Patches(array, replace(patches.grid, remove_means=True)), np.concatenate(means)


def reconstruct_from_patches(
    patches: ArrayLike | Patches | Iterable[ArrayLike],
    image_shape: tuple[int, ...],
    stride: int | tuple[int, ...] = 1,
    *,
    means: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    dtype: DTypeLike | None = None,
) -> NDArray[Any]:
    """Make an image of patches: every pixel is the average of the patches that cover it.

    A pixel on which all patches agree gets exactly their value. Unchanged patches thus give back
    the image bit for bit, whether of integers of any size, floats, NaN or infinities. (With
    ``means``, floats are rounded once when a mean is subtracted and once when it is added.)

    Parameters
    ----------
    patches : array of shape (N, m_1, …, m_d), Patches, or iterable of such arrays
        All patches in the order of :func:`extract_patches`, or consecutive blocks of them of any
        size, of which only one is in memory at a time.
    image_shape : tuple of int
        The shape of the image.
    stride : int or tuple of int, default 1
        The stride with which the patches were extracted.
    means : array of shape (N,), optional
        Means to add to the patches.
    weights : array of shape (N,), optional
        A positive weight of each patch in the average.
    dtype : dtype, optional
        The dtype of the image; by default that of the patches (or of ``patches + means``). For
        integers, the average is rounded and clipped to their range.

    Returns
    -------
    array of shape image_shape
        The image.

    Examples
    --------
    Change the patches block by block:

    >>> import numpy as np
    >>> import kronlearn as kl
    >>> image = np.arange(600, dtype=np.uint16).reshape(20, 30)
    >>> patches, means = kl.images.extract_patches(image, 8, stride=4, remove_means=True)
    >>> halved = (block / 2 for block in patches.blocks(10))
    >>> options = {"means": means, "dtype": np.uint16}
    >>> result = kl.images.reconstruct_from_patches(halved, image.shape, 4, **options)
    >>> result[0, :4], image[0, :4]
    (array([54, 55, 55, 56], dtype=uint16), array([0, 1, 2, 3], dtype=uint16))
    """
    shape = _shape(image_shape)
    steps = sizes_per_axis("stride", stride, shape)
    blocks = _blocks_of(patches)
    first = next(blocks, None)
    if first is None or first.ndim != len(shape) + 1:
        problem = "is empty" if first is None else f"has shape {first.shape}"
        raise ValueError(
            f"patches {problem}; an image of shape {shape} needs an array (N, *patch_shape) with "
            f"{len(shape) + 1} axes, or blocks of it."
        )
    grid = PatchGrid(shape, first.shape[1:], steps)
    means = _one_per_patch(means, "means", len(grid))
    weights = _one_per_patch(weights, "weights", len(grid))
    if weights is not None and not (np.isfinite(weights) & (weights > 0)).all():
        raise ValueError("weights must be positive and finite, so that every pixel has an average.")
    average = OverlapAverage(grid, means, weights)
    for block in itertools.chain([first], blocks):
        average.add(block)
    return average.image(None if dtype is None else _real(np.empty(0, dtype), "dtype").dtype)


def _blocks_of(patches: Any) -> Iterator[NDArray[Any]]:
    """Iterate over checked arrays of consecutive patches."""
    if isinstance(patches, Patches):
        yield from patches.blocks(_block_size(patches.patch_shape))
    elif hasattr(patches, "__array__"):
        yield _real(patches, "patches")
    elif isinstance(patches, Iterable):
        for block in patches:
            yield _real(block, "patches")
    else:
        raise TypeError(
            f"patches is a {type(patches).__name__}; pass an array (N, *patch_shape), or blocks of "
            "it."
        )


def _block_size(patch_shape: tuple[int, ...]) -> int:
    return max(1, _BLOCK_NUMBERS // max(1, math.prod(patch_shape)))


def _real(values: Any, name: str) -> NDArray[Any]:
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise ValueError(f"{name} has dtype {array.dtype}; pass real numbers.")
    return array


def _shape(image_shape: tuple[int, ...]) -> tuple[int, ...]:
    try:
        shape = tuple(operator.index(size) for size in image_shape)
    except TypeError:
        raise TypeError(f"image_shape={image_shape!r} is not a tuple of integers.") from None
    if not shape or min(shape) < 1:
        raise ValueError(f"image_shape={shape} has no pixels; pass the shape of the whole image.")
    return shape


def _one_per_patch(values: ArrayLike | None, name: str, count: int) -> NDArray[Any] | None:
    if values is None:
        return None
    array = _real(values, name)
    if array.shape != (count,):
        raise ValueError(f"{name} has shape {array.shape}; pass one per patch, ({count},).")
    return array
