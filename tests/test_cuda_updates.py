"""Updates of dictionaries on a graphics card, and samples that it codes again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kronlearn as kl
import reference
from kronlearn.core.engine import Coder
from kronlearn.core.moments import ModeMoments, Moments
from kronlearn.core.structures import General, Orthonormal
from kronlearn.cuda.codes import CardCodes
from kronlearn.cuda.settling import Settling
from kronlearn.cuda.tables import Tables
from kronlearn.cuda.tasks import METHODS, new_task
from kronlearn.cuda.updates import DeviceUpdate, Made
from kronlearn.engines.threads import Threads
from kronlearn.io.arrays import ArraySource

#: Entries and atoms of a side where sums are those of modes.
SIZES = [(8, 16), (16, 32), (32, 32)]


def dictionary_of(rng: np.random.Generator, m: int, n: int) -> kl.KroneckerDictionary:
    return kl.KroneckerDictionary(reference.random_factors(rng, (m, m), (n, n)))


def samples_of(rng: np.random.Generator, m: int, count: int) -> ArraySource:
    """Samples whose rows differ threefold in size."""
    Y = rng.standard_normal((count, m, m)) * np.logspace(0, -0.5, m)[:, None]
    return ArraySource(Y, (m, m))


def give(update: DeviceUpdate, sums: list[np.ndarray], counts: list[float]) -> None:
    """Pass sums in double precision as those of a single sample that no block has in its own."""
    card = update.card
    update.further[...] = card.upload(np.concatenate([part.ravel() for part in sums]))
    update.further_counts[...] = card.upload(np.array(counts))
    update.doubtful_count.fill(1)


def counts_of(moments: Any, found: Any) -> list[float]:
    code_energy = getattr(moments, "code_energy", 0.0)
    return [moments.energy, found.residual, code_energy, float(found.nonzeros)]


@pytest.mark.parametrize("structure", [General, Orthonormal])
def test_updates_from_full_moments_are_those_of_the_processor(card, rng, structure):
    dictionary = dictionary_of(rng, 8, 8)
    if structure is Orthonormal:
        dictionary = kl.KroneckerDictionary([np.linalg.qr(f)[0] for f in dictionary.factors])
    source = samples_of(rng, 8, 3000)
    moments = Moments.zeros((8, 8), (8, 8), structure is General)
    coder = Coder("omp" if structure is General else "threshold", 4)
    found = Threads(1, 512).run(source, dictionary, coder, moments=moments)
    update = DeviceUpdate(card, dictionary, structure is Orthonormal, kept=4, rows=3)
    sums = [moments.xy] if structure is Orthonormal else [moments.full_xx(), moments.xy]
    give(update, sums, counts_of(moments, found))
    expected = structure().update(dictionary, moments)
    update.begin(None)
    update.run("update_both")
    [made] = update.made()
    assert_made(made, expected, moments.squared_error(expected), found)
    assert_tables(card, update, expected)
    assert int(card.download(update.doubtful_count)[0]) == 0


@pytest.mark.parametrize(("m", "n"), SIZES)
def test_updates_mode_by_mode_are_those_of_the_processor(card, rng, m, n):
    dictionary, source = dictionary_of(rng, m, n), samples_of(rng, m, 600)
    threads, coder, structure = Threads(1, 512), Coder("omp", 6), General()
    codes = threads.room(source, 6)
    update = DeviceUpdate(card, dictionary, False, kept=4, rows=3)
    update.begin(None)
    expected: Any = dictionary
    passes: list[Any] = []
    scales = [np.ones(n), np.ones(n)]
    for mode, kernel in enumerate(["update_left", "update_right"]):
        sums = ModeMoments.zeros(mode, expected.stacks[mode])
        coding = "given" if mode else "fresh"
        settings: Any = {"coding": coding, "codes": codes, "moments": sums}
        if mode:
            settings["scales"] = tuple(scales)
        passes.append(threads.run(source, expected, coder, **settings))
        # Codes of unit-norm left atoms in place of unscaled ones: the same sums.
        rows = np.concatenate([sums.p, sums.c], axis=1)
        if mode == 0:
            give(update, [rows], counts_of(sums, passes[0]))
        else:
            update.partial[0] = card.upload(rows.astype(np.float32).ravel())
            rest = rows - rows.astype(np.float32)
            update.partial[2] = card.upload(rest.astype(np.float32).ravel())
        update.run(kernel)
        stack, scales[mode] = structure.solve(expected.stacks[mode], sums)
        expected = expected.with_stack(mode, stack)
        sums.rescale(scales[mode])
    [made] = update.made()
    assert_made(made, expected, sums.squared_error(expected.stacks[1]), passes[0])
    assert_tables(card, update, expected)


def assert_made(made: Made, expected: Any, squared_error: float, found: Any) -> None:
    assert not made.failed
    for factor, wanted in zip(made.factors, expected.factors, strict=True):
        np.testing.assert_allclose(factor, wanted, rtol=0, atol=1e-10)
    assert made.squared_error == pytest.approx(squared_error, rel=1e-10)
    assert (made.residual, made.nonzeros) == (found.residual, found.nonzeros)


def assert_tables(card: Any, update: DeviceUpdate, expected: Any) -> None:
    """The tables are those of the new dictionary."""
    numbers = Tables.of(expected.factors).numbers
    np.testing.assert_allclose(card.download(update.double_tables), numbers, rtol=0, atol=1e-9)
    np.testing.assert_allclose(card.download(update.single_tables), numbers, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("last_error", "rose"), [(None, [False] * 3), (1e9, [False, True]), (1.0, [True])]
)
def test_an_error_that_rises_is_told_and_stops_all_that_follows(card, rng, last_error, rose):
    dictionary = dictionary_of(rng, 8, 8)
    moments = Moments.zeros((8, 8), (8, 8), True)
    found = Threads(1, 512).run(
        samples_of(rng, 8, 600), dictionary, Coder("omp", 4), moments=moments
    )
    update = DeviceUpdate(card, dictionary, False, kept=4, rows=3)
    update.begin(last_error)
    # With new factors and old codes the error is larger.
    for _ in range(3):
        give(update, [moments.full_xx(), moments.xy], counts_of(moments, found))
        update.run("update_both")
    made = update.made()
    assert [one.rose for one in made] == rose
    assert not any(one.failed for one in made)


def test_atoms_that_no_code_uses_are_left_to_the_processor(card, rng):
    dictionary = dictionary_of(rng, 8, 16)
    update = DeviceUpdate(card, dictionary, False, kept=4, rows=3)
    P = np.diag(np.arange(16.0))
    give(update, [np.concatenate([P, rng.standard_normal((16, 8))], axis=1)], [1.0] * 4)
    update.begin(None)
    for kernel in ("update_left", "update_right"):
        update.run(kernel)
    [made] = update.made()
    assert made.failed
    assert int(card.download(update.stopped)[0]) == 1
    assert int(card.download(update.doubtful_count)[0]) == 0


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize(
    ("m", "n", "method"),
    [(8, 8, "ols"), (8, 8, "threshold"), (8, 16, "omp"), (32, 32, "ols")],
)
def test_settled_samples_have_the_codes_and_sums_of_the_processor(
    card, rng, m, n, method, in_place
):
    if n > 8 and not in_place:
        pytest.skip("sums of the right mode read all codes")
    dictionary, width = dictionary_of(rng, m, n), 5
    if method == "threshold":
        dictionary = kl.KroneckerDictionary([np.linalg.qr(f)[0] for f in dictionary.factors])
    Y = rng.standard_normal((40, m, m)).astype(np.float32)
    chosen = rng.permutation(40)[:19].astype(np.int32)
    results = [
        settled(card, Y, dictionary, method, order, in_place) for order in (chosen, np.sort(chosen))
    ]
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)
    sums, counts, index = results[0]
    part = ArraySource(Y[np.sort(chosen)].astype(np.float64), (m, m))
    moments: Any = Moments.zeros((m, m), (n, n), method != "threshold")
    if n > 8:
        moments = ModeMoments.zeros(0, dictionary.stacks[0])
    codes = Threads(1, 64).room(part, width, residuals=True)
    found = Threads(1, 64).run(part, dictionary, Coder(method, width), codes=codes, moments=moments)
    np.testing.assert_array_equal(index, codes.index)
    if n > 8:
        expected = np.concatenate([moments.p, moments.c], axis=1)
    else:
        expected = np.concatenate([*([moments.full_xx()] if moments.xx.size else []), moments.xy])
    np.testing.assert_allclose(sums, expected.ravel(), atol=1e-5)
    np.testing.assert_allclose(
        counts[[0, 1, 3]], [moments.energy, found.residual, found.nonzeros], rtol=1e-6
    )


def settled(
    card: Any, Y: np.ndarray, dictionary: Any, method: str, order: np.ndarray, in_place: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sums, counts and supports, in the order of the samples, of some that are on a list."""
    samples, ones = card.upload(Y.reshape(len(Y), -1)), card.upload(np.ones(32))
    doubtful = card.upload(order)
    update = DeviceUpdate(card, dictionary, method == "threshold", kept=4, rows=1)
    update.doubtful_count.fill(len(order))
    bad = card.upload(np.array([1 << 62]))
    task = new_task(
        shape=Tables.of(dictionary.factors).shape,
        method=METHODS[method],
        width=5,
        count=len(Y),
        samples=card.address(samples),
        norms1=card.address(ones),
        norms2=card.address(ones),
        doubtful=card.address(doubtful),
        doubtful_count=card.address(update.doubtful_count),
        stopped=card.address(update.stopped),
        first_bad=card.address(bad),
    )
    codes = CardCodes.empty(card, len(Y), 5, np.float32)
    if in_place:
        for name, place in codes.addresses(card.address).items():
            task[name] = place
    settling = Settling(card, update, task)
    settling.run(task)
    index = codes.index[np.sort(order)] if in_place else settling.codes.index[np.argsort(order)]
    arrays = update.further, update.further_counts, index
    return tuple(card.download(array) for array in arrays)
