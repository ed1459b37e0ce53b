"""SuKro, by least squares and by a nuclear norm: equal to its references, and what it promises."""

from functools import partial

import numpy as np
import pytest
from kronlearn.core.plan import LearningState
from sklearn.base import clone
from threadpoolctl import threadpool_limits

import kronlearn as kl
import reference
import reference_comparators as rc
import reference_comparators_sums as sums
from kronlearn.comparators import SuKro
from kronlearn.comparators.sukro import NuclearNorm, RelaxedDictionary
from kronlearn.core.kronecker_sum import rearranged
from kronlearn.core.loop import learn
from kronlearn.core.moments import Moments
from kronlearn.engines.threads import Threads
from kronlearn.io.arrays import ArraySource

SHAPES = [
    pytest.param((8,), (12,), id="one mode"),
    pytest.param((5, 4), (7, 6), id="two modes"),
    pytest.param((3, 4, 3), (4, 4, 3), id="three modes"),
]
FORMS = [
    pytest.param({"n_terms": 2}, id="least squares"),
    pytest.param({"alpha": 0.5}, id="nuclear norm"),
]


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


def samples_of_a_sum(rng, patch_shape, n_atoms, n_terms, n_samples, s=3):
    """Sparse samples of a random sum of Kronecker products, and its terms."""
    terms = [reference.random_factors(rng, patch_shape, n_atoms) for _ in range(n_terms)]
    D = sums.unit_columns(sums.dense_sum(terms))
    X = np.zeros((n_samples, D.shape[1]))
    for x in X:
        x[rng.choice(len(x), s, replace=False)] = rng.standard_normal(s)
    return (X @ D.T).reshape(-1, *patch_shape), terms


def learner(start, **options):
    """An estimator that starts from a dictionary or from factors."""
    n_atoms = getattr(start, "n_atoms", None) or tuple(factor.shape[1] for factor in start)
    defaults = {"init": start, "n_nonzero_coefs": 3, "max_iter": 5, "n_jobs": 1}
    return SuKro(n_atoms, **(defaults | options))


def last_dictionary(model, Y):
    """The dictionary of the last iteration, which need not be the best; the model is fitted."""
    seen = []
    model.set_params(callback=lambda progress: seen.append(progress.dictionary)).fit(Y)
    return seen[-1]


def relaxed_run(model, Y):
    """The structure and the state after the iterations that ``fit`` does."""
    source = ArraySource(Y, Y.shape[1:])
    start = model._start(source, model.n_atoms)
    plan = model._plan(start)
    state = LearningState(start, start)
    learn(source, state, plan, Threads())
    return plan.structure, state


def recovered(found, truth):
    """The share of true atoms that an atom is within an angle of 8 degrees of."""
    return np.mean(np.abs(found.to_dense().T @ truth).max(axis=0) > 0.99)


# Least squares


@pytest.mark.parametrize(("patch_shape", "n_atoms"), SHAPES)
@pytest.mark.parametrize("n_terms", [1, 2, 3])
@pytest.mark.parametrize("n_sweeps", [1, 3])
def test_five_iterations_with_a_number_of_terms_equal_the_reference(
    rng, patch_shape, n_atoms, n_terms, n_sweeps
):
    Y, factors = planted(rng, patch_shape, n_atoms, 200)
    terms = sums.start_terms(rng, factors, n_terms)
    update = partial(sums.sukro_als_update, n_sweeps=n_sweeps)
    unit_sum = lambda terms: [sums.unit_columns(sums.dense_sum(terms))]  # noqa: E731
    wanted, rmse = rc.learn(update, Y, terms, 3, 5, unit_sum)
    model = learner(
        kl.KroneckerSumDictionary(terms), n_terms=n_terms, n_sweeps=n_sweeps, sweep_tol=0.0
    )
    found = last_dictionary(model, Y)
    assert found.n_terms == n_terms
    assert sum(model.history_["atoms_replaced"]) == 0
    np.testing.assert_allclose(model.history_["rmse"], rmse, rtol=1e-10)
    dense = found.to_dense()
    # The reference does not make columns canonical.
    signs = np.sign(np.sum(dense * unit_sum(wanted)[0], axis=0))
    np.testing.assert_allclose(dense * signs, unit_sum(wanted)[0], rtol=0, atol=1e-10)


@pytest.mark.parametrize(("patch_shape", "n_atoms"), SHAPES)
def test_one_term_and_one_sweep_is_the_general_method(rng, patch_shape, n_atoms):
    Y, start = planted(rng, patch_shape, n_atoms)
    model = learner(start, n_terms=1, n_sweeps=1, max_iter=8).fit(Y)
    general = kl.KroneckerDictionaryLearning(
        n_atoms,
        n_nonzero_coefs=3,
        init=start,
        max_iter=8,
        method="omp",
        monotone=False,
        n_refits=0,
        n_jobs=1,
    ).fit(Y)
    np.testing.assert_allclose(model.history_["rmse"], general.history_["rmse"], rtol=1e-10)
    np.testing.assert_allclose(
        model.dictionary_.to_dense(), general.dictionary_.to_dense(), rtol=0, atol=1e-10
    )


def test_two_terms_are_learned_unless_something_else_is_said(rng):
    Y, start = planted(rng, (5, 4), (7, 6))
    assert learner(start, max_iter=1).fit(Y).dictionary_.n_terms == 2


@pytest.mark.parametrize("n_terms", [1, 2, 4])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_an_update_with_a_number_of_terms_never_raises_the_error(rng, n_terms, dtype):
    Y, start = planted(rng, (6, 6), (8, 8), noise=0.3)
    history = learner(start, n_terms=n_terms, max_iter=15).fit(Y.astype(dtype)).history_
    tolerance = 1e-12 if dtype is np.float64 else 1e-6
    assert np.all(np.divide(history["rmse"], history["coding_rmse"]) <= 1 + tolerance)


def test_sweeps_end_when_little_is_gained(rng):
    Y, start = planted(rng, (5, 4), (7, 6))

    def errors(**options):
        model = learner(start, n_terms=2, max_iter=1, random_state=0, **options).fit(Y)
        return model.history_["rmse"][0] ** 2

    one, two, all_ = (errors(n_sweeps=n, sweep_tol=0.0) for n in (1, 2, 30))
    assert one > two > all_
    gained = (one - two) / one
    assert errors(sweep_tol=gained * 1.01) == two
    assert errors(sweep_tol=0.9 * gained) < two


def test_terms_of_a_planted_sum_are_found_from_nearby():
    rates = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        Y, terms = samples_of_a_sum(rng, (5, 5), (6, 6), 2, 1500)
        near = [[f + 0.1 * rng.standard_normal(f.shape) for f in term] for term in terms]
        model = learner(kl.KroneckerSumDictionary(near), n_terms=2, max_iter=30).fit(Y)
        truth = sums.unit_columns(sums.dense_sum(terms))
        rates.append(recovered(model.dictionary_, truth))
    assert np.mean(rates) >= 0.9


# Nuclear norm


def admm(Y, factors, alpha, u, **options):
    """What the reference makes of a start in five iterations, and the errors of their codings."""
    patch_shape, n_atoms = zip(*[factor.shape for factor in factors], strict=True)
    shapes = {"patch_shape": patch_shape, "n_atoms": n_atoms}

    state, errors = sums.sukro_admm_start(factors), []
    for _ in range(5):
        D = [sums.unit_columns(state.D)]
        X = reference.code(Y, D, "omp", 3)
        errors.append(np.sqrt(np.mean(reference.residuals(Y, D, X) ** 2)))
        state, _ = sums.sukro_admm_update(Y, state, X, **shapes, alpha=alpha, u=u, **options)
    return state, errors


@pytest.mark.parametrize("alpha", [0.05, 0.5])
@pytest.mark.parametrize("u", [5.0, 100.0, None])
def test_five_iterations_with_a_penalty_equal_the_reference(rng, alpha, u):
    Y, factors = planted(rng, (5, 4), (7, 6))
    X = reference.code(Y, factors, "omp", 3)
    wanted_u = np.sum(X**2) / X.shape[1] if u is None else u
    wanted, rmse = admm(Y, factors, alpha, wanted_u, n_steps=100)
    model = learner(factors, alpha=alpha, u=u)
    structure, state = relaxed_run(model, Y)
    assert sum(state.history["atoms_replaced"]) == 0
    assert structure.penalty == model.penalty_
    np.testing.assert_allclose(state.history["rmse"], rmse, rtol=1e-10)
    np.testing.assert_allclose(structure.D, wanted.D, rtol=0, atol=1e-10)
    dense = state.dictionary.to_dense()
    np.testing.assert_allclose(dense, sums.unit_columns(wanted.D), rtol=0, atol=1e-10)
    found = last_dictionary(model, Y)
    assert found.n_terms == np.linalg.matrix_rank(wanted.W, 1e-9)
    np.testing.assert_allclose(found.to_dense(), dense, atol=5e-3)


def test_a_penalty_scales_with_the_samples(rng):
    Y, factors = planted(rng, (5, 4), (7, 6))
    model = learner(factors, alpha=2.15, u=500.0).fit(100 * Y / 255)
    scaled = learner(factors, alpha=2.15 * 255, u=500.0 * 255**2).fit(100 * Y)
    assert scaled.penalty_ == pytest.approx(255**2 * model.penalty_)
    assert scaled.dictionary_.n_terms == model.dictionary_.n_terms
    np.testing.assert_allclose(scaled.history_["rmse"], 255 * np.array(model.history_["rmse"]))
    np.testing.assert_allclose(
        scaled.dictionary_.to_dense(), model.dictionary_.to_dense(), atol=1e-8
    )


def test_without_u_nothing_but_alpha_scales_with_the_samples(rng):
    Y, factors = planted(rng, (5, 4), (7, 6))
    model = learner(factors, alpha=0.5).fit(Y)
    scaled = learner(factors, alpha=0.5 * 1024).fit(1024 * Y)
    np.testing.assert_allclose(
        scaled.dictionary_.to_dense(), model.dictionary_.to_dense(), atol=1e-10
    )


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int16])
def test_the_penalty_is_alpha_times_the_spectral_norm_of_the_samples(rng, dtype):
    Y = (rng.standard_normal((70_000, 3, 2)) * 50).astype(dtype)
    model = SuKro((3, 3), n_nonzero_coefs=1, alpha=2.0, max_iter=1, random_state=0).fit(Y)
    norm = np.linalg.norm(Y.reshape(len(Y), -1).astype(np.float64), 2)
    assert model.penalty_ == pytest.approx(2 * norm, rel=1e-10)


def test_a_larger_penalty_leaves_fewer_terms_and_never_none(rng):
    Y, factors = planted(rng, (4, 5), (6, 5), noise=0.5)
    counts = [
        learner(factors, alpha=alpha, max_iter=8).fit(Y).dictionary_.n_terms
        for alpha in (1e-6, 0.1, 0.5, 2.0, 1e4)
    ]
    assert counts[0] == 4 * 6
    assert counts == sorted(counts, reverse=True)
    assert len(set(counts)) >= 4
    assert counts[-2:] == [1, 1]


def objective(D, xx, xy, energy, penalty, modes):
    fit = energy - 2 * np.sum(xy * D.T) + np.sum(xx * (D.T @ D))
    return fit / 2 + penalty * np.linalg.norm(rearranged(D, *modes), "nuc")


def test_an_update_with_a_penalty_ends_near_the_minimum_of_its_objective(rng):
    Y, factors = planted(rng, (5, 4), (7, 6))
    X = reference.code(Y, factors, "omp", 3)
    xx, xy = X.T @ X, X.T @ Y.reshape(len(Y), -1)
    modes = ((5, 4), (7, 6))
    rows, columns = np.tril_indices(len(xx))
    D = reference.dense(factors)
    start = RelaxedDictionary(D, rearranged(D, *modes), modes[1])
    ends = []
    for step_tol in (1e-4, 1e-12):
        structure = NuclearNorm(start, 20.0, None, 3000, step_tol)
        moments = Moments((20,), (42,), len(Y), np.sum(Y**2), 0.0, xx[rows, columns], xy.copy())
        structure.update(start, moments)
        np.testing.assert_array_equal(moments.xy, xy)
        ends.append(objective(structure.D, xx, xy, np.sum(Y**2), 20.0, modes))
    assert ends[0] < objective(D, xx, xy, np.sum(Y**2), 20.0, modes)
    assert ends[0] == pytest.approx(ends[1], rel=1e-3)
    for _ in range(20):
        moved = structure.D + 1e-3 * rng.standard_normal(D.shape)
        assert objective(moved, xx, xy, np.sum(Y**2), 20.0, modes) > ends[1]


def test_with_a_penalty_the_error_may_rise_and_the_best_dictionary_is_handed_out(rng):
    Y, factors = planted(rng, (5, 4), (7, 6), noise=0.3)
    fitted = learner(factors, n_terms=4, max_iter=20, random_state=0).fit(Y).dictionary_
    model = learner(fitted, alpha=3.0, max_iter=3).fit(Y)
    rmse = model.history_["rmse"]
    assert rmse[1] > rmse[0]
    assert model.dictionary_.n_terms == 4
    np.testing.assert_allclose(model.dictionary_.to_dense(), fitted.to_dense(), atol=1e-12)


def test_terms_of_a_planted_sum_are_found_from_nearby_with_a_penalty():
    rates, counts = [], []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        Y, terms = samples_of_a_sum(rng, (5, 5), (6, 6), 2, 1500)
        near = [[f + 0.1 * rng.standard_normal(f.shape) for f in term] for term in terms]
        model = learner(kl.KroneckerSumDictionary(near), alpha=0.2, max_iter=30).fit(Y)
        truth = sums.unit_columns(sums.dense_sum(terms))
        rates.append(recovered(model.dictionary_, truth))
        counts.append(model.dictionary_.n_terms)
    assert np.mean(rates) >= 0.9
    assert max(counts) < 15


def test_replaced_atoms_add_no_terms(rng):
    Y, factors = planted(rng, (5, 4), (7, 6))
    factors[0][:, 1] = factors[0][:, 0]
    model = learner(factors, alpha=2.0, max_iter=1)
    assert last_dictionary(model, Y).n_terms == 1
    assert model.history_["atoms_replaced"][0] >= 6


def test_an_atom_that_vanished_from_all_terms_still_has_norm_one(rng):
    low_rank = rng.standard_normal((12, 1)) @ rng.standard_normal((1, 6))
    low_rank.reshape(3, 4, 6)[:, 2] = 0.0
    D = np.eye(6, 12)[:, np.arange(12) % 6]
    found = NuclearNorm(RelaxedDictionary(D, low_rank, (4, 3)), 1.0, None, 1, 0.1).result(
        RelaxedDictionary(D, low_rank, (4, 3))
    )
    assert (found.n_terms, found.patch_shape, found.n_atoms) == (1, (3, 2), (4, 3))
    np.testing.assert_allclose(np.linalg.norm(found.to_dense(), axis=0), 1.0)


def test_columns_that_vanished_from_some_pairs_of_atoms_are_the_dictionarys_own(rng):
    blocks = np.zeros((2, 2, 4))
    blocks[0, :, :2], blocks[1, :, 2:] = rng.standard_normal((2, 2, 2))
    D = sum(np.kron(block, block) for block in blocks)
    own = reference.dense(reference.random_factors(rng, (4,), (16,)))
    own = np.where(D.any(axis=0), sums.unit_columns(D + 1e-300), own)
    relaxed = RelaxedDictionary(own, rearranged(D, (2, 2), (4, 4)), (4, 4))
    found = NuclearNorm(relaxed, 1.0, None, 1, 0.1).result(relaxed)
    assert found.n_terms > 2
    np.testing.assert_allclose(found.to_dense(), own, atol=1e-12)


def test_nothing_left_of_the_dictionary_is_survived():
    Y = np.array([[[-3.0, 3, 2, -3]], [[-1, -1, 1, -1]]])
    options = {"alpha": 10.0, "init": "data", "max_iter": 8}
    for seed in range(120, 130):
        model = SuKro((2, 3), n_nonzero_coefs=3, random_state=seed, **options).fit(Y)
        assert model.dictionary_.n_terms >= 1


def test_what_is_handed_out_may_be_worse_than_what_was_coded_with_until_admm_converges(rng):
    Y, factors = planted(rng, (5, 4), (7, 6))
    options = {"alpha": 0.5, "max_iter": 8, "step_tol": 0.0}
    excess = []
    for n_steps in (1, 10, 1000):
        structure, state = relaxed_run(learner(factors, n_steps=n_steps, **options), Y)
        found = structure.result(state.dictionary).to_dense()
        excess.append(np.linalg.norm(found - state.dictionary.to_dense()))
    assert excess[0] > excess[1] > excess[2]
    assert excess[2] < 1e-3


@pytest.mark.parametrize("scale", [1e-160, 1e-100, 1e-30, 1e30, 1e100])
@pytest.mark.parametrize("u", [None, 1.0])
@pytest.mark.filterwarnings("error")
def test_samples_of_any_scale_are_survived_with_a_penalty(rng, scale, u):
    Y, factors = planted(rng, (5, 4), (7, 6))
    model = learner(factors, alpha=0.5, u=u).fit(scale * Y)
    assert np.isfinite(model.dictionary_.to_dense()).all()
    assert np.isfinite(model.history_["rmse"]).all()


def test_a_tiny_u_is_survived_where_codes_determine_little(rng):
    model = SuKro((5, 4), n_nonzero_coefs=3, alpha=1e-12, u=1e-14, max_iter=5, random_state=0)
    model.fit(rng.standard_normal((6, 3, 3)))
    assert np.isfinite(model.dictionary_.to_dense()).all()


def test_a_penalty_needs_two_modes(rng):
    with pytest.raises(ValueError, match=r"alpha=1.*two modes.*have 3.*n_terms"):
        SuKro(3, n_nonzero_coefs=1, alpha=1).fit(rng.standard_normal((30, 3, 2, 2)))


# Both forms


@pytest.mark.parametrize("form", FORMS)
def test_the_number_of_threads_changes_no_bit(rng, form):
    Y, start = planted(rng, (5, 4), (7, 6), 3000)
    models = [learner(start, random_state=0, n_jobs=n, **form).fit(Y) for n in (1, 2)]
    assert models[0].dictionary_ == models[1].dictionary_
    assert models[0].history_["rmse"] == models[1].history_["rmse"]


@pytest.mark.parametrize("form", FORMS)
def test_a_clone_learns_the_same(rng, form):
    Y, _ = planted(rng, (5, 4), (7, 6))
    model = SuKro((7, 6), n_nonzero_coefs=3, max_iter=2, random_state=3, n_jobs=1, **form)
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    assert copy.fit(Y).dictionary_ == model.fit(Y).dictionary_ == model.fit(Y).dictionary_


@pytest.mark.parametrize("form", FORMS)
def test_codes_and_samples_have_the_shapes_of_what_was_fitted(rng, form):
    Y, start = planted(rng, (5, 4), (7, 6))
    model = learner(start, random_state=0, **form).fit(Y)
    X = model.transform(Y)
    assert X.shape == (300, 42)
    assert model.inverse_transform(X).shape == (300, 5, 4)
    assert model.score(Y) == pytest.approx(-np.sqrt(np.mean((Y - model.inverse_transform(X)) ** 2)))
    rows = learner(start, random_state=0, patch_shape=(5, 4), **form).fit(Y.reshape(300, 20))
    assert rows.dictionary_ == model.dictionary_
    assert rows.inverse_transform(rows.transform(Y.reshape(300, 20))).shape == (300, 20)


@pytest.mark.parametrize("form", FORMS)
def test_float32_samples_give_a_float32_dictionary(rng, form):
    Y, start = planted(rng, (5, 4), (7, 6))
    model = learner(start, random_state=0, max_iter=2, **form).fit(Y)
    single = learner(start, random_state=0, max_iter=2, **form).fit(Y.astype(np.float32))
    assert single.dictionary_.dtype == single.transform(Y.astype(np.float32)).dtype == np.float32
    np.testing.assert_allclose(single.history_["rmse"], model.history_["rmse"], rtol=1e-3)


@pytest.mark.parametrize("form", FORMS)
def test_read_only_and_strided_samples_give_the_same_dictionary(rng, form):
    Y, start = planted(rng, (5, 4), (7, 6))
    model = learner(start, random_state=0, **form).fit(Y)
    frozen = Y.copy()
    frozen.setflags(write=False)
    for samples in (frozen, np.asfortranarray(Y), np.repeat(Y, 2, axis=0)[::2]):
        assert learner(start, random_state=0, **form).fit(samples).dictionary_ == model.dictionary_


@pytest.mark.parametrize("form", FORMS)
def test_nan_in_the_samples_is_reported(rng, form):
    Y, start = planted(rng, (5, 4), (7, 6))
    Y[17, 2, 1] = np.nan
    with pytest.raises(ValueError, match=r"NaN.*sample 17"):
        learner(start, **form).fit(Y)


@pytest.mark.parametrize("form", FORMS)
def test_samples_of_zeros_end_at_once(rng, form):
    model = SuKro((5, 4), n_nonzero_coefs=2, random_state=0, **form).fit(np.zeros((30, 4, 3)))
    assert (model.n_iter_, model.stop_reason_) == (1, "converged")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"n_terms": 2, "alpha": 1.0}, ValueError, r"n_terms=2 and alpha=1\.0 are both given"),
        ({"n_terms": 0}, ValueError, "n_terms=0 is too small; pass at least 1"),
        ({"n_terms": 1.5}, TypeError, r"n_terms=1\.5 is not an integer"),
        ({"n_sweeps": 0}, ValueError, "n_sweeps=0 is too small"),
        ({"n_steps": 0}, ValueError, "n_steps=0 is too small"),
        ({"alpha": 0}, ValueError, "alpha=0 is not a positive number"),
        ({"alpha": "a"}, TypeError, "alpha='a' is not a number"),
        ({"alpha": np.nan}, ValueError, "alpha=nan is not a positive number"),
        ({"u": -1.0}, ValueError, r"u=-1\.0 is not a positive number"),
        ({"sweep_tol": -0.1}, ValueError, r"sweep_tol=-0\.1 is not a nonnegative number"),
        ({"step_tol": np.inf}, ValueError, "step_tol=inf is not a nonnegative number"),
        ({"method": "threshold"}, ValueError, "choose ols or omp"),
        ({"init": "nothing"}, ValueError, "init='nothing' does not exist"),
        ({"n_nonzero_coefs": 99}, ValueError, "exceeds the 30 atoms"),
    ],
)
def test_a_parameter_that_makes_no_sense_is_refused(rng, options, error, message):
    Y = rng.standard_normal((40, 4, 5))
    with pytest.raises(error, match=message):
        SuKro(**({"n_atoms": (6, 5), "n_nonzero_coefs": 2} | options)).fit(Y)
