"""From pixels to the stream of a coded image and back: search, dictionary, entropy coding."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.core.dictionary import KroneckerDictionary
from kronlearn.core.init import dct_factor
from kronlearn.estimators import KroneckerDictionaryLearning
from kronlearn.images.coded_file import (
    MAX_LANES,
    MAX_PER_LANE,
    CodedImageError,
    Header,
)
from kronlearn.images.entropy import MAX_MAGNITUDE, Decoder, Encoder, StreamError
from kronlearn.images.levels import code_levels, code_means
from kronlearn.images.stored_dictionary import StoredDictionary, stored_size
from kronlearn.images.transform import (
    Layout,
    Quantised,
    analyse,
    patches_to_code,
    residual_tolerance,
    synthesise,
)
from kronlearn.images.value_range import ValueRange, decibels

__all__ = ["Found", "Target", "decoded_pixels", "encoded", "learned_dictionary", "search"]

# How much better than asked for, in dB, is near enough; and the most steps that are tried.
_NEAR_ENOUGH = 0.02
_MAX_TRIALS = 30
# The most patches that a dictionary is learned from, and the iterations for that.
_MAX_SAMPLES = 1 << 15
_ITERATIONS = 20
# Every lane costs about a byte, and a file five bits for each nonzero: 0.3 % for speed.
_NONZEROS_PER_LANE = 512


@dataclass(frozen=True)
class Target:
    """An image and how well it is to be coded.

    ``pixels`` are its channels (C, *shape), ``planes`` the same as floats from 0 to 1 with cosines
    along the channels (for three: brightness and two differences of colours), which share
    little; ``psnr`` is relative to ``peak``.
    """

    pixels: NDArray[Any]
    planes: NDArray[np.float64]
    values: ValueRange
    layout: Layout
    psnr: float
    peak: float
    n_jobs: int
    device: str

    @classmethod
    def of(
        cls,
        pixels: NDArray[Any],
        values: ValueRange,
        patch_shape: tuple[int, ...],
        psnr: float,
        peak: float,
        n_jobs: int,
        device: str,
    ) -> Target:
        """A target for channels (C, *shape) that are not all of one value."""
        basis = dct_factor(len(pixels), len(pixels))
        # Not a BLAS product: its rounding depends on the number of threads.
        planes = np.einsum("ck,c...->k...", basis, values.normalised(pixels))
        layout = Layout(len(pixels), pixels.shape[1:], patch_shape)
        return cls(pixels, planes, values, layout, psnr, peak, n_jobs, device)

    def attempt(self, stored: StoredDictionary, step: float) -> Found:
        """The image coded with a step."""
        quantised = analyse(
            self.planes, self.layout, stored.dictionary, step, self.n_jobs, self.device
        )
        pixels = _pixels(quantised, self.layout, stored.dictionary, self.values)
        return Found(quantised, stored, decibels(pixels, self.pixels, self.peak))


@dataclass(frozen=True)
class Found:
    """An image in integers, the dictionary that they are for, and how good that is in dB."""

    quantised: Quantised
    stored: StoredDictionary
    psnr: float

    def in_order(self) -> Found:
        """The same with the columns of every factor by falling energy, which codes best."""
        levels = self.quantised.levels.reshape(-1, *self.stored.n_atoms)
        orders = []
        for axis in range(1, levels.ndim):
            others = tuple(other for other in range(levels.ndim) if other != axis)
            energy = np.square(levels, dtype=np.float64).sum(axis=others)
            orders.append(np.argsort(-energy, kind="stable"))
            levels = levels.take(orders[-1], axis=axis)
        quantised = replace(self.quantised, levels=levels.reshape(len(levels), -1))
        return Found(quantised, self.stored.in_order(orders), self.psnr)


def search(
    target: Target,
    stored: StoredDictionary,
    start: float | None = None,
    on_share: Callable[[float], None] | None = None,
) -> Found:
    """The coarsest quantisation found that is as good as asked for.

    The PSNR falls with the logarithm of the step, nearly on a line: the secant through the last
    two trials, kept between the best step that is good enough and the best that is not.
    """
    coarsest = target.layout.coarsest_step
    finest = 2 * coarsest / MAX_MAGNITUDE
    if start is None:
        start = math.sqrt(12) * target.peak / target.values.span * 10 ** (-target.psnr / 20)
    step = min(max(start, finest), coarsest)
    good: Found | None = None
    too_coarse = math.inf
    trials: list[tuple[float, float]] = []
    for trial in range(_MAX_TRIALS):
        found = target.attempt(stored, step)
        trials.append((math.log(step), found.psnr))
        if found.psnr < target.psnr:
            too_coarse = min(too_coarse, step)
        elif good is None or step > good.quantised.step:
            good = found
        if on_share is not None:
            on_share((trial + 1) / _MAX_TRIALS)
        fine = finest if good is None else good.quantised.step
        done = good is not None and good.psnr - target.psnr <= _NEAR_ENOUGH
        if done or fine >= min(too_coarse, coarsest) * 0.9999:
            break
        step = _next_step(trials, target.psnr, fine, min(too_coarse, coarsest))
    if good is None:
        raise ValueError(
            f"psnr={target.psnr:g} is out of reach: this image can be coded with "
            f"{max(psnr for _, psnr in trials):.1f} dB at most; ask for less."
        )
    return good


def _next_step(trials: list[tuple[float, float]], psnr: float, fine: float, coarse: float) -> float:
    """Where the PSNR should be a little above the target, strictly between two steps."""
    (x, y), slope = trials[-1], -20 / math.log(10)
    if len(trials) > 1:
        x0, y0 = trials[-2]
        steepness = (y - y0) / (x - x0)
        slope = steepness if 10 * slope < steepness < slope / 4 else slope
    step = math.exp(x + (psnr + _NEAR_ENOUGH / 2 - y) / slope) if math.isfinite(y) else math.inf
    # Where the line leads out of the interval, and now and then in any case, halve it.
    halve = not fine < step < coarse or len(trials) % 6 == 0
    return math.sqrt(fine * coarse) if halve else step


def learned_dictionary(
    target: Target,
    step: float,
    n_atoms: tuple[int, ...] | None,
    random_state: Any,
    on_share: Callable[[float], None] | None,
) -> StoredDictionary:
    """A dictionary learned from the patches as they are coded with a step.

    Orthonormal if ``n_atoms`` is None, else general with so many atoms.
    """
    samples = patches_to_code(target.planes, target.layout, step)[1].astype(np.float32)
    samples = samples[:: -(-len(samples) // _MAX_SAMPLES)]
    model = KroneckerDictionaryLearning(
        n_atoms or target.layout.patch_shape,
        n_nonzero_coefs=None,
        tol=residual_tolerance(target.layout, step),
        structure="orthonormal" if n_atoms is None else "general",
        max_iter=_ITERATIONS,
        random_state=random_state,
        n_jobs=target.n_jobs,
        device=target.device,
        callback=None
        if on_share is None
        else lambda state: on_share(state.iteration / _ITERATIONS),
    )
    return StoredDictionary.of(KroneckerDictionary(model.fit(samples).factors_))


def encoded(header: Header, found: Found) -> tuple[Header, bytes]:
    """The complete header and the stream of an image found by a search."""
    layout, found = header.layout, found.in_order()
    quantised, stored = found.quantised, found.stored
    magnitudes = np.abs(quantised.levels)
    if max(magnitudes.max(), np.abs(quantised.means).max()) > MAX_MAGNITUDE:
        raise ValueError(
            f"psnr={found.psnr:g} needs levels beyond {MAX_MAGNITUDE} with this dictionary; ask "
            "for less, or pass no dictionary."
        )
    nonzeros = int(np.count_nonzero(magnitudes))
    wanted: int = max(1, nonzeros // _NONZEROS_PER_LANE, 2 * magnitudes.size // MAX_PER_LANE)
    lanes = min(1 << (wanted.bit_length() - 1), MAX_LANES)
    encoder = Encoder(lanes)
    code_means(encoder, quantised.means)
    code_levels(encoder, _by_atoms(magnitudes, layout), stored.n_atoms)
    levels = quantised.levels[quantised.levels != 0]
    payload = np.packbits(levels < 0).tobytes() + stored.to_bytes()
    header = replace(
        header,
        kind=stored.kind,
        n_atoms=stored.n_atoms,
        lanes=lanes,
        step=quantised.step,
        offsets=tuple(int(offset) for offset in quantised.offsets),
        psnr=found.psnr,
        nonzeros=nonzeros,
    )
    return header, encoder.finish(payload)


def decoded_pixels(header: Header, stream: bytes) -> NDArray[Any]:
    """The channels (C, *shape) of an image from the stream of its file."""
    layout, values = header.layout, header.values
    if values.span == 0:
        return np.full((layout.n_channels, *layout.shape), values.low, values.dtype)
    try:
        quantised, stored = _decoded(header, stream)
    except StreamError:
        raise CodedImageError("is damaged: its stream does not decode") from None
    try:
        dictionary = stored.dictionary
    except ValueError as problem:
        raise CodedImageError(f"is damaged: it holds no dictionary ({problem})") from None
    return _pixels(quantised, layout, dictionary, values)


def _decoded(header: Header, stream: bytes) -> tuple[Quantised, StoredDictionary]:
    """The integers of an image, and its dictionary."""
    layout = header.layout
    decoder = Decoder(stream, header.lanes)
    means = code_means(decoder, np.zeros((layout.n_channels, *layout.grid), np.int64))
    # Only the shape of these zeros counts, and they take no memory.
    nothing = np.broadcast_to(
        np.int32(0), (layout.n_channels, math.prod(header.n_atoms), *layout.grid)
    )
    levels = _by_patches(code_levels(decoder, nothing, header.n_atoms))
    payload = decoder.finish()
    n_signs, sizes = -(-header.nonzeros // 8), (header.patch_shape, header.n_atoms)
    end = n_signs + stored_size(header.kind, *sizes)
    signed = levels != 0
    if np.count_nonzero(signed) != header.nonzeros or len(payload) != max(end, 2 * header.lanes):
        raise StreamError
    signs = np.unpackbits(np.frombuffer(payload, np.uint8, n_signs), count=header.nonzeros)
    levels[signed] *= 1 - 2 * signs.astype(np.int32)
    stored = StoredDictionary.from_bytes(payload[n_signs:end], header.kind, *sizes)
    return Quantised(header.step, means, levels, np.array(header.offsets)), stored


def _pixels(
    quantised: Quantised, layout: Layout, dictionary: KroneckerDictionary, values: ValueRange
) -> NDArray[Any]:
    """The channels (C, *shape) that integers stand for."""
    basis = dct_factor(layout.n_channels, layout.n_channels)
    planes = synthesise(quantised, layout, dictionary)
    return values.pixels(np.einsum("ck,k...->c...", basis, planes))


def _by_atoms(levels: NDArray[np.int32], layout: Layout) -> NDArray[np.int32]:
    """Levels (C·N, n) as planes (C, n, *grid)."""
    by_channel = levels.reshape(layout.n_channels, layout.n_patches, -1).swapaxes(1, 2)
    return by_channel.reshape(*by_channel.shape[:2], *layout.grid)


def _by_patches(planes: NDArray[np.int32]) -> NDArray[np.int32]:
    """Planes (C, n, *grid) as levels (C·N, n)."""
    by_channel = planes.reshape(*planes.shape[:2], -1).swapaxes(1, 2)
    return by_channel.reshape(-1, planes.shape[1])
