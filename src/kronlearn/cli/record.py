"""The history and the use of atoms in model files, written briefly and read back with care."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["history_in", "thinned_history", "usage_in"]

# A curve through more points looks the same.
_MAX_POINTS = 200

_CURVES = ("rmse", "mean_nonzeros", "seconds")


def thinned_history(history: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """RMSE, nonzeros and seconds of at most 200 iterations, including the first and the last."""
    n_points = len(history["rmse"])
    chosen = np.unique(np.linspace(0, n_points - 1, min(n_points, _MAX_POINTS)).astype(int))
    curves = {name: [float(f"{history[name][i]:.5g}") for i in chosen] for name in _CURVES}
    return {"iteration": chosen.tolist(), **curves}


def history_in(info: Mapping[str, Any]) -> dict[str, list[float]] | None:
    """The history in the info of a model file; None unless it can be drawn."""
    names = ("iteration", *_CURVES)
    try:
        curves = np.array([info["history"][name] for name in names], np.float64)
    except (KeyError, TypeError, ValueError):
        return None
    is_drawable = curves.ndim == 2 and curves.size > 0
    return dict(zip(names, curves.tolist(), strict=True)) if is_drawable else None


def usage_in(info: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The use of the atoms in the info of a model file, as facts to print."""
    ranges = []
    try:
        samples, atoms = int(info["usage"]["samples"]), int(info["usage"]["atoms"])
        for mode, counts in enumerate(info["usage"]["columns"], 1):
            percent = 100 * np.array(counts, np.float64) / max(np.sum(counts), 1)
            ranges.append(f"D_{mode} {percent.min():.2g} to {percent.max():.2g} %")
    except (KeyError, TypeError, ValueError):
        return []
    return [
        ("atoms used", f"{atoms}, by {samples} patches"),
        ("nonzeros per column", ", ".join(ranges)),
    ]
