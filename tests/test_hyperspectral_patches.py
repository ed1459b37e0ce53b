"""The patches of hyperspectral cubes as samples, and learning from them."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from kronlearn import KroneckerDictionaryLearning, hyperspectral
from kronlearn.experiments.data import read_cube
from kronlearn.hyperspectral import CubePatches, blocks
from kronlearn.io.cubes import open_cube

NODATA = -9999.0


def patches_one_by_one(cube, shape):
    """All patches of a cube (rows, columns, bands) in their order, in plain NumPy."""
    m, n, b = (*shape, 1)[:3]

    def starts(length, size):
        return [min(start, length - size) for start in range(0, length, size)]

    rows, columns, bands = map(starts, cube.shape, (m, n, b))
    cut = [
        cube[i : i + m, j : j + n, k : k + b].reshape(-1)
        for i in rows
        for k in bands
        for j in columns
    ]
    return np.array(cut)


SHAPES = [
    ((8, 8), (21, 19, 5)),
    ((4, 3), (8, 9, 1)),
    ((5, 7, 3), (16, 16, 7)),
    ((8, 8, 4), (8, 8, 4)),
]


@pytest.mark.parametrize(("patch", "shape"), SHAPES)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_patches_equal_those_of_numpy_for_any_order_of_the_axes(patch, shape, axis, rng):
    cube = rng.integers(0, 5000, shape).astype(np.uint16)
    stored = np.ascontiguousarray(np.moveaxis(cube, 2, axis))
    patches = CubePatches(open_cube(stored, band_axis=axis), patch)
    expected = patches_one_by_one(cube, patch)
    assert patches.dtype == np.float32
    assert len(patches) == len(expected)
    np.testing.assert_array_equal(patches.read(0, len(patches)), expected)
    for start, stop in np.sort(rng.integers(0, len(expected) + 1, (20, 2))):
        found = patches.read(start, stop)
        np.testing.assert_array_equal(found, expected[start:stop])
        assert found.flags.c_contiguous
    rows = rng.integers(0, len(expected), 9)
    np.testing.assert_array_equal(patches.take(rows), expected[rows])


def test_patches_do_not_depend_on_how_much_is_read_at_a_time(rng, monkeypatch):
    cube = rng.random((70, 20, 6))
    whole = CubePatches(cube, (8, 8)).read(0, 9 * 3 * 6)
    for size in (1, 20_000):
        monkeypatch.setattr(blocks, "_READ_BYTES", size)
        patches = CubePatches(cube, (8, 8))
        for start in range(0, len(patches), 16):
            stop = min(start + 16, len(patches))
            np.testing.assert_array_equal(patches.read(start, stop), whole[start:stop])


def test_consecutive_patches_read_no_rows_twice_and_threads_get_the_same(
    rng, tmp_path, monkeypatch
):
    cube = rng.random((160, 20, 6))
    np.save(tmp_path / "cube.npy", cube)
    monkeypatch.setattr(blocks, "_READ_BYTES", 16 * 20 * 6 * 8)
    patches = CubePatches(open_cube(tmp_path / "cube.npy", band_axis=2), (8, 8))
    read, reads = patches.cube.read_checked, []

    def counted(rows, *rest):
        reads.append(rows.start)
        if len(reads) == 1:
            raise OSError("try again")
        return read(rows, *rest)

    monkeypatch.setattr(patches.cube, "read_checked", counted)
    with pytest.raises(OSError, match="try again"):
        patches.read(0, 10)
    expected = patches_one_by_one(cube, (8, 8))
    starts = range(0, len(patches), 10)
    parts = [patches.read(start, start + 10) for start in starts]
    np.testing.assert_array_equal(np.concatenate(parts), expected)
    assert reads[1:] == list(range(0, 160, 16))
    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(lambda start: patches.read(start, start + 10), starts))
    np.testing.assert_array_equal(np.concatenate(parts), expected)


def test_the_number_of_patches_is_that_of_the_paper():
    cube = np.broadcast_to(np.uint16(1), (614, 1848, 220))
    assert len(CubePatches(open_cube(cube, band_axis=2), (8, 8))) == 3_913_140


@pytest.mark.parametrize("nodata", [None, -1])
@pytest.mark.parametrize(("shape", "kept"), [((8, 8), [0, 4, 5]), ((8, 8, 2), [0, 1, 4, 5])])
def test_patches_of_bad_bands_are_left_out(shape, kept, nodata, rng):
    values = rng.random((16, 24, 6))
    cube = open_cube(values, 2, nodata=nodata)
    cube.bad_bands = [False, True, True, True, False, False]
    patches, expected = (
        CubePatches(cube, shape),
        CubePatches(open_cube(values[..., kept], 2), shape),
    )
    every = expected.read(0, len(expected))
    np.testing.assert_array_equal(patches.read(0, len(patches)), every)
    np.testing.assert_array_equal(patches.take(np.array([3, 0])), every[[3, 0]])
    cube.bad_bands = np.ones(6, bool)
    with pytest.raises(ValueError, match="not marked as bad"):
        CubePatches(cube, shape)


@pytest.mark.parametrize("patch", [(8, 8), (8, 8, 5)])
def test_patches_with_missing_values_are_left_out(patch, rng):
    cube = rng.random((30, 27, 11))
    cube[rng.random(cube.shape) < 0.002] = NODATA
    patches = CubePatches(open_cube(cube, band_axis=2, nodata=NODATA), patch)
    expected = patches_one_by_one(cube, patch)
    expected = expected[(expected != NODATA).all(axis=1)]
    assert 0 < len(expected) < len(patches_one_by_one(cube, patch))
    assert len(patches) == len(expected)
    for start, stop in [(0, len(expected)), (3, len(expected) - 2), (5, 5), (7, 8)]:
        np.testing.assert_array_equal(patches.read(start, stop), expected[start:stop])
    np.testing.assert_array_equal(patches.take(np.array([4, 0])), expected[[4, 0]])


def test_patches_without_means_can_be_pickled(rng, tmp_path):
    np.save(tmp_path / "cube.npy", rng.random((20, 20, 4)).astype(np.float32))
    patches = CubePatches(tmp_path / "cube.npy", (8, 8), remove_means=True)
    samples = patches.read(0, len(patches))
    np.testing.assert_allclose(samples.mean(axis=1), 0, atol=1e-6)
    again = pickle.loads(pickle.dumps(patches))
    np.testing.assert_array_equal(again.read(0, len(again)), samples)


@pytest.mark.parametrize(
    ("dtypes", "expected"), [(["u1", ">i2", "f4"], "f4"), (["i4", "u8", "f8"], "f8")]
)
def test_patches_are_floats_that_hold_the_values_exactly(dtypes, expected):
    for dtype in dtypes:
        assert CubePatches(np.ones((8, 8, 2), dtype), (8, 8)).dtype == expected


SIZES = "must be two positive integers"


@pytest.mark.parametrize(
    ("patch", "nodata", "text"),
    [(patch, None, SIZES) for patch in (8, (8,), (8, 8, 2, 1), (8, 0), (8.0, 8), "8x8")]
    + [
        ((8, 8, 5), None, r"\(8, 8, 5\) do not fit .* = \(16, 16, 4\)"),
        ((8, 8), 0, "no patch of shape .* without missing values"),
    ],
)
def test_shapes_of_which_there_are_no_patches_are_refused(patch, nodata, text):
    with pytest.raises(ValueError, match=text):
        CubePatches(open_cube(np.zeros((16, 16, 4)), band_axis=2, nodata=nodata), patch)


def test_learning_from_a_cube_is_learning_from_its_patches(rng):
    cube = rng.standard_normal((40, 40, 6)).cumsum(axis=0)
    options = {"max_iter": 4, "random_state": 0}
    model = hyperspectral.learn(cube, (8, 8), band_axis=2, n_nonzero_coefs=3, **options)
    plain = KroneckerDictionaryLearning((16, 16), n_nonzero_coefs=3, **options)
    plain.fit(patches_one_by_one(cube, (8, 8)).reshape(-1, 8, 8))
    for found, expected in zip(model.factors_, plain.factors_, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_three_modes_have_a_lower_error_than_two_with_as_many_nonzeros_per_value():
    cube = read_cube()[:64, :64]
    options = {"band_axis": 2, "max_iter": 8, "random_state": 0}
    two = hyperspectral.learn(cube, (8, 8), (8, 8), 2, **options)
    three = hyperspectral.learn(cube, (8, 8, 10), (8, 8, 10), 20, **options)
    assert three.history_["rmse"][-1] < 0.75 * two.history_["rmse"][-1]


def test_the_default_numbers_of_atoms(rng):
    cube = rng.standard_normal((16, 16, 4))
    options = {"band_axis": 2, "max_iter": 1, "random_state": 0, "n_nonzero_coefs": 2}
    learn = hyperspectral.learn
    assert learn(cube, (8, 8), **options).dictionary_.n_atoms == (16, 16)
    assert learn(cube, (8, 8), structure="orthonormal", **options).dictionary_.n_atoms == (8, 8)
    assert learn(cube, (8, 8, 2), **options).dictionary_.n_atoms == (8, 8, 2)
