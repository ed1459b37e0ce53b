"""Small problems to learn dictionaries from, learners for them, and comparisons of models."""

import numpy as np

import kronlearn as kl
import reference
from kronlearn.core.dictionary import Dictionary
from kronlearn.core.moments import Moments


def planted(rng, patch_shape, n_atoms, n_samples=300, n_nonzero_coefs=3, noise=0.1):
    """Noisy sparse samples of one random dictionary, and the factors of another to start from."""
    truth = reference.random_factors(rng, patch_shape, n_atoms)
    Y = reference.sparse_samples(rng, truth, n_samples, n_nonzero_coefs, noise=noise)
    return Y, reference.random_factors(rng, patch_shape, n_atoms)


def smooth_samples(rng, n_samples=400, patch_shape=(6, 6)):
    """Samples like image patches: integrated noise without its mean."""
    Y = rng.standard_normal((n_samples, *patch_shape))
    for axis in range(1, Y.ndim):
        Y = np.cumsum(Y, axis=axis)
    return Y - Y.mean(axis=tuple(range(1, Y.ndim)), keepdims=True)


def random_terms(rng, patch_shape, n_atoms, n_terms):
    """Factors with unit columns for each term of a sum."""
    return [reference.random_factors(rng, patch_shape, n_atoms) for _ in range(n_terms)]


def learner(start, method_class=kl.KroneckerDictionaryLearning, **options):
    """An estimator that starts from a dictionary or from factors."""
    if isinstance(start, Dictionary):
        options = {"n_atoms": start.n_atoms} | options
        if start.n_terms > 1:
            options = {"n_terms": start.n_terms} | options
    else:
        options = {"n_atoms": tuple(factor.shape[1] for factor in start)} | options
    defaults = {"init": start, "n_nonzero_coefs": 3, "max_iter": 5, "n_jobs": 1, "random_state": 0}
    return method_class(**(defaults | options))


def small_model(**options):
    """An estimator for samples of shape (4, 3)."""
    defaults = {"n_atoms": (5, 4), "n_nonzero_coefs": 2, "max_iter": 3, "n_jobs": 1}
    return kl.KroneckerDictionaryLearning(**(defaults | {"random_state": 0} | options))


def moments_of(Y, X, dictionary):
    """The full moments of samples and dense codes."""
    _, energy, s_xx, s_xy = reference.moments(Y, X)
    sizes = dictionary.patch_shape, dictionary.n_atoms
    return Moments(*sizes, energy, s_xx[np.tril_indices(len(s_xx))], s_xy)


def assert_factors(factors, expected, atol=1e-10):
    """Assert that factors are equal up to rounding."""
    for factor, wanted in zip(factors, expected, strict=True):
        np.testing.assert_allclose(factor, wanted, rtol=0, atol=atol)


def assert_same_atoms(found, expected, atol=1e-10):
    """Assert that two matrices have the same columns up to sign and rounding."""
    signs = np.sign(np.sum(found * expected, axis=0))
    np.testing.assert_allclose(found * signs, expected, rtol=0, atol=atol)


def assert_same_model(model, expected, atol=0.0):
    """Assert that dictionaries, errors and numbers of iterations are equal."""
    assert model.n_iter_ == expected.n_iter_
    assert_factors(model.dictionary_.stacks, expected.dictionary_.stacks, atol)
    np.testing.assert_allclose(model.history_["rmse"], expected.history_["rmse"], rtol=0, atol=atol)


def assert_same_bits(codes, expected):
    """Assert that sparse codes are equal to the last bit."""
    for name in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(codes, name), getattr(expected, name))
