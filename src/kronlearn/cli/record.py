"""What a model file says about how its dictionary was learned: in few numbers, and read back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import kronlearn as kl
from kronlearn.core.source import Source

__all__ = ["fitted_entry", "history_in", "learned_record", "thinned_history"]

# Iterations that a model file remembers; a curve through more looks the same.
_MAX_POINTS = 200
# Samples whose codes tell which atoms are used, and in how many runs they are read.
_MAX_CODED, _RUNS = 20_000, 50

_CURVES = ("rmse", "mean_nonzeros", "seconds")


def learned_record(
    model: kl.KroneckerDictionaryLearning, samples: Source, origin: Mapping[str, Any]
) -> dict[str, Any]:
    """How a model was learned, from samples of this origin, and how well it does."""
    history = model.history_
    return {
        "samples": len(samples),
        "structure": model.structure,
        "n_terms": model.dictionary_.n_terms,
        "method": "threshold" if model.structure == "orthonormal" else model.method,
        "n_nonzero_coefs": model.n_nonzero_coefs,
        "tol": model.tol,
        "seed": model.random_state,
        **origin,
        "iterations": model.n_iter_,
        "stop_reason": model.stop_reason_,
        **fitted_entry(model),
        "atoms_used": _atoms_used(model, samples),
        "atoms_replaced": int(np.sum(history["atoms_replaced"])),
        "seconds": float(history["seconds"][-1]),
        "kronlearn_version": kl.__version__,
    }


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
    curves = {name: [float(f"{history[name][i]:.5g}") for i in chosen] for name in _CURVES}
    return {"iteration": chosen.tolist(), **curves}


def history_in(info: Mapping[str, Any]) -> dict[str, list[float]] | None:
    """The history that a model file's info holds; None if it has none that can be drawn."""
    try:
        history = {name: _numbers(info["history"][name]) for name in ("iteration", *_CURVES)}
    except (KeyError, TypeError):
        return None
    lengths = {len(curve) for curve in history.values()}
    return history if len(lengths) == 1 and lengths != {0} else None


def _atoms_used(model: kl.KroneckerDictionaryLearning, samples: Source) -> int:
    """How many atoms take part in the codes of the samples, or of 20,000 spread over them."""
    # A file is read in runs of neighbours far faster than one by one.
    step = -(-len(samples) // _RUNS)
    length = min(step, _MAX_CODED // _RUNS)
    starts = range(0, len(samples), step)
    runs = [samples.read(start, min(start + length, len(samples))) for start in starts]
    some = np.concatenate(runs).reshape(-1, *model.dictionary_.patch_shape)
    return len(np.unique(model.transform(some).indices))


def _numbers(values: Any) -> list[Any]:
    """A list of numbers that anybody may have written into a file; TypeError if it is not one."""
    if not isinstance(values, list) or not all(type(value) in (int, float) for value in values):
        raise TypeError("not a list of numbers")
    return values
