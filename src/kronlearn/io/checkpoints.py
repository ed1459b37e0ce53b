"""Checkpoints: the state of a learning run in a file, from which it goes on to the same bits."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from kronlearn.core.dictionary import Dictionary, KroneckerDictionary
from kronlearn.core.engine import Codes
from kronlearn.core.kronecker_sum import KroneckerSumDictionary
from kronlearn.core.plan import LearningState
from kronlearn.io.model_files import ModelFileError, read_file, write_file

__all__ = ["load_state", "save_state"]

_KIND = "checkpoint"
_CODES = ("index", "nonzeros", "value", "residual2")


def save_state(path: str | os.PathLike[str], state: LearningState, problem: dict[str, Any]) -> None:
    """Write the state of a run; ``problem`` describes the data and settings it belongs to."""
    tensors = {f"factors.{i}": stack for i, stack in enumerate(state.dictionary.stacks)}
    tensors |= {f"best.{i}": stack for i, stack in enumerate(state.best.stacks)}
    for name, row in state.history.items():
        tensors[f"history.{name}"] = np.array(row, dtype=np.float64)
    if state.codes is not None:
        codes = state.codes.gathered()
        for name in _CODES:
            array = getattr(codes, name)
            if array is not None:
                tensors[f"codes.{name}"] = array
    write_file(path, _KIND, tensors, {"problem": problem, "guarded": state.guarded})


def load_state(path: str | os.PathLike[str], problem: dict[str, Any]) -> LearningState:
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
        state = _state(tensors, problem)
    except (KeyError, ValueError) as error:
        raise ModelFileError(f"{os.fspath(path)} is damaged: {error}.") from None
    state.guarded = header.get("guarded") is True
    return state


def _state(tensors: dict[str, Any], problem: dict[str, Any]) -> LearningState:
    state = LearningState(
        _dictionary(tensors, "factors", problem), _dictionary(tensors, "best", problem)
    )
    rows = {name: _checked(tensors, f"history.{name}", None).tolist() for name in state.history}
    if len({len(row) for row in rows.values()}) != 1:
        raise ValueError("the columns of its history differ in length")
    rows["atoms_replaced"] = [int(count) for count in rows["atoms_replaced"]]
    state.history = rows
    n, width = problem["n_samples"], problem["width"]
    wanted = {"index": (n, width), "nonzeros": (n,), "value": (n, width), "residual2": (n,)}
    kinds = {"index": np.int32, "nonzeros": np.int32}
    parts = {
        name: _checked(tensors, f"codes.{name}", wanted[name], kinds.get(name, problem["dtype"]))
        for name in _CODES
        if f"codes.{name}" in tensors
    }
    state.codes = Codes(**parts) if parts else None
    return state


def _dictionary(tensors: dict[str, Any], name: str, problem: dict[str, Any]) -> Dictionary:
    """A dictionary of one term, or of as many as the problem asks for."""
    n_terms = problem["n_terms"] if len(tensors[f"{name}.0"]) > 1 else 1
    shapes = zip(problem["patch_shape"], problem["n_atoms"], strict=True)
    stacks = [_checked(tensors, f"{name}.{i}", (n_terms, *shape)) for i, shape in enumerate(shapes)]
    if n_terms > 1:
        return KroneckerSumDictionary(zip(*stacks, strict=True))
    return KroneckerDictionary([stack[0] for stack in stacks])


def _checked(
    tensors: dict[str, Any], name: str, shape: tuple[int, ...] | None, dtype: Any = np.float64
) -> Any:
    array = tensors[name]
    if array.dtype != dtype or (shape is not None and array.shape != shape):
        raise ValueError(f"{name} has shape {array.shape} and dtype {array.dtype}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError(f"{name} holds numbers that are not finite")
    return np.array(array)
