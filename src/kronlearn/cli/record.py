"""What a model file says about how its dictionary was learned: in few numbers, and read back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import kronlearn as kl
from kronlearn.core.dictionary import Dictionary

__all__ = ["atom_usage", "fitted_entry", "history_in", "thinned_history", "usage_in"]

# Iterations that a model file remembers; a curve through more looks the same.
_MAX_POINTS = 200
_DIGITS = 5
# Samples that the use of the atoms is counted in.
_MAX_CODED = 20_000

_CURVES = ("rmse", "mean_nonzeros", "seconds")


def fitted_entry(model: Any) -> dict[str, float]:
    """RMSE and nonzeros per sample of the dictionary that a fitted model has: its best one."""
    history = model.history_
    goal = history["rmse" if model.tol is None else "mean_nonzeros"]
    # Of equally good ones the estimator takes the last.
    best = len(goal) - 1 - int(np.argmin(goal[::-1]))
    return {name: float(history[name][best]) for name in ("rmse", "mean_nonzeros")}


def thinned_history(history: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """RMSE, nonzeros and seconds of at most 200 iterations, from the start (0) to the last."""
    n_points = len(history["rmse"])
    chosen = np.unique(np.linspace(0, n_points - 1, min(n_points, _MAX_POINTS)).astype(int))
    curves = {name: [_rounded(history[name][i]) for i in chosen] for name in _CURVES}
    return {"iteration": chosen.tolist(), **curves}


def history_in(info: Mapping[str, Any]) -> dict[str, list[float]] | None:
    """The history that a model file's info holds; None if it has none that can be drawn."""
    history = info.get("history")
    if not isinstance(history, dict):
        return None
    names = ("iteration", *_CURVES)
    curves = [history.get(name) for name in names]
    if not all(isinstance(curve, list) and all(map(_is_number, curve)) for curve in curves):
        return None
    lengths = {len(curve) for curve in curves if curve}
    return dict(zip(names, curves, strict=True)) if len(lengths) == 1 else None  # type: ignore[arg-type]


def atom_usage(dictionary: Dictionary, samples: NDArray[Any], **coding: Any) -> dict[str, Any]:
    """How often the codes of (some of) the samples use each column of each factor.

    "samples" that were coded, "atoms" used at least once, and for every mode, in "columns", the
    nonzeros that each column of its factor takes part in. ``coding`` goes to ``sparse_code``.
    """
    step = max(1, math.ceil(len(samples) / _MAX_CODED))
    some = np.ascontiguousarray(samples[::step])
    codes = kl.sparse_code(some, dictionary, **coding)
    counts = np.bincount(codes.indices, minlength=dictionary.n_codes).reshape(dictionary.n_atoms)
    modes = range(counts.ndim)
    columns = [counts.sum(axis=tuple(m for m in modes if m != mode)).tolist() for mode in modes]
    return {"samples": len(some), "atoms": int(np.count_nonzero(counts)), "columns": columns}


def usage_in(info: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The use of the atoms that a model file's info holds, as facts to print."""
    usage = info.get("usage")
    if not isinstance(usage, dict):
        return []
    samples, atoms, columns = (usage.get(name) for name in ("samples", "atoms", "columns"))
    if not (_is_number(samples) and _is_number(atoms) and isinstance(columns, list)):
        return []
    facts = [("atoms used", f"{atoms}, by {samples} patches")]
    shares = []
    for mode, counts in enumerate(columns):
        if isinstance(counts, list) and all(map(_is_number, counts)) and sum(counts) > 0:
            low, high = (100 * extreme(counts) / sum(counts) for extreme in (min, max))
            shares.append(f"D_{mode + 1} {low:.2g} to {high:.2g} %")
    return [*facts, ("nonzeros per column", ", ".join(shares))] if shares else facts


def _rounded(number: float) -> float:
    return float(f"{number:.{_DIGITS}g}")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
