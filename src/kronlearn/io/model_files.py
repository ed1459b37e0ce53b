"""Model files: safetensors with a small JSON header; no pickle, so loading executes no code.

A file is a plain safetensors file. Its metadata has one entry, ``kronlearn``, a JSON object with
``format`` (always ``"kronlearn model"``), ``version`` (an integer, of this layout), ``kind`` (one
of ``KINDS``) and ``info`` (any JSON values).

The factors of a dictionary are the tensors ``factors.0``, ``factors.1``, … (float32 or float64), of
shape (m_i, n_i), or (R, m_i, n_i) for a sum of R Kronecker products.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from kronlearn.core.dictionary import Dictionary, KroneckerDictionary
from kronlearn.core.kronecker_sum import KroneckerSumDictionary
from kronlearn.core.loop import Entry, State
from kronlearn.io.atomic import atomic_write
from kronlearn.io.stored import wrap_errors

__all__ = ["ModelFileError", "ModelFileNotFoundError", "kind_of", "load_dictionary", "load_state"]
__all__ += ["read_checkpoint", "read_file", "save_dictionary", "save_state", "write_file"]

FORMAT = "kronlearn model"
VERSION = 1
KINDS = ("dictionary", "checkpoint", "convolutional dictionary", "convolutional checkpoint")

PathLike = str | os.PathLike[str]


class ModelFileError(ValueError):
    """The error for a file that is damaged, no kronlearn model, or of another kind or version."""


class ModelFileNotFoundError(ModelFileError, FileNotFoundError):
    """The error for a model file that does not exist."""


def save_dictionary(
    dictionary: Dictionary, path: PathLike, info: dict[str, Any] | None = None
) -> None:
    """Write a dictionary to a model file, and replace an existing file atomically.

    Parameters
    ----------
    dictionary : KroneckerDictionary or KroneckerSumDictionary
        The dictionary to save.
    path : str or path
        The file to write; any name will do.
    info : dict, optional
        JSON values to store with the factors, for example how they were learned; ``read_file``
        returns them.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np
    >>> import kronlearn as kl
    >>> from kronlearn.io.model_files import read_file, save_dictionary
    >>> d = kl.KroneckerDictionary([np.eye(4), np.eye(3)])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "identity.safetensors")
    ...     save_dictionary(d, path, info={"source": "an example"})
    ...     arrays, info = read_file(path)
    >>> list(arrays), info
    (['factors.0', 'factors.1'], {'source': 'an example'})
    """
    write_file(path, "dictionary", _tensors(dictionary, "factors"), info or {})


def load_dictionary(path: PathLike) -> Dictionary:
    """Load a dictionary from a model file.

    Parameters
    ----------
    path : str or path
        A file written by a dictionary's ``save`` or ``kronlearn learn``.

    Returns
    -------
    KroneckerDictionary or KroneckerSumDictionary
        A dictionary equal to the one that was saved.

    Raises
    ------
    ModelFileError
        If the file is missing, damaged or not a dictionary. A kind of ``ValueError``.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np
    >>> import kronlearn as kl
    >>> d = kl.KroneckerDictionary([np.eye(8), np.eye(8)])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     d.save(os.path.join(folder, "eye.safetensors"))
    ...     kl.load_dictionary(os.path.join(folder, "eye.safetensors")) == d
    True
    """
    tensors, _ = read_file(path, "dictionary")
    if not tensors or set(tensors) != {f"factors.{mode}" for mode in range(len(tensors))}:
        found = ", ".join(sorted(tensors)[:4]) or "none"
        raise _error(
            path, f"must hold tensors factors.0, factors.1, … and no others; it has {found}"
        )
    with wrap_errors(f"{path} does not hold a valid dictionary", ModelFileError):
        return _dictionary(tensors, "factors")


def write_file(
    path: PathLike, kind: str, tensors: dict[str, NDArray[Any]], header: dict[str, Any]
) -> None:
    """Write named arrays and a header to a model file, atomically.

    Arrays have dtypes of safetensors; the header has JSON values and NumPy scalars, but no NaN or
    infinity.
    """
    envelope = {"format": FORMAT, "version": VERSION, "kind": kind, "info": header}
    try:
        text = json.dumps(envelope, allow_nan=False, default=_plain_number)
    except (TypeError, ValueError, RecursionError) as problem:
        raise ValueError(f"The header of a model file must be JSON: {problem}.") from problem
    # safetensors writes the bytes of an array as they lie in memory.
    arrays = {name: np.asarray(array, order="C") for name, array in tensors.items()}
    with atomic_write(path) as (temporary,):
        temporary.write_bytes(safetensors.numpy.save(arrays, metadata={"kronlearn": text}))


def read_file(
    path: PathLike, kind: str = "dictionary"
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Read the named arrays of a model file, and the information stored with them.

    Parameters
    ----------
    path : str or path
        The file.
    kind : str, default "dictionary"
        The expected kind of file: "dictionary", "checkpoint", "convolutional dictionary" or
        "convolutional checkpoint".

    Returns
    -------
    arrays : dict of arrays
        The arrays by their names, which the page on model files lists.
    info : dict
        The information stored with them.

    Raises
    ------
    ModelFileError
        If the file is missing, damaged, of another kind or of an unknown version.
    """
    with _opened(path) as file:
        found_kind, info = _header(path, file)
        if found_kind != kind:
            is_filters = found_kind == "convolutional dictionary"
            cure = "; read it with kl.convolutional.load_filters" if is_filters else ""
            raise _error(path, f"is a {found_kind}, not a {kind}{cure}")
        # Copies, so that arrays are writable and do not keep the file mapped.
        names = file.keys()
        return {name: np.array(file.get_tensor(name)) for name in names}, info


def kind_of(path: PathLike) -> str:
    """The kind of a model file, one of ``KINDS``."""
    with _opened(path) as file:
        return _header(path, file)[0]


def save_state(path: PathLike, state: State, problem: dict[str, Any]) -> None:
    """Write the state of a run as a checkpoint; ``problem`` describes its data and settings."""
    tensors = _tensors(state.dictionary, "factors") | _tensors(state.best, "best")
    tensors["history"] = np.array(state.history, dtype=np.float64)
    details = {
        "problem": problem,
        "atoms_replaced": state.atoms_replaced,
        "best_at": state.best_at,
        "joined_at": state.joined_at,
        "converged": state.stop_reason == "converged",
    }
    write_file(path, "checkpoint", tensors, details)


def load_state(path: PathLike, problem: dict[str, Any]) -> State:
    """Load the state of a run; ModelFileError if the file is damaged or of another problem."""
    tensors, header = read_checkpoint(path, "checkpoint", problem)
    with wrap_errors(f"{path} is damaged", ModelFileError):
        return _state(tensors, header, problem)


def read_checkpoint(
    path: PathLike, kind: str, problem: dict[str, Any]
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Read the arrays and the header of a checkpoint, and check that it is of this problem."""
    tensors, header = read_file(path, kind)
    stored = header.get("problem")
    if not isinstance(stored, dict):
        raise _error(path, "is not a kronlearn checkpoint")
    for name, value in problem.items():
        if stored.get(name) != value:
            reason = f"its {name} is {stored.get(name)!r}, here it is {value!r}"
            if name in ("samples", "images"):
                reason = f"it was made from other {name}"
            cure = "Delete the file or choose another checkpoint path"
            raise _error(path, f"belongs to another run: {reason}. {cure}")
    return tensors, header


def _error(path: PathLike, problem: str) -> ModelFileError:
    return ModelFileError(f"{os.fspath(path)} {problem.rstrip('.')}.")


def _plain_number(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} values cannot be stored")


@contextmanager
def _opened(path: PathLike) -> Iterator[Any]:
    """Open a file with safetensors; yields its reader."""
    if not Path(path).exists():
        raise ModelFileNotFoundError(f"{path} does not exist.")
    if not Path(path).is_file():
        raise _error(path, "is not a regular file; give the name of a model file")
    with (
        wrap_errors(f"{path} is not a safetensors file, or is damaged", ModelFileError),
        # safetensors compares the sizes and offsets of all tensors with the size of the file.
        safetensors.safe_open(path, framework="np") as file,
    ):
        yield file


def _header(path: PathLike, file: Any) -> tuple[str, dict[str, Any]]:
    """The kind and the info of an opened file, after a check of its format and version."""
    text = (file.metadata() or {}).get("kronlearn")
    try:
        envelope = {} if text is None else json.loads(text)
    except (ValueError, RecursionError):
        raise _error(path, "is damaged: its kronlearn header cannot be read") from None
    if not isinstance(envelope, dict) or envelope.get("format") != FORMAT:
        raise _error(path, "is a safetensors file, but not a kronlearn model")
    version, kind, info = (envelope.get(key) for key in ("version", "kind", "info"))
    if type(version) is int and version > VERSION:
        raise _error(
            path,
            f"has file version {str(version)[:20]}, written by a newer kronlearn; this one reads "
            f"version {VERSION}; upgrade kronlearn",
        )
    if type(version) is not int or kind not in KINDS or not isinstance(info, dict):
        raise _error(path, "is damaged: its header lacks a version, a kind or info")
    return kind, info


def _state(tensors: dict[str, Any], header: dict[str, Any], problem: dict[str, Any]) -> State:
    """The state that the tensors and the header of a checkpoint describe, after checking them."""
    rows = tensors["history"]
    if rows.shape[1:] != (len(Entry._fields),) or not np.isfinite(rows).all():
        raise ValueError(f"its history has shape {rows.shape}, or values that are not finite")
    current, best = (_dictionary(tensors, name) for name in ("factors", "best"))
    for dictionary in (current, best):
        shapes = list(dictionary.patch_shape), list(dictionary.n_atoms)
        fits = shapes == (list(problem["patch_shape"]), list(problem["n_atoms"]))
        if not fits or dictionary.n_terms not in (1, problem["n_terms"]):
            raise ValueError(f"its {dictionary} does not belong to this run")
        if dictionary.dtype != np.float64:
            raise ValueError(f"its factors have dtype {dictionary.dtype}")
    history = tuple(
        Entry(rmse, seconds, int(replaced), mean) for rmse, seconds, replaced, mean in rows.tolist()
    )
    best_at = int(header["best_at"])
    if not 0 <= best_at < len(history):
        raise ValueError(f"its best entry is number {best_at} of {len(history)}")
    return State(
        current,
        best,
        history=history,
        atoms_replaced=int(header["atoms_replaced"]),
        best_at=best_at,
        joined_at=int(header["joined_at"]),
        stop_reason="converged" if header["converged"] else None,
    )


def _tensors(dictionary: Dictionary, name: str) -> dict[str, NDArray[Any]]:
    """The factors of a dictionary, by the names ``name.0``, ``name.1``, …"""
    is_sum = isinstance(dictionary, KroneckerSumDictionary)
    stacks = enumerate(dictionary.stacks)
    return {f"{name}.{mode}": stack if is_sum else stack[0] for mode, stack in stacks}


def _dictionary(tensors: dict[str, NDArray[Any]], name: str) -> Dictionary:
    """The dictionary whose factors are ``name.0``, ``name.1``, …"""
    names = (f"{name}.{mode}" for mode in count())
    factors = [tensors[key] for key in takewhile(tensors.__contains__, names)]
    dtypes = sorted({factor.dtype.name for factor in factors})
    if dtypes not in (["float32"], ["float64"]):
        raise ValueError(
            f"factors must all be float32 or all float64; they are {', '.join(dtypes)}"
        )
    if all(factor.ndim != 3 for factor in factors):
        return KroneckerDictionary(factors)
    if len({factor.shape[:-2] for factor in factors}) > 1:
        shapes = ", ".join(str(factor.shape) for factor in factors)
        raise ValueError(f"factors of shapes {shapes} differ in their number of terms")
    return KroneckerSumDictionary(zip(*factors, strict=True))
