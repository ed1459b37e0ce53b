"""Checkpoints: files that a run is saved to, and from which it resumes with the same bits."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.convolutional.coded import CodedImage, CodedImages
from kronlearn.convolutional.filters import filters_in, tensors_of
from kronlearn.convolutional.loop import Entry, State
from kronlearn.io.model_files import ModelFileError, read_checkpoint, write_file
from kronlearn.io.stored import wrap_errors

__all__ = ["checksum", "load_state", "save_state"]

_KIND = "convolutional checkpoint"

PathLike = str | os.PathLike[str]


def checksum(arrays: Iterable[NDArray[Any]]) -> str:
    """A checksum of the shapes and contents of arrays."""
    value = 0
    for array in arrays:
        value = zlib.crc32(f"{array.shape}".encode() + array.tobytes(), value)
    return f"{value:08x}"


def save_state(path: PathLike, state: State, problem: dict[str, Any]) -> None:
    """Write the state of a run; ``problem`` describes its images and settings."""
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


def load_state(path: PathLike, images: Sequence[CodedImage], problem: dict[str, Any]) -> State:
    """The state in a checkpoint; ModelFileError if it is damaged or of another problem."""
    tensors, header = read_checkpoint(path, _KIND, problem)
    info = {"structure": problem["structure"], "has_channels": header.get("has_channels")}
    with wrap_errors(f"{path} is damaged", ModelFileError):
        dictionary, passed = (filters_in(tensors, info, name) for name in ("factors", "passed"))
        for found in (dictionary, passed):
            if [list(factor.shape) for factor in found.factors] != problem["factor_shapes"]:
                raise ValueError(f"it holds {found}")
        # Residuals are not those of these codes, but the next pass computes them anew.
        coded = [
            replace(
                image,
                codes=(tensors[f"positions.{k}"], tensors[f"filters.{k}"], tensors[f"values.{k}"]),
            )
            for k, image in enumerate(images)
        ]
        history = tuple(
            Entry(objective, rmse, int(nonzeros), seconds)
            for objective, rmse, nonzeros, seconds in tensors["history"].tolist()
        )
        reason = "converged" if header["converged"] else None
        return State(dictionary, CodedImages(coded), passed, history, reason)
