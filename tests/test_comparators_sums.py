"""SuKro, TeFDiL and STARK, whose updates need only moments, equal their references."""

import pickle
from functools import partial

import numpy as np
import pytest

import kronlearn as kl
import reference
import reference_comparators as rc
import reference_comparators_sums as sums
from kronlearn.comparators import STARK, SuKro, TeFDiL
from kronlearn.comparators.low_rank import cp_terms, ridge_parts, svt
from kronlearn.comparators.stateful import StatefulDictionary
from kronlearn.comparators.sukro import Admm
from kronlearn.core.kronecker_sum import rearranged
from kronlearn.core.moments import Moments
from learning_problems import assert_same_atoms, learner, moments_of, planted, random_terms


def unit_sum(terms):
    return [sums.unit_columns(sums.dense_sum(terms))]


def assert_learned(model, Y, expected, rmse, atol=1e-10):
    """Fit; compare the history and, up to signs, the last dictionary with the reference."""
    seen = []
    model.set_params(callback=lambda progress: seen.append(progress.dictionary)).fit(Y)
    assert sum(model.history_["atoms_replaced"]) == 0
    np.testing.assert_allclose(model.history_["rmse"], rmse, rtol=1e-10)
    assert_same_atoms(seen[-1].to_dense(), expected, atol)
    return seen[-1]


# SuKro with a fixed number of terms


@pytest.mark.parametrize(("n_terms", "n_sweeps"), [(1, 3), (3, 2)])
@pytest.mark.parametrize(("patch_shape", "n_atoms"), rc.SHAPES[1:])
def test_iterations_with_a_number_of_terms_equal_the_reference(
    rng, patch_shape, n_atoms, n_terms, n_sweeps
):
    Y, factors = planted(rng, patch_shape, n_atoms, 120)
    terms = sums.start_terms(rng, factors, n_terms)
    update = partial(sums.sukro_als_update, n_sweeps=n_sweeps)
    wanted, rmse = rc.learn(update, Y, terms, 3, 2, unit_sum)
    options = {"max_iter": 2, "n_terms": n_terms, "n_sweeps": n_sweeps, "sweep_tol": 0.0}
    model = learner(kl.KroneckerSumDictionary(terms), SuKro, **options)
    assert assert_learned(model, Y, unit_sum(wanted)[0], rmse).n_terms == n_terms


def test_one_term_and_one_sweep_is_the_general_method(rng):
    Y, start = planted(rng, (5, 4), (7, 6))
    options = {"n_nonzero_coefs": 3, "init": start, "max_iter": 5, "method": "omp"}
    model = SuKro((7, 6), n_terms=1, n_sweeps=1, **options).fit(Y)
    general = kl.KroneckerDictionaryLearning((7, 6), **options).fit(Y)
    np.testing.assert_allclose(model.history_["rmse"], general.history_["rmse"], rtol=1e-10)


def test_sweeps_lower_the_error_and_stop_when_they_gain_little(rng):
    Y, start = planted(rng, (5, 4), (7, 6))
    X = rc.code(Y, start, 3)
    moments = moments_of(Y, X, kl.KroneckerDictionary(start))
    first = kl.KroneckerSumDictionary(sums.start_terms(rng, start, 2))

    def error(**options):
        dictionary, rescaled = SuKro((7, 6), **options)._sweep(first, moments)
        return rescaled.squared_error(dictionary)

    none = moments.squared_error(first)
    one, two, all_ = (error(n_sweeps=n, sweep_tol=0.0) for n in (1, 2, 30))
    assert none > one > two > all_
    gained = (one - two) / one
    assert error(sweep_tol=gained * 1.01) == two
    assert error(sweep_tol=0.9 * gained) < two


# SuKro with a penalty on the number of terms


def low_rank(state):
    return [sums.unit_columns(sums.arrange(state.W, (5, 4), (7, 6)))]


@pytest.mark.parametrize(
    ("alpha", "u", "dtype"), [(0.05, 5.0, np.float64), (0.5, None, np.float64), (50, 5e4, np.int16)]
)
def test_iterations_with_a_penalty_equal_the_reference(rng, alpha, u, dtype):
    Y, factors = planted(rng, (5, 4), (7, 6), 100)
    if dtype == np.int16:
        Y = np.round(100 * Y).astype(dtype)
    X = rc.code(Y, factors, 3)
    shapes = {"patch_shape": (5, 4), "n_atoms": (7, 6)}
    wanted_u = np.sum(X**2) / X.shape[1] if u is None else u
    update = partial(sums.sukro_admm_update, alpha=alpha, u=wanted_u, n_steps=100, **shapes)
    wanted, rmse = rc.learn(update, Y, sums.sukro_admm_start(factors), 3, 2, low_rank)
    model = learner(factors, SuKro, max_iter=2, alpha=alpha, u=u)
    found = assert_learned(model, Y, low_rank(wanted)[0], rmse)
    assert found.n_terms == np.linalg.matrix_rank(wanted.W, 1e-9)


def test_an_update_with_a_penalty_ends_near_the_minimum_of_its_objective(rng):
    Y, factors = planted(rng, (5, 4), (7, 6))
    X = rc.code(Y, factors, 3)
    moments, modes = moments_of(Y, X, kl.KroneckerDictionary(factors)), ((5, 4), (7, 6))

    def objective(D):
        fit = np.sum((Y.reshape(len(Y), -1) - X @ D.T) ** 2)
        return fit / 2 + 20.0 * np.linalg.norm(rearranged(D, *modes), "nuc")

    D = reference.dense(factors)
    admm = Admm(D, np.zeros_like(rearranged(D, *modes)), penalty=20.0)
    start = StatefulDictionary(kl.KroneckerSumDictionary([factors]), admm)
    rough, exact = (
        SuKro(alpha=1.0, n_steps=3000, step_tol=step_tol)._update(start, moments).method_state.D
        for step_tol in (1e-4, 1e-12)
    )
    assert objective(rough) < objective(D)
    assert objective(rough) == pytest.approx(objective(exact), rel=1e-3)
    for _ in range(20):
        assert objective(exact + 1e-3 * rng.standard_normal(D.shape)) > objective(exact)


def relaxed(factors, D):
    """Return a dictionary from which ADMM continues at a matrix D."""
    modes = tuple(zip(*[factor.shape for factor in factors], strict=True))
    admm = Admm(D, np.zeros_like(rearranged(D, *modes)), penalty=1e-3, u=1.0)
    return StatefulDictionary(kl.KroneckerSumDictionary([factors]), admm)


def test_a_dictionary_stays_if_columns_of_its_update_are_zero(rng):
    factors = reference.random_factors(rng, (2, 2), (4, 4))
    blocks = np.zeros((2, 2, 4))
    blocks[0, :, :2], blocks[1, :, 2:] = rng.standard_normal((2, 2, 2))
    current = relaxed(factors, sum(np.kron(block, block) for block in blocks))
    nothing = Moments((2, 2), (4, 4), 1.0, np.zeros(16 * 17 // 2), np.zeros((16, 4)))
    updated = SuKro(alpha=1.0, n_steps=1)._update(current, nothing)
    np.testing.assert_array_equal(updated.to_dense(), current.to_dense())


def test_a_penalty_can_start_from_a_sum(rng):
    Y, _ = planted(rng, (5, 4), (7, 6))
    start = kl.KroneckerSumDictionary(random_terms(rng, (5, 4), (7, 6), 2))
    seen = []
    learner(start, SuKro, n_terms=None, alpha=0.5, max_iter=1, callback=seen.append).fit(Y)
    np.testing.assert_allclose(seen[0].dictionary.to_dense(), start.to_dense(), atol=1e-14)


def test_a_penalty_needs_two_modes(rng):
    with pytest.raises(ValueError, match=r"alpha=1.*two modes.*have 3.*n_terms"):
        SuKro(3, n_nonzero_coefs=1, alpha=1).fit(rng.standard_normal((30, 3, 2, 2)))


@pytest.mark.parametrize("own", [{"penalty": 1e-40}, {"alpha": 1e-12, "u": 1e-14}], ids=str)
def test_a_tiny_penalty_gives_finite_dictionaries_where_codes_determine_little(rng, own):
    method = STARK if "penalty" in own else SuKro
    model = method((5, 4), n_nonzero_coefs=3, max_iter=5, random_state=0, **own)
    model.fit(rng.standard_normal((6, 3, 3)))
    assert np.isfinite(model.dictionary_.to_dense()).all()


# TeFDiL


@pytest.mark.parametrize("n_terms", [1, 3])
@pytest.mark.parametrize(("patch_shape", "n_atoms"), rc.SHAPES[1:])
def test_iterations_of_tefdil_equal_the_reference(rng, patch_shape, n_atoms, n_terms):
    Y, start = planted(rng, patch_shape, n_atoms, 120)
    terms = sums.start_terms(rng, start, n_terms)
    wanted, rmse = rc.learn(sums.tefdil_update, Y, terms, 3, 2, unit_sum)
    model = learner(kl.KroneckerSumDictionary(terms), TeFDiL, max_iter=2, n_terms=n_terms)
    found = assert_learned(model, Y, unit_sum(wanted)[0], rmse)
    assert found.n_terms == n_terms
    assert isinstance(found, kl.KroneckerDictionary) == (n_terms == 1)


@pytest.mark.parametrize("ridge", [0.0, 0.01])
@pytest.mark.parametrize("n_terms", [1, 2])
def test_tefdil_leaves_an_unused_atom_of_a_mode_to_replacement(rng, ridge, n_terms):
    Y, start = planted(rng, (5, 4), (7, 6))
    start[0][:, 6] = start[0][:, 0]  # a duplicate is never chosen
    seen = []
    options = {"ridge": ridge, "n_terms": n_terms, "callback": seen.append}
    model = learner(start, TeFDiL, max_iter=6, **options).fit(Y)
    assert model.history_["atoms_replaced"][:2] == [0, 1]
    # The other atoms are updated.
    assert not np.allclose(seen[1].dictionary.to_dense()[:, 0], seen[0].dictionary.to_dense()[:, 0])
    assert min(model.history_["rmse"][2:]) < model.history_["rmse"][1]


@pytest.mark.parametrize("n_terms", [2, 4])
def test_tefdil_learns_several_terms_if_some_pairs_of_atoms_are_unused(n_terms):
    rng = np.random.default_rng(0)
    Y = np.zeros((80, 4, 4))
    for k, y in enumerate(Y):
        block = 2 * (k % 2)
        y[block + rng.integers(2), block + rng.integers(2)] = rng.standard_normal()
    for samples in (Y, Y + 0.01 * rng.standard_normal(Y.shape)):
        model = learner([np.eye(4)] * 2, TeFDiL, n_nonzero_coefs=1, n_terms=n_terms).fit(samples)
        assert model.dictionary_.n_terms == n_terms
        np.testing.assert_allclose(np.linalg.norm(model.dictionary_.to_dense(), axis=0), 1.0)


# CP decompositions


@pytest.mark.parametrize("sizes", [(6, 9), (9, 6), (6, 4, 5), (3, 4, 2, 3)], ids=str)
@pytest.mark.parametrize("r", [1, 3])
def test_cp_terms_equal_the_reference(rng, sizes, r):
    T = rng.standard_normal(sizes)
    start = [rng.standard_normal((size, r)) for size in sizes]
    if len(sizes) == 2:
        U, s, Vt = np.linalg.svd(T, full_matrices=False)
        wanted = (U[:, :r] * s[:r]) @ Vt[:r]
    else:
        wanted = outer_sum(sums.cp_als(T, start, 50, 1e-8))
    found = cp_terms(T, start)
    np.testing.assert_allclose(outer_sum(found), wanted, atol=1e-10)
    norms = np.array([np.linalg.norm(part, axis=0) for part in found])
    np.testing.assert_allclose(norms, np.broadcast_to(norms[0], norms.shape))


def outer_sum(columns):
    letters = "abcd"[: len(columns)]
    return np.einsum(",".join(f"{c}r" for c in letters) + f"->{letters}", *columns)


def test_terms_beyond_the_rank_of_the_matrix_are_zero(rng):
    left, right = cp_terms(rng.standard_normal((2, 3)), [np.ones((2, 4)), np.ones((3, 4))])
    assert left.shape == (2, 4)
    assert not left[:, 2:].any()
    assert not right[:, 2:].any()


# STARK


@pytest.mark.parametrize("penalty", [None, 3.0], ids=["published", "small"])
@pytest.mark.parametrize(("patch_shape", "n_atoms"), rc.SHAPES[1:])
def test_iterations_of_stark_equal_the_reference(rng, patch_shape, n_atoms, penalty):
    truth = reference.random_factors(rng, patch_shape, n_atoms)
    Y = reference.sparse_samples(rng, truth, 200, 3, noise=0.1)
    start = rc.nearby(rng, truth, 0.5)  # all atoms are used: the reference replaces none
    weight, gamma = sums.stark_weights(Y) if penalty is None else (penalty, penalty / 20)
    shapes = {"patch_shape": patch_shape, "n_atoms": n_atoms}
    update = partial(sums.stark_update, weight=weight, penalty=gamma, **shapes)

    def unit_matrix(state):
        return [sums.unit_columns(state.D)]

    wanted, rmse = rc.learn(update, Y, sums.stark_start(start), 3, 2, unit_matrix)
    model = learner(start, STARK, max_iter=2, penalty=penalty)
    assert_learned(model, Y, unit_matrix(wanted)[0], rmse)


@pytest.mark.parametrize("penalty", [1e12, 1e200])
def test_a_huge_penalty_gives_a_finite_dictionary(rng, penalty):
    Y, start = planted(rng, (5, 4), (7, 6))
    model = learner(start, STARK, penalty=penalty).fit(Y)
    assert np.isfinite(model.dictionary_.to_dense()).all()


# Functions for low rank


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_singular_values_of_any_size_are_shrunk(rng, scale):
    for shape in ((4, 9), (9, 4), (3, 1)):
        M = rng.standard_normal(shape)
        largest = np.linalg.norm(M, 2)
        for fraction in (0.0, 1e-6, 0.3, 2.0):
            shrunk = svt(scale * M, scale * fraction * largest)
            wanted = sums.shrink_singular_values(M, fraction * largest)
            np.testing.assert_allclose(shrunk / scale, wanted, atol=1e-12)


@pytest.mark.parametrize("ridge", [1e3, 1.0, 1e-6, 1e-14, 1e-100])
@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_a_ridge_keeps_directions_that_the_codes_do_not_determine(rng, ridge, scale):
    X, Y, P = (rng.standard_normal(shape) for shape in ((6, 4), (5, 4), (5, 6)))
    fitted, kept = ridge_parts(scale * X @ X.T, scale * X @ Y.T, scale * ridge)
    U, s, Vt = np.linalg.svd(X)
    outside = U[:, 4:] @ U[:, 4:].T
    inside = (Y @ Vt.T * s + ridge * P @ U[:, :4]) / (s**2 + ridge) @ U[:, :4].T
    np.testing.assert_allclose(fitted + P @ kept, inside + P @ outside, atol=1e-6)


def test_a_dictionary_keeps_its_state_when_pickled_or_given_other_factors(rng):
    factors = reference.random_factors(rng, (5, 4), (7, 6))
    dictionary = StatefulDictionary(kl.KroneckerDictionary(factors), {"sums": 3})
    other = dictionary.with_stack(0, -dictionary.stacks[0])
    single = dictionary.astype(np.float32)
    for same in (pickle.loads(pickle.dumps(dictionary)), other, single):
        assert same.method_state == {"sums": 3}
    assert single.dtype == np.float32
    np.testing.assert_array_equal(other.to_dense(), -dictionary.to_dense())
