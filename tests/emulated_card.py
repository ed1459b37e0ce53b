"""A graphics card that is none: arrays of NumPy, and the kernels compiled for the processor."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

import kronlearn

KERNELS = Path(kronlearn.__file__).parent / "cuda" / "kernels"
COMPILER = shutil.which("g++") or shutil.which("clang++")


class EmulatedCard:
    """What :class:`kronlearn.cuda.device.Card` offers, with teams of one thread.

    Parameters
    ----------
    folder : path
        For the compiled kernels.
    """

    xp = np
    n_teams = 1

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.libraries: dict[str, ctypes.CDLL] = {}

    def upload(self, array: Any) -> Any:
        return np.array(array)

    def download(self, array: Any) -> Any:
        return np.array(array)

    def address(self, array: Any) -> int:
        assert array.flags.c_contiguous
        return int(array.ctypes.data)

    def free_memory(self) -> int:
        return 1 << 30

    def stream(self, source: Any, pieces: Any) -> Any:
        for rows in pieces:
            yield rows, self.upload(source.read(rows.start, rows.stop))

    def launch(self, file: str, kernel: str, n_teams: int, *arguments: Any) -> None:
        if file not in self.libraries:
            built = self.folder / f"{file}.so"
            command = [COMPILER, "-std=c++17", "-O1", "-shared", "-fPIC", "-x", "c++"]
            subprocess.run([*command, str(KERNELS / file), "-o", str(built)], check=True)
            self.libraries[file] = ctypes.CDLL(str(built))
        getattr(self.libraries[file], kernel)(*map(_passed, arguments))


def _passed(argument: Any) -> Any:
    """A struct by value, an array as a pointer."""
    if argument.dtype.names is None:
        return ctypes.c_void_p(argument.ctypes.data)
    words = argument.dtype.itemsize // 8
    struct = type("Struct", (ctypes.Structure,), {"_fields_": [("words", ctypes.c_uint64 * words)]})
    return struct.from_buffer_copy(argument.tobytes())
