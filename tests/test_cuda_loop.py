"""Iterations that a graphics card does on its own, and how passes and they take over."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kronlearn as kl
from emulated_card import EmulatedCard
from kronlearn.core.engine import Course, Iterated
from kronlearn.cuda.ahead import Ahead


@pytest.fixture
def courses(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Course, int]]:
    """What the card is asked to do on its own, and how many iterations it did."""
    asked: list[tuple[Course, int]] = []
    run = Ahead.run

    def watched(self: Ahead, dictionary: Any, course: Course) -> list[Iterated]:
        done = run(self, dictionary, course)
        asked.append((course, len(done)))
        return done

    monkeypatch.setattr(Ahead, "run", watched)
    return asked


def image_like(rng: np.random.Generator, count: int) -> np.ndarray:
    """Samples (count, 8, 8) that are smooth, with edges and noise; two are tiny, one is zero."""
    smooth = np.cumsum(np.cumsum(rng.standard_normal((count, 8, 8)), axis=1), axis=2)
    edges = rng.standard_normal((count, 1, 1)) * (
        np.arange(8) > rng.integers(8, size=(count, 1, 1))
    )
    noise = 5 * rng.standard_normal((count, 8, 8))
    Y = (4 * smooth + 30 * edges + noise).astype(np.float32)
    Y[[3, 11]] *= np.float32(1e-20)
    Y[5] = 0
    return Y


def fitted(Y: np.ndarray, device: str = "cuda", **settings: Any) -> Any:
    options = {"n_atoms": 8, "n_nonzero_coefs": 4, "max_iter": 5, "random_state": 0} | settings
    return kl.KroneckerDictionaryLearning(**options, device=device).fit(Y)


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "omp", "monotone": False},
        {"structure": "orthonormal"},
        {"method": "omp", "monotone": False, "n_atoms": 16},
        {"method": "ols", "monotone": False, "n_atoms": 16},
    ],
    ids=str,
)
def test_iterations_end_where_the_processor_does(on_card, courses, rng, settings):
    Y = image_like(rng, 200)
    expected, found = (fitted(Y, device, **settings) for device in ("cpu", "cuda"))
    np.testing.assert_allclose(found.history_["rmse"], expected.history_["rmse"], rtol=1e-3)
    np.testing.assert_allclose(
        found.history_["coding_rmse"][:2], expected.history_["coding_rmse"][:2], rtol=1e-4
    )
    assert found.history_["mean_nonzeros"] == expected.history_["mean_nonzeros"]
    assert np.all(np.diff(found.history_["seconds"]) >= 0)
    # Samples that single precision is not trusted with are no reason to leave the card; an atom
    # that is not used at first may be.
    assert sum(done for _, done in courses) >= found.n_iter_ - 1


@pytest.mark.parametrize("method", ["omp", "ols"])
@pytest.mark.parametrize("n_atoms", [8, 16, pytest.param(32, marks=pytest.mark.slow)])
def test_monotone_learning_ends_where_the_processor_does(on_card, courses, rng, n_atoms, method):
    emulated = isinstance(on_card, EmulatedCard)
    Y = image_like(rng, 160 if emulated else 20000)
    settings = {"n_atoms": n_atoms, "method": method, "max_iter": 6 if emulated else 20}
    expected, found = (fitted(Y, device, **settings) for device in ("cpu", "cuda"))
    rmse = np.array(found.history_["rmse"])
    assert np.all(np.diff(rmse) <= 0)
    wanted = np.array(expected.history_["rmse"])
    np.testing.assert_allclose(rmse[:2], wanted[:2], rtol=1e-4)
    # Of few samples, one that changes its support counts; the paths part and meet.
    np.testing.assert_allclose(rmse, wanted, rtol=5e-3 if emulated else 1e-3)
    assert sum(done for _, done in courses) > 0
    again = fitted(Y, **settings)
    assert again.history_["rmse"] == found.history_["rmse"]
    for one, other in zip(again.factors_, found.factors_, strict=True):
        np.testing.assert_array_equal(one, other)


def test_halves_take_turns_on_the_card(on_card, courses, rng, monkeypatch):
    monkeypatch.setattr("kronlearn.core.iteration._ALL_FRESH", 2)
    monkeypatch.setattr("kronlearn.core.iteration._FEWEST_FOR_TURNS", 100)
    Y = np.concatenate([image_like(rng, 150)] * 2)
    expected, found = (fitted(Y, device, max_iter=6) for device in ("cpu", "cuda"))
    np.testing.assert_allclose(found.history_["rmse"], expected.history_["rmse"], rtol=1e-3)
    assert np.all(np.diff(found.history_["rmse"]) <= 0)
    steps = [step for course, done in courses for step in course.steps[:done]]
    assert [step.half for step in steps] == [None, None, 0, 1, 0, 1]
    assert [step.keep_better for step in steps] == [False] + [True] * 5


@pytest.mark.parametrize("n_atoms", [8, 16])
def test_passes_and_the_card_take_over_from_each_other(on_card, rng, n_atoms, monkeypatch):
    Y = image_like(rng, 160)
    settings = {"n_atoms": n_atoms, "max_iter": 8}
    expected = fitted(Y, "cpu", **settings)
    run, calls = Ahead.run, []

    def reluctant(self: Ahead, dictionary: Any, course: Course) -> list[Iterated]:
        calls.append(course)
        return [] if len(calls) % 2 else run(self, dictionary, course)

    monkeypatch.setattr(Ahead, "run", reluctant)
    found = fitted(Y, **settings)
    assert len(calls) > 2
    assert np.all(np.diff(found.history_["rmse"]) <= 0)
    np.testing.assert_allclose(found.history_["rmse"], expected.history_["rmse"], rtol=2e-3)


@pytest.mark.parametrize("n_atoms", [8, 16])
def test_a_checkpoint_holds_the_codes_of_its_iteration(on_card, rng, n_atoms, tmp_path):
    Y = image_like(rng, 160)
    settings = {"n_atoms": n_atoms, "max_iter": 7, "checkpoint_every": 3}
    whole = fitted(Y, checkpoint=tmp_path / "whole", **settings)

    def stop(progress: Any) -> bool:
        return bool(progress.iteration == 5)

    path = tmp_path / "parts"
    part = fitted(Y, checkpoint=path, callback=stop, **settings)
    assert part.stop_reason_ == "callback"
    found = fitted(Y, checkpoint=path, **settings)
    assert found.history_["rmse"] == whole.history_["rmse"]
    for one, other in zip(found.factors_, whole.factors_, strict=True):
        np.testing.assert_array_equal(one, other)


def test_samples_that_are_not_finite_are_named(on_card, rng):
    Y = image_like(rng, 50)
    Y[17, 2, 3] = np.nan
    with pytest.raises(ValueError, match="sample 17"):
        fitted(Y)


def test_a_time_budget_ends_where_the_iterations_do_that_are_in_it(
    on_card, courses, rng, monkeypatch
):
    replayed, late = type(on_card).replayed, [0.0]

    def slowly(self: Any, works: list[Any]) -> list[float]:
        """As if every iteration took 100 seconds more."""
        finished = []
        for end in replayed(self, works):
            late[0] += 100.0
            finished.append(end + late[0])
        return finished

    monkeypatch.setattr(type(on_card), "replayed", slowly)
    settings = {"method": "omp", "monotone": False, "max_iter": 100, "time_budget": 750.0}
    found = fitted(image_like(rng, 200), **settings)
    assert found.stop_reason_ == "time_budget"
    seconds = found.history_["seconds"]
    assert seconds[-2] < 750 <= seconds[-1]
    # As many at once as there is time for.
    asked = [len(course.steps) for course, _ in courses]
    assert max(asked) == 4
    assert asked[-1] == 1
