"""Images coded to compact files by coefficients in a separable dictionary, and decoded."""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kronlearn.core.dictionary import Dictionary, KroneckerDictionary
from kronlearn.engines.workers import Workers
from kronlearn.images.coded_file import (
    MAX_ATOMS,
    MAX_AXES,
    MAX_CHANNELS,
    MAX_FEATURES,
    MAX_PATCH,
    MAX_REDUNDANCY,
    CodedImageError,
    Header,
    pack,
)
from kronlearn.images.coded_image import MAX_VALUES, CodedImage
from kronlearn.images.dictionaries import sizes_per_axis
from kronlearn.images.encoding import (
    Found,
    Target,
    encoded,
    learned_dictionary,
    search,
)
from kronlearn.images.planes import image_array, in_memory
from kronlearn.images.stages import Progress, Stages
from kronlearn.images.stored_dictionary import StoredDictionary, stored_size
from kronlearn.images.value_range import ValueRange

__all__ = ["CodedImage", "CodedImageError", "code", "decode"]

# A learned dictionary saves a few per cent of a file: it is tried where that may pay for it.
_WORTH_LEARNING = 20


def code(
    image: ArrayLike,
    psnr: float = 36.0,
    *,
    channel_axis: int | None = None,
    data_range: float | None = None,
    dictionary: Dictionary | Iterable[ArrayLike] | None = None,
    patch_size: int | tuple[int, ...] = 8,
    n_atoms: int | tuple[int, ...] | None = None,
    random_state: Any = 0,
    n_jobs: int | None = None,
    device: str = "cpu",
    progress: Progress | None = None,
) -> CodedImage:
    """Code an image so that it decodes with a given quality, in as few bytes as that takes.

    The image is cut into patches. Their means are coded from coarse to fine; what is left of the
    patches is transformed by a separable dictionary and quantised, and the integers are coded with
    adaptive contexts. The step of quantisation is searched for the quality asked for.

    Parameters
    ----------
    image : array of shape (s_1, …, s_d), or with one more axis of channels
        Integers or floats, finite.
    psnr : float
        The peak signal-to-noise ratio that the decoded image is to have at least, in dB; it will
        have at most 0.05 more where the dtype allows it.
    channel_axis : int, optional
        The axis of the channels; None: a grey image, or a volume.
    data_range : float, optional
        The peak that ``psnr`` is relative to. By default 255 for 8-bit integers, for longer ones
        without sign the largest number of as many bits as are used (4095 for 12-bit data), and for
        others the largest minus the smallest pixel.
    dictionary : KroneckerDictionary or list of factors, optional
        Factors for patches of their own size, stored in the file with 8 bits for every entry.
        Without it orthonormal factors are learned from the image, or cosines are used, whichever
        gives the smaller file.
    patch_size : int or tuple of int
        Pixels of a patch along every spatial axis, at most 64, if no dictionary is given.
    n_atoms : int or tuple of int, optional
        Learn a general dictionary with so many atoms per mode instead. Its codes are sparser and
        yet take more bytes: which atoms they use costs more than they save.
    random_state : int, RandomState or None
        Seeds the start of learning.
    n_jobs : int or None
        Threads for learning and sparse coding. The file has the same bits for any number.
    device : {"cpu", "cuda"}
        "cuda" learns, and codes with general dictionaries, on an NVIDIA GPU
        (``pip install 'kronlearn[cuda]'``).
    progress : callable, optional
        Called as ``progress(stage, share)`` with "search", "learn" and "code".

    Returns
    -------
    CodedImage

    Examples
    --------
    >>> from skimage.data import camera
    >>> from kronlearn.images.compression import code, decode
    >>> coded = code(camera(), psnr=32)
    >>> 32 <= coded.psnr < 32.05, coded.bits_per_pixel < 0.4
    (True, True)
    >>> decode(coded.to_bytes()).shape
    (512, 512)
    """
    workers = Workers.of(n_jobs, device)
    image = in_memory(image, workers.gpu)
    pixels = image_array(image, channel_axis)
    if pixels.dtype.itemsize > 8 or np.ndim(image) > MAX_AXES or len(pixels) > MAX_CHANNELS:
        raise ValueError(
            f"image has dtype {pixels.dtype}, {np.ndim(image)} axes and {len(pixels)} channels; "
            f"files hold integers and floats of up to 64 bits, with up to {MAX_AXES} axes and "
            f"{MAX_CHANNELS} channels (more are a volume, with channel_axis=None)."
        )
    spatial = pixels.shape[1:]
    chosen = None if dictionary is None else _separable(dictionary)
    atoms = None if n_atoms is None else sizes_per_axis("n_atoms", n_atoms, spatial)
    if chosen is None:
        patch_shape = sizes_per_axis("patch_size", patch_size, spatial)
        _check_sizes(patch_shape, atoms or patch_shape, spatial)
    else:
        if atoms is not None:
            raise ValueError("Both dictionary and n_atoms are given; pass one of them.")
        patch_shape = chosen.patch_shape
        _check_sizes(patch_shape, chosen.n_atoms, spatial)
    values = ValueRange.of(pixels)
    axis = None if channel_axis is None else channel_axis % np.ndim(image)
    header = Header(np.shape(image), axis, values, patch_shape, patch_shape)
    quality = _checked_psnr(psnr), _checked_peak(data_range, values)
    stages = Stages(progress)
    if values.span == 0:
        return CodedImage(pack(header, b""))
    target = Target.of(pixels, values, patch_shape, *quality, workers.n_threads, workers.device)
    return CodedImage(_smallest(header, target, chosen, atoms, random_state, stages))


def decode(
    source: CodedImage | bytes | str | os.PathLike[str], *, max_values: int = MAX_VALUES
) -> NDArray[Any]:
    """The image in a file, in its bytes, or in a :class:`CodedImage`.

    Parameters
    ----------
    source : CodedImage, bytes, str or path
    max_values : int
        As in :meth:`CodedImage.decode`.

    Returns
    -------
    array
        Of the shape and dtype of the image that was coded.

    Raises
    ------
    CodedImageError
        If the file is damaged, not a coded image, or too large. A kind of ``ValueError``.

    Examples
    --------
    >>> import numpy as np
    >>> from kronlearn.images.compression import code, decode
    >>> image = np.linspace(0, 1, 300, dtype=np.float32).reshape(15, 20)
    >>> bool(np.abs(decode(code(image, psnr=50)) - image).max() < 0.02)
    True
    """
    if isinstance(source, CodedImage):
        return source.decode(max_values=max_values)
    if isinstance(source, bytes | bytearray | memoryview):
        return CodedImage(bytes(source)).decode(max_values=max_values)
    if not isinstance(source, str | os.PathLike):
        raise TypeError(
            f"source is a {type(source).__name__}; pass a CodedImage, its bytes or a file's name."
        )
    coded = CodedImage.load(source)
    try:
        return coded.decode(max_values=max_values)
    except CodedImageError as problem:
        raise problem.of(os.fspath(source)) from None


def _smallest(
    header: Header,
    target: Target,
    dictionary: KroneckerDictionary | None,
    n_atoms: tuple[int, ...] | None,
    random_state: Any,
    stages: Stages,
) -> bytes:
    """The bytes of the file: with the dictionary asked for, or the smaller of two."""
    if dictionary is not None:
        with stages.stage("search") as tell:
            found = search(target, StoredDictionary.of(dictionary), on_share=tell)
        return _file(header, found, stages)
    with stages.stage("search") as tell:
        found = search(target, StoredDictionary.cosines(header.patch_shape), on_share=tell)
    content = b""
    if n_atoms is None:
        content = _file(header, found, stages)
        size = stored_size("orthonormal", header.patch_shape, header.patch_shape)
        if len(content) < _WORTH_LEARNING * size:
            return content
    with stages.stage("learn") as tell:
        learned = learned_dictionary(target, found.quantised.step, n_atoms, random_state, tell)
    with stages.stage("search") as tell:
        found = search(target, learned, found.quantised.step, tell)
    other = _file(header, found, stages)
    return content if content and len(content) <= len(other) else other


def _file(header: Header, found: Found, stages: Stages) -> bytes:
    with stages.stage("code"):
        return pack(*encoded(header, found))


def _separable(dictionary: Dictionary | Iterable[ArrayLike]) -> KroneckerDictionary:
    """The dictionary given, if its factors can be stored."""
    if not isinstance(dictionary, Dictionary):
        return KroneckerDictionary(dictionary)
    if dictionary.n_terms > 1:
        raise ValueError(
            f"dictionary is a sum of {dictionary.n_terms} Kronecker products; files hold the "
            "factors of a single one, pass a KroneckerDictionary."
        )
    return KroneckerDictionary(dictionary.coding_factors)


def _check_sizes(
    patch_shape: tuple[int, ...], n_atoms: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    """Raise unless patches suit the image and the limits of files."""
    if len(patch_shape) != len(shape):
        raise ValueError(
            f"dictionary is for patches of shape {patch_shape}; the image has {len(shape)} spatial "
            "axes (say which axis holds channels with channel_axis)."
        )
    features = math.prod(patch_shape)
    if max(patch_shape) > MAX_PATCH or features > MAX_FEATURES:
        raise ValueError(
            f"Patches of shape {patch_shape} are too large for a file; at most {MAX_PATCH} pixels "
            f"along an axis and {MAX_FEATURES} in all are possible."
        )
    if max(n_atoms) > MAX_ATOMS or math.prod(n_atoms) > MAX_REDUNDANCY * features:
        raise ValueError(
            f"{n_atoms} atoms are too many for a file; at most {MAX_ATOMS} per mode and "
            f"{MAX_REDUNDANCY} times as many as a patch has pixels in all are possible."
        )


def _checked_psnr(psnr: float) -> float:
    if not isinstance(psnr, numbers.Real) or isinstance(psnr, bool):
        raise TypeError(f"psnr={psnr!r} is not a number; pass decibels, 36 for example.")
    if not 0 < psnr < math.inf:
        raise ValueError(f"psnr={psnr} is not a quality; pass a positive number of decibels.")
    return float(psnr)


def _checked_peak(data_range: float | None, values: ValueRange) -> float:
    if data_range is None:
        return values.peak
    if not isinstance(data_range, numbers.Real) or not 0 < data_range < math.inf:
        raise ValueError(f"data_range={data_range!r} is not a range; pass a positive number.")
    return float(data_range)
