"""What all comparators have in common: scikit-learn's interface, the history, reproducibility."""

import numpy as np
import pytest
from sklearn.utils.estimator_checks import check_estimator

import kronlearn as kl
import reference
import reference_comparators as rc
from kronlearn import comparators
from kronlearn.comparators import (
    AKSVD,
    KSVD,
    MOD,
    STARK,
    TKSVD,
    OSubDil,
    PairAKSVD,
    SeDiL,
    SuKro,
    TeFDiL,
)
from kronlearn.comparators.unstructured import cosines
from kronlearn.core.init import dct_factor
from learning_problems import planted

UNSTRUCTURED = [AKSVD, KSVD, MOD]
# Classes with their own parameters, for samples of shape (5, 4).
CASES = {
    "AK-SVD": (AKSVD, {"n_atoms": 42}),
    "K-SVD": (KSVD, {"n_atoms": 42}),
    "MOD": (MOD, {"n_atoms": 42}),
    "STARK": (STARK, {}),
    "TKSVD": (TKSVD, {}),
    "OSubDil": (OSubDil, {"batch_size": 60}),
    "PairAK-SVD": (PairAKSVD, {}),
    "SeDiL": (SeDiL, {}),
    "SuKro, two terms": (SuKro, {"n_terms": 2}),
    "SuKro, penalty": (SuKro, {"alpha": 0.5}),
    "TeFDiL": (TeFDiL, {}),
    "TeFDiL, two terms": (TeFDiL, {"n_terms": 2}),
}
every_case = pytest.mark.parametrize("case", CASES)
# A method that needs codes, one that needs moments, and two with their own kind of iteration.
one_of_each_kind = pytest.mark.parametrize("case", ["AK-SVD", "TeFDiL", "OSubDil", "SeDiL"])


@pytest.fixture(scope="module")
def planted_samples():
    return planted(np.random.default_rng(20200708), (5, 4), (7, 6), 120, noise=0.3)[0]


@pytest.fixture(name="Y")
def samples(planted_samples):
    return planted_samples.copy()


def learner(case, **options):
    """An estimator for samples of shape (5, 4)."""
    method, own = CASES[case]
    defaults = {"n_atoms": (7, 6), "n_nonzero_coefs": 3, "max_iter": 3, "n_jobs": 1}
    return method(**(defaults | {"random_state": 0} | own | options))


@pytest.mark.filterwarnings("ignore:Samples of", "ignore::sklearn.exceptions.SkipTestWarning")
@pytest.mark.parametrize("name", comparators.__all__)
def test_comparators_pass_the_checks_of_scikit_learn(name):
    n_atoms = 3 if getattr(comparators, name) in UNSTRUCTURED else (2, 2)
    learner = getattr(comparators, name)(n_atoms, n_nonzero_coefs=2, max_iter=1)
    check_estimator(learner.set_params(sparse_output=False))


# The history


@pytest.mark.parametrize(
    ("case", "dtype"),
    [*((case, np.float64) for case in CASES), ("K-SVD", np.float32), ("SeDiL", np.float32)],
)
def test_the_score_is_the_lowest_error_of_the_history(Y, case, dtype):
    seen = []
    model = learner(case, max_iter=6, callback=seen.append)
    model.fit(Y.astype(dtype))
    rmse = model.history_["rmse"]
    assert -model.score(Y.astype(dtype)) == pytest.approx(min(rmse), rel=1e-6)
    assert model.dictionary_ == seen[int(np.argmin(rmse))].dictionary
    assert model.dictionary_.dtype == model.transform(Y.astype(dtype)).dtype == dtype
    assert [progress.rmse for progress in seen] == rmse
    assert [progress.iteration for progress in seen] == list(range(7))
    assert {len(column) for column in model.history_.values()} == {7}
    assert {"rmse", "seconds", "atoms_replaced", "mean_nonzeros"} <= set(model.history_)
    assert np.all(np.diff([0.0, *model.history_["seconds"]]) > 0)
    assert (model.n_iter_, model.stop_reason_) == (6, "max_iter")
    assert min(rmse[1:]) < rmse[0]


@one_of_each_kind
def test_with_an_error_target_the_dictionary_with_the_fewest_nonzeros_is_kept(Y, case):
    model = learner(case, n_nonzero_coefs=None, tol=1.5, max_iter=6).fit(Y)
    best = int(np.argmin(model.history_["mean_nonzeros"]))
    assert best > 0
    assert model.transform(Y).nnz / len(Y) == model.history_["mean_nonzeros"][best]
    assert -model.score(Y) == pytest.approx(model.history_["rmse"][best], rel=1e-6)


@every_case
def test_the_first_entry_of_the_history_is_that_of_the_start(Y, case):
    start = reference.random_factors(np.random.default_rng(3), (5, 4), (7, 6))
    init = kl.KroneckerDictionary(start)
    model = learner(case, init=init, max_iter=1).fit(Y[:20])
    X = rc.code(Y[:20], start, 3)
    rmse = np.sqrt(np.mean(reference.residuals(Y[:20], start, X) ** 2))
    assert model.history_["rmse"][0] == pytest.approx(rmse, rel=1e-10)


@one_of_each_kind
def test_a_time_budget_ends_a_run(Y, case):
    model = learner(case, max_iter=500, time_budget=0.02).fit(Y)
    assert model.stop_reason_ == "time_budget"
    assert model.history_["seconds"][-1] >= 0.02


@one_of_each_kind
def test_an_interrupted_fit_keeps_the_best_dictionary_so_far(Y, case):
    def callback(progress):
        if progress.iteration == 2:
            raise KeyboardInterrupt

    model = learner(case, callback=callback)
    with pytest.raises(KeyboardInterrupt):
        model.fit(Y)
    assert model.stop_reason_ == "interrupted"
    assert model.dictionary_ == learner(case, max_iter=model.n_iter_).fit(Y).dictionary_


# Input and output


@every_case
def test_results_are_bit_identical_for_any_number_of_threads(rng, case):
    Y = rng.standard_normal((1000, 5, 4)).astype(np.float32)
    options = {"batch_size": 1000} if case == "OSubDil" else {}
    one, two = (learner(case, n_jobs=n, max_iter=1, **options).fit(Y) for n in (1, 2))
    assert one.dictionary_ == two.dictionary_
    assert one.history_["rmse"] == two.history_["rmse"]


@every_case
def test_samples_may_be_read_only_integers_or_of_any_memory_order(Y, case):
    Y = np.round(20 * Y[:40])
    expected = learner(case, max_iter=1).fit(Y)
    Y.setflags(write=False)
    for other in (np.asfortranarray(Y), Y.astype(np.int16), Y.astype(">f8").reshape(40, 20)):
        model = learner(case, max_iter=1, patch_shape=(5, 4)).fit(other)
        assert model.dictionary_ == expected.dictionary_
        assert model.history_["rmse"] == expected.history_["rmse"]


@every_case
def test_samples_that_are_not_finite_are_refused(Y, case):
    for value, name in ((np.nan, "NaN"), (np.inf, "infinity")):
        Y[17, 2, 1] = value
        with pytest.raises(ValueError, match=rf"{name} \(first in sample 17\)"):
            learner(case).fit(Y)


@every_case
def test_samples_of_zeros_converge_at_once_or_are_refused(case):
    Y = np.zeros((30, 5, 4))
    if case == "SeDiL":
        with pytest.raises(ValueError, match="All samples are zero"):
            learner(case).fit(Y)
        return
    model = learner(case).fit(Y)
    assert (model.history_["rmse"], model.n_iter_) == ([0.0], 0)
    assert model.stop_reason_ == "converged"


@every_case
def test_samples_of_any_scale_can_be_learned_from(Y, case):
    # The weight of a penalty relative to the error depends on the scale.
    penalised = case in ("STARK", "SuKro, penalty")
    expected = learner(case, max_iter=1).fit(Y).dictionary_.to_dense()
    for scale in (1e-100, 1e100):
        model = learner(case, max_iter=1).fit(scale * Y)
        learned = model.dictionary_.to_dense()
        assert np.isfinite(learned).all()
        assert -model.score(scale * Y) == pytest.approx(min(model.history_["rmse"]), rel=1e-6)
        if not penalised:
            np.testing.assert_allclose(learned, expected, rtol=0, atol=1e-9)


@every_case
@pytest.mark.parametrize("n_samples", [1, 17])
def test_few_equal_constant_or_zero_samples_can_be_learned_from(rng, case, n_samples):
    y = rng.standard_normal((1, 3, 2))
    samples = [np.repeat(y, n_samples, axis=0), np.ones((n_samples, 3, 2), np.uint8)]
    samples.append(rng.standard_normal((n_samples, 3, 2)))
    samples[-1][1:] *= rng.random((n_samples - 1, 1, 1)) < 0.5
    n_atoms = 12 if CASES[case][0] in UNSTRUCTURED else (4, 3)
    for Y in samples:
        model = learner(case, n_atoms=n_atoms, max_iter=1, tol=0.5).fit(Y)
        assert all(np.isfinite(values).all() for values in model.history_.values())
        np.testing.assert_allclose(np.linalg.norm(model.dictionary_.to_dense(), axis=0), 1.0)


@every_case
def test_the_error_target_may_be_reached_without_nonzeros(Y, case):
    model = learner(case, tol=100.0, max_iter=1).fit(Y)
    assert model.history_["mean_nonzeros"] == [0.0, 0.0]
    assert model.score(Y) == pytest.approx(-np.sqrt(np.mean(Y**2)))


# Planted dictionaries


@one_of_each_kind
def test_a_planted_dictionary_is_recovered_from_nearby(case):
    # From random starts about 60 % of the atoms are recovered, as by the general method.
    rng = np.random.default_rng(0)
    truth = reference.random_factors(rng, (4, 4), (5, 5))
    Y = reference.sparse_samples(rng, truth, 500, 2, noise=0.01)
    start = kl.KroneckerDictionary(rc.nearby(rng, truth, 0.3))
    options = {"n_atoms": 25 if CASES[case][0] in UNSTRUCTURED else (5, 5), "init": start}
    max_iter = 300 if case == "SeDiL" else 10
    share = 0.75 if case in ("SeDiL", "TKSVD") else 0.9
    model = learner(case, n_nonzero_coefs=2, max_iter=max_iter, **options).fit(Y)
    assert rc.recovered(start.to_dense(), reference.dense(truth)) < 0.2
    assert rc.recovered(model.dictionary_.to_dense(), reference.dense(truth)) >= share


# Parameters

# Parameters of each method that are refused, and the message.
REFUSED = {
    "AK-SVD": [
        ({"n_atoms": (7, 6)}, r"n_atoms=\(7, 6\) is not an integer"),
        ({"n_atoms": 0}, "n_atoms=0"),
        ({"max_iter": 0}, "max_iter=0 is too small; pass at least 1"),
        ({"time_budget": 0}, r"time_budget=0 is not in \(0, inf\]"),
    ],
    "STARK": [
        ({"penalty": 0}, r"penalty=0 is not in \(0, inf\)"),
        ({"penalty": "big"}, "penalty='big' is not a number"),
        ({"gamma_ratio": -1}, r"gamma_ratio=-1 is not in \(0, inf\)"),
        ({"n_steps": 0}, "n_steps=0 is too small; pass at least 1"),
        ({"n_atoms": (7, 6, 5)}, r"n_atoms=\(7, 6, 5\) does not suit samples"),
    ],
    "OSubDil": [
        ({"batch_size": 0}, "batch_size=0 is too small; pass at least 1"),
        ({"n_sweeps": 0}, "n_sweeps=0 is too small"),
        ({"forgetting": -1}, r"forgetting=-1 is not in \[0, inf\)"),
        ({"forgetting": None}, "forgetting=None is not a number"),
    ],
    "SeDiL": [
        ({"sparsity": -1.0}, r"sparsity=-1\.0 is not in \[0, inf\)"),
        ({"coherence": "a"}, "coherence='a' is not a number"),
        ({"sharpness": np.inf}, r"sharpness=inf is not in \[0, inf\)"),
        ({"balance": 0}, r"balance=0 is not in \(0, inf\)"),
        ({"max_samples": 0}, "max_samples=0 is too small"),
    ],
    "SuKro, two terms": [
        ({"alpha": 1.0}, r"n_terms=2 and alpha=1\.0 are both given"),
        ({"n_terms": 0}, "n_terms=0 is too small; pass at least 1"),
        ({"n_sweeps": 0}, "n_sweeps=0 is too small"),
        ({"sweep_tol": -0.1}, r"sweep_tol=-0\.1 is not in \[0"),
    ],
    "SuKro, penalty": [
        ({"n_steps": 0}, "n_steps=0 is too small"),
        ({"alpha": 0}, r"alpha=0 is not in \(0, inf\)"),
        ({"u": -1.0}, r"u=-1\.0 is not in \(0, inf\)"),
        ({"step_tol": np.nan}, r"step_tol=nan is not in \[0, inf\)"),
    ],
    "TeFDiL": [
        ({"n_terms": 1.5}, r"n_terms=1\.5 is not an integer"),
        ({"ridge": -0.1}, r"ridge=-0\.1 is not in \[0, inf\)"),
    ],
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_parameters_of_a_method_are_refused(Y, case):
    for options, words in REFUSED[case]:
        with pytest.raises((TypeError, ValueError), match=words):
            learner(case, **options).fit(Y)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"patch_shape": 5}, ValueError, r"samples of shape \(5,\) are needed"),
        ({"patch_shape": (0, 3)}, ValueError, r"patch_shape=\(0, 3\) must hold positive integers"),
        ({"patch_shape": "ab"}, TypeError, "patch_shape='ab' is not a tuple of integers"),
        ({"init": np.eye(20)}, ValueError, r"init has \(20,\) atoms .* n_atoms=\(42,\)"),
    ],
    ids=str,
)
def test_unstructured_methods_check_shapes(Y, options, error, words):
    with pytest.raises(error, match=words):
        MOD(42, n_nonzero_coefs=3, **options).fit(Y)


def test_an_unstructured_dictionary_starts_with_the_lowest_frequencies():
    products = kl.KroneckerDictionary([dct_factor(4, 4)] * 2).to_dense().reshape(16, 4, 4)
    expected = [products[:, i, j] for i in range(4) for j in range(4 - i)]
    np.testing.assert_allclose(cosines((4, 4), 10), np.transpose(expected), atol=1e-12)


@pytest.mark.parametrize("case", ["TKSVD", "PairAK-SVD", "OSubDil", "SeDiL", "STARK"])
def test_methods_with_one_term_can_start_from_a_term_but_not_from_a_sum(rng, Y, case):
    terms = [reference.random_factors(rng, (5, 4), (7, 6)) for _ in range(2)]
    init = kl.KroneckerSumDictionary(terms)
    words = "init is a sum of 2 Kronecker products, and at most 1 can be learned"
    with pytest.raises(ValueError, match=words):
        learner(case, init=init).fit(Y)
    learner(case, init=kl.KroneckerDictionary.normalized(init.terms[0]), max_iter=1).fit(Y)
