"""SeDiL and OSubDil: equal to their references, and what they promise."""

import pickle
import time

import numpy as np
import pytest
from sklearn.base import clone
from threadpoolctl import threadpool_limits

import kronlearn as kl
import reference
import reference_comparators as rc
from kronlearn.comparators import OSubDil, SeDiL
from kronlearn.comparators.osubdil import Online, coordinate_steps
from kronlearn.comparators.sedil import Descent
from kronlearn.comparators.sedil_objective import Objective
from kronlearn.comparators.spheres import geodesic, tangent, transport
from kronlearn.io.arrays import ArraySource

SHAPES = [
    pytest.param((8,), (12,), id="one mode"),
    pytest.param((5, 4), (7, 6), id="two modes"),
    pytest.param((3, 4, 3), (4, 4, 3), id="three modes"),
]
METHODS = [SeDiL, OSubDil]


@pytest.fixture(autouse=True)
def _one_blas_thread():
    """Small products wait for their threads far longer than they take on a busy machine."""
    with threadpool_limits(1):
        yield


def planted(rng, patch_shape, n_atoms, n_samples=300, s=3, noise=0.1):
    """Noisy sparse samples of one random dictionary, and another to start from."""
    truth = reference.random_factors(rng, patch_shape, n_atoms)
    Y = reference.sparse_samples(rng, truth, n_samples, s, noise=noise)
    return Y, reference.random_factors(rng, patch_shape, n_atoms)


def nearby(rng, factors, amount):
    """Factors with Gaussian noise of a relative amount on every column, of norm 1 again."""
    moved = [f + amount * rng.standard_normal(f.shape) / np.sqrt(len(f)) for f in factors]
    return [factor / np.linalg.norm(factor, axis=0) for factor in moved]


def unit(Y):
    """Samples scaled to norm 1."""
    return Y / np.linalg.norm(Y.reshape(len(Y), -1), axis=1).reshape(-1, *[1] * (Y.ndim - 1))


def learner(method, start, **options):
    """An estimator that starts from some factors."""
    n_atoms = tuple(factor.shape[1] for factor in start)
    defaults = {"init": start, "n_nonzero_coefs": 3, "max_iter": 4, "n_jobs": 1, "random_state": 0}
    return method(n_atoms, **(defaults | options))


def assert_factors(found, wanted, atol=1e-10):
    for factor, expected in zip(found, wanted, strict=True):
        np.testing.assert_allclose(factor, expected, rtol=0, atol=atol)


def recovered(found, factors):
    """The share of true atoms that an atom is within an angle of 8 degrees of."""
    truth = reference.dense(factors)
    return np.mean(np.abs(found.to_dense().T @ truth).max(axis=0) > 0.99)


# Spheres


def tangents(rng, m=5, n=4):
    """Unit columns, two tangents at them, one of them zero in a column."""
    D = reference.random_factors(rng, (m,), (n,))[0]
    H, V = (tangent(D, rng.standard_normal((m, n))) for _ in range(2))
    H[:, 1] = 0.0
    return D, H, V


def test_tangents_are_perpendicular_to_their_columns(rng):
    D, H, V = tangents(rng)
    np.testing.assert_allclose(np.sum(D * H, axis=0), 0.0, atol=1e-14)
    np.testing.assert_allclose(tangent(D, V), V, atol=1e-14)


@pytest.mark.parametrize("t", [0.0, 1e-9, 0.3, 4.0])
def test_columns_move_on_great_circles_as_in_the_reference(rng, t):
    D, H, V = tangents(rng)
    end = geodesic(D, H, t)
    np.testing.assert_allclose(np.linalg.norm(end, axis=0), 1.0, rtol=1e-15)
    np.testing.assert_array_equal(end[:, 1], D[:, 1])
    np.testing.assert_allclose(end, rc.geodesic(D, H, t), atol=1e-15)
    np.testing.assert_allclose(
        np.sum(D * end, axis=0), np.cos(t * np.linalg.norm(H, axis=0)), atol=1e-14
    )
    np.testing.assert_allclose(transport(D, H, t, V, end), rc.transport(D, H, t, V), atol=1e-15)


@pytest.mark.parametrize("t", [0.3, 4.0])
def test_transport_keeps_inner_products_and_tangency(rng, t):
    D, H, V = tangents(rng)
    end = geodesic(D, H, t)
    moved = [transport(D, H, t, vectors, end) for vectors in (H, V)]
    for a, b in ((H, H), (H, V), (V, V)):
        before = np.sum(a * b, axis=0)
        a, b = (moved[0] if part is H else moved[1] for part in (a, b))
        np.testing.assert_allclose(np.sum(a * b, axis=0), before, atol=1e-13)
        np.testing.assert_allclose(np.sum(end * a, axis=0), 0.0, atol=1e-13)


# SeDiL


def codes_of(descent, n_samples):
    """The codes (N, n) of the blocks that a descent keeps."""
    return np.concatenate(list(descent.codes.transpose(0, 2, 1)))[:n_samples]


@pytest.mark.parametrize(("patch_shape", "n_atoms"), SHAPES)
@pytest.mark.parametrize("weights", [rc.SeDiLWeights(), rc.SeDiLWeights(0.5, 0.3, 10.0)])
def test_eight_steps_of_sedil_equal_the_reference(rng, patch_shape, n_atoms, weights):
    Y, start = planted(rng, patch_shape, n_atoms, 250)
    Y = unit(Y)
    descent = Descent(Objective(ArraySource(Y, patch_shape), n_atoms, *weights), list(start))
    state = rc.sedil_start(Y, start, weights)
    for _ in range(8):
        descent.advance()
        state = rc.sedil_iteration(Y, state, weights)
        value = rc.sedil_objective(Y, state.point, weights)
        assert descent.value == pytest.approx(value, rel=1e-10)
        assert descent.step == pytest.approx(state.step, rel=1e-10)
        assert_factors(descent.factors, state.point[:-1])
        assert_factors(descent.gradient, state.gradient[:-1])
        assert_factors(descent.direction, state.direction[:-1], 1e-9)
        np.testing.assert_allclose(codes_of(descent, 250), state.point[-1], atol=1e-10)


@pytest.mark.parametrize(("patch_shape", "n_atoms"), SHAPES)
def test_sedil_as_published_equals_the_reference(rng, patch_shape, n_atoms):
    Y, start = planted(rng, patch_shape, n_atoms, 250)
    weights = rc.SeDiLWeights()
    state, values = rc.sedil_start(unit(Y), start, weights), []
    for _ in range(5):
        state = rc.sedil_iteration(unit(Y), state, weights)
        values.append(rc.sedil_objective(unit(Y), state.point, weights))
    model = learner(SeDiL, start, max_iter=5, balance=None).fit(Y)
    np.testing.assert_allclose(model.history_["objective"], values, rtol=1e-10)
    assert_factors(model.factors_, state.point[:-1])
    X = reference.code(Y, state.point[:-1], "omp", 3)
    rmse = np.sqrt(np.mean(reference.residuals(Y, state.point[:-1], X) ** 2))
    assert model.history_["rmse"][-1] == pytest.approx(rmse, rel=1e-9)
    assert model.history_["rmse"][-1] == pytest.approx(-model.score(Y), rel=1e-12)


@pytest.mark.parametrize("square", [False, True])
@pytest.mark.parametrize("balance", [None, 3.0])
@pytest.mark.parametrize(("patch_shape", "n_atoms"), SHAPES)
def test_the_gradient_of_sedil_agrees_with_finite_differences(
    rng, patch_shape, n_atoms, balance, square
):
    Y, factors = planted(rng, patch_shape, n_atoms, 40)
    source = ArraySource(Y, patch_shape)
    objective = Objective(source, n_atoms, 0.5, 0.3, 10.0, square, balance)
    codes = objective.correlations(factors)
    zero, gradient = np.zeros_like(codes), np.zeros_like(codes)
    way = np.where(codes != 0, rng.standard_normal(codes.shape), 0.0) * 1e-3
    ways = [tangent(D, rng.standard_normal(D.shape)) for D in factors]
    of_factors, products = objective.renew_gradient(factors, codes, way, gradient)
    assert products == pytest.approx([np.vdot(gradient, gradient), 0, np.vdot(gradient, way), 0])

    def difference(move):
        return (move(1e-6) - move(-1e-6)) / 2e-6

    along_codes = difference(lambda t: objective.value(factors, codes, way, t))
    assert np.vdot(gradient, way) == pytest.approx(along_codes, rel=1e-4)
    for mode, (g, h) in enumerate(zip(of_factors, ways, strict=True)):

        def moved(t, mode=mode, h=h):
            ends = list(factors)
            ends[mode] = geodesic(ends[mode], h, t)
            return objective.value(ends, codes, zero, 0.0)

        assert np.vdot(g, h) == pytest.approx(difference(moved), rel=1e-4, abs=1e-7)


@pytest.mark.parametrize("square", [False, True])
def test_balancing_changes_the_variables_and_not_the_objective(rng, square):
    Y, factors = planted(rng, (5, 4), (7, 6), 200)
    source = ArraySource(Y, (5, 4))
    values = []
    for balance in (None, 0.1, 3.0, np.sqrt(200)):
        objective = Objective(source, (7, 6), 0.5, 0.3, 10.0, square, balance)
        codes = objective.correlations(factors)
        values.append(objective.value(factors, codes, codes, 0.5))
    np.testing.assert_allclose(values, values[0], rtol=1e-12)
    models = [learner(SeDiL, factors, max_iter=5, balance=b).fit(Y) for b in (None, np.sqrt(200.0))]
    assert_factors(models[0].factors_, models[1].factors_, 1e-9)


def test_sedil_never_goes_above_its_start_but_may_rise_on_the_way(rng):
    Y, start = planted(rng, (6, 6), (8, 8), noise=0.3)
    values = learner(SeDiL, start, max_iter=60).fit(Y).history_["objective"]
    assert max(values[1:]) <= values[0]
    assert np.any(np.diff(values) > 0)
    assert values[-1] < 0.8 * values[0]


def test_sedil_scales_samples_and_skips_those_that_are_zero(rng):
    Y, start = planted(rng, (5, 4), (7, 6))
    model = learner(SeDiL, start).fit(Y)
    scales = 2.0 ** rng.integers(-3, 4, len(Y)).reshape(-1, 1, 1)
    scaled = learner(SeDiL, start).fit(Y * scales)
    assert scaled.dictionary_ == model.dictionary_
    assert scaled.history_["objective"] == model.history_["objective"]
    zeros = np.insert(Y, [0, 100, 100], 0.0, axis=0)
    skipped = learner(SeDiL, start).fit(zeros)
    assert skipped.dictionary_ == model.dictionary_
    with pytest.raises(ValueError, match="All samples are zero"):
        learner(SeDiL, start).fit(np.zeros((30, 5, 4)))


def test_sedil_learns_from_samples_of_any_magnitude(rng):
    Y, start = planted(rng, (5, 4), (7, 6))
    model = learner(SeDiL, start).fit(Y)
    for scale in (1e-100, 1e150):
        assert_factors(learner(SeDiL, start).fit(scale * Y).factors_, model.factors_)


def test_sedil_learns_from_as_many_samples_as_it_is_told(rng):
    Y, start = planted(rng, (5, 4), (7, 6), 500)
    few = learner(SeDiL, start, max_samples=200).fit(Y)
    rows = np.sort(np.random.RandomState(0).choice(500, 200, replace=False))
    assert few.dictionary_ == learner(SeDiL, start).fit(Y[rows]).dictionary_
    every = learner(SeDiL, start, max_samples=None).fit(Y)
    assert every.dictionary_ == learner(SeDiL, start, max_samples=500).fit(Y).dictionary_
    assert every.dictionary_ != few.dictionary_


def test_sedil_refuses_equal_atoms_unless_they_cost_nothing(rng):
    Y, start = planted(rng, (5, 4), (7, 6))
    start[1][:, 3] = -start[1][:, 0]
    with pytest.raises(ValueError, match=r"Atoms 0 and 3 of factor 1.*same.*coherence=0"):
        learner(SeDiL, start).fit(Y)
    assert learner(SeDiL, start, coherence=0.0).fit(Y).n_iter_ == 4


def test_sedil_says_that_a_mode_of_size_one_can_have_one_atom_only(rng):
    Y = rng.standard_normal((40, 1, 5))
    model = SeDiL((3, 6), n_nonzero_coefs=2, max_iter=2, random_state=0)
    with pytest.raises(ValueError, match=r"Mode 0 .*size 1 and can have one atom only, not 3"):
        model.fit(Y)
    assert model.set_params(coherence=0.0).fit(Y).n_iter_ == 2
    assert model.set_params(coherence=0.1, n_atoms=(1, 6)).fit(Y).n_iter_ == 2


def test_a_mode_of_one_atom_has_no_coherence(rng):
    Y, start = planted(rng, (5, 1), (7, 1))
    model = learner(SeDiL, start).fit(Y)
    np.testing.assert_array_equal(model.factors_[1], start[1])


def test_sedil_keeps_atoms_apart(rng):
    Y, start = planted(rng, (4, 4), (8, 8))

    def coherence(weight):
        model = learner(SeDiL, start, coherence=weight, max_iter=100).fit(Y)
        gram = model.factors_[0].T @ model.factors_[0]
        return np.abs(gram - np.eye(8)).max()

    assert coherence(10.0) < coherence(0.0) - 0.1


def test_sedil_stops_where_nothing_is_lower(rng):
    Y = unit(rng.standard_normal((50, 3, 3)))
    start = [np.eye(3), np.eye(3)]
    model = learner(SeDiL, start, sparsity=0.0, coherence=0.0, max_iter=50).fit(Y)
    assert model.stop_reason_ == "converged"
    assert model.n_iter_ < 50
    assert_factors(model.factors_, start)


def test_sedil_finds_four_in_five_planted_atoms_from_nearby():
    rates = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        truth = reference.random_factors(rng, (5, 5), (6, 6))
        Y = reference.sparse_samples(rng, truth, 1000, 3)
        start = nearby(rng, truth, 0.3)
        model = learner(SeDiL, start, max_iter=600).fit(Y)
        assert recovered(kl.KroneckerDictionary(start), truth) < 0.2
        rates.append(recovered(model.dictionary_, truth))
    assert np.mean(rates) >= 0.8


# OSubDil


@pytest.mark.parametrize(("patch_shape", "n_atoms"), SHAPES)
@pytest.mark.parametrize("batch", [1, 60])
def test_batches_of_osubdil_equal_the_reference(rng, patch_shape, n_atoms, batch):
    Y, start = planted(rng, patch_shape, n_atoms, 5 * batch)
    state = rc.osubdil_start(start)
    model = learner(OSubDil, start, forgetting=0.0)
    for first in range(0, 5 * batch, batch):
        state = rc.osubdil_step(state, Y[first : first + batch], 3)
        model.partial_fit(Y[first : first + batch])
        assert_factors(model.factors_, state.factors)
    assert (model.n_iter_, model.stop_reason_) == (5, "partial_fit")


@pytest.mark.parametrize(("patch_shape", "n_atoms"), SHAPES)
def test_passes_of_osubdil_in_one_batch_equal_the_reference(rng, patch_shape, n_atoms):
    Y, start = planted(rng, patch_shape, n_atoms, 200)
    state = rc.osubdil_start(start)
    for _ in range(5):
        state = rc.osubdil_step(state, Y, 3, n_passes=2)
    options = {"batch_size": 200, "n_sweeps": 2, "forgetting": 0.0, "max_iter": 5}
    model = learner(OSubDil, start, **options).fit(Y)
    assert sum(model.history_["atoms_replaced"]) == 0
    assert_factors(model.factors_, state.factors)


def test_old_batches_count_less_and_less(rng):
    Y, start = planted(rng, (5, 4), (7, 6))
    state = rc.osubdil_start(start)
    model = learner(OSubDil, start, forgetting=1.5)
    for t, batch in enumerate(np.split(Y, 5), start=1):
        kept = (1 - 1 / t) ** 1.5
        state = state._replace(
            alpha=[kept * alpha for alpha in state.alpha], beta=[kept * b for b in state.beta]
        )
        state = rc.osubdil_step(state, batch, 3)
        model.partial_fit(batch)
    assert_factors(model.factors_, state.factors)


def test_the_history_of_osubdil_is_of_the_batches_own_codes(rng):
    Y, start = planted(rng, (5, 4), (7, 6))
    history = learner(OSubDil, start).partial_fit(Y).history_
    X = reference.code(Y, start, "omp", 3)
    new = rc.osubdil_step(rc.osubdil_start(start), Y, 3).factors
    for name, factors in (("coding_rmse", start), ("rmse", new)):
        wanted = np.sqrt(np.mean(reference.residuals(Y, factors, X) ** 2))
        assert history[name] == pytest.approx([wanted], rel=1e-10)
    assert history["rmse"][0] < history["coding_rmse"][0]
    assert history["mean_nonzeros"] == [3.0]


def test_coordinate_steps_equal_the_reference_and_lower_the_surrogate(rng):
    for _ in range(20):
        root, beta = rng.standard_normal((6, 9)), rng.standard_normal((4, 6))
        alpha = root @ root.T
        alpha[2], alpha[:, 2] = 0.0, 0.0
        D = reference.random_factors(rng, (4,), (6,))[0]
        value = rc.surrogate(D, alpha, beta)
        for n_sweeps in (1, 2, 5):
            moved = coordinate_steps(D, alpha, beta.T, n_sweeps)
            np.testing.assert_allclose(moved, rc.coordinate_passes(D, alpha, beta, n_sweeps))
            np.testing.assert_array_equal(moved[:, 2], D[:, 2])
            value, before = rc.surrogate(moved, alpha, beta), value
            assert value <= before


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("scale", [1e-150, 1e-100, 1e-82, 1e-30, 1e30, 1e77, 1e80, 1e100, 1e150])
def test_osubdil_learns_the_same_from_samples_of_any_scale(rng, scale):
    Y, start = planted(rng, (5, 4), (7, 6))
    start[0][:, 6] = start[0][:, 0]
    model, scaled = (learner(OSubDil, start, batch_size=300).fit(c * Y) for c in (1.0, scale))
    assert sum(model.history_["atoms_replaced"]) > 0
    assert_factors(scaled.factors_, model.factors_, 1e-9)
    for name in ("rmse", "coding_rmse"):
        np.testing.assert_allclose(scaled.history_[name], scale * np.array(model.history_[name]))
    model.partial_fit(Y[:50])
    assert_factors(scaled.partial_fit(scale * Y[:50]).factors_, model.factors_, 1e-9)


def test_osubdil_ends_where_learning_from_all_samples_does(rng):
    Y, start = planted(rng, (6, 6), (9, 9), 1500, noise=0.3)
    online = learner(OSubDil, start, batch_size=100, max_iter=20).fit(Y)
    general = kl.KroneckerDictionaryLearning(
        (9, 9),
        n_nonzero_coefs=3,
        init=start,
        max_iter=20,
        method="omp",
        monotone=False,
        n_refits=0,
        n_jobs=1,
    ).fit(Y)
    assert online.score(Y) >= 1.05 * general.score(Y)


def test_osubdil_finds_nine_in_ten_planted_atoms_from_nearby():
    rates = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        truth = reference.random_factors(rng, (5, 5), (6, 6))
        Y = reference.sparse_samples(rng, truth, 1000, 3)
        start = nearby(rng, truth, 0.5)
        model = learner(OSubDil, start, batch_size=100, max_iter=15).fit(Y)
        assert recovered(kl.KroneckerDictionary(start), truth) < 0.2
        rates.append(recovered(model.dictionary_, truth))
    assert np.mean(rates) >= 0.9


def test_an_atom_that_a_pass_leaves_unused_is_replaced_and_one_batch_is_not_enough(rng):
    Y, start = planted(rng, (5, 4), (7, 6))
    start[0][:, 6] = start[0][:, 0]
    model = learner(OSubDil, start, max_iter=1, batch_size=300).fit(Y)
    assert model.history_["atoms_replaced"] == [1]
    assert np.abs(start[0][:, 6] @ model.factors_[0][:, 6]) < 0.999
    part = learner(OSubDil, start).partial_fit(Y)
    np.testing.assert_array_equal(part.factors_[0][:, 6], start[0][:, 6])


def test_partial_fit_goes_on_from_fit(rng):
    Y, start = planted(rng, (5, 4), (7, 6))
    model = learner(OSubDil, start, batch_size=300, max_iter=2).fit(Y)
    longer = learner(OSubDil, start, batch_size=300, max_iter=3).fit(Y)
    again = pickle.loads(pickle.dumps(model)).partial_fit(Y)
    assert_factors(model.partial_fit(Y).factors_, longer.factors_)
    assert again.dictionary_ == model.dictionary_
    assert model.n_iter_ == 3
    assert {len(values) for values in model.history_.values()} == {3}
    assert np.all(np.diff([0.0, *model.history_["seconds"]]) > 0)


def interrupted_in_batch(monkeypatch, number):
    """Have a KeyboardInterrupt come while that batch is added, counted from now on."""
    add, calls = Online.add, []

    def interrupted(self, *arguments):
        calls.append(add(self, *arguments))
        if len(calls) == number:
            raise KeyboardInterrupt
        return calls[-1]

    monkeypatch.setattr(Online, "add", interrupted)


@pytest.mark.parametrize("batch", [1, 2, 3, 4, 5])
def test_partial_fit_goes_on_from_the_dictionary_that_an_interrupted_fit_leaves(
    rng, monkeypatch, batch
):
    Y, start = planted(rng, (5, 4), (7, 6))
    other = nearby(rng, start, 1.0)
    options = {"batch_size": 150, "max_iter": 3}
    # Of two batches per pass; before the first pass is finished the first fit is what is left.
    passes = (batch - 1) // 2
    finished = {"init": other, "max_iter": passes} if passes else {}
    wanted = learner(OSubDil, start, **(options | finished)).fit(Y).partial_fit(Y)
    model = learner(OSubDil, start, **options).fit(Y).set_params(init=other)
    with monkeypatch.context() as patch:
        interrupted_in_batch(patch, batch)
        with pytest.raises(KeyboardInterrupt):
            model.fit(Y)
    assert model.n_iter_ == (passes or 3)
    assert model.partial_fit(Y).dictionary_ == wanted.dictionary_


def test_an_interrupted_partial_fit_changes_nothing(rng, monkeypatch):
    Y, start = planted(rng, (5, 4), (7, 6))
    model, wanted = (learner(OSubDil, start).fit(Y) for _ in range(2))
    with monkeypatch.context() as patch:
        interrupted_in_batch(patch, 1)
        with pytest.raises(KeyboardInterrupt):
            model.partial_fit(Y)
    assert model.dictionary_ == wanted.dictionary_
    assert model.partial_fit(Y).dictionary_ == wanted.partial_fit(Y).dictionary_


def test_the_order_of_the_samples_is_random_but_repeatable(rng):
    Y, start = planted(rng, (5, 4), (7, 6))
    models = [
        learner(OSubDil, start, batch_size=20, max_iter=1, random_state=seed).fit(Y)
        for seed in (0, 0, 1)
    ]
    assert models[0].dictionary_ == models[1].dictionary_
    assert models[0].dictionary_ != models[2].dictionary_


def test_partial_fit_of_one_sample_at_a_time_learns(rng):
    Y, start = planted(rng, (5, 4), (7, 6), 400)
    model = learner(OSubDil, start, n_sweeps=1)
    first = model.partial_fit(Y[:1]).score(Y)
    for y in Y[1:]:
        model.partial_fit(y[None])
    assert model.score(Y) > 0.9 * first


# Both


@pytest.mark.parametrize("method", METHODS)
def test_every_history_has_one_entry_per_iteration(rng, method):
    Y, start = planted(rng, (5, 4), (7, 6))
    model = learner(method, start).fit(Y)
    assert {len(values) for values in model.history_.values()} == {4}
    assert {"rmse", "seconds"} <= set(model.history_)
    assert np.all(np.diff([0.0, *model.history_["seconds"]]) > 0)
    assert (model.n_iter_, model.stop_reason_) == (4, "max_iter")


@pytest.mark.parametrize("method", METHODS)
def test_a_callback_sees_every_iteration_and_can_stop(rng, method, capsys):
    Y, start = planted(rng, (5, 4), (7, 6))
    seen = []

    def callback(progress):
        seen.append(progress)
        return progress.iteration == 3

    model = learner(method, start, callback=callback, verbose=1).fit(Y.astype(np.float32))
    assert [progress.iteration for progress in seen] == [1, 2, 3]
    assert [progress.rmse for progress in seen] == model.history_["rmse"]
    assert seen[-1].dictionary == model.dictionary_
    assert (model.n_iter_, model.stop_reason_) == (3, "callback")
    assert "learning" in capsys.readouterr().out


@pytest.mark.parametrize("method", METHODS)
def test_a_time_budget_ends_a_run(rng, method):
    Y, start = planted(rng, (5, 4), (7, 6))
    begin = time.perf_counter()
    model = learner(method, start, max_iter=10**6, time_budget=0.2).fit(Y)
    assert time.perf_counter() - begin < 3
    assert model.stop_reason_ == "time_budget"
    assert model.history_["seconds"][-1] >= 0.2 > ([0.0, *model.history_["seconds"]])[-2]


@pytest.mark.parametrize("method", METHODS)
def test_an_interruption_leaves_the_last_finished_iteration(rng, method):
    Y, start = planted(rng, (5, 4), (7, 6))

    def callback(progress):
        if progress.iteration == 2:
            raise KeyboardInterrupt

    model = learner(method, start, callback=callback)
    with pytest.raises(KeyboardInterrupt):
        model.fit(Y)
    assert (model.n_iter_, model.stop_reason_) == (2, "interrupted")
    assert model.dictionary_ == learner(method, start, max_iter=2).fit(Y).dictionary_


@pytest.mark.parametrize("method", METHODS)
def test_the_number_of_threads_changes_no_bit(rng, method):
    Y, start = planted(rng, (5, 4), (7, 6), 4000)
    options = {"batch_size": 4000} if method is OSubDil else {}
    models = [learner(method, start, n_jobs=n, **options).fit(Y) for n in (1, 2)]
    assert models[0].dictionary_ == models[1].dictionary_
    assert models[0].history_["rmse"] == models[1].history_["rmse"]


@pytest.mark.parametrize("method", METHODS)
def test_a_clone_learns_the_same(rng, method):
    Y, _ = planted(rng, (5, 4), (7, 6))
    model = method((7, 6), n_nonzero_coefs=3, max_iter=2, random_state=3, n_jobs=1)
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    assert copy.fit(Y).dictionary_ == model.fit(Y).dictionary_ == model.fit(Y).dictionary_


@pytest.mark.parametrize("method", METHODS)
def test_codes_and_samples_have_the_shapes_of_what_was_fitted(rng, method):
    Y, start = planted(rng, (5, 4), (7, 6))
    model = learner(method, start).fit(Y)
    X = model.transform(Y)
    assert X.shape == (300, 42)
    assert np.diff(X.indptr).max() == 3
    assert model.inverse_transform(X).shape == (300, 5, 4)
    rows = learner(method, start, patch_shape=(5, 4)).fit(Y.reshape(300, 20))
    assert rows.dictionary_ == model.dictionary_
    assert rows.inverse_transform(rows.transform(Y.reshape(300, 20))).shape == (300, 20)


@pytest.mark.parametrize("method", METHODS)
def test_float32_samples_give_a_float32_dictionary(rng, method):
    Y, start = planted(rng, (5, 4), (7, 6))
    model = learner(method, start).fit(Y)
    single = learner(method, start).fit(Y.astype(np.float32))
    assert single.dictionary_.dtype == single.transform(Y.astype(np.float32)).dtype == np.float32
    np.testing.assert_allclose(single.history_["rmse"], model.history_["rmse"], rtol=5e-3)


@pytest.mark.parametrize("method", METHODS)
def test_read_only_and_strided_samples_give_the_same_dictionary(rng, method):
    Y, start = planted(rng, (5, 4), (7, 6))
    model = learner(method, start).fit(Y)
    frozen = Y.copy()
    frozen.setflags(write=False)
    for samples in (frozen, np.asfortranarray(Y), np.repeat(Y, 2, axis=0)[::2]):
        assert learner(method, start).fit(samples).dictionary_ == model.dictionary_
    whole = np.round(100 * Y)
    integers = learner(method, start).fit(whole.astype(np.int16))
    assert integers.dictionary_ == learner(method, start).fit(whole).dictionary_


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_samples_that_are_not_finite_are_reported(rng, method, value):
    Y, start = planted(rng, (5, 4), (7, 6))
    Y[217, 2, 1] = value
    word = "NaN" if np.isnan(value) else "infinity"
    with pytest.raises(ValueError, match=rf"{word}.*sample 217"):
        learner(method, start).fit(Y)
    if method is OSubDil:
        with pytest.raises(ValueError, match=rf"{word}.*sample 217"):
            learner(method, start).partial_fit(Y)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("scale", "dtype"), [(1e-160, np.float64), (1e-22, np.float32)])
def test_samples_too_small_to_be_squared_are_refused(rng, method, scale, dtype):
    Y, start = planted(rng, (5, 4), (7, 6))
    with pytest.raises(ValueError, match=f"too small to be squared in {np.dtype(dtype)}; scale"):
        learner(method, start).fit((scale * Y).astype(dtype))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("n_samples", [1, 2, 17])
@pytest.mark.parametrize("options", [{}, {"n_nonzero_coefs": None, "tol": 0.5}])
def test_few_equal_constant_or_partly_zero_samples_can_be_learned_from(
    rng, method, n_samples, options
):
    y = rng.standard_normal((1, 3, 1, 2))
    samples = [np.repeat(y, n_samples, axis=0), np.ones((n_samples, 3, 1, 2), np.uint8)]
    samples.append(rng.standard_normal((n_samples, 3, 1, 2)))
    samples[-1][1:] *= rng.random((n_samples - 1, 1, 1, 1)) < 0.5
    for Y in samples:
        for n_atoms in ((1, 1, 1), (4, 1, 3)):
            settings = {"n_nonzero_coefs": 1, "max_iter": 3, "random_state": 0} | options
            model = method(n_atoms, **settings).fit(Y)
            assert all(np.isfinite(values).all() for values in model.history_.values())
            norms = np.linalg.norm(model.dictionary_.to_dense(), axis=0)
            np.testing.assert_allclose(norms, 1.0)


@pytest.mark.filterwarnings("error")
def test_osubdil_keeps_its_start_where_all_samples_are_zero(rng):
    start = reference.random_factors(rng, (5, 4), (7, 6))
    model = learner(OSubDil, start).fit(np.zeros((30, 5, 4)))
    assert_factors(model.factors_, start)
    assert model.stop_reason_ == "converged"


@pytest.mark.parametrize(
    ("method", "options", "error", "message"),
    [
        (SeDiL, {"sparsity": -1.0}, ValueError, r"sparsity=-1\.0 is not a nonnegative number"),
        (SeDiL, {"coherence": "a"}, TypeError, "coherence='a' is not a number"),
        (SeDiL, {"sharpness": np.inf}, ValueError, "sharpness=inf is not a nonnegative number"),
        (SeDiL, {"balance": 0}, ValueError, "balance=0 is not a positive number"),
        (SeDiL, {"measure": "cube"}, ValueError, "measure='cube' does not exist; choose abs or"),
        (SeDiL, {"max_samples": 0}, ValueError, "max_samples=0 is too small"),
        (SeDiL, {"max_samples": 1e3}, TypeError, r"max_samples=1000\.0 is not an integer"),
        (OSubDil, {"batch_size": 0}, ValueError, "batch_size=0 is too small; pass at least 1"),
        (OSubDil, {"n_sweeps": 0}, ValueError, "n_sweeps=0 is too small"),
        (OSubDil, {"forgetting": -1}, ValueError, "forgetting=-1 is not a nonnegative number"),
        (OSubDil, {"forgetting": None}, TypeError, "forgetting=None is not a number"),
        (SeDiL, {"method": "threshold"}, ValueError, "choose ols or omp"),
        (OSubDil, {"max_iter": 0}, ValueError, "max_iter=0 is too small"),
        (SeDiL, {"time_budget": -1}, ValueError, "time_budget=-1 is not a positive number"),
        (OSubDil, {"init": "nothing"}, ValueError, "init='nothing' does not exist"),
        (SeDiL, {"n_nonzero_coefs": 99}, ValueError, "exceeds the 30 atoms"),
        (OSubDil, {"n_nonzero_coefs": None}, ValueError, "Neither n_nonzero_coefs nor tol"),
    ],
)
def test_a_parameter_that_makes_no_sense_is_refused(rng, method, options, error, message):
    Y = rng.standard_normal((40, 4, 5))
    with pytest.raises(error, match=message):
        method(**({"n_atoms": (6, 5), "n_nonzero_coefs": 2} | options)).fit(Y)
