"""Native passes against NumPy: sums, worst samples, given codes, and the checks of arguments."""

import itertools
import tempfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reference
from kronlearn import _native
from kronlearn.core.engine import worst_first

SHAPE, ATOMS = (4, 5), (6, 7)
FEATURES, N_ATOMS = 20, 42
WIDTH = 3
COUNTS = 4
SIZES = {
    ("none", -1): 0,
    ("full", -1): N_ATOMS * (N_ATOMS + 1) // 2 + N_ATOMS * FEATURES,
    ("xy", -1): N_ATOMS * FEATURES,
    ("mode", 1): 7 * 7 + 7 * 5,
    ("mode-xy", 0): 6 * 4,
}


class Feed:
    """Hands samples (N, features) to native code in chunks."""

    def __init__(self, samples, chunk):
        self.samples, self.chunk = samples, chunk
        self.in_use = set()

    def get(self, number):
        self.in_use.add(number)
        return self.samples[number * self.chunk : (number + 1) * self.chunk]

    def done(self, number):
        self.in_use.remove(number)


def unit_factors(rng):
    factors = [rng.standard_normal(shape) for shape in zip(SHAPE, ATOMS, strict=True)]
    return [factor / np.linalg.norm(factor, axis=0) for factor in factors]


def native(factors, dtype):
    return {"f": _native.DictionaryFloat32, "d": _native.DictionaryFloat64}[np.dtype(dtype).char](
        factors
    )


def empty_codes(n, dtype):
    return {
        "index": np.empty((n, WIDTH), np.int32),
        "value": np.empty((n, WIDTH), dtype),
        "nonzeros": np.empty(n, np.int32),
    }


def run(factors, samples, sums="none", mode=-1, block=32, chunk=None, method="omp", **options):
    """Run a pass; return the total of its tree and its result."""
    n = len(samples)
    chunk = chunk or -(-n // block) * block
    n_blocks = -(-(options.get("first", 0) + n) // block)
    tree = _native.SumTree(COUNTS + SIZES[sums, mode], n_blocks)
    feed = Feed(samples, chunk)
    found = native(factors, samples.dtype).run(
        feed, n, chunk, method, WIDTH, tree, sums=sums, mode=mode, block=block, **options
    )
    assert not feed.in_use
    return tree.total(), found


def dense(codes):
    """The codes as a matrix (N, atoms)."""
    X = np.zeros((len(codes["nonzeros"]), N_ATOMS))
    for row, index, value, nonzeros in zip(X, *codes.values(), strict=True):
        row[index[:nonzeros]] = value[:nonzeros]
    return X


@pytest.fixture
def problem(rng):
    return unit_factors(rng), rng.standard_normal((333, FEATURES))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("sums", "mode"), SIZES)
def test_sums_begin_with_energy_residual_energy_of_codes_and_nonzeros(problem, sums, mode, dtype):
    factors, samples = problem
    Y = samples.astype(dtype)
    codes = empty_codes(len(Y), dtype)
    total, _ = run(factors, Y, sums, mode, **codes)
    X = dense(codes)
    code_energy = np.sum(X**2) if sums in ("xy", "mode-xy") else 0
    residual = np.sum((Y - X @ np.kron(*factors).T) ** 2)
    expected = [np.sum(Y.astype(float) ** 2), residual, code_energy, codes["nonzeros"].sum()]
    np.testing.assert_allclose(total[:4], expected, rtol=1e-4 if dtype == np.float32 else 1e-9)


def test_energy_and_residual_of_weighted_samples_are_weighted(problem, rng):
    factors, Y = problem
    weights, codes = rng.uniform(0, 3, Y.shape), empty_codes(len(Y), float)
    total, _ = run(factors, Y, weights=weights, **codes)
    left = Y - dense(codes) @ np.kron(*factors).T
    np.testing.assert_allclose(total[:2], [np.sum(weights * Y**2), np.sum(weights * left**2)])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("sums", "mode"), [key for key in SIZES if key[0] != "none"])
def test_given_codes_are_summed_as_they_are(problem, sums, mode, dtype):
    factors, samples = problem
    Y = samples.astype(dtype)
    codes = empty_codes(len(Y), dtype)
    coded, _ = run(factors, Y, sums, mode, **codes)
    before = {name: array.copy() for name, array in codes.items()}
    total, (not_finite, residual2, worst) = run(
        factors, Y, sums, mode, given=True, n_worst=5, threads=2, **codes
    )
    expected = coded.copy()
    expected[1] = 0  # there are no residuals if samples are not coded
    assert total.tobytes() == expected.tobytes()
    assert (not_finite, len(residual2), len(worst)) == (-1, 0, 0)
    for name, array in codes.items():
        np.testing.assert_array_equal(array, before[name])


def test_given_codes_may_have_any_values(problem, rng):
    factors, Y = problem
    codes = empty_codes(len(Y), float)
    codes["index"][:] = np.sort([rng.choice(N_ATOMS, WIDTH, False) for _ in Y], axis=1)
    codes["value"][:] = rng.standard_normal((len(Y), WIDTH))
    codes["nonzeros"][:] = rng.integers(0, WIDTH + 1, len(Y))
    # Entries after the nonzeros are not used.
    codes["index"][codes["nonzeros"] < WIDTH, -1] = 10**6
    total, _ = run(factors, Y, "full", given=True, **codes)
    _, _, s_xx, s_xy = reference.moments(Y, dense(codes))
    expected = np.concatenate([s_xx[np.tril_indices(N_ATOMS)], s_xy.ravel()])
    np.testing.assert_allclose(total[COUNTS:], expected, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("index", N_ATOMS, "names an atom that does not exist"),
        ("index", -1, "names an atom that does not exist"),
        ("nonzeros", WIDTH + 1, "more nonzeros than its width"),
        ("nonzeros", -1, "more nonzeros than its width"),
    ],
)
def test_given_codes_that_do_not_fit_the_dictionary_are_refused(problem, name, value, words):
    factors, Y = problem
    codes = empty_codes(len(Y), float)
    run(factors, Y, **codes)
    codes[name][200] = value
    with pytest.raises(ValueError, match=words):
        run(factors, Y, "full", given=True, threads=2, **codes)


@pytest.mark.parametrize("n_worst", [0, 1, 7, 40, 332, 333, 1000])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_worst_samples_are_those_with_the_largest_residuals(problem, n_worst, dtype):
    factors, samples = problem
    Y = samples.astype(dtype)
    Y[rng_rows(100)] = Y[17]  # equal residuals: the smaller number comes first
    Y[5:300:7] = 0  # no residual
    codes = empty_codes(len(Y), dtype)
    _, (_, residual2, worst) = run(factors, Y, n_worst=n_worst, threads=3, first=64 * 32, **codes)
    each = np.array([run(factors, y[None])[0][1] for y in Y])
    order = np.lexsort([np.arange(len(Y)), -each])[: min(n_worst, np.count_nonzero(each))]
    np.testing.assert_array_equal(worst, 64 * 32 + order)
    assert residual2.tobytes() == each[order].tobytes()
    assert (residual2.dtype, worst.dtype) == (np.float64, np.int64)


def test_among_equal_residuals_the_smaller_number_comes_first():
    residuals, samples = worst_first(np.array([1.0, 3.0, 3.0, 2.0]), np.array([0, 9, 4, 1]), 3)
    assert residuals.tolist() == [3.0, 3.0, 2.0]
    assert samples.tolist() == [4, 9, 1]


def rng_rows(count):
    return np.random.default_rng(1).choice(333, count, replace=False)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("sums", "mode", "n_worst"), [("full", -1, 3), ("mode", 1, 60)])
def test_results_have_the_same_bits_for_all_threads_chunks_and_files(
    problem, dtype, sums, mode, n_worst
):
    factors, samples = problem
    Y = samples.astype(dtype)
    Y[rng_rows(100)] = Y[17]
    expected = None
    with tempfile.TemporaryFile() as file:
        file.write(b"12345678" + Y.tobytes())
        file.flush()
        sources = [{}, {"chunk": 32}, {"chunk": 96}, {"file": file.fileno(), "file_offset": 8}]
        for source, threads in itertools.product(sources, (1, 2, 5)):
            codes = empty_codes(len(Y), dtype)
            total, (_, *worst) = run(
                factors, Y, sums, mode, n_worst=n_worst, threads=threads, **source, **codes
            )
            result = [a.tobytes() for a in (total, *worst, codes["nonzeros"], codes["value"])]
            expected = expected or result
            assert result == expected


@given(st.integers(1, 900), st.integers(1, 3), st.lists(st.integers(0, 29), max_size=4))
def test_parts_of_the_samples_add_up_to_the_whole(n_samples, n_threads, cuts):
    rng = np.random.default_rng(0)
    factors, Y = unit_factors(rng), rng.standard_normal((n_samples, FEATURES))
    total, (_, *worst) = run(factors, Y, "full", n_worst=20)
    n_blocks = -(-n_samples // 32)
    tree = _native.SumTree(COUNTS + SIZES["full", -1], n_blocks)
    parts = []
    ends = sorted({0, n_blocks, *(cut for cut in cuts if cut < n_blocks)})
    for part in reversed(list(itertools.pairwise(ends))):
        first, stop = (min(32 * end, n_samples) for end in part)
        _, *found = native(factors, Y.dtype).run(
            Feed(Y[first:stop], 928), stop - first, 928, "omp", WIDTH, tree, sums="full",
            first=first, n_worst=20, block=32, threads=n_threads,
        )  # fmt: skip
        parts.append(found)
    assert tree.total().tobytes() == total.tobytes()
    residual2, samples = (np.concatenate(part) for part in zip(*parts, strict=True))
    order = np.lexsort([samples, -residual2])[:20]
    np.testing.assert_array_equal(samples[order], worst[1])
    np.testing.assert_array_equal(residual2[order], worst[0])


def test_the_first_sample_that_is_not_finite_is_found(problem):
    factors, Y = problem
    assert run(factors, Y)[1][0] == -1
    Y[[300, 211, 220, 250], 3] = np.nan  # the second and third are of one block
    for threads in (1, 4):
        assert run(factors, Y, n_worst=5, threads=threads)[1][0] == 211


@pytest.mark.parametrize("name", _native.instruction_sets())
def test_every_pass_uses_the_instruction_set_it_names(problem, name):
    factors, Y = problem
    total, _ = run(factors, Y, "full", instruction_set=name)
    best, _ = run(factors, Y, "full")
    np.testing.assert_allclose(total, best, atol=1e-9)
    if name == "baseline" and len(_native.instruction_sets()) > 1:
        assert total.tobytes() != best.tobytes()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"given": True}, "codes are needed"),
        ({"first": 16}, "where a block does"),
        ({"chunk": 48}, "whole numbers of blocks"),
        ({"method": "lars"}, "unknown method lars"),
        ({"instruction_set": "mmx"}, "instruction set mmx"),
        ({"nonzeros": np.zeros(3, np.int32)}, "nonzeros has 3 entries; expected 333"),
        ({"tols": np.zeros(3)}, "tols has 3 entries"),
    ],
)
def test_invalid_arguments_of_a_pass_are_refused(problem, change, words):
    with pytest.raises(ValueError, match=words):
        run(*problem, **change)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("kind", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_are_packed_at_their_starts(rng, dtype, kind, threads):
    n = 10000
    index = rng.integers(0, 99, (n, 4)).astype(np.int32)
    value = rng.standard_normal((n, 4)).astype(dtype)
    nonzeros = rng.integers(0, 5, n).astype(np.int32)
    starts = np.concatenate([[3], 3 + np.cumsum(nonzeros)])
    indices = np.full(starts[-1] + 2, -7, kind)
    data = np.full(starts[-1] + 2, -7, dtype)
    _native.compress(index, value, nonzeros, starts, indices, data, threads)
    used = np.arange(4) < nonzeros[:, None]
    for packed, entries in ((indices, index), (data, value)):
        np.testing.assert_array_equal(packed[3:-2], entries[used])
        assert (packed[:3] == -7).all()
        assert (packed[-2:] == -7).all()


@pytest.mark.parametrize("n", [0, 1, 5, 31, 32, 33, 100])
def test_a_packed_triangle_becomes_a_symmetric_matrix(rng, n):
    full = rng.standard_normal((n, n))
    full += full.T
    unpacked = _native.symmetric(full[np.tril_indices(n)], n)
    np.testing.assert_array_equal(unpacked, full)
    with pytest.raises(ValueError, match="packed triangle"):
        _native.symmetric(np.zeros(n * (n + 1) // 2 + 1), n)


STACKS = [np.ones((2, 3, 4)), np.ones((2, 5, 2))]
COMPRESSED = {
    "index": np.zeros((2, 2), np.int32),
    "value": np.zeros((2, 2)),
    "nonzeros": np.full(2, 2, np.int32),
    "starts": np.array([0, 2, 4]),
    "indices": np.zeros(4, np.int32),
    "data": np.zeros(4),
}
SWEPT = {
    "samples": np.ones((4, 5)),
    "indptr": np.arange(5, dtype=np.int32),
    "indices": np.zeros(4, np.int32),
    "data": np.ones(4),
    "atoms": np.eye(3, 5),
}
SUMMED = {"stacks": STACKS, "mode": 1, "xx": np.ones(36), "xy": np.ones((8, 15))}


@pytest.mark.parametrize(
    ("function", "arguments", "changes", "words"),
    [
        ("compress", COMPRESSED, {"starts": np.array([0, 2, 3])}, "do not fit"),
        ("compress", COMPRESSED, {"starts": np.array([-1, 1, 3])}, "do not fit"),
        ("compress", COMPRESSED, {"starts": np.array([1, 3, 5])}, "do not fit"),
        ("compress", COMPRESSED, {"starts": np.array([0, 2])}, "do not fit"),
        ("compress", COMPRESSED, {"data": np.zeros(3)}, "do not fit"),
        ("compress", COMPRESSED, {"value": np.zeros((2, 3))}, "do not fit"),
        ("sweep_atoms", SWEPT, {"indices": np.full(4, 3, np.int32)}, "does not exist"),
        ("sweep_atoms", SWEPT, {"indices": np.full(4, -1, np.int32)}, "does not exist"),
        ("sweep_atoms", SWEPT, {"data": np.ones(5)}, "codes do not fit together"),
        ("sweep_atoms", SWEPT, {"indptr": np.array([0, 3, 2, 4, 4], np.int32)}, "rows .* overlap"),
        ("sweep_atoms", SWEPT, {"samples": np.ones((4, 6))}, "samples do not fit the atoms"),
        ("mode_sums", SUMMED, {"mode": 2}, "mode_sums"),
        ("mode_sums", SUMMED, {"xy": np.ones((7, 15))}, "mode_sums"),
        ("mode_sums", SUMMED, {"xx": np.ones(35)}, "triangle"),
        ("mode_sums", SUMMED, {"stacks": [STACKS[0], STACKS[1][:1]]}, "mode_sums"),
        ("mode_sums", SUMMED, {"stacks": []}, "mode_sums"),
    ],
)
def test_arrays_that_do_not_fit_each_other_are_refused(function, arguments, changes, words):
    used = {name: np.copy(a) if isinstance(a, np.ndarray) else a for name, a in arguments.items()}
    getattr(_native, function)(*used.values())
    with pytest.raises(ValueError, match=words):
        getattr(_native, function)(*(used | changes).values())
