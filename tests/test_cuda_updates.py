"""Updates of dictionaries on a GPU."""

import numpy as np
import pytest

import kronlearn as kl
import reference
from kronlearn.core.coder import Coder
from kronlearn.core.engine import Task
from kronlearn.core.moments import ModeMoments, Moments
from kronlearn.core.structures import General, Orthonormal
from kronlearn.cuda.tables import Tables
from kronlearn.cuda.updates import DeviceUpdate
from kronlearn.engines.threads import Threads
from kronlearn.io.arrays import ArraySource

#: Entries and atoms of a side where sums are those of modes.
SIZES = [(8, 16), *(pytest.param(m, 32, marks=pytest.mark.slow) for m in (16, 32))]


def dictionary_of(rng, m, n):
    return kl.KroneckerDictionary(reference.random_factors(rng, (m, m), (n, n)))


def samples_of(rng, m, count):
    """Samples whose first rows are three times as large as their last ones."""
    Y = rng.standard_normal((count, m, m)) * np.logspace(0, -0.5, m)[:, None]
    return ArraySource(Y, (m, m))


def give(update, sums, found):
    """Set sums in double precision, as those of three blocks in single precision."""
    gpu = update.gpu
    counts = [found.energy, found.residual, found.code_energy, float(found.nonzeros)]
    update.partial_counts[1] = gpu.upload(np.array(counts))
    rest = np.concatenate([part.ravel() for part in sums])
    for block in range(3):
        update.partial[block] = gpu.upload(rest.astype(np.float32))
        rest = rest - rest.astype(np.float32)


@pytest.mark.parametrize("structure", [General, Orthonormal])
def test_updates_from_full_moments_are_those_of_the_processor(gpu, rng, structure):
    dictionary = dictionary_of(rng, 8, 8)
    if structure is Orthonormal:
        dictionary = kl.KroneckerDictionary([np.linalg.qr(f)[0] for f in dictionary.factors])
    coder = Coder("omp" if structure is General else "threshold", 4)
    task = Task(dictionary, coder, "full" if structure is General else "xy")
    found = Threads(samples_of(rng, 8, 3000)).run(task)
    moments = Moments.of_pass(task, found)
    update = DeviceUpdate(gpu, dictionary, structure is Orthonormal, capacity=4, rows=3)
    update.begin(dictionary.factors)
    give(update, [moments.xy] if moments.xx is None else [moments.xx, moments.xy], found)
    update.run("update_both")
    [made] = update.results()
    expected, _ = structure().update(dictionary, moments)
    assert_made(made, expected, found)
    assert_tables(gpu, update, expected)


@pytest.mark.parametrize(("m", "n"), SIZES)
def test_updates_mode_by_mode_are_those_of_the_processor(gpu, rng, m, n):
    dictionary, coder, structure = dictionary_of(rng, m, n), Coder("omp", 6), General()
    threads = Threads(samples_of(rng, m, 600))
    update = DeviceUpdate(gpu, dictionary, False, capacity=4, rows=3)
    update.begin(dictionary.factors)
    expected = dictionary
    scales = [np.ones(n), np.ones(n)]
    first = None
    for mode, kernel in enumerate(["update_left", "update_right"]):
        # Codes of unit-norm left atoms in place of unscaled ones: the same sums.
        task = Task(expected, coder, "mode", mode, keeps_codes=mode == 0, scales=tuple(scales))
        found = threads.run(task, first.codes if mode else None)
        sums = ModeMoments.of_pass(task, found)
        rows = np.concatenate([sums.p, sums.c], axis=1)
        first = first or found
        give(update, [rows], found)
        update.run(kernel)
        stack, scales[mode] = structure.solve(expected.stacks[mode], sums)
        expected = expected.with_stack(mode, stack)
    [made] = update.results()
    assert_made(made, expected, first)
    assert_tables(gpu, update, expected)


def assert_made(made, expected, found):
    assert not made.failed
    for factor, wanted in zip(made.factors, expected.factors, strict=True):
        np.testing.assert_allclose(factor, wanted, rtol=0, atol=1e-10)
    assert (made.residual, made.nonzeros) == (found.residual, found.nonzeros)


def assert_tables(gpu, update, expected):
    """The tables belong to the new dictionary."""
    numbers = Tables.of(expected.factors).numbers
    np.testing.assert_allclose(gpu.download(update.double_tables), numbers, rtol=0, atol=1e-9)
    np.testing.assert_allclose(gpu.download(update.single_tables), numbers, rtol=0, atol=1e-6)


def test_atoms_that_no_code_uses_are_left_to_the_processor(gpu, rng):
    dictionary = dictionary_of(rng, 8, 16)
    update = DeviceUpdate(gpu, dictionary, False, capacity=4, rows=3)
    update.begin(dictionary.factors)
    P = np.diag(np.arange(16.0))
    rows = np.concatenate([P, rng.standard_normal((16, 8))], axis=1)
    update.partial[0] = gpu.upload(rows.astype(np.float32).ravel())
    for kernel in ("update_left", "update_right"):
        update.run(kernel)
    [made] = update.results()
    assert made.failed
    assert int(gpu.download(update.stopped)[0]) == 1
