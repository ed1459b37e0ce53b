"""Images of any kind as planes of floats, and back."""

from __future__ import annotations

import numbers
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kronlearn.cuda.arrays import as_cupy, is_on_gpu, returned_as
from kronlearn.cuda.device import C_TYPES, Gpu
from kronlearn.cuda.memory import current_limit
from kronlearn.cuda.pixels import Contents, Pixels
from kronlearn.io.conversion import in_range

__all__ = [
    "Planes",
    "as_image",
    "contents_of",
    "contiguous",
    "image_array",
    "place_of",
    "returned",
]

# Pixels that are converted at a time, by the processor and by a GPU.
_BLOCK, _GPU_BLOCK = 1 << 16, 1 << 22
# Images of more numbers stay in the memory of the processor and are sent to a GPU part by part;
# bytes that it takes for a number of one that is not.
_MOST_ON_GPU = 1 << 24
_BYTES_ON_GPU = 64
# Bytes of the largest image that comes back from a GPU through memory that is kept for it.
_MOST_PINNED = 1 << 26


def image_array(image: ArrayLike, channel_axis: int | None, gpu: Gpu | None = None) -> NDArray[Any]:
    """The image as an array of real numbers (C, *spatial); a grey image has one channel.

    With a GPU it lies there, unless it is a large one in the memory of the processor, or one of a
    dtype that GPUs do not have (half or extended precision, another order of bytes).
    """
    if gpu is not None and is_on_gpu(image):
        return _channels(as_cupy(gpu.xp, image), channel_axis)
    if isinstance(image, np.ma.MaskedArray) and np.ma.is_masked(image):
        raise ValueError("image is a masked array; pass image.filled(0), and mask=image.mask.")
    if getattr(image, "requires_grad", False):
        image = image.detach()  # type: ignore[union-attr]
    channels = _channels(np.asarray(image), channel_axis)
    limit = current_limit()
    most = _MOST_ON_GPU if limit is None else min(_MOST_ON_GPU, limit // _BYTES_ON_GPU)
    if gpu is None or channels.size > most or channels.dtype not in C_TYPES:
        return channels
    return gpu.upload(channels)


def _channels(array: NDArray[Any], channel_axis: int | None) -> NDArray[Any]:
    if array.dtype.kind not in "fiu":
        hint = " (a boolean one as image.astype(float))" if array.dtype.kind == "b" else ""
        raise ValueError(f"image has dtype {array.dtype}; pass integers or floats{hint}.")
    axis_exists = channel_axis is None or (
        isinstance(channel_axis, numbers.Integral) and -array.ndim <= channel_axis < array.ndim
    )
    if not axis_exists:
        raise ValueError(
            f"channel_axis={channel_axis!r} does not exist in an image of shape {array.shape}."
        )
    if array.ndim < (1 if channel_axis is None else 2) or array.size == 0:
        raise ValueError(
            f"image has shape {array.shape}; there are no pixels in it, or no spatial axis."
        )
    looks_like_colours = array.ndim == 3 and array.shape[-1] in (3, 4) and min(array.shape[:2]) > 4
    if channel_axis is None and looks_like_colours:
        warnings.warn(
            f"image has shape {array.shape} and is taken for a volume; pass channel_axis=-1 if its "
            "last axis holds colours.",
            stacklevel=4,
        )
    return array[None] if channel_axis is None else np.moveaxis(array, channel_axis, 0)


def contents_of(channels: NDArray[Any], gpu: Gpu | None = None) -> list[Contents]:
    """What is in channels (C, *spatial), which must be finite."""
    if knows(channels):
        assert gpu is not None
        found = Pixels(gpu, contiguous(channels)).contents()
        if not all(contents.is_finite for contents in found):
            _check_finite(channels)
        return found
    _check_finite(channels)
    ends = ((float(channel.min()), float(channel.max())) for channel in channels)
    return [Contents(low, high, None) for low, high in ends]


def knows(channels: NDArray[Any]) -> bool:
    """Whether channels lie on a GPU and kernels know what kind of pixels they have."""
    return channels.dtype in C_TYPES and is_on_gpu(channels)


def _check_finite(channels: NDArray[Any]) -> None:
    for channel in channels:
        if not np.isfinite(channel).all():
            hint = (
                ", or fill in missing pixels with images.inpaint" if np.isnan(channel).any() else ""
            )
            raise ValueError(f"image contains NaN or infinity; pass finite numbers{hint}.")


def as_image(channels: NDArray[Any], channel_axis: int | None) -> NDArray[Any]:
    """Channels (C, *spatial) as an image with its channels where they belong."""
    if channel_axis is None:
        return channels[0]
    return contiguous(np.moveaxis(channels, 0, channel_axis))


def returned(given: Any, image: NDArray[Any], gpu: Gpu | None) -> Any:
    """An image where the one that was given is, and as an array of the same library there."""
    if gpu is not None and is_on_gpu(given) != is_on_gpu(image):
        image = gpu.upload(image) if is_on_gpu(given) else _downloaded(gpu, image)
    return returned_as(given, image)


def _downloaded(gpu: Gpu, image: Any) -> NDArray[Any]:
    """A copy in the memory of the processor."""
    allocate = getattr(getattr(gpu.xp, "cuda", None), "alloc_pinned_memory", None)
    if allocate is None or image.nbytes > _MOST_PINNED:
        return gpu.download(image)
    # On its way through memory that the GPU writes to at its full speed; CuPy keeps it for later.
    pinned = np.frombuffer(allocate(image.nbytes), image.dtype, image.size).reshape(image.shape)
    return np.array(image.get(out=pinned))


def place_of(array: NDArray[Any], gpu: Gpu | None) -> Any:
    """The functions for an array: those of NumPy, or of a GPU that it lies on."""
    return gpu.xp if gpu is not None and is_on_gpu(array) else np


def contiguous(array: NDArray[Any]) -> NDArray[Any]:
    """The array in C order, wherever it lies: itself or a copy."""
    return array if array.flags.c_contiguous else array.copy()


@dataclass
class Planes:
    """Channels, each in units of its noise, turned into planes that share hardly any signal.

    ``pixels`` is float32 (C, *spatial): ``(channel − mean) / scale`` of the channels ``which``, in
    the basis of their principal components, strongest first. Noise whose standard deviation is
    ``scale`` in each channel has standard deviation one in every plane.
    """

    pixels: NDArray[np.float32]
    which: Sequence[int]
    means: list[float]
    scales: Sequence[float]
    basis: NDArray[np.float64]
    #: What the pixels lie on; None if they are in the memory of the processor.
    gpu: Gpu | None = None

    @classmethod
    def from_channels(
        cls,
        channels: NDArray[Any],
        scales: Sequence[float],
        which: Sequence[int],
        known: NDArray[np.bool_] | None = None,
        gpu: Gpu | None = None,
        contents: Sequence[Contents] | None = None,
    ) -> Planes:
        """Planes of ``which`` channels of (C, *spatial), with one positive scale for each of those.

        Pixels that are not ``known`` (spatial) become zero; the others must be finite. Planes lie
        where the channels do, on ``gpu`` or not; all pixels of those on a GPU are known.
        ``contents`` are those of all channels, if they are at hand.
        """
        if gpu is not None and is_on_gpu(channels):
            if not knows(channels):
                channels, contents = channels.astype(np.float64), None
            pixels, means = _scaled_on(gpu, channels, scales, which, contents)
        else:
            gpu, (pixels, means) = None, _scaled(channels, scales, which, known)
        basis = np.eye(len(pixels))
        if len(pixels) > 1:
            basis = _principal_components(pixels, gpu)
            _rotate(pixels, basis.T, gpu)
        return cls(pixels, which, means, scales, basis, gpu)

    def project(self, channels: NDArray[np.float32]) -> NDArray[np.float32]:
        """Other channels (C, *spatial) as planes of the same means, scales and basis."""
        parts = zip(self.which, self.means, self.scales, strict=True)
        pixels = np.stack([(channels[k] - mean) / scale for k, mean, scale in parts])
        pixels = pixels.astype(np.float32, copy=False)
        if len(pixels) > 1:
            _rotate(pixels, self.basis.T, self.gpu)
        return pixels

    def restore(
        self,
        pixels: NDArray[np.float32],
        channels: NDArray[Any],
        where: NDArray[np.bool_] | None = None,
    ) -> None:
        """Write planes, which are used up, into the channels (C, *spatial) they came from.

        Integers are rounded and kept in range. Only pixels ``where`` (spatial) are written; of
        planes on a GPU, all.
        """
        if len(pixels) > 1:
            _rotate(pixels, self.basis, self.gpu)
        if self.gpu is not None and knows(channels) and channels.flags.c_contiguous:
            target, parts = Pixels(self.gpu, channels), zip(pixels, self.which, strict=True)
            for (plane, k), mean, scale in zip(parts, self.means, self.scales, strict=True):
                target.from_plane(k, mean, scale, plane)
            return
        for plane, k, mean, scale in zip(pixels, self.which, self.means, self.scales, strict=True):
            if self.gpu is not None:
                channels[k] = in_range(plane.astype(np.float64) * scale + mean, channels.dtype)
                continue
            chosen = np.broadcast_to(np.True_, plane.shape) if where is None else where
            arrays = [plane, chosen, channels[k]]
            for values, written, out in _blocks(arrays, [np.float64, np.bool_, channels.dtype]):
                out[written] = in_range(values * scale + mean, channels.dtype)[written]


def _scaled(
    channels: NDArray[Any],
    scales: Sequence[float],
    which: Sequence[int],
    known: NDArray[np.bool_] | None,
) -> tuple[NDArray[np.float32], list[float]]:
    """Channels without their means, in units of their scales, and the means."""
    pixels = np.empty((len(which), *channels.shape[1:]), np.float32)
    means = []
    for plane, k, scale in zip(pixels, which, scales, strict=True):
        counted = True if known is None else known
        means.append(float(np.mean(channels[k], dtype=np.float64, where=counted)))
        with np.errstate(over="ignore", invalid="ignore"):
            for values, out in _blocks([channels[k], plane], [np.float64, np.float32]):
                out[...] = (values - means[-1]) / scale
        if known is not None:
            plane[~known] = 0
    return pixels, means


def _scaled_on(
    gpu: Gpu,
    channels: NDArray[Any],
    scales: Sequence[float],
    which: Sequence[int],
    contents: Sequence[Contents] | None,
) -> tuple[NDArray[np.float32], list[float]]:
    """The same by kernels of a GPU, which know what kind of pixels these are."""
    source = Pixels(gpu, contiguous(channels))
    found = source.contents() if contents is None else contents
    means = [float(found[k].mean) for k in which]  # type: ignore[arg-type]
    pixels = gpu.xp.empty((len(which), *channels.shape[1:]), np.float32)
    for plane, k, mean, scale in zip(pixels, which, means, scales, strict=True):
        source.to_plane(k, mean, scale, plane)
    return pixels, means


def _blocks(arrays: list[NDArray[Any]], dtypes: list[Any]) -> Iterator[tuple[NDArray[Any], ...]]:
    """Blocks of arrays of one shape, converted to dtypes; the last array is written to."""
    access: list[Any] = [["readonly"]] * (len(arrays) - 1) + [["readwrite"]]
    with np.nditer(
        arrays,
        ["external_loop", "buffered", "zerosize_ok"],
        access,
        dtypes,
        order="C",
        casting="unsafe",
        buffersize=_BLOCK,
    ) as blocks:
        yield from blocks


def _principal_components(pixels: NDArray[np.float32], gpu: Gpu | None) -> NDArray[np.float64]:
    """An orthonormal basis (C, C) in which the planes are uncorrelated, strongest first."""
    flat, step = pixels.reshape(len(pixels), -1), _BLOCK if gpu is None else _GPU_BLOCK
    covariance = place_of(pixels, gpu).zeros((len(flat), len(flat)))
    for start in range(0, flat.shape[1], step):
        block = flat[:, start : start + step].astype(np.float64)
        # Not a BLAS product: its rounding depends on the number of threads.
        covariance += np.einsum("ip,jp->ij", block, block)
    if gpu is not None:
        covariance = gpu.download(covariance)
    vectors = np.linalg.eigh(covariance)[1][:, ::-1]
    signs = np.sign(vectors[np.abs(vectors).argmax(axis=0), range(len(flat))])
    return np.asarray(vectors * signs)


def _rotate(pixels: NDArray[np.float32], matrix: NDArray[np.float64], gpu: Gpu | None) -> None:
    """pixels (C, …) becomes matrix · pixels, a block at a time."""
    flat, step = pixels.reshape(len(pixels), -1), _BLOCK if gpu is None else _GPU_BLOCK
    rotation = place_of(pixels, gpu).asarray(matrix.astype(np.float32))
    for start in range(0, flat.shape[1], step):
        block = flat[:, start : start + step]
        flat[:, start : start + step] = np.einsum("ij,jp->ip", rotation, block)
