"""SeDiL and OSubDil equal their references and keep what their docstrings say."""

import pickle

import numpy as np
import pytest

import kronlearn as kl
import reference
import reference_comparators as rc
from kronlearn.comparators import OSubDil, SeDiL
from kronlearn.comparators.osubdil import BatchSums, ModeSums, _replace_unused
from kronlearn.comparators.sedil import Descent
from kronlearn.comparators.sedil_objective import Objective
from kronlearn.comparators.spheres import geodesic, tangent
from kronlearn.comparators.stateful import StatefulDictionary
from kronlearn.core.coder import Coder
from kronlearn.io.arrays import ArraySource
from learning_problems import assert_factors, planted


def unit(Y):
    """Scale samples to norm 1."""
    return Y / np.linalg.norm(Y.reshape(len(Y), -1), axis=1).reshape(-1, *[1] * (Y.ndim - 1))


def learner(method, start, **options):
    """Return an estimator that starts from these factors."""
    n_atoms = tuple(factor.shape[1] for factor in start)
    defaults = {"init": start, "n_nonzero_coefs": 3, "max_iter": 4, "n_jobs": 1, "random_state": 0}
    return method(n_atoms, **(defaults | options))


# SeDiL


@pytest.mark.parametrize(("patch_shape", "n_atoms"), rc.SHAPES)
@pytest.mark.parametrize("weights", [rc.SeDiLWeights(), rc.SeDiLWeights(0.5, 0.3, 10.0)])
def test_eight_steps_of_sedil_equal_the_reference(rng, patch_shape, n_atoms, weights):
    Y, start = planted(rng, patch_shape, n_atoms, 100)
    Y = unit(Y)
    descent = Descent(Objective(rc.flat(Y), patch_shape, n_atoms, *weights), list(start))
    state = rc.sedil_start(Y, start, weights)
    for _ in range(8):
        descent.advance()
        state = rc.sedil_iteration(Y, state, weights)
        value = rc.sedil_objective(Y, state.point, weights)
        assert descent.values[-1] == pytest.approx(value, rel=1e-10)
        assert descent.steps[-1] == pytest.approx(state.step * 0.9**2, rel=1e-10)
        assert descent.step == pytest.approx(state.step, rel=1e-10)
        assert_factors(descent.factors, state.point[:-1])
        d = len(start)
        assert_factors(descent.gradient[:d], state.gradient[:-1])
        assert_factors(descent.direction[:d], state.direction[:-1], 1e-9)
        codes = np.hstack(descent.codes).T
        np.testing.assert_allclose(codes, state.point[-1], atol=1e-10)


def test_sedil_as_published_equals_the_reference(rng):
    Y, start = planted(rng, (5, 4), (7, 6), 100)
    weights = rc.SeDiLWeights()
    state = rc.sedil_start(unit(Y), start, weights)
    values = [rc.sedil_objective(unit(Y), state.point, weights)]
    for _ in range(4):
        state = rc.sedil_iteration(unit(Y), state, weights)
        values.append(rc.sedil_objective(unit(Y), state.point, weights))
    model = learner(SeDiL, start, balance=None)
    assert_factors(rc.last_dictionary(model, Y).factors, state.point[:-1])
    np.testing.assert_allclose(model.history_["objective"], values, rtol=1e-10)
    X = rc.code(Y, state.point[:-1], 3)
    rmse = np.sqrt(np.mean(reference.residuals(Y, state.point[:-1], X) ** 2))
    assert model.history_["rmse"][-1] == pytest.approx(rmse, rel=1e-9)


@pytest.mark.parametrize(("patch_shape", "n_atoms"), rc.SHAPES)
def test_the_gradient_of_sedil_agrees_with_finite_differences(rng, patch_shape, n_atoms):
    Y, factors = planted(rng, patch_shape, n_atoms, 40)
    objective = Objective(rc.flat(unit(Y)), patch_shape, n_atoms, 0.5, 0.3, 10.0, 3.0)
    codes = objective.correlations(factors)
    *of_factors, gradient = objective.gradient(factors, codes)
    (x,) = codes
    direction = np.where(x != 0, rng.standard_normal(x.shape), 0.0) * 1e-3
    directions = [tangent(D, rng.standard_normal(D.shape)) for D in factors]

    def difference(move):
        return (move(1e-6) - move(-1e-6)) / 2e-6

    along_codes = difference(lambda t: objective.value(factors, [x + t * direction]))
    assert np.vdot(gradient, direction) == pytest.approx(along_codes, rel=1e-4)
    for mode, (g, h) in enumerate(zip(of_factors, directions, strict=True)):

        def moved(t, mode=mode, h=h):
            ends = list(factors)
            ends[mode] = geodesic(ends[mode], h, t)
            return objective.value(ends, codes)

        assert np.vdot(g, h) == pytest.approx(difference(moved), rel=1e-4, abs=1e-7)


def test_balance_does_not_change_the_objective(rng):
    Y, factors = planted(rng, (5, 4), (7, 6), 200)
    samples = rc.flat(unit(Y))
    values = []
    for balance in (None, 0.1, 3.0, np.sqrt(200)):
        objective = Objective(samples, (5, 4), (7, 6), 0.5, 0.3, 10.0, balance)
        codes = objective.correlations(factors)
        values.append(objective.value(factors, [1.5 * x for x in codes]))
    np.testing.assert_allclose(values, values[0], rtol=1e-12)
    same = [learner(SeDiL, factors, balance=b) for b in (None, np.sqrt(200.0))]
    published, balanced = (rc.last_dictionary(model, Y).factors for model in same)
    assert_factors(published, balanced, 1e-9)
    default = rc.last_dictionary(learner(SeDiL, factors), Y).factors
    assert np.abs(default[0] - published[0]).max() > 1e-3


def test_sedil_scales_samples_and_skips_those_that_are_zero(rng):
    Y, start = planted(rng, (5, 4), (7, 6))
    expected = learner(SeDiL, start).fit(Y).history_["objective"]
    scales = 2.0 ** rng.integers(-3, 4, len(Y)).reshape(-1, 1, 1)
    assert learner(SeDiL, start).fit(Y * scales).history_["objective"] == expected
    tiny = learner(SeDiL, start).fit(Y * 2.0**-600)
    assert tiny.history_["objective"][0] == expected[0]
    zeros = np.insert(Y, [0, 100, 100], 0.0, axis=0)
    assert learner(SeDiL, start).fit(zeros).history_["objective"] == expected


def test_sedil_learns_from_at_most_max_samples(rng):
    Y, start = planted(rng, (5, 4), (7, 6), 500)
    few = learner(SeDiL, start, max_samples=200).fit(Y)
    rows = np.sort(np.random.RandomState(0).choice(500, 200, replace=False))
    assert few.history_["objective"] == learner(SeDiL, start).fit(Y[rows]).history_["objective"]
    # The recorded error is that of all samples.
    assert -few.score(Y) == pytest.approx(min(few.history_["rmse"]))
    every = learner(SeDiL, start, max_samples=None).fit(Y)
    assert every.history_["objective"] != few.history_["objective"]


def test_sedil_refuses_equal_atoms_unless_coherence_is_free(rng):
    Y, start = planted(rng, (5, 4), (7, 6))
    start[1][:, 3] = -start[1][:, 0]
    with pytest.raises(ValueError, match=r"equal atoms, 0 and 3 of factor 1.*coherence=0"):
        learner(SeDiL, start).fit(Y)
    assert learner(SeDiL, start, coherence=0.0).fit(Y).n_iter_ == 4


def test_sedil_stops_at_a_minimum(rng):
    Y = unit(rng.standard_normal((50, 3, 3)))
    start = [np.eye(3), np.eye(3)]
    model = learner(SeDiL, start, sparsity=0.0, coherence=0.0, max_iter=50).fit(Y)
    assert model.stop_reason_ == "converged"
    assert model.n_iter_ < 50
    assert_factors(model.factors_, start)


# OSubDil


@pytest.mark.parametrize(("patch_shape", "n_atoms"), rc.SHAPES)
@pytest.mark.parametrize(("batch", "forgetting"), [(1, 0.0), (60, 1.5)])
def test_batches_of_osubdil_equal_the_reference(rng, patch_shape, n_atoms, batch, forgetting):
    Y, start = planted(rng, patch_shape, n_atoms, 5 * batch)
    state = rc.osubdil_start(start)
    model = learner(OSubDil, start, forgetting=forgetting, n_sweeps=3)
    for t, samples in enumerate(np.split(Y, 5), start=1):
        kept = (1 - 1 / t) ** forgetting
        state = state._replace(
            alpha=[kept * alpha for alpha in state.alpha], beta=[kept * b for b in state.beta]
        )
        state = rc.osubdil_step(state, samples, 3, n_passes=3)
        model.partial_fit(samples)
        assert_factors(model.factors_, state.factors)
    assert (model.n_iter_, model.stop_reason_) == (5, "partial_fit")


def test_a_pass_of_osubdil_takes_the_samples_in_a_random_order(rng):
    Y, start = planted(rng, (5, 4), (7, 6), 200)
    model = learner(OSubDil, start, batch_size=100, forgetting=0.0, max_iter=1)
    state = rc.osubdil_start(start)
    for rows in np.split(np.random.RandomState(0).permutation(200), 2):
        state = rc.osubdil_step(state, Y[np.sort(rows)], 3)
    assert_factors(rc.last_dictionary(model, Y).factors, state.factors)


def test_partial_fit_records_the_error_of_its_batch_before_the_update(rng):
    Y, start = planted(rng, (5, 4), (7, 6))
    history = learner(OSubDil, start).partial_fit(Y).history_
    X = rc.code(Y, start, 3)
    wanted = np.sqrt(np.mean(reference.residuals(Y, start, X) ** 2))
    assert history["rmse"] == pytest.approx([wanted], rel=1e-10)
    assert history["mean_nonzeros"] == [3.0]


@pytest.mark.parametrize("scale", [1e-150, 1e-82, 1e77, 1e150])
def test_osubdil_does_not_depend_on_the_scale_of_the_samples(rng, scale):
    Y, start = planted(rng, (5, 4), (7, 6))
    start[0][:, 6] = start[0][:, 0]
    model, scaled = (
        learner(OSubDil, start, batch_size=300).fit(c * Y).partial_fit(c * Y[:50])
        for c in (1.0, scale)
    )
    assert sum(model.history_["atoms_replaced"]) > 0
    assert_factors(scaled.factors_, model.factors_, 1e-9)


def test_an_atom_unused_in_a_whole_pass_is_replaced_but_not_one_unused_in_a_batch(rng):
    Y, start = planted(rng, (5, 4), (7, 6))
    start[0][:, 6] = start[0][:, 0]
    model = learner(OSubDil, start, max_iter=1, batch_size=300)
    replaced = rc.last_dictionary(model, Y).factors[0][:, 6]
    assert model.history_["atoms_replaced"] == [0, 1]
    assert np.abs(start[0][:, 6] @ replaced) < 0.999
    part = learner(OSubDil, start).partial_fit(Y)
    np.testing.assert_array_equal(part.factors_[0][:, 6], start[0][:, 6])


def test_an_atom_used_in_one_batch_of_a_pass_is_not_replaced(rng):
    _, start = planted(rng, (5, 4), (7, 6))
    atoms = kl.KroneckerDictionary(start).to_dense().T
    Y = (atoms + 0.01 * rng.standard_normal(atoms.shape)).reshape(-1, 5, 4)
    model = learner(OSubDil, start, n_nonzero_coefs=1, batch_size=1, max_iter=1)
    assert model.fit(Y).history_["atoms_replaced"] == [0, 0]


def test_the_sums_of_a_replaced_atom_are_dropped(rng):
    Y, start = planted(rng, (5, 4), (7, 6))
    modes = []
    for factor in start:
        m, n = factor.shape
        modes.append(ModeSums(np.ones((n, n)), np.ones((n, m)), np.arange(n) != 2))
    before = StatefulDictionary(kl.KroneckerDictionary(start), BatchSums(modes, 3, None))
    updated, replaced = _replace_unused(
        before, np.arange(9), ArraySource(Y, (5, 4)), Coder("omp", 3)
    )
    assert replaced == 2
    for mode in updated.method_state.modes:
        used = np.arange(len(mode.used)) != 2
        np.testing.assert_array_equal(mode.alpha, np.outer(used, used))
        np.testing.assert_array_equal(mode.beta.any(axis=1), used)
        assert not mode.used.any()


def test_partial_fit_continues_after_fit(rng):
    Y, start = planted(rng, (5, 4), (7, 6))
    model = learner(OSubDil, start, batch_size=300, max_iter=2).fit(Y)
    longer = learner(OSubDil, start, batch_size=300, max_iter=3).fit(Y)
    assert np.argmin(longer.history_["rmse"]) == 3
    again = pickle.loads(pickle.dumps(model)).partial_fit(Y)
    assert_factors(model.partial_fit(Y).factors_, longer.factors_)
    assert again.dictionary_ == model.dictionary_
    assert (model.n_iter_, model.stop_reason_) == (3, "partial_fit")
    assert {len(values) for values in model.history_.values()} == {4}
    assert np.all(np.diff([0.0, *model.history_["seconds"]]) > 0)


def interrupted_in_batch(monkeypatch, number):
    """Raise KeyboardInterrupt while the batch with this number, counted from 1, is added."""
    update, calls = OSubDil._update, []

    def interrupted(self, *arguments):
        calls.append(update(self, *arguments))
        if len(calls) == number:
            raise KeyboardInterrupt
        return calls[-1]

    monkeypatch.setattr(OSubDil, "_update", interrupted)


@pytest.mark.parametrize("batch", [3, 4, 5])
def test_partial_fit_continues_from_the_best_dictionary_of_an_interrupted_fit(
    rng, monkeypatch, batch
):
    Y, start = planted(rng, (5, 4), (7, 6))
    passes = (batch - 1) // 2  # complete passes of two batches; the last is not judged yet
    model = learner(OSubDil, start, batch_size=150)
    with monkeypatch.context() as patch:
        interrupted_in_batch(patch, batch)
        with pytest.raises(KeyboardInterrupt):
            model.fit(Y)
    assert (model.n_iter_, model.stop_reason_) == (passes - 1, "interrupted")
    wanted = learner(OSubDil, start, batch_size=150, max_iter=passes - 1 or 1)
    wanted = wanted.fit(Y) if passes > 1 else wanted
    assert model.partial_fit(Y).dictionary_ == wanted.partial_fit(Y).dictionary_
