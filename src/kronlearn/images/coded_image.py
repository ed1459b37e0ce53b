"""A coded image: its bytes, and what they say about it."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.images.coded_file import (
    MAX_FEATURES,
    MAX_REDUNDANCY,
    CodedImageError,
    read_content,
    unpack,
)
from kronlearn.images.encoding import decoded_pixels
from kronlearn.io.model_files import replace_file

__all__ = ["MAX_VALUES", "CodedImage"]

#: The pixels, times channels, that are decoded unless more is asked for.
MAX_VALUES = 1 << 27


class CodedImage:
    """An image as the bytes of a file, which :func:`code` makes and :func:`decode` reads.

    Parameters
    ----------
    content : bytes
        All bytes of a file. They are checked at once, but decoded only by :meth:`decode`.

    Attributes
    ----------
    shape, dtype, channel_axis
        Of the image.
    patch_shape, n_atoms : tuple of int
        Of the dictionary.
    dictionary_kind : {"cosine", "orthonormal", "general"}
        The factors of the last two are in the file.
    psnr : float
        Peak signal-to-noise ratio of the decoded image in dB; infinite if nothing was lost.

    Examples
    --------
    >>> import numpy as np
    >>> from kronlearn.images.compression import CodedImage, code
    >>> image = np.add.outer(np.arange(64), np.arange(80)).astype(np.uint8)
    >>> coded = code(image, psnr=45)
    >>> coded.shape, coded.n_bytes < image.nbytes / 10, coded.psnr >= 45
    ((64, 80), True, True)
    >>> np.array_equal(CodedImage(coded.to_bytes()).decode(), coded.decode())
    True
    """

    def __init__(self, content: bytes) -> None:
        self._content = bytes(content)
        self._header, self._stream = unpack(self._content)
        self.shape = self._header.shape
        self.dtype = self._header.values.dtype
        self.channel_axis = self._header.channel_axis
        self.patch_shape = self._header.patch_shape
        self.n_atoms = self._header.n_atoms
        self.dictionary_kind = self._header.kind
        self.psnr = self._header.psnr

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> CodedImage:
        """The coded image in a file.

        Parameters
        ----------
        path : str or path

        Raises
        ------
        CodedImageError
            If the file is not one, is damaged or of an unknown version. A kind of ``ValueError``.
        """
        try:
            return cls(read_content(path))
        except CodedImageError as problem:
            raise problem.of(os.fspath(path)) from None

    @property
    def n_bytes(self) -> int:
        """The size of the file."""
        return len(self._content)

    @property
    def bits_per_pixel(self) -> float:
        """Bits of the file for every pixel, its channels together."""
        return 8 * self.n_bytes / math.prod(self._header.layout.shape)

    @property
    def nonzeros_per_patch(self) -> float:
        """Coefficients other than zero for every patch, its channels together."""
        return self._header.nonzeros / self._header.layout.n_patches

    def to_bytes(self) -> bytes:
        """All bytes of the file."""
        return self._content

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the file, all of it or nothing.

        Parameters
        ----------
        path : str or path
            Any name; ``.kron`` is the custom.
        overwrite : bool
            Replace a file that exists.
        """
        if os.path.lexists(path) and not overwrite:
            raise FileExistsError(
                f"{os.fspath(path)} exists already; give another name, or overwrite=True."
            )
        replace_file(Path(os.path.realpath(path)), self._content)

    def decode(self, *, max_values: int = MAX_VALUES) -> NDArray[Any]:
        """The image, of its shape and dtype.

        Parameters
        ----------
        max_values : int
            The most pixels, times channels, that are decoded: a small file can announce a large
            image, and decoding takes about 60 bytes for each.
        """
        header = self._header
        needed = max(
            math.prod(self.shape),
            header.layout.n_channels * header.layout.n_patches * math.prod(self.n_atoms),
        )
        # Patches of images smaller than one, and redundant atoms, are no reason to refuse.
        if needed > max(max_values, 0) + MAX_FEATURES * MAX_REDUNDANCY:
            raise CodedImageError(
                f"announces an image of shape {self.shape} with {needed} numbers to decode, more "
                f"than max_values={max_values}; pass a larger number if you trust it"
            )
        pixels = decoded_pixels(header, self._stream)
        if self.channel_axis is None:
            return np.ascontiguousarray(pixels[0])
        return np.ascontiguousarray(np.moveaxis(pixels, 0, self.channel_axis))

    def __repr__(self) -> str:
        return (
            f"CodedImage(shape={self.shape}, dtype={self.dtype.name}, n_bytes={self.n_bytes}, "
            f"bits_per_pixel={self.bits_per_pixel:.3f}, psnr={self.psnr:.2f})"
        )
