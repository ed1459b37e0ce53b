"""Checks of the learners' parameters."""

from __future__ import annotations

import numbers
import os
from typing import Any

import numpy as np

from kronlearn.coding import check_block_size
from kronlearn.core.plan import STATISTICS
from kronlearn.engines.selection import ENGINES, check_device_name

__all__ = [
    "check_common_parameters",
    "check_count",
    "check_learning_parameters",
    "check_number",
    "mode_sizes",
    "positive_integers",
]

STRUCTURES = ("general", "orthonormal")


def check_common_parameters(estimator: Any) -> None:
    """Raise for the first of the parameters that all learners have that makes no sense."""
    if estimator.method not in ("ols", "omp"):
        raise ValueError(
            f"method={estimator.method!r} cannot be learned with; choose ols or omp (orthonormal "
            "factors are coded by thresholding whatever the method)."
        )
    check_count("max_iter", estimator.max_iter, 1)
    budget = estimator.time_budget
    if budget is not None:
        check_number("time_budget", budget)
        if not float(budget) > 0:
            raise ValueError(f"time_budget={budget} is not a positive number of seconds.")
    if estimator.callback is not None and not callable(estimator.callback):
        raise TypeError(f"callback={estimator.callback!r} is not a function.")
    if estimator.tol is not None and np.ndim(estimator.tol) > 0:
        raise ValueError("tol must be a single number here; sparse_code takes one per sample.")


def check_learning_parameters(estimator: Any) -> None:
    """Raise for the first parameter of KroneckerDictionaryLearning that makes no sense."""
    if estimator.structure not in STRUCTURES:
        raise ValueError(
            f"structure={estimator.structure!r} does not exist; choose one of "
            f"{', '.join(STRUCTURES)}."
        )
    check_common_parameters(estimator)
    check_device_name(estimator.device)
    if estimator.device == "cuda" and estimator.engine == "threads":
        raise ValueError(
            'engine="threads" does not run on a graphics card; use engine="auto" or device="cpu".'
        )
    if estimator.engine not in ENGINES:
        raise ValueError(
            f"engine={estimator.engine!r} does not exist; choose one of {', '.join(ENGINES)}."
        )
    if estimator.statistics not in STATISTICS:
        raise ValueError(
            f"statistics={estimator.statistics!r} does not exist; choose one of "
            f"{', '.join(STATISTICS)}."
        )
    for name, lowest in (("n_refits", 0), ("checkpoint_every", 1), ("n_terms", 1)):
        check_count(name, getattr(estimator, name), lowest)
    for name in ("min_improvement", "forgetting"):
        check_number(name, getattr(estimator, name))
    if not 0 <= estimator.min_improvement < 1:
        raise ValueError(f"min_improvement={estimator.min_improvement} is not in [0, 1).")
    if not 0 < estimator.forgetting <= 1:
        raise ValueError(f"forgetting={estimator.forgetting} is not in (0, 1].")
    if estimator.checkpoint is not None:
        folder = os.path.dirname(os.path.abspath(estimator.checkpoint))
        if not os.path.isdir(folder):
            raise ValueError(f"checkpoint={estimator.checkpoint!r}: there is no folder {folder}.")
    _check_terms(estimator)
    check_block_size(estimator.block_size)


def _check_terms(estimator: Any) -> None:
    """Raise where a sum of Kronecker products does not go with the other parameters."""
    if estimator.n_terms == 1:
        return
    if estimator.structure != "general":
        raise ValueError(
            f'n_terms={estimator.n_terms} needs structure="general"; a sum of Kronecker products '
            "is not orthonormal."
        )
    if estimator.statistics not in ("auto", "full"):
        raise ValueError(
            f'n_terms={estimator.n_terms} needs full moments; use statistics="auto" instead of '
            f"{estimator.statistics!r}."
        )


def check_number(name: str, value: Any) -> None:
    """Raise unless a parameter is a real number."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name}={value!r} is not a number.")


def check_count(name: str, value: Any, lowest: int) -> None:
    """Raise unless a parameter is an integer that is large enough."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name}={value!r} is not an integer.")
    if value < lowest:
        raise ValueError(f"{name}={value} is too small; pass at least {lowest}.")


def mode_sizes(
    sample_shape: tuple[int, ...],
    patch_shape: tuple[int, ...] | None,
    n_atoms: tuple[int, ...] | int,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """``(m_1, …, m_d)`` and ``(n_1, …, n_d)`` for samples of a shape."""
    given = positive_integers("n_atoms", n_atoms)
    if patch_shape is not None:
        shape = positive_integers("patch_shape", patch_shape)
    elif len(sample_shape) > 1 or isinstance(n_atoms, numbers.Integral):
        shape = sample_shape
    else:
        shape = _near_square(sample_shape[0], len(given))
    if isinstance(n_atoms, numbers.Integral):
        given = given * len(shape)
    if len(given) != len(shape):
        raise ValueError(
            f"n_atoms={n_atoms} names {len(given)} mode(s), but samples of shape {shape} have "
            f"{len(shape)}; pass one number of atoms per mode."
        )
    return shape, tuple(int(n) for n in given)


def positive_integers(name: str, value: Any) -> tuple[int, ...]:
    """One or more positive integers as a tuple."""
    values = (value,) if isinstance(value, numbers.Integral) else value
    if not isinstance(values, tuple | list | np.ndarray):
        raise TypeError(f"{name}={value!r} is not a tuple of integers, one per mode.")
    whole = all(isinstance(n, numbers.Integral) and not isinstance(n, bool) for n in values)
    if not len(values) or not whole or min(values) < 1:
        raise ValueError(f"{name}={value!r} must hold positive integers, one per mode.")
    return tuple(int(n) for n in values)


def _near_square(n_features: int, modes: int) -> tuple[int, ...]:
    """Mode sizes, ascending, that multiply to n_features and are as equal as can be."""
    if modes == 1:
        return (n_features,)
    first = round(n_features ** (1 / modes))
    while n_features % first:
        first -= 1
    return (first, *_near_square(n_features // first, modes - 1))
