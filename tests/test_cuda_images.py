"""Passes over images, on a GPU if there is one and emulated on the processor always."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kronlearn as kl
import reference
from emulated_gpu import OnEmulatedGpu
from kronlearn.core.coder import native_dictionary
from kronlearn.core.init import dct_factor
from kronlearn.cuda.images import GpuImages
from test_image_passes import (
    CODINGS,
    DTYPES,
    METHODS,
    SHRINKAGES,
    image_to_code,
    named,
    planes_to_shrink,
    taper_of,
)

NAMES = ["float64", "float32"]
# What rounding may change of a sum, in units of its largest magnitude.
ROUNDING = {np.float64: 1e-11, np.float32: 2e-5}


def put_on(gpu: Any, array: Any) -> Any:
    there = gpu.upload(array)
    return there.view(OnEmulatedGpu) if isinstance(there, np.ndarray) else there


def axes_of(shape: Any, patch: Any, stride: Any, window: Any = None) -> list[Any]:
    return list(zip(shape, patch, stride, window or [0] * len(shape), strict=True))


def coded(
    gpu: Any,
    image: Any,
    factors: Any,
    axes: Any,
    *settings: Any,
    memory: int | None = None,
    on_gpu: bool = False,
    known: Any = None,
    **options: Any,
) -> Any:
    """The average of all patches; that of the native code without a GPU."""
    if gpu is None:
        sums = [np.zeros_like(image), np.zeros_like(image)]
        made = native_dictionary(factors, image.dtype)
        made.code_image(image, *sums, axes, *settings, known=known, **options)
        return divided(*sums)
    if on_gpu:
        image = put_on(gpu, image)
        known = None if known is None else put_on(gpu, known)
    images = GpuImages(gpu, factors, image.dtype, memory)
    return gpu.download(images.code_average(image, axes, *settings, known=known, **options))


def divided(numerator: Any, denominator: Any) -> Any:
    with np.errstate(invalid="ignore"):
        return numerator / denominator


def shrunk(
    gpu: Any,
    planes: Any,
    guide: Any,
    patch: Any,
    group: int,
    stride: Any,
    window: Any,
    noise: float = 2.0,
    memory: int | None = None,
    on_gpu: bool = False,
    progress: Any = None,
) -> Any:
    """The average of all patches; that of the native code without a GPU."""
    factors = [dct_factor(m, m) for m in (group, *patch)]
    both = (factors, [f.T for f in factors])
    axes = axes_of(planes.shape[1:], patch, stride, window)
    settings = (axes, group, noise, np.ascontiguousarray(taper_of(patch), planes.dtype))
    if gpu is None:
        sums = [np.zeros_like(planes), np.zeros_like(planes)]
        analysis, synthesis = (native_dictionary(part, planes.dtype) for part in both)
        analysis.shrink_image(synthesis, planes, guide, *sums, *settings, progress=progress)
        return divided(*sums)
    if on_gpu:
        planes, guide = put_on(gpu, planes), put_on(gpu, guide)
    analysis, synthesis = (GpuImages(gpu, part, planes.dtype, memory) for part in both)
    made = analysis.shrink_average(synthesis, planes, guide, *settings, progress=progress)
    return gpu.download(made)


def assert_same_average(made: Any, wanted: Any, dtype: Any) -> None:
    """Every pixel agrees; in float32 a near tie may go the other way in a few patches."""
    assert made.dtype == dtype
    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(made[~finite], wanted[~finite])
    error = np.abs(made[finite] - wanted[finite])
    scale = np.abs(wanted[finite]).max(initial=1e-300)
    if dtype is np.float64:
        assert error.max(initial=0) <= ROUNDING[dtype] * scale
    else:
        assert np.quantile(error, 0.7) <= ROUNDING[dtype] * scale
        assert error.max() <= 0.5 * scale


@pytest.mark.parametrize("dtype", DTYPES, ids=NAMES)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", CODINGS, ids=named)
def test_coded_images_are_those_of_the_processor(gpu, case, method, dtype):
    shape, patch, _, stride, width = case
    factors, image, _, tol = image_to_code(case, method)
    image, axes = image.astype(dtype), axes_of(shape, patch, stride)
    for target, favour in ((tol, True), (tol, False), (-1.0, True)):
        settings = (image, factors, axes, method, width, target)
        expected = coded(None, *settings, favour_sparse=favour)
        found = coded(gpu, *settings, favour_sparse=favour)
        assert_same_average(found, expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=NAMES)
@pytest.mark.parametrize("method", ["omp", "ols"])
@pytest.mark.parametrize("case", CODINGS, ids=named)
def test_images_coded_by_weights_are_those_of_the_processor(gpu, case, method, dtype):
    shape, patch, _, stride, width = case
    factors, image, known, tol = image_to_code(case, method)
    known = known.astype(dtype)
    # What is missing may be anything.
    image = np.where(known > 0, image, np.nan).astype(dtype)
    for target in (tol, -1.0):
        settings = (image, factors, axes_of(shape, patch, stride), method, width, target)
        expected = coded(None, *settings, known=known)
        assert_same_average(coded(gpu, *settings, known=known), expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=NAMES)
@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
@pytest.mark.parametrize("case", [CODINGS[k] for k in (0, 4, 7, 8, 13)], ids=named)
def test_images_coded_in_bands_have_the_same_bits(gpu, case, masked, dtype):
    shape, patch, _, stride, width = case
    factors, image, known, tol = image_to_code(case, "omp")
    settings = (image.astype(dtype), factors, axes_of(shape, patch, stride), "omp", width, tol)
    weights = known.astype(dtype) if masked else None
    whole = coded(gpu, *settings, known=weights)
    again = coded(gpu, *settings, known=weights, on_gpu=True)
    np.testing.assert_array_equal(again, whole)
    pieces = []
    for memory in (1, 1 << 17, 1 << 18, 1 << 22):
        shares: list[float] = []
        options = {"known": weights, "memory": memory, "progress": shares.append}
        for on_gpu in (False, True):
            cut = coded(gpu, *settings, on_gpu=on_gpu, **options)
            np.testing.assert_array_equal(cut, whole)
        pieces.append(len(shares) // 2)
        assert shares == sorted(shares[: pieces[-1]]) * 2
        assert shares[-1] == 1.0
    # The first are patches one by one.
    assert pieces[0] > pieces[-1]
    assert pieces == sorted(pieces, reverse=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=NAMES)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("value", [0.0, 0.1, -3.5, 1e-25])
def test_constant_images_are_coded_as_on_the_processor(gpu, value, method, dtype):
    image = np.full((20, 17), value, dtype)
    factors = [dct_factor(5, 5), dct_factor(5, 5)]
    for tol in (-1.0, 0.1):
        settings = (image, factors, axes_of((20, 17), (5, 5), (2, 3)), method, 4, tol)
        expected, found = coded(None, *settings), coded(gpu, *settings)
        np.testing.assert_allclose(found, expected, rtol=10 * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", DTYPES, ids=NAMES)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_pixels_that_are_not_finite_spoil_what_they_spoil_on_the_processor(
    gpu, rng, bad, method, dtype
):
    image = rng.standard_normal((20, 17)).astype(dtype)
    image[9, 4] = bad
    factors = reference.orthonormal_factors(rng, (5, 4))
    settings = (image, factors, axes_of((20, 17), (5, 4), (2, 3)), method, 4, 0.5)
    assert_same_average(coded(gpu, *settings), coded(None, *settings), dtype)


def test_images_of_single_precision_are_coded_in_double_where_they_need_it(gpu, rng):
    # Squares of these are too small for single precision; those targets cannot be met in it.
    image = rng.standard_normal((24, 20)).astype(np.float32)
    factors = reference.random_factors(rng, (5, 4), (6, 6))
    axes = axes_of(image.shape, (5, 4), (2, 2))
    for scale, tol in ((1e-22, -1.0), (1e-22, 1e-22), (1.0, 1e-6)):
        settings = ((image * scale).astype(np.float32), factors, axes, "ols", 8, tol)
        found, wanted = coded(gpu, *settings), coded(None, *settings)
        assert np.quantile(np.abs(found - wanted), 0.9) <= 1e-4 * np.abs(wanted).max()


# Shrinking


@pytest.mark.parametrize("dtype", DTYPES, ids=NAMES)
@pytest.mark.parametrize("most", [9, 1, 0], ids=["many values", "zeros and ones", "constant"])
@pytest.mark.parametrize("case", SHRINKAGES, ids=named)
def test_shrunk_groups_are_those_of_the_processor(gpu, case, most, dtype):
    planes, guide = (array.astype(dtype) for array in planes_to_shrink(case, most))
    found, wanted = (shrunk(each, planes, guide, *case[2:]) for each in (gpu, None))
    assert found.dtype == dtype
    np.testing.assert_allclose(found, wanted, rtol=0, atol=ROUNDING[dtype] * np.abs(wanted).max())


@pytest.mark.parametrize("dtype", DTYPES, ids=NAMES)
@pytest.mark.parametrize("case", [SHRINKAGES[k] for k in (2, 3, 4, 5, 15, 16, 17, 18)], ids=named)
def test_groups_shrunk_in_bands_have_the_same_bits(gpu, case, dtype):
    planes, guide = (array.astype(dtype) for array in planes_to_shrink(case))
    whole = shrunk(gpu, planes, guide, *case[2:])
    for memory in (1, 60 * planes.nbytes, 90 * planes.nbytes):
        for on_gpu in (False, True):
            cut = shrunk(gpu, planes, guide, *case[2:], memory=memory, on_gpu=on_gpu)
            np.testing.assert_array_equal(cut, whole)
    shares: list[float] = []
    shrunk(gpu, planes, guide, *case[2:], memory=1, progress=shares.append)
    assert len(shares) > 1
    assert shares[-1] == 1.0


@pytest.mark.parametrize("dtype", DTYPES, ids=NAMES)
@pytest.mark.parametrize("scale", [2.0**-40, 2.0**-10, 2.0**40])
def test_groups_may_be_of_any_magnitude(gpu, rng, scale, dtype):
    guide = rng.integers(0, 9, (2, 20, 18)).astype(dtype)
    planes = (guide + rng.standard_normal(guide.shape)).astype(dtype) * dtype(scale)
    settings = (planes, guide * dtype(scale), (5, 4), 4, (2, 2), (6, 6), 1.0 * scale)
    found, wanted = shrunk(gpu, *settings), shrunk(None, *settings)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=ROUNDING[dtype] * np.abs(wanted).max())


# Errors


@pytest.mark.parametrize("name", ["planes", "guide"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_groups_that_are_not_finite_are_an_error(gpu, rng, bad, name):
    arrays = {"planes": rng.standard_normal((1, 12, 12)), "guide": rng.standard_normal((1, 12, 12))}
    arrays[name][0, 5, 5] = bad
    with pytest.raises(ValueError, match="image contains NaN or infinity"):
        shrunk(gpu, arrays["planes"], arrays["guide"], (4, 4), 4, (2, 2), (2, 2))


def test_no_noise_at_all_is_an_error_where_it_divides_zero_by_zero(gpu, rng):
    planes = rng.standard_normal((1, 12, 12))
    with pytest.raises(ValueError, match=r"not finite.*noise=0\.0 too small"):
        shrunk(gpu, planes, np.zeros_like(planes), (4, 4), 4, (2, 2), (2, 2), 0.0)


@pytest.mark.parametrize(
    ("axes", "options", "message"),
    [
        ([(7, 8, 1, 0), (9, 8, 1, 0)], {}, "patches do not fit the image"),
        ([(9, 8, 9, 0), (9, 8, 1, 0)], {}, "patches do not fit the image"),
        ([(9, 8, 1, 0), (10, 8, 1, 0)], {}, "image does not fit the axes"),
        ([(9, 8, 1, 0), (8, 8, 1, 0)], {}, "not fit the axes"),
        ([], {}, "not fit the axes"),
        ([(9, 8, 1, 0), (9, 4, 1, 0)], {}, "patches do not fit the dictionary"),
        ([(9, 8, 1, 0), (9, 8, 1, 0)], {"width": 0}, "patches do not fit the dictionary"),
        ([(9, 8, 1, 0), (9, 8, 1, 0)], {"method": "mp"}, "unknown method mp"),
        ([(9, 8, 1, 0), (9, 8, 1, 0)], {"known": np.ones(80)}, "has 80 entries; expected 81"),
    ],
)
def test_errors_are_those_of_the_processor(gpu, axes, options, message):
    image = np.zeros((9, 9))
    settings = {"method": "omp", "width": 3, "tol": -1.0} | options
    factors = [dct_factor(8, 8)] * 2
    native = native_dictionary(factors, np.float64)
    with pytest.raises(ValueError, match=message):
        native.code_image(image, image.copy(), image.copy(), axes, **settings)
    with pytest.raises(ValueError, match=message):
        GpuImages(gpu, factors, np.float64).code_average(image, axes, **settings)


def test_what_a_gpu_cannot_do_is_said(gpu):
    images = GpuImages(gpu, [np.eye(1)], np.float64)
    image = np.zeros((1,) * 17)
    with pytest.raises(ValueError, match="at most 16 axes, not 17"):
        images.code_average(image, [(1, 1, 1, 0)] * 17, "omp", 1, -1.0)
    with pytest.raises(ValueError, match='method="exchange" runs on the processor only'):
        images.code_average(np.zeros(4), [(4, 1, 1, 0)], "exchange", 1, -1.0)
    single = np.zeros(4, np.float32)
    with pytest.raises(TypeError, match="image must be C-contiguous float64; it is float32"):
        images.code_average(single, [(4, 1, 1, 0)], "omp", 1, -1.0)


# Whole methods


class Images(GpuImages):
    """A GPU's passes, called as those of the native code."""

    def code_image(
        self, image: Any, sums: Any, weights: Any, *settings: Any, **options: Any
    ) -> None:
        sums[...] = self.code_average(image, *settings, **without_threads(options))
        weights[...] = 1

    def shrink_image(
        self,
        other: Any,
        planes: Any,
        guide: Any,
        sums: Any,
        weights: Any,
        *rest: Any,
        **options: Any,
    ) -> None:
        options = without_threads(options)
        sums[...] = self.shrink_average(other, planes, guide, *rest, **options)
        weights[...] = 1


def without_threads(options: dict[str, Any]) -> dict[str, Any]:
    """The options of a pass that are not about how a processor does it."""
    return {k: v for k, v in options.items() if k not in ("threads", "instruction_set")}


def average_on(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the passes of denoising and inpainting run on this GPU."""
    monkeypatch.setattr(
        "kronlearn.images.aggregation.native_dictionary",
        lambda factors, dtype: Images(gpu, factors, dtype),
    )


def picture(shape: Any) -> Any:
    """Something smooth with an edge, 0 to 255."""
    parts = np.ix_(*(np.cos(np.linspace(0, 3 + k, size)) for k, size in enumerate(shape)))
    smooth = sum(parts[1:], parts[0] * np.ones(shape))
    return 40 * smooth + 80 * (smooth > 0.5) + 90


@pytest.mark.parametrize(
    ("shape", "channel_axis"), [((40, 33), None), ((30, 25, 3), -1), ((9, 20, 17), None)]
)
def test_denoised_images_are_those_of_the_processor(gpu, monkeypatch, rng, shape, channel_axis):
    image = picture(shape) + 15 * rng.standard_normal(shape)
    options = {"channel_axis": channel_axis, "max_iter": 2}
    expected = kl.images.denoise(image, **options)
    average_on(gpu, monkeypatch)
    found = kl.images.denoise(image, **options)
    # In single precision near ties may go the other way.
    assert np.quantile(np.abs(found - expected), 0.9) < 0.01
    assert np.abs(found - expected).max() < 3
    image[3, 4] = np.nan
    with pytest.raises(ValueError, match="image contains NaN or infinity"):
        kl.images.denoise(image, **options)


def test_inpainted_images_are_those_of_the_processor(gpu, monkeypatch, rng):
    image = picture((30, 26))
    image[rng.random(image.shape) < 0.4] = np.nan
    expected = kl.images.inpaint(image, max_iter=2)
    average_on(gpu, monkeypatch)
    found = kl.images.inpaint(image, max_iter=2)
    assert np.sqrt(np.mean((found - expected) ** 2)) < 1.0
