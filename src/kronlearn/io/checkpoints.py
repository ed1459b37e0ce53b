"""Checkpoints: a run of learning in a small file, from which it goes on to the same bits."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from kronlearn.core.dictionary import Dictionary, KroneckerDictionary
from kronlearn.core.kronecker_sum import KroneckerSumDictionary
from kronlearn.core.loop import Entry, State
from kronlearn.io.model_files import ModelFileError, read_file, write_file

__all__ = ["load_state", "save_state"]

_KIND = "checkpoint"


def save_state(path: str | os.PathLike[str], state: State, problem: dict[str, Any]) -> None:
    """Write the state of a run; ``problem`` describes the data and settings it belongs to."""
    tensors = {f"factors.{i}": stack for i, stack in enumerate(state.dictionary.stacks)}
    tensors |= {f"best.{i}": stack for i, stack in enumerate(state.best.stacks)}
    tensors["history"] = np.array(state.history, dtype=np.float64)
    details = {
        "problem": problem,
        "atoms_replaced": state.atoms_replaced,
        "joined_at": state.joined_at,
        "converged": state.stop_reason == "converged",
    }
    write_file(path, _KIND, tensors, details)


def load_state(path: str | os.PathLike[str], problem: dict[str, Any]) -> State:
    """The state in a checkpoint, once it is known to belong to this problem.

    Raises
    ------
    ModelFileError
        If the file is damaged, or was written for other data or settings.
    """
    tensors, header = read_file(path, _KIND)
    stored = header.get("problem")
    if not isinstance(stored, dict):
        raise ModelFileError(f"{os.fspath(path)} is not a kronlearn checkpoint.")
    for name, value in problem.items():
        if stored.get(name) != value:
            reason = f"its {name} is {stored.get(name)!r}, here it is {value!r}"
            if name == "samples":
                reason = "it was made from other samples"
            raise ModelFileError(
                f"{os.fspath(path)} belongs to another run: {reason}. Delete the file or choose "
                "another checkpoint path."
            )
    try:
        return _state(tensors, header, problem)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelFileError(f"{os.fspath(path)} is damaged: {error}.") from None


def _state(tensors: dict[str, Any], header: dict[str, Any], problem: dict[str, Any]) -> State:
    rows = tensors["history"]
    if rows.ndim != 2:
        raise ValueError(f"history has shape {rows.shape}")
    _check(rows, "history", (len(rows), len(Entry._fields)))
    history = tuple(
        Entry(rmse, seconds, int(replaced), mean) for rmse, seconds, replaced, mean in rows.tolist()
    )
    return State(
        _dictionary(tensors, "factors", problem),
        _dictionary(tensors, "best", problem),
        history=history,
        atoms_replaced=int(header["atoms_replaced"]),
        joined_at=int(header["joined_at"]),
        stop_reason="converged" if header["converged"] else None,
    )


def _dictionary(tensors: dict[str, Any], name: str, problem: dict[str, Any]) -> Dictionary:
    """A dictionary of one term, or of as many as the problem asks for."""
    n_terms = problem["n_terms"] if len(tensors[f"{name}.0"]) > 1 else 1
    shapes = zip(problem["patch_shape"], problem["n_atoms"], strict=True)
    stacks = []
    for i, shape in enumerate(shapes):
        _check(tensors[f"{name}.{i}"], f"{name}.{i}", (n_terms, *shape))
        stacks.append(np.array(tensors[f"{name}.{i}"]))
    if n_terms > 1:
        return KroneckerSumDictionary(zip(*stacks, strict=True))
    return KroneckerDictionary([stack[0] for stack in stacks])


def _check(array: Any, name: str, shape: tuple[int, ...]) -> None:
    if array.dtype != np.float64 or array.shape != shape:
        raise ValueError(f"{name} has shape {array.shape} and dtype {array.dtype}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} holds numbers that are not finite")
