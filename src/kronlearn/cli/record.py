"""What a model file says about how its dictionary was learned: in few numbers, and read back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import kronlearn as kl
from kronlearn.core.source import Source

__all__ = ["atom_usage", "history_in", "learned_record", "thinned_history", "usage_in"]

# Iterations that a model file remembers; a curve through more looks the same.
_MAX_POINTS = 200
# Samples that the use of the atoms is counted in.
_MAX_CODED = 20_000
_RUNS = 50

_CURVES = ("rmse", "mean_nonzeros", "seconds")


def learned_record(
    model: kl.KroneckerDictionaryLearning, n_samples: int, origin: Mapping[str, Any]
) -> dict[str, Any]:
    """How a model was learned, from samples of this origin, and how well it does."""
    history = model.history_
    return {
        "samples": n_samples,
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
    names = ("iteration", *_CURVES)
    try:
        curves = np.array([info["history"][name] for name in names], np.float64)
    except (KeyError, TypeError, ValueError):
        return None
    is_drawable = curves.ndim == 2 and curves.size > 0
    return dict(zip(names, curves.tolist(), strict=True)) if is_drawable else None


def atom_usage(model: kl.KroneckerDictionaryLearning, samples: Source) -> dict[str, Any]:
    """How often the codes of (some of) the samples use each column of each factor.

    "samples" that were coded, "atoms" used at least once, and for every mode, in "columns", the
    nonzeros that each column of its factor takes part in.
    """
    dictionary = model.dictionary_
    some = _some(samples).reshape(-1, *dictionary.patch_shape)
    codes = model.transform(some)
    counts = np.bincount(codes.indices, minlength=dictionary.n_codes).reshape(dictionary.n_atoms)
    modes = range(counts.ndim)
    columns = [counts.sum(axis=tuple(m for m in modes if m != mode)).tolist() for mode in modes]
    return {"samples": len(some), "atoms": int(np.count_nonzero(counts)), "columns": columns}


def _some(samples: Source) -> NDArray[Any]:
    """Samples spread over all of them, at most 20,000."""
    if len(samples) <= _MAX_CODED:
        return samples.read(0, len(samples))
    # A file is read in runs of neighbours far faster than one by one.
    length = _MAX_CODED // _RUNS
    starts = np.linspace(0, len(samples) - length, _RUNS).astype(int).tolist()
    return np.concatenate([samples.read(start, start + length) for start in starts])


def usage_in(info: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The use of the atoms that a model file's info holds, as facts to print."""
    shares = []
    try:
        samples, atoms = int(info["usage"]["samples"]), int(info["usage"]["atoms"])
        for mode, column in enumerate(info["usage"]["columns"], 1):
            counts = 100 * np.array(column, np.float64) / max(np.sum(column), 1)
            shares.append(f"D_{mode} {counts.min():.2g} to {counts.max():.2g} %")
    except (KeyError, TypeError, ValueError):
        return []
    return [
        ("atoms used", f"{atoms}, by {samples} patches"),
        ("nonzeros per column", ", ".join(shares)),
    ]
