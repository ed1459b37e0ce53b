"""Files that a run is saved to, and from which it resumes with the same bits."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.convolutional.canvas import Canvas
from kronlearn.convolutional.coded import Coded, CodedImages
from kronlearn.convolutional.filters import filters_in, tensors_of
from kronlearn.convolutional.loop import Entry, State
from kronlearn.io.model_files import ModelFileError, read_checkpoint, write_file
from kronlearn.io.stored import wrap_errors

__all__ = ["checksum", "load_state", "save_state"]

_KIND = "convolutional checkpoint"

PathLike = str | os.PathLike[str]


def checksum(arrays: Iterable[NDArray[Any]]) -> str:
    """A number that tells arrays from others."""
    found = 0
    for array in arrays:
        found = zlib.crc32(f"{array.shape}".encode() + array.tobytes(), found)
    return f"{found:08x}"


def save_state(path: PathLike, state: State, problem: dict[str, Any]) -> None:
    """Write the state of a run; ``problem`` describes the images and settings it belongs to."""
    assert state.passed is not None
    tensors = tensors_of(state.dictionary, "factors") | tensors_of(state.passed, "passed")
    tensors["history"] = np.array(state.history, dtype=np.float64)
    for k, codes in enumerate(state.images.codes()):
        names = (f"{part}.{k}" for part in ("positions", "filters", "values"))
        tensors.update(zip(names, codes, strict=True))
    details = {
        "problem": problem,
        "has_channels": state.dictionary.has_channels,
        "converged": state.stop_reason == "converged",
    }
    write_file(path, _KIND, tensors, details)


def load_state(path: PathLike, canvases: Sequence[Canvas], problem: dict[str, Any]) -> State:
    """The state in a checkpoint; ModelFileError if it is damaged or of another problem."""
    tensors, header = read_checkpoint(path, _KIND, problem)
    info = {"structure": problem["structure"], "has_channels": header.get("has_channels")}
    with wrap_errors(f"{path} is damaged", ModelFileError):
        dictionary, passed = (filters_in(tensors, info, name) for name in ("factors", "passed"))
        images = []
        for k, canvas in enumerate(canvases):
            codes = tensors[f"positions.{k}"], tensors[f"filters.{k}"], tensors[f"values.{k}"]
            # The next pass computes what these codes leave.
            images.append(Coded(canvas, codes, canvas.pixels))
        history = tuple(
            Entry(objective, rmse, int(nonzeros), seconds)
            for objective, rmse, nonzeros, seconds in tensors["history"].tolist()
        )
        reason = "converged" if header["converged"] else None
        return State(dictionary, CodedImages(images), passed, history, reason)
