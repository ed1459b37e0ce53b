"""The engine of a GPU, tested emulated on the processor and, if there is one, on a GPU."""

import sys
from itertools import pairwise

import numpy as np
import pytest

import kronlearn as kl
import reference
from emulated_gpu import COMPILER, WarpGpu
from kronlearn.core.coder import Coder
from kronlearn.core.engine import PassSums, Task
from kronlearn.core.moments import ModeMoments
from kronlearn.cuda import arrays
from kronlearn.cuda.block_sums import BlockSums
from kronlearn.cuda.codes import GpuCodes
from kronlearn.cuda.engine import Cuda
from kronlearn.engines.threads import Threads
from kronlearn.experiments.gpu import image_like
from kronlearn.io.arrays import ArraySource

SHAPES = [
    ((8, 8), (8, 8), 4),
    ((8, 8), (16, 16), 6),
    ((4, 5), (7, 6), 4),
    ((3, 4, 5), (4, 5, 6), 5),
    ((2, 3, 2, 3), (3, 3, 3, 4), 4),
    ((7,), (9,), 3),
]
METHODS = ["omp", "ols"]
SUMS = [("none", -1), ("full", -1), ("xy", -1), ("mode", 0), ("mode", -2), ("mode-xy", -2)]
BLOCK = 64


def problem(rng, shape, dtype, n_samples=200):
    """Noisy sparse samples, and a dictionary close to the one that generated them."""
    patch_shape, n_atoms, s = shape
    truth = reference.random_factors(rng, patch_shape, n_atoms)
    Y = reference.sparse_samples(rng, truth, n_samples, s, noise=0.3).astype(dtype)
    near = [factor + 0.1 * rng.standard_normal(factor.shape) for factor in truth]
    return ArraySource(Y, patch_shape), kl.KroneckerDictionary.normalized(near)


def residual_norms(source, dictionary, X, weights=None):
    Y = source.array.reshape(len(source), -1).astype(np.float64)
    left = Y - (X.astype(np.float64) @ reference.dense(dictionary.factors).T)
    if weights is not None:
        left = np.sqrt(weights.reshape(left.shape)) * np.nan_to_num(left)
    return np.linalg.norm(left, axis=1)


def assert_same_codes(source, dictionary, coder, weights=None):
    """The same residuals, and the same supports except where another one is as good."""
    found = Cuda(source, BLOCK).codes(dictionary, coder)
    expected = Threads(source, 1, BLOCK).codes(dictionary, coder)
    assert found.dtype == expected.dtype == source.dtype
    assert found.has_sorted_indices
    assert (np.diff(found.indptr) <= coder.width).all()
    tolerance = 1e-4 if source.dtype == np.float32 else 1e-9
    size = np.sqrt(np.nanmean(np.nansum(source.array.astype(float) ** 2, axis=(1, 2))))
    norms = [residual_norms(source, dictionary, X, weights) for X in (found, expected)]
    np.testing.assert_allclose(norms[0], norms[1], rtol=0, atol=tolerance * size)
    found, expected = found.toarray(), expected.toarray()
    same = ((found != 0) == (expected != 0)).all(axis=1)
    assert same.mean() > 0.9
    np.testing.assert_allclose(found[same], expected[same], rtol=0, atol=10 * tolerance * size)


def test_there_is_a_gpu_to_test_on(real_gpu):
    assert real_gpu.n_multiprocessors > 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", SHAPES[:-1], ids=str)
def test_codes_are_those_of_the_processor(on_gpu, rng, shape, method, dtype):
    if shape == SHAPES[1] and method == "ols":
        shape = (*shape[:2], 5)
    source, dictionary = problem(rng, shape, dtype)
    for tol in (None, 0.8, np.linspace(0.1, 2.0, len(source))):
        assert_same_codes(source, dictionary, Coder(method, shape[2], tol))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("method", METHODS)
def test_weighted_codes_are_those_of_the_processor(on_gpu, rng, method, dtype):
    source, dictionary = problem(rng, ((8, 8), (9, 10), 5), dtype)
    weights = rng.random(source.array.shape) * (rng.random(source.array.shape) < 0.8)
    source.array[weights == 0] = np.nan
    coder = Coder(method, 5, None, weights.astype(dtype))
    assert_same_codes(source, dictionary, coder, weights)


@pytest.mark.parametrize(("dtype", "weighted"), [(np.float32, True), (np.float64, False)])
def test_samples_with_as_many_nonzeros_as_entries_are_represented_as_by_the_processor(
    on_gpu, rng, dtype, weighted
):
    # The atoms selected last are nearly combinations of the others.
    factors = [rng.standard_normal((2, 12)), rng.standard_normal((4, 12))]
    dictionary = kl.KroneckerDictionary.normalized(factors)
    source = ArraySource(rng.standard_normal((300, 2, 4)).astype(dtype), (2, 4))
    weights = np.where(rng.random((300, 2, 4)) < 0.8, rng.random((300, 2, 4)), 0).astype(dtype)
    coder = Coder("ols", 8, None, weights if weighted else None)
    norms = [
        residual_norms(source, dictionary, engine.codes(dictionary, coder), coder.weights)
        for engine in (Cuda(source, BLOCK), Threads(source, 1, BLOCK))
    ]
    assert max(map(np.max, norms)) < (1e-12 if dtype == np.float64 else 1e-4)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("tol", [None, 3.0])
@pytest.mark.parametrize("n_atoms", [(8, 6), (8, 8)])
def test_thresholded_codes_are_those_of_the_processor(on_gpu, rng, n_atoms, tol, dtype):
    factors = [np.linalg.qr(rng.standard_normal((8, n)))[0] for n in n_atoms]
    dictionary = kl.KroneckerDictionary(factors)
    samples = rng.standard_normal((200, 8, 8)) * np.logspace(-3, 6, 200)[:, None, None]
    source, coder = ArraySource(samples.astype(dtype), (8, 8)), Coder("threshold", 5, tol)
    expected = Threads(source, 1, BLOCK).codes(dictionary, coder)
    found = Cuda(source, BLOCK).codes(dictionary, coder)
    np.testing.assert_array_equal(found.indices, expected.indices)
    np.testing.assert_allclose(found.data, expected.data, rtol=1e-3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_error_of_thresholding_includes_what_no_atom_represents(on_gpu, rng, dtype):
    factors = [np.linalg.qr(rng.standard_normal((8, n)))[0].astype(dtype) for n in (8, 6)]
    Y = reference.sparse_samples(rng, factors, 40, 5)
    size = 1e-5 if dtype == np.float32 else 1e-11
    source = ArraySource((Y + size * rng.standard_normal(Y.shape)).astype(dtype), (8, 8))
    dictionary, coder = kl.KroneckerDictionary(factors), Coder("threshold", 5)
    engine = Cuda(source, BLOCK)
    norms = residual_norms(source, dictionary, engine.codes(dictionary, coder))
    found = engine.run(Task(dictionary, coder)).residual
    assert found == pytest.approx(np.sum(norms**2), rel=0.02)


@pytest.mark.parametrize("coder", [Coder("ols", 28), Coder("ols", 36, 0.0)], ids=str)
def test_more_atoms_than_a_sample_needs_do_not_raise_the_error(on_gpu, coder):
    rng = np.random.default_rng(73)
    factors = reference.random_factors(rng, (6, 6), (12, 12))
    source = ArraySource(reference.sparse_samples(rng, factors, 300, 3), (6, 6))
    dictionary, engine = kl.KroneckerDictionary(factors), Cuda(source, BLOCK)
    before, after = (
        residual_norms(source, dictionary, engine.codes(dictionary, each))
        for each in (Coder("ols", 3), coder)
    )
    assert np.all(after <= before + 1e-12)


def test_entries_without_weight_are_not_blamed(on_gpu, rng):
    source, dictionary = problem(rng, ((8, 8), (9, 10), 5), np.float64)
    weights = np.ones(source.array.shape, bool)
    weights[7, 0] = False
    source.array[7], source.array[7, 0] = 1e300, np.nan
    with pytest.raises(ValueError, match=r"values too large to be squared.*sample 7\)"):
        Cuda(source, BLOCK).codes(dictionary, Coder("ols", 3, None, weights))


def test_exchange_on_a_gpu_is_an_error(on_gpu, rng):
    source, dictionary = problem(rng, SHAPES[0], np.float64)
    with pytest.raises(ValueError, match='method="exchange" runs on the processor only'):
        Cuda(source, BLOCK).codes(dictionary, Coder("exchange", 4))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("fewest", [0, 5])
def test_codes_are_packed_as_a_sparse_matrix_has_them(gpu, rng, fewest, dtype):
    nonzeros = rng.integers(fewest, 6, 70).astype(np.int32)
    index = rng.integers(0, 30, (70, 5)).astype(np.int32)
    value = rng.standard_normal((70, 5)).astype(dtype)
    parts = map(gpu.upload, (index, nonzeros, value, np.zeros(70)))
    data, indices, starts = map(gpu.download, GpuCodes(gpu, *parts).packed())
    used = np.arange(5) < nonzeros[:, None]
    np.testing.assert_array_equal(starts, np.concatenate([[0], np.cumsum(nonzeros)]))
    np.testing.assert_array_equal(indices, index[used])
    np.testing.assert_array_equal(data, value[used])


def flat_sums(task, found):
    """The sums of a pass as one vector; the half of P that is summed is completed."""
    if task.sums != "mode":
        return np.asarray(found.sums)
    moments = ModeMoments.of_pass(task, found)
    return np.concatenate([moments.p.ravel(), moments.c.ravel()])


def assert_same_sums(task, found, expected, dtype):
    assert found.nonzeros == expected.nonzeros
    assert found.residual == pytest.approx(expected.residual, rel=1e-4)
    if not expected.sums.size:
        return
    assert found.energy == pytest.approx(expected.energy, rel=1e-6)
    tolerance = 1e-5 if dtype == np.float32 else 1e-9
    made, wanted = flat_sums(task, found), flat_sums(task, expected)
    np.testing.assert_allclose(made, wanted, rtol=0, atol=tolerance * np.abs(wanted).max())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sums_are_those_of_the_processor(on_gpu, rng, shape, dtype, monkeypatch):
    # Sum blocks in several parts, and a few blocks at a time.
    monkeypatch.setattr("kronlearn.cuda.block_sums._FEWEST_PER_PART", 20)
    monkeypatch.setattr("kronlearn.cuda.block_sums._MOST_BYTES", 1 << 18)
    source, dictionary = problem(rng, shape, dtype)
    # With so little memory, samples are streamed in several chunks.
    threads, cuda = Threads(source, 1, BLOCK), Cuda(source, BLOCK, source.array.nbytes // 2)
    assert len(cuda.samples.pieces) > 1
    for sums, mode in SUMS:
        own = -1 if mode == -1 else mode % len(shape[0])
        task = Task(dictionary, Coder("omp", shape[2]), sums, own)
        found, expected = (engine.run(task) for engine in (cuda, threads))
        assert_same_sums(task, found, expected, dtype)
        if "xy" in sums:
            assert found.code_energy == pytest.approx(expected.code_energy, rel=1e-4)


@pytest.mark.parametrize("sums", ["mode", "mode-xy"])
def test_codes_of_a_pass_are_summed_by_later_ones(on_gpu, rng, sums):
    source, dictionary = problem(rng, SHAPES[2], np.float32)
    engines = Cuda(source, BLOCK), Threads(source, 1, BLOCK)
    task = Task(dictionary, Coder("omp", 4), sums, 0, keeps_codes=True)
    found, expected = (engine.run(task) for engine in engines)
    assert_same_sums(task, found, expected, np.float32)
    scales = tuple(rng.uniform(0.5, 2.0, n) for n in dictionary.n_atoms)
    task = Task(dictionary, Coder("omp", 4), sums, 1, scales=scales)
    codes = found.codes, expected.codes
    found, expected = (engine.run(task, own) for engine, own in zip(engines, codes, strict=True))
    assert found.codes is None
    assert_same_sums(task, found, expected, np.float32)


def test_sums_have_the_same_bits_however_blocks_are_shared_out(on_gpu, rng):
    source, dictionary = problem(rng, SHAPES[2], np.float32, 5 * BLOCK - 9)
    task = Task(dictionary, Coder("ols", 4), "full", n_worst=7)
    totals, worst = [], []
    for cuts in ([0, 5], [0, 1, 5], [0, 3, 4, 5]):
        tree, found = task.tree(5), []
        for first, stop in pairwise(cuts):
            rows = slice(first * BLOCK, stop * BLOCK)
            part = ArraySource(source.array[rows], source.patch_shape)
            found.append(Cuda(part, BLOCK).add(task, tree, first=rows.start)[0])
        totals.append(tree.total())
        residuals, samples = (np.concatenate(parts) for parts in zip(*found, strict=True))
        worst.append(samples[np.lexsort((samples, -residuals))[:7]])
    whole = Cuda(source, BLOCK).run(task)
    for total, samples in zip(totals, worst, strict=True):
        np.testing.assert_array_equal(total[4:], whole.sums)
        np.testing.assert_array_equal(samples, whole.worst)


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler is at hand")
@pytest.mark.parametrize("sums", SUMS[1:], ids=lambda sums: f"{sums[0]} {sums[1]}")
def test_the_threads_of_a_team_sum_what_one_sums(rng, sums):
    source, dictionary = problem(rng, SHAPES[2], np.float32)
    task = Task(dictionary, Coder("omp", 4), sums[0], sums[1] % 2 if sums[1] != -1 else -1)
    threads, tree = Threads(source, 1, BLOCK), task.tree(4)
    given = threads.run(Task(dictionary, Coder("omp", 4), keeps_codes=True)).codes
    parts = given.index, given.nonzeros, given.value, np.zeros(len(source), np.float32)
    gpu = WarpGpu()
    sums_of_blocks = BlockSums(gpu, task, tree, BLOCK, has_residuals=False)
    sums_of_blocks.add(source.read(0, len(source)), GpuCodes(gpu, *parts), 0)
    found = PassSums.of_tree(tree, np.empty(0, np.int64))
    assert_same_sums(task, found, threads.run(task, given), np.float32)


@pytest.mark.parametrize("n_worst", [1, 5, 500])
def test_the_largest_residuals_are_found(on_gpu, rng, n_worst):
    # The residual with orthonormal atoms is the entries that are not selected; many are equal.
    Y = np.zeros((150, 4, 4), np.float32)
    Y[:, 0, 0], Y[:, 1, 1] = 9.0, rng.integers(0, 4, 150)
    source = ArraySource(Y, (4, 4))
    task = Task(kl.KroneckerDictionary([np.eye(4)] * 2), Coder("omp", 1), n_worst=n_worst)
    expected = np.argsort(-Y[:, 1, 1], kind="stable")
    expected = expected[Y[expected, 1, 1] > 0][:n_worst]
    for memory in (None, Y.nbytes // 3):
        found = Cuda(source, 32, memory).run(task)
        np.testing.assert_array_equal(found.worst, expected)
    np.testing.assert_array_equal(Threads(source, 1, 32).run(task).worst, expected)


@pytest.mark.parametrize("method", METHODS)
def test_zero_constant_and_tiny_samples_are_coded_as_by_the_processor(on_gpu, rng, method):
    Y = rng.standard_normal((40, 8, 8)).astype(np.float32)
    Y[3], Y[4], Y[5] = 0, 1, Y[5] * 1e-25
    source = ArraySource(Y, (8, 8))
    dictionary = kl.KroneckerDictionary(reference.random_factors(rng, (8, 8), (8, 8)))
    found, expected = (
        engine.codes(dictionary, Coder(method, 4))
        for engine in (Cuda(source, BLOCK), Threads(source, 1, BLOCK))
    )
    assert found[[3]].nnz == 0
    np.testing.assert_array_equal(np.diff(found.indptr), np.diff(expected.indptr))
    np.testing.assert_allclose(found.toarray(), expected.toarray(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
def test_a_sample_that_is_not_finite_is_named(on_gpu, rng, bad):
    Y = rng.standard_normal((40, 8, 8)).astype(np.float32)
    Y[17, 2, 3] = Y[30, 0, 0] = bad
    source = ArraySource(Y, (8, 8))
    task = Task(
        kl.KroneckerDictionary(reference.random_factors(rng, (8, 8), (8, 8))), Coder("omp", 4)
    )
    with pytest.raises(ValueError, match="sample 17"):
        Cuda(source, BLOCK).run(task)
    source.first = 128
    with pytest.raises(ValueError, match="sample 145"):
        Cuda(source, BLOCK).codes(task.dictionary, task.coder)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"n_atoms": (9, 10)},
        {"n_terms": 2},
        {"tol": 20.0, "n_nonzero_coefs": None},
    ],
    ids=str,
)
def test_learning_ends_where_the_processor_does(on_gpu, settings):
    Y = image_like(200, 8)
    options = {"n_atoms": (8, 8), "n_nonzero_coefs": 4, "max_iter": 4, "random_state": 0} | settings
    expected = kl.KroneckerDictionaryLearning(**options).fit(Y)
    found = kl.KroneckerDictionaryLearning(**options, device="cuda").fit(Y)
    rmse = found.history_["rmse"]
    assert len(rmse) == len(expected.history_["rmse"])
    # Rounding may change the number of nonzeros for an error target, and in the sums of specialised
    # kernels it may change the support of one sample, which matters if there are few.
    tolerance = 1e-3 if "tol" in settings else 1e-4
    np.testing.assert_allclose(rmse, expected.history_["rmse"], rtol=tolerance)
    assert found.dictionary_.dtype == np.float32
    if "tol" not in settings:
        assert -found.score(Y) == pytest.approx(min(rmse), rel=1e-6)


def test_partial_fit_and_transform(on_gpu):
    Y = image_like(400, 8)
    models = [
        kl.KroneckerDictionaryLearning(8, n_nonzero_coefs=4, random_state=0, device=device)
        for device in ("cpu", "cuda")
    ]
    for model in models:
        model.partial_fit(Y[:200]).partial_fit(Y[200:])
    assert models[1].score(Y) == pytest.approx(models[0].score(Y), rel=1e-4)
    X = models[1].transform(Y[:50])
    np.testing.assert_allclose(
        models[1].inverse_transform(X), models[1].dictionary_.reconstruct(X), rtol=1e-6
    )


def test_a_missing_cupy_is_an_error_that_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    arrays.cupy.cache_clear()
    with pytest.raises(ImportError, match=r"pip install '\.\[cuda13\]' in the checkout"):
        kl.sparse_code(np.eye(4)[None], [np.eye(4)] * 2, 2, device="cuda")
    with pytest.raises(ValueError, match="choose one of cpu, cuda"):
        kl.sparse_code(np.eye(4)[None], [np.eye(4)] * 2, 2, device="tpu")


def test_images_are_denoised_by_a_sum_of_products_as_by_the_processor(on_gpu, rng):
    y, x = np.mgrid[:32, :30]
    clean = (100 + 50 * np.sin(y / 5) + 40 * (x > 17)).astype(np.float32)
    noisy = clean + rng.normal(0, 10, clean.shape).astype(np.float32)
    options = {"sigma": 10.0, "max_iter": 3, "n_terms": 2, "quality": "dictionary"}
    expected = kl.images.denoise(noisy, **options, random_state=0)
    found = kl.images.denoise(noisy, **options, random_state=0, device="cuda")
    assert found.dtype == expected.dtype
    assert np.std(found - clean) == pytest.approx(np.std(expected - clean), rel=0.02)
    assert np.std(found - expected) < 0.1 * np.std(noisy - clean)
