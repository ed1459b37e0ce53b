"""Convert images of any kind to float planes in units of the noise, and back."""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kronlearn.cuda.arrays import as_cupy, is_on_gpu, returned_as
from kronlearn.cuda.device import C_TYPES, Gpu
from kronlearn.cuda.memory import current_limit
from kronlearn.cuda.pixels import Contents, Pixels
from kronlearn.images.caller import warn_caller
from kronlearn.io.conversion import in_range

__all__ = [
    "Float32",
    "Mask",
    "Planes",
    "array_module",
    "contents_of",
    "contiguous",
    "from_channels",
    "like_input",
    "to_channels",
    "warn_of_colours",
]

Float32 = NDArray[np.float32]
Mask = NDArray[np.bool_]

# Signals of one dimension rarely have more channels than this: they may be rows of a grey image.
_MANY_CHANNELS = 16
# Pixels converted at a time, by the processor and by a GPU.
_BLOCK, _GPU_BLOCK = 1 << 16, 1 << 22
# Images with more pixels than this stay in host memory and are sent to the GPU part by part;
# those on the GPU take about this many bytes of working memory per pixel.
_MAX_PIXELS_ON_GPU = 1 << 24
_GPU_BYTES_PER_PIXEL = 64
# Larger images (in bytes) are not downloaded through pinned memory, which CuPy keeps.
_MAX_PINNED = 1 << 26


def to_channels(image: ArrayLike, channel_axis: int | None, gpu: Gpu | None = None) -> NDArray[Any]:
    """Return an image as an array of real numbers (C, *spatial); a grey image has one channel.

    With a GPU the array is placed there, unless the image is a large one in host memory or has a
    dtype that kernels do not support (half or extended precision, swapped byte order).
    """
    if gpu is not None and is_on_gpu(image):
        return _channels(as_cupy(gpu.xp, image), channel_axis)
    if isinstance(image, np.ma.MaskedArray) and np.ma.is_masked(image):
        raise ValueError(
            "image is a masked array; pass image.filled(0), and mask=np.ma.getmaskarray(image)."
        )
    if isinstance(image, str | PathLike):
        raise ValueError(f"image is the path {str(image)!r}; read it first (skimage.io.imread).")
    if getattr(image, "requires_grad", False):
        image = image.detach()  # type: ignore[union-attr]
    channels = _channels(np.asarray(image), channel_axis)
    limit = current_limit()
    max_pixels = _MAX_PIXELS_ON_GPU
    if limit is not None:
        max_pixels = min(max_pixels, limit // _GPU_BYTES_PER_PIXEL)
    if gpu is None or channels.size > max_pixels or channels.dtype not in C_TYPES:
        return channels
    return gpu.upload(channels)


def _channels(array: NDArray[Any], channel_axis: int | None) -> NDArray[Any]:
    """Check an image and move its channel axis to the front, or add one."""
    if array.dtype.kind not in "fiu":
        hint = " (a boolean one as image.astype(float))" if array.dtype.kind == "b" else ""
        raise ValueError(f"image has dtype {array.dtype}; pass integers or floats{hint}.")
    axis_exists = channel_axis is None or (
        isinstance(channel_axis, numbers.Integral)
        and not isinstance(channel_axis, bool)
        and -array.ndim <= channel_axis < array.ndim
    )
    if not axis_exists:
        raise ValueError(
            f"channel_axis={channel_axis!r} does not exist in an image of shape {array.shape}."
        )
    if array.ndim < (1 if channel_axis is None else 2) or array.size == 0:
        raise ValueError(f"image has shape {array.shape}; it has no pixels or no spatial axis.")
    if channel_axis is None:
        warn_of_colours(array.shape)
        return array[None]
    if array.ndim == 2 and min(array.shape) > _MANY_CHANNELS:
        n_channels = array.shape[channel_axis]
        warn_caller(
            f"image has shape {array.shape} and is taken for signals of one dimension in "
            f"{n_channels} channels; leave channel_axis out if it is a grey image."
        )
    return np.moveaxis(array, channel_axis, 0)


def warn_of_colours(shape: tuple[int, ...]) -> None:
    """Warn if an image of this shape without a channel axis looks like one with colours."""
    if len(shape) == 3 and shape[-1] in (3, 4) and min(shape[:2]) > 4:
        warn_caller(
            f"image has shape {shape} and is taken for a volume; pass channel_axis=-1 if its last "
            "axis holds colours."
        )


def contents_of(channels: NDArray[Any], gpu: Gpu | None = None) -> list[Contents]:
    """Return the range (and, of channels on a GPU, the mean) of each channel of (C, *spatial).

    Raises ValueError unless all pixels are finite.
    """
    if has_kernels(channels):
        assert gpu is not None
        contents = Pixels(gpu, contiguous(channels)).contents()
        if not all(channel.is_finite for channel in contents):
            _check_finite(channels)
        return contents
    _check_finite(channels)
    ranges = ((float(channel.min()), float(channel.max())) for channel in channels)
    return [Contents(low, high, None) for low, high in ranges]


def has_kernels(channels: NDArray[Any]) -> bool:
    """Whether channels lie on a GPU and have a dtype that its kernels support."""
    return channels.dtype in C_TYPES and is_on_gpu(channels)


def _check_finite(channels: NDArray[Any]) -> None:
    for channel in channels:
        if not np.isfinite(channel).all():
            hint = ""
            if np.isnan(channel).any():
                hint = (
                    "; if NaN marks missing pixels, pass mask=np.isnan(image) to images.denoise, "
                    "or fill in missing pixels with images.inpaint"
                )
            raise ValueError(f"image contains NaN or infinity; pass finite numbers{hint}.")


def from_channels(channels: NDArray[Any], channel_axis: int | None) -> NDArray[Any]:
    """Return channels (C, *spatial) as an image with its channel axis in the original place."""
    if channel_axis is None:
        return channels[0]
    return contiguous(np.moveaxis(channels, 0, channel_axis))


def like_input(image: Any, result: NDArray[Any], gpu: Gpu | None) -> Any:
    """Move a result to where the input image is, as an array of the input's library."""
    if gpu is not None and is_on_gpu(image) != is_on_gpu(result):
        result = gpu.upload(result) if is_on_gpu(image) else _downloaded(gpu, result)
    return returned_as(image, result)


def _downloaded(gpu: Gpu, image: Any) -> NDArray[Any]:
    """Copy an image to host memory."""
    allocate = getattr(getattr(gpu.xp, "cuda", None), "alloc_pinned_memory", None)
    if allocate is None or image.nbytes > _MAX_PINNED:
        return gpu.download(image)
    # A GPU writes to pinned memory at its full speed; CuPy keeps that memory for the next image.
    pinned = np.frombuffer(allocate(image.nbytes), image.dtype, image.size).reshape(image.shape)
    return np.array(image.get(out=pinned))


def array_module(array: NDArray[Any], gpu: Gpu | None) -> Any:
    """Return the module of functions for an array: NumPy, or that of the GPU it lies on."""
    return gpu.xp if gpu is not None and is_on_gpu(array) else np


def contiguous(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array (of NumPy or of a GPU) in C order: itself or a copy."""
    return array if array.flags.c_contiguous else array.copy()


@dataclass
class Planes:
    """Channels in units of their noise, decorrelated into planes.

    ``pixels`` is float32 (C, *spatial): the channels ``indices`` of an image, each as
    ``(channel − mean) / scale``, in the basis (C, C) of their principal components, strongest
    first. Independent noise of standard deviation ``scale`` in every channel has standard deviation
    one in every plane.
    """

    pixels: Float32
    indices: Sequence[int]
    means: list[float]
    scales: Sequence[float]
    basis: NDArray[np.float64]
    #: The GPU that holds the pixels; None if they are in host memory.
    gpu: Gpu | None = None

    @classmethod
    def from_channels(
        cls,
        channels: NDArray[Any],
        scales: Sequence[float],
        indices: Sequence[int],
        known: Mask | None = None,
        gpu: Gpu | None = None,
        contents: Sequence[Contents] | None = None,
    ) -> Planes:
        """Make planes of the channels ``indices`` of (C, *spatial), each with a positive scale.

        Pixels that are not ``known`` (spatial) become zero; the others must be finite. Planes of
        channels on ``gpu`` lie there, too; all pixels of such channels are known. ``contents``,
        those of all channels, saves computing them again.
        """
        if gpu is not None and is_on_gpu(channels):
            if not has_kernels(channels):
                channels, contents = channels.astype(np.float64), None
            pixels, means = _scaled_on_gpu(gpu, channels, scales, indices, contents)
        else:
            gpu, (pixels, means) = None, _scaled(channels, scales, indices, known)
        basis = np.eye(len(pixels))
        if len(pixels) > 1:
            basis = _principal_components(pixels, gpu)
            _rotate(pixels, basis.T, gpu)
        return cls(pixels, indices, means, scales, basis, gpu)

    def rescale(self, deviations: Sequence[float]) -> None:
        """Divide planes by the standard deviations of their noise, which are not zero."""
        for plane, deviation in zip(self.pixels, deviations, strict=True):
            plane /= np.float32(deviation)
        self.basis = self.basis * deviations

    def project(self, channels: Float32) -> Float32:
        """Return other channels (C, *spatial) as planes with the same means, scales and basis."""
        columns = zip(self.indices, self.means, self.scales, strict=True)
        pixels = np.stack([(channels[k] - mean) / scale for k, mean, scale in columns])
        pixels = pixels.astype(np.float32, copy=False)
        if len(pixels) > 1:
            _rotate(pixels, self.basis.T, self.gpu)
        return pixels

    def restore(self, pixels: Float32, channels: NDArray[Any], where: Mask | None = None) -> None:
        """Write processed planes, which are overwritten, back to their channels of (C, *spatial).

        Integers are rounded and clipped to their range. In host memory only the pixels ``where``
        (spatial) are written, by default all; on a GPU all are.
        """
        if len(pixels) > 1:
            _rotate(pixels, self.basis, self.gpu)
        rows = zip(pixels, self.indices, self.means, self.scales, strict=True)
        if self.gpu is not None and has_kernels(channels) and channels.flags.c_contiguous:
            target = Pixels(self.gpu, channels)
            for plane, k, mean, scale in rows:
                target.from_plane(k, mean, scale, plane)
            return
        for plane, k, mean, scale in rows:
            if self.gpu is not None:
                channels[k] = in_range(plane.astype(np.float64) * scale + mean, channels.dtype)
                continue
            mask = np.broadcast_to(np.True_, plane.shape) if where is None else where
            arrays = [plane, mask, channels[k]]
            for values, written, out in _blocks(arrays, [np.float64, np.bool_, channels.dtype]):
                out[written] = in_range(values * scale + mean, channels.dtype)[written]


def _scaled(
    channels: NDArray[Any],
    scales: Sequence[float],
    indices: Sequence[int],
    known: Mask | None,
) -> tuple[Float32, list[float]]:
    """Return channels without their means, in units of their scales, and the means."""
    pixels = np.empty((len(indices), *channels.shape[1:]), np.float32)
    means = []
    where = True if known is None else known
    for plane, k, scale in zip(pixels, indices, scales, strict=True):
        means.append(float(np.mean(channels[k], dtype=np.float64, where=where)))
        with np.errstate(over="ignore", invalid="ignore"):
            for values, out in _blocks([channels[k], plane], [np.float64, np.float32]):
                out[...] = (values - means[-1]) / scale
        if known is not None:
            plane[~known] = 0
    return pixels, means


def _scaled_on_gpu(
    gpu: Gpu,
    channels: NDArray[Any],
    scales: Sequence[float],
    indices: Sequence[int],
    contents: Sequence[Contents] | None,
) -> tuple[Float32, list[float]]:
    """Do what :func:`_scaled` does, by kernels of a GPU."""
    source = Pixels(gpu, contiguous(channels))
    contents = source.contents() if contents is None else contents
    means = [float(contents[k].mean) for k in indices]  # type: ignore[arg-type]
    pixels = gpu.xp.empty((len(indices), *channels.shape[1:]), np.float32)
    for plane, k, mean, scale in zip(pixels, indices, means, scales, strict=True):
        source.to_plane(k, mean, scale, plane)
    return pixels, means


def _blocks(arrays: list[NDArray[Any]], dtypes: list[Any]) -> Iterator[tuple[NDArray[Any], ...]]:
    """Iterate over blocks of equally shaped arrays, converted to dtypes; the last is writable."""
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


def _principal_components(pixels: Float32, gpu: Gpu | None) -> NDArray[np.float64]:
    """Return an orthonormal basis (C, C) in which planes are uncorrelated, strongest first."""
    flat, step = pixels.reshape(len(pixels), -1), _BLOCK if gpu is None else _GPU_BLOCK
    covariance = array_module(pixels, gpu).zeros((len(flat), len(flat)))
    for start in range(0, flat.shape[1], step):
        block = flat[:, start : start + step].astype(np.float64)
        # Not a BLAS product, whose rounding depends on the number of threads.
        covariance += np.einsum("ip,jp->ij", block, block)
    if gpu is not None:
        covariance = gpu.download(covariance)
    vectors = np.linalg.eigh(covariance)[1][:, ::-1]
    signs = np.sign(vectors[np.abs(vectors).argmax(axis=0), range(len(flat))])
    return np.asarray(vectors * signs)


def _rotate(pixels: Float32, matrix: NDArray[np.float64], gpu: Gpu | None) -> None:
    """Replace pixels (C, …) by matrix · pixels, block by block."""
    flat, step = pixels.reshape(len(pixels), -1), _BLOCK if gpu is None else _GPU_BLOCK
    rotation = array_module(pixels, gpu).asarray(matrix.astype(np.float32))
    for start in range(0, flat.shape[1], step):
        block = flat[:, start : start + step]
        flat[:, start : start + step] = np.einsum("ij,jp->ip", rotation, block)
