"""Declarations and checks of the learners' parameters."""

from __future__ import annotations

import numbers
import os
import warnings
from dataclasses import field, fields
from functools import partial
from typing import Any

import numpy as np

from kronlearn.engines.selection import check_name

__all__ = [
    "check_count",
    "check_declared",
    "check_number",
    "check_output_file",
    "count",
    "mode_sizes",
    "number",
    "one_of",
    "positive_integers",
    "random_numbers",
]


def count(default: int | None) -> Any:
    """Declare a parameter that is a positive integer, or None if its type allows it."""
    return field(default=default, metadata={"check": check_count})


def number(default: float | None, interval: str) -> Any:
    """Declare a parameter that is a number in an interval, or None if its type allows it."""
    return field(default=default, metadata={"check": partial(check_number, interval=interval)})


def one_of(default: str, names: tuple[str, ...]) -> Any:
    """Declare a parameter that is one of some names."""
    return field(default=default, metadata={"check": partial(check_name, names=names)})


def check_declared(learner: Any) -> None:
    """Raise for the first parameter that violates its declaration."""
    for parameter in fields(learner):
        check, value = parameter.metadata.get("check"), getattr(learner, parameter.name)
        if check is not None and (value is not None or "None" not in str(parameter.type)):
            check(parameter.name, value)


def random_numbers(random_state: Any) -> np.random.RandomState:
    """The generator that ``random_state``, a seed, a generator or None, stands for."""
    # Imported here because importing scikit-learn takes a second, and sparse coding does without.
    from sklearn.utils import check_random_state

    try:
        return check_random_state(random_state)
    except ValueError:
        raise ValueError(
            f"random_state={random_state!r} is not a seed; pass an integer from 0 to 2**32 − 1, a "
            "RandomState or None."
        ) from None


def check_number(name: str, value: Any, interval: str) -> None:
    """Raise unless a parameter is a real number in an interval, for example "(0, 1]"."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name}={value!r} is not a number.")
    low, high = map(float, interval[1:-1].split(","))
    above = float(value) >= low if interval[0] == "[" else float(value) > low
    below = float(value) <= high if interval[-1] == "]" else float(value) < high
    if not (above and below):
        raise ValueError(f"{name}={value} is not in {interval}.")


def check_output_file(name: str, value: Any) -> None:
    """Raise unless a parameter is the path of a file in an existing folder."""
    if not isinstance(value, str | os.PathLike):
        raise TypeError(f"{name}={value!r} is not the path of a file.")
    folder = os.path.dirname(os.path.abspath(value))
    if not os.path.isdir(folder):
        raise ValueError(f"{name}={value!r}: the folder {folder} does not exist; create it first.")


def check_count(name: str, value: Any) -> None:
    """Raise unless a parameter is a positive integer that native code can represent."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name}={value!r} is not an integer.")
    if value < 1:
        raise ValueError(f"{name}={value} is too small; pass at least 1.")
    if int(value) >= 2**62:
        raise ValueError(f"{name}={value} is too large; pass less than 2**62.")


def mode_sizes(
    sample_shape: tuple[int, ...],
    patch_shape: tuple[int, ...] | None,
    n_atoms: tuple[int, ...] | int,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """``(m_1, …, m_d)`` and ``(n_1, …, n_d)`` for samples of a shape.

    Rows without a patch shape are folded as squarely as their length allows: into as many modes as
    ``n_atoms`` has, or two if it is a single number.
    """
    atoms = positive_integers("n_atoms", n_atoms)
    is_number = isinstance(n_atoms, numbers.Integral)
    if patch_shape is not None:
        shape = positive_integers("patch_shape", patch_shape)
    elif len(sample_shape) > 1:
        shape = sample_shape
    else:
        shape = _near_square(sample_shape[0], 2 if is_number else len(atoms))
        if len(shape) > 1 and shape[0] == 1 < sample_shape[0]:
            warnings.warn(
                f"Samples of {sample_shape[0]} numbers are taken as {shape}, because "
                f"{sample_shape[0]} is not a product of {len(shape)} larger numbers; pass "
                f"patch_shape=({sample_shape[0]},) for an unstructured dictionary.",
                UserWarning,
                stacklevel=4,
            )
    if is_number:
        atoms = atoms * len(shape)
    if len(atoms) != len(shape):
        raise ValueError(
            f"n_atoms={n_atoms} does not suit samples of shape {shape}; pass one number of atoms "
            "for each entry of the shape."
        )
    return shape, atoms


def positive_integers(name: str, value: Any) -> tuple[int, ...]:
    """Check and return one or more positive integers as a tuple."""
    values = (value,) if isinstance(value, numbers.Integral) else value
    if not isinstance(values, tuple | list | np.ndarray):
        raise TypeError(f"{name}={value!r} is not a tuple of integers, one per mode.")
    whole = all(isinstance(n, numbers.Integral) and not isinstance(n, bool) for n in values)
    if not len(values) or not whole or min(values) < 1:
        raise ValueError(f"{name}={value!r} must hold positive integers, one per mode.")
    return tuple(int(n) for n in values)


def _near_square(n_features: int, modes: int) -> tuple[int, ...]:
    """Ascending mode sizes whose product is ``n_features``, as equal as possible."""
    if modes == 1:
        return (n_features,)
    first = round(n_features ** (1 / modes))
    while n_features % first:
        first -= 1
    return (first, *_near_square(n_features // first, modes - 1))
