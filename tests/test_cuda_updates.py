"""Updates of dictionaries on a GPU, and samples that it codes again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kronlearn as kl
import reference
from kronlearn.core.coder import Coder
from kronlearn.core.engine import PassSums, Task
from kronlearn.core.moments import ModeMoments, Moments
from kronlearn.core.structures import General, Orthonormal
from kronlearn.cuda.codes import GpuCodes
from kronlearn.cuda.settling import Settling
from kronlearn.cuda.tables import Tables
from kronlearn.cuda.tasks import METHODS, new_task
from kronlearn.cuda.updates import DeviceUpdate, Made
from kronlearn.engines.threads import Threads
from kronlearn.io.arrays import ArraySource

#: Entries and atoms of a side where sums are those of modes.
SIZES = [(8, 16), *(pytest.param(m, 32, marks=pytest.mark.slow) for m in (16, 32))]


def dictionary_of(rng: np.random.Generator, m: int, n: int) -> kl.KroneckerDictionary:
    return kl.KroneckerDictionary(reference.random_factors(rng, (m, m), (n, n)))


def samples_of(rng: np.random.Generator, m: int, count: int) -> ArraySource:
    """Samples whose rows differ threefold in size."""
    Y = rng.standard_normal((count, m, m)) * np.logspace(0, -0.5, m)[:, None]
    return ArraySource(Y, (m, m))


def give(update: DeviceUpdate, sums: list[np.ndarray], found: PassSums) -> None:
    """Pass sums in double precision as those of a single sample that no block has in its own."""
    gpu = update.gpu
    counts = [found.energy, found.residual, found.code_energy, float(found.nonzeros)]
    update.further[...] = gpu.upload(np.concatenate([part.ravel() for part in sums]))
    update.further_counts[...] = gpu.upload(np.array(counts))
    update.doubtful_count.fill(1)


@pytest.mark.parametrize("structure", [General, Orthonormal])
def test_updates_from_full_moments_are_those_of_the_processor(gpu, rng, structure):
    dictionary = dictionary_of(rng, 8, 8)
    if structure is Orthonormal:
        dictionary = kl.KroneckerDictionary([np.linalg.qr(f)[0] for f in dictionary.factors])
    coder = Coder("omp" if structure is General else "threshold", 4)
    task = Task(dictionary, coder, "full" if structure is General else "xy")
    found = Threads(samples_of(rng, 8, 3000)).run(task)
    moments = Moments.of_pass(task, found)
    update = DeviceUpdate(gpu, dictionary, structure is Orthonormal, kept=4, rows=3)
    update.begin(dictionary.factors)
    give(update, [moments.xy] if moments.xx is None else [moments.xx, moments.xy], found)
    update.run("update_both")
    [made] = update.made()
    expected, _ = structure().update(dictionary, moments)
    assert_made(made, expected, found)
    assert_tables(gpu, update, expected)
    assert int(gpu.download(update.doubtful_count)[0]) == 0


@pytest.mark.parametrize(("m", "n"), SIZES)
def test_updates_mode_by_mode_are_those_of_the_processor(gpu, rng, m, n):
    dictionary, coder, structure = dictionary_of(rng, m, n), Coder("omp", 6), General()
    threads = Threads(samples_of(rng, m, 600))
    update = DeviceUpdate(gpu, dictionary, False, kept=4, rows=3)
    update.begin(dictionary.factors)
    expected: Any = dictionary
    scales = [np.ones(n), np.ones(n)]
    first: Any = None
    for mode, kernel in enumerate(["update_left", "update_right"]):
        # Codes of unit-norm left atoms in place of unscaled ones: the same sums.
        task = Task(expected, coder, "mode", mode, keeps_codes=mode == 0, scales=tuple(scales))
        found = threads.run(task, first.codes if mode else None)
        sums = ModeMoments.of_pass(task, found)
        rows = np.concatenate([sums.p, sums.c], axis=1)
        if mode == 0:
            first = found
            give(update, [rows], found)
        else:
            update.partial[0] = gpu.upload(rows.astype(np.float32).ravel())
            rest = rows - rows.astype(np.float32)
            update.partial[2] = gpu.upload(rest.astype(np.float32).ravel())
        update.run(kernel)
        stack, scales[mode] = structure.solve(expected.stacks[mode], sums)
        expected = expected.with_stack(mode, stack)
    [made] = update.made()
    assert_made(made, expected, first)
    assert_tables(gpu, update, expected)


def assert_made(made: Made, expected: Any, found: PassSums) -> None:
    assert not made.failed
    for factor, wanted in zip(made.factors, expected.factors, strict=True):
        np.testing.assert_allclose(factor, wanted, rtol=0, atol=1e-10)
    assert (made.residual, made.nonzeros) == (found.residual, found.nonzeros)


def assert_tables(gpu: Any, update: DeviceUpdate, expected: Any) -> None:
    """The tables are those of the new dictionary."""
    numbers = Tables.of(expected.factors).numbers
    np.testing.assert_allclose(gpu.download(update.double_tables), numbers, rtol=0, atol=1e-9)
    np.testing.assert_allclose(gpu.download(update.single_tables), numbers, rtol=0, atol=1e-6)


def test_atoms_that_no_code_uses_are_left_to_the_processor(gpu, rng):
    dictionary = dictionary_of(rng, 8, 16)
    update = DeviceUpdate(gpu, dictionary, False, kept=4, rows=3)
    update.begin(dictionary.factors)
    P = np.diag(np.arange(16.0))
    update.further[...] = gpu.upload(
        np.concatenate([P, rng.standard_normal((16, 8))], axis=1).ravel()
    )
    update.doubtful_count.fill(1)
    for kernel in ("update_left", "update_right"):
        update.run(kernel)
    [made] = update.made()
    assert made.failed
    assert int(gpu.download(update.stopped)[0]) == 1
    assert int(gpu.download(update.doubtful_count)[0]) == 0


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize(
    ("m", "n", "method"),
    [
        (8, 8, "ols"),
        (8, 8, "threshold"),
        (8, 16, "omp"),
        pytest.param(32, 32, "ols", marks=pytest.mark.slow),
    ],
)
def test_settled_samples_have_the_codes_and_sums_of_the_processor(gpu, rng, m, n, method, in_place):
    if n > 8 and not in_place:
        pytest.skip("sums of the right mode read all codes")
    dictionary, width = dictionary_of(rng, m, n), 5
    if method == "threshold":
        dictionary = kl.KroneckerDictionary([np.linalg.qr(f)[0] for f in dictionary.factors])
    Y = rng.standard_normal((40, m, m)).astype(np.float32)
    chosen = rng.permutation(40)[:19].astype(np.int32)
    results = [
        settled(gpu, Y, dictionary, method, order, in_place) for order in (chosen, np.sort(chosen))
    ]
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)
    sums, counts, index = results[0]
    part = ArraySource(Y[np.sort(chosen)].astype(np.float64), (m, m))
    kind = ("mode", 0) if n > 8 else ("xy" if method == "threshold" else "full", -1)
    task = Task(dictionary, Coder(method, width), *kind, keeps_codes=True)
    found = Threads(part).run(task)
    np.testing.assert_array_equal(index, found.codes.index)
    if n > 8:
        mode_moments = ModeMoments.of_pass(task, found)
        expected = np.concatenate([mode_moments.p, mode_moments.c], axis=1)
    else:
        moments = Moments.of_pass(task, found)
        expected = np.concatenate([*([] if moments.xx is None else [moments.xx]), moments.xy])
    np.testing.assert_allclose(sums, expected.ravel(), atol=1e-5)
    np.testing.assert_allclose(
        counts[[0, 1, 3]], [found.energy, found.residual, found.nonzeros], rtol=1e-6
    )


def settled(
    gpu: Any, Y: np.ndarray, dictionary: Any, method: str, order: np.ndarray, in_place: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sums, counts and supports, in the order of the samples, of some that are on a list."""
    samples, ones = gpu.upload(Y.reshape(len(Y), -1)), gpu.upload(np.ones(32))
    doubtful = gpu.upload(order)
    update = DeviceUpdate(gpu, dictionary, method == "threshold", kept=4, rows=1)
    update.begin(dictionary.factors)
    update.doubtful_count.fill(len(order))
    bad = gpu.upload(np.array([1 << 62]))
    task = new_task(
        shape=Tables.of(dictionary.factors).shape,
        method=METHODS[method],
        width=5,
        count=len(Y),
        samples=gpu.address(samples),
        norms1=gpu.address(ones),
        norms2=gpu.address(ones),
        doubtful=gpu.address(doubtful),
        doubtful_count=gpu.address(update.doubtful_count),
        stopped=gpu.address(update.stopped),
        first_bad=gpu.address(bad),
    )
    codes = GpuCodes.empty(gpu, len(Y), 5, np.float32)
    if in_place:
        for name, place in codes.addresses(gpu.address).items():
            task[name] = place
    settling = Settling(gpu, update, task)
    settling.run(task)
    index = codes.index[np.sort(order)] if in_place else settling.codes.index[np.argsort(order)]
    arrays = update.further, update.further_counts, index
    return tuple(gpu.download(array) for array in arrays)
