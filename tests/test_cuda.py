"""The engine of a graphics card, on a card if there is one and emulated on the processor always."""

from __future__ import annotations

import copy
import sys
from typing import Any

import numpy as np
import pytest

import kronlearn as kl
import reference
from kronlearn.core.engine import Coder, Codes
from kronlearn.core.moments import ModeMoments, Moments
from kronlearn.cuda import device
from kronlearn.cuda.codes import CardCodes
from kronlearn.cuda.engine import Cuda
from kronlearn.engines.threads import Threads
from kronlearn.io.arrays import ArraySource

SHAPES = [
    ((8, 8), (8, 8), 6),
    ((8, 8), (16, 16), 6),
    ((4, 5), (7, 6), 4),
    ((3, 4, 5), (4, 5, 6), 5),
    ((2, 3, 2, 3), (3, 3, 3, 4), 4),
    ((7,), (9,), 3),
]
METHODS = ["omp", "ols"]


def problem(
    rng: np.random.Generator, shape: Any, dtype: Any, n_samples: int = 200
) -> tuple[ArraySource, kl.KroneckerDictionary]:
    """Noisy sparse samples and a dictionary that does not quite fit them."""
    patch_shape, n_atoms, s = shape
    truth = reference.random_factors(rng, patch_shape, n_atoms)
    Y = reference.sparse_samples(rng, truth, n_samples, s, noise=0.3).astype(dtype)
    near = [factor + 0.1 * rng.standard_normal(factor.shape) for factor in truth]
    return ArraySource(Y, patch_shape), kl.KroneckerDictionary.normalized(near)


def both(card: Any, source: ArraySource, memory: int | None = None) -> tuple[Threads, Cuda]:
    return Threads(1, 64), Cuda(card, source, 64, memory)


def assert_same_codes(codes: Any, expected: Any, source: ArraySource, dictionary: Any) -> None:
    """The same supports, but where another is as good; the same residuals always."""
    tolerance = 1e-4 if source.dtype == np.float32 else 1e-9
    found = codes.gathered()
    scale = np.sqrt(np.mean(np.sum(source.read(0, len(source)).astype(float) ** 2, axis=1)))
    np.testing.assert_allclose(
        np.sqrt(found.residual2), np.sqrt(expected.residual2), rtol=0, atol=tolerance * scale
    )
    same = (found.index == expected.index).all(axis=1)
    assert same.mean() > 0.9
    np.testing.assert_allclose(
        found.value[same], expected.value[same], rtol=0, atol=10 * tolerance * scale
    )
    whole = found.nonzeros == found.index.shape[1]
    assert (np.diff(found.index[whole], axis=1) > 0).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_codes_are_those_of_the_processor(card, rng, shape, method, dtype):
    source, dictionary = problem(rng, shape, dtype)
    for tol in (None, 0.8, np.linspace(0.1, 2.0, len(source))):
        threads, cuda = both(card, source)
        coder = Coder(method, shape[2], tol)
        expected = threads.room(source, coder.width, residuals=True)
        codes = cuda.room(source, coder.width)
        a = threads.run(source, dictionary, coder, codes=expected)
        b = cuda.run(source, dictionary, coder, codes=codes)
        assert_same_codes(codes, expected, source, dictionary)
        assert b.residual == pytest.approx(a.residual, rel=1e-4)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("method", METHODS)
def test_weighted_codes_are_those_of_the_processor(card, rng, method, dtype):
    shape = ((8, 8), (9, 10), 5)
    source, dictionary = problem(rng, shape, dtype)
    weights = rng.random(source.array.shape) * (rng.random(source.array.shape) < 0.8)
    source.array[weights == 0] = np.nan
    threads, cuda = both(card, source)
    coder = Coder(method, shape[2], None, weights.astype(dtype))
    expected, codes = threads.room(source, 5, residuals=True), cuda.room(source, 5)
    threads.run(source, dictionary, coder, codes=expected)
    cuda.run(source, dictionary, coder, codes=codes)
    found = codes.gathered()
    assert (found.index == expected.index).all(axis=1).mean() > 0.97
    np.testing.assert_allclose(found.residual2, expected.residual2, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("tol", [None, 3.0])
@pytest.mark.parametrize("n_atoms", [(8, 6), (8, 8)])
def test_thresholded_codes_are_those_of_the_processor(card, rng, n_atoms, tol, dtype):
    factors = [np.linalg.qr(rng.standard_normal((8, n)))[0] for n in n_atoms]
    dictionary = kl.KroneckerDictionary(factors)
    samples = rng.standard_normal((200, 8, 8)) * np.logspace(-3, 6, 200)[:, None, None]
    source = ArraySource(samples.astype(dtype), (8, 8))
    threads, cuda = both(card, source)
    expected, codes = threads.room(source, 9, residuals=True), cuda.room(source, 9)
    coder = Coder("threshold", 9, tol)
    a = threads.run(source, dictionary, coder, codes=expected)
    b = cuda.run(source, dictionary, coder, codes=codes)
    assert (a.nonzeros, b.residual) == (b.nonzeros, pytest.approx(a.residual, rel=1e-5))
    np.testing.assert_array_equal(codes.gathered().index, expected.index)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("fewest", [0, 5])
def test_codes_are_packed_as_a_sparse_matrix_has_them(card, rng, fewest, dtype):
    nonzeros = rng.integers(fewest, 6, 70).astype(np.int32)
    index = rng.integers(0, 30, (70, 5)).astype(np.int32)
    value = rng.standard_normal((70, 5)).astype(dtype)
    codes = CardCodes.copied(card, Codes(index, nonzeros, value, None), dtype)
    data, indices, starts = map(card.download, codes.packed())
    used = np.arange(5) < nonzeros[:, None]
    np.testing.assert_array_equal(starts, np.concatenate([[0], np.cumsum(nonzeros)]))
    np.testing.assert_array_equal(indices, index[used])
    np.testing.assert_array_equal(data, value[used])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_supports_are_refitted_and_better_ones_kept(card, rng, shape, method, dtype):
    source, dictionary = problem(rng, shape, dtype, n_samples=600)
    threads, cuda = both(card, source)
    coder = Coder(method, shape[2])
    expected = threads.room(source, coder.width, residuals=True)
    codes = cuda.room(source, coder.width)
    threads.run(source, dictionary, coder, codes=expected)
    codes = cuda.adopted(copy.deepcopy(expected))
    moved = [f + 0.05 * rng.standard_normal(f.shape) for f in dictionary.factors]
    other = kl.KroneckerDictionary.normalized(moved)
    for half in (None, 0, 1):
        kept, same = copy.deepcopy(expected), cuda.adopted(copy.deepcopy(expected))
        settings = {"keep_better": True, "half": half}
        threads.run(source, other, coder, codes=kept, **settings)
        cuda.run(source, other, coder, codes=same, **settings)
        assert_same_codes(same, kept, source, other)
    a = threads.run(source, other, coder, coding="refit", codes=expected)
    b = cuda.run(source, other, coder, coding="refit", codes=codes)
    assert b.residual == pytest.approx(a.residual, rel=1e-5)
    assert_same_codes(codes, expected, source, other)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sums_are_those_of_the_processor(card, rng, shape, dtype):
    patch_shape, n_atoms, s = shape
    source, dictionary = problem(rng, shape, dtype)
    # So little memory that samples come in several chunks.
    threads, cuda = both(card, source, memory=source.array.nbytes // 2)
    wanted: list[Any] = [Moments.zeros(patch_shape, n_atoms, with_xx) for with_xx in (True, False)]
    for mode, factor in enumerate(dictionary.factors):
        wanted += [ModeMoments.zeros(mode, factor[None], with_p) for with_p in (True, False)]
    for sums in wanted:
        expected, found = copy.deepcopy(sums), copy.deepcopy(sums)
        a = threads.run(source, dictionary, Coder("omp", s), moments=expected)
        b = cuda.run(source, dictionary, Coder("omp", s), moments=found)
        assert a.nonzeros == b.nonzeros
        assert found.energy == pytest.approx(expected.energy, rel=1e-6)
        for name in ("xx", "xy", "p", "c"):
            part = getattr(expected, name, np.zeros(0))
            if part.size:
                np.testing.assert_allclose(
                    getattr(found, name), part, rtol=0, atol=1e-5 * np.abs(part).max()
                )


@pytest.mark.parametrize("method", METHODS)
def test_samples_that_are_zero_constant_or_tiny(card, rng, method):
    Y = rng.standard_normal((40, 8, 8)).astype(np.float32)
    Y[3], Y[4], Y[5] = 0, 1, Y[5] * 1e-25
    source = ArraySource(Y, (8, 8))
    dictionary = kl.KroneckerDictionary(reference.random_factors(rng, (8, 8), (8, 8)))
    threads, cuda = both(card, source)
    expected, codes = threads.room(source, 6, residuals=True), cuda.room(source, 6)
    threads.run(source, dictionary, Coder(method, 6), codes=expected)
    cuda.run(source, dictionary, Coder(method, 6), codes=codes)
    found = codes.gathered()
    assert found.nonzeros[3] == 0
    np.testing.assert_array_equal(found.nonzeros, expected.nonzeros)
    np.testing.assert_allclose(found.value, expected.value, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
def test_a_sample_that_is_not_finite_is_named(card, rng, bad):
    Y = rng.standard_normal((40, 8, 8)).astype(np.float32)
    Y[17, 2, 3] = Y[30, 0, 0] = bad
    source = ArraySource(Y, (8, 8))
    dictionary = kl.KroneckerDictionary(reference.random_factors(rng, (8, 8), (8, 8)))
    with pytest.raises(ValueError, match="sample 17"):
        Cuda(card, source, 64).run(source, dictionary, Coder("omp", 4))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"method": "omp", "monotone": False},
        {"n_atoms": (9, 10)},
        {"structure": "orthonormal"},
        {"statistics": "per-mode"},
        {"statistics": "recode"},
        {"n_terms": 2},
        {"tol": 20.0, "n_nonzero_coefs": None},
    ],
    ids=str,
)
def test_learning_ends_where_the_processor_does(on_card, rng, settings):
    Y = image_like(rng, 900)
    options = {"n_atoms": (8, 8), "n_nonzero_coefs": 4, "max_iter": 8, "random_state": 0} | settings
    expected = kl.KroneckerDictionaryLearning(**options).fit(Y)
    found = kl.KroneckerDictionaryLearning(**options, device="cuda").fit(Y)
    assert len(found.history_["rmse"]) == len(expected.history_["rmse"])
    # With an error target the number of nonzeros is at the mercy of rounding; and sums of fused
    # kernels are rounded so that, of few samples, one may change its support.
    tolerance = 1e-3 if settings.keys() & {"tol", "monotone"} else 1e-4
    np.testing.assert_allclose(found.history_["rmse"], expected.history_["rmse"], rtol=tolerance)
    assert found.score(Y) == pytest.approx(expected.score(Y), rel=1e-3)
    assert found.dictionary_.dtype == np.float32


def test_partial_fit_and_transform(on_card, rng):
    Y = image_like(rng, 600)
    models = [
        kl.KroneckerDictionaryLearning(8, n_nonzero_coefs=4, random_state=0, device=device)
        for device in ("cpu", "cuda")
    ]
    for model in models:
        model.partial_fit(Y[:300]).partial_fit(Y[300:])
    assert models[1].score(Y) == pytest.approx(models[0].score(Y), rel=1e-4)
    X = models[1].set_params(device="cuda").transform(Y[:50])
    np.testing.assert_allclose(
        models[1].inverse_transform(X),
        models[1].set_params(device="cpu").dictionary_.reconstruct(X),
    )


def image_like(rng: np.random.Generator, count: int) -> np.ndarray:
    """Samples (count, 8, 8) that are smooth, with edges."""
    smooth = np.cumsum(np.cumsum(rng.standard_normal((count, 8, 8)), axis=1), axis=2)
    edges = rng.standard_normal((count, 1, 1)) * (
        np.arange(8) > rng.integers(8, size=(count, 1, 1))
    )
    return (4 * smooth + 30 * edges).astype(np.float32)


def test_without_a_card_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr("kronlearn.cuda.device._cupy", device._cupy.__wrapped__)
    with pytest.raises(ImportError, match=r"pip install 'kronlearn\[cuda\]'"):
        kl.sparse_code(np.eye(4)[None], [np.eye(4)] * 2, 2, device="cuda")
    with pytest.raises(ValueError, match="choose one of cpu, cuda"):
        kl.sparse_code(np.eye(4)[None], [np.eye(4)] * 2, 2, device="tpu")
    monkeypatch.setattr("kronlearn.engines.selection.card", lambda: None)
    with pytest.raises(ValueError, match='engine="threads" does not run on a graphics card'):
        kl.KroneckerDictionaryLearning(4, device="cuda", engine="threads").fit(np.ones((9, 4, 4)))


@pytest.mark.parametrize("settings", [{}, {"stages": 1}, {"n_terms": 2, "stages": 1}], ids=str)
def test_images_are_denoised_as_by_the_processor(on_card, rng, settings):
    y, x = np.mgrid[:40, :36]
    clean = (100 + 50 * np.sin(y / 5) + 40 * (x > 17)).astype(np.float32)
    noisy = clean + rng.normal(0, 10, clean.shape).astype(np.float32)
    options = {"sigma": 10.0, "max_iter": 3, "random_state": 0} | settings
    expected = kl.images.denoise(noisy, **options)
    found = kl.images.denoise(noisy, **options, device="cuda")
    assert found.dtype == expected.dtype
    assert np.std(found - clean) == pytest.approx(np.std(expected - clean), rel=0.02)
    assert np.std(found - expected) < 0.1 * np.std(noisy - clean)
