"""A graphics card that is none: arrays of NumPy, and the kernels compiled for the processor."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import kronlearn
from kronlearn.cuda.exchange import is_on_card

KERNELS = Path(kronlearn.__file__).parent / "cuda" / "kernels"
EMULATION = Path(__file__).with_name("cuda_emulation.hpp")
COMPILER = shutil.which("g++") or shutil.which("clang++")


_WITH_WARPS = """
#include <utility>
#include "{emulation}"
#include "{file}"
template <class... P, size_t... I>
void call(void (*kernel)(P...), unsigned blocks, unsigned threads, size_t shared, void** arguments,
          std::index_sequence<I...>) {{
  emulation::launch(kernel, blocks, threads, shared, *static_cast<P*>(arguments[I])...);
}}
template <class... P>
void call(void (*kernel)(P...), unsigned blocks, unsigned threads, size_t shared, void** given) {{
  call(kernel, blocks, threads, shared, given, std::index_sequence_for<P...>());
}}
#define KRONLEARN_CALL(name) \\
  extern "C" void call_##name(unsigned b, unsigned t, size_t s, void** a) {{ \\
    call(name, b, t, s, a);                                                 \\
  }}
{calls}
"""


class EmulatedCard:
    """What :class:`kronlearn.cuda.device.Card` offers, with teams of one thread.

    Parameters
    ----------
    folder : path
        For the compiled kernels.
    """

    xp = np
    n_teams = 1
    n_multiprocessors = 1
    shared_memory = 227 * 1024

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

    def finish(self) -> None:
        pass

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

    def launch_blocks(
        self,
        file: str,
        kernel: str,
        blocks: int,
        threads: int,
        *arguments: Any,
        options: tuple[str, ...] = (),
        shared: int = 0,
    ) -> None:
        """Run a kernel with all of its threads, and 32 of them in a warp."""
        name = "".join([file, *options]).replace("=", "_")
        if name not in self.libraries:
            self.libraries[name] = self._with_warps(file, name, options)
        holders = [_passed(argument) for argument in arguments]
        addresses = (ctypes.c_void_p * len(holders))(*(ctypes.addressof(h) for h in holders))
        call = getattr(self.libraries[name], f"call_{kernel}")
        call(ctypes.c_uint(blocks), ctypes.c_uint(threads), ctypes.c_size_t(shared), addresses)

    def _with_warps(self, file: str, name: str, options: tuple[str, ...]) -> ctypes.CDLL:
        text = (KERNELS / file).read_text()
        text = re.sub(r"__launch_bounds__\([^()]*\)", "", text)
        kernels = re.findall(r"KRONLEARN_KERNEL void\s+(\w+)\(", text)
        calls = "".join(f"KRONLEARN_CALL({kernel})\n" for kernel in kernels)
        source, built = self.folder / f"{name}.cpp", self.folder / f"{name}.so"
        source.write_text(_WITH_WARPS.format(emulation=EMULATION, file=KERNELS / file, calls=calls))
        command = [COMPILER, "-std=c++20", "-O1", "-shared", "-fPIC", "-pthread", *options]
        subprocess.run([*command, str(source), "-o", str(built)], check=True)
        return ctypes.CDLL(str(built))

    def recorded(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        return enqueue

    def replayed(self, works: list[Callable[[], None]]) -> list[float]:
        finished = []
        for work in works:
            work()
            finished.append(time.perf_counter())
        return finished


class OnEmulatedCard(np.ndarray):
    """An array that says of itself that it lies on a card."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return dict(self.__array_interface__)


class _Arrays:
    """NumPy, whose arrays say of themselves that they lie on a card."""

    ndarray = OnEmulatedCard

    def __getattr__(self, name: str) -> Any:
        found = getattr(np, name)
        if isinstance(found, type | ModuleType) or not callable(found):
            return found
        return lambda *given, **options: _there(found(*given, **options))


def _there(array: Any) -> Any:
    return array.view(OnEmulatedCard) if isinstance(array, np.ndarray) else array


class ArrayCard(EmulatedCard):
    """An emulated card that tells its arrays from others; ``left`` counts numbers that left it."""

    xp = _Arrays()
    left = 0

    def upload(self, array: Any) -> Any:
        return _there(np.array(array))

    def download(self, array: Any) -> Any:
        assert is_on_card(array)
        self.left += array.size
        return np.array(array).view(np.ndarray)


def aligned(a: np.ndarray) -> np.ndarray:
    """A copy that starts at a multiple of 16 bytes, as memory on a graphics card does."""
    room = np.empty(a.nbytes + 16, np.uint8)
    first = -room.ctypes.data % 16
    copy = room[first : first + a.nbytes].view(a.dtype).reshape(a.shape)
    copy[...] = a
    return copy


def pointer(a: np.ndarray | None) -> Any:
    return None if a is None else ctypes.c_void_p(a.ctypes.data)


def compiled(source: str, folder: Path, name: str) -> ctypes.CDLL:
    """A library made of C++ that includes the emulation and kernels."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++ to compile kernels for the processor with")
    (folder / f"{name}.cpp").write_text(source)
    # Kernels are not written for strict aliasing, which CUDA does not assume either.
    options = ["-std=c++20", "-O1", "-fno-strict-aliasing", "-w", "-shared", "-fPIC"]
    command = [compiler, *options, "-pthread", f"{name}.cpp", "-o", f"{name}.so"]
    subprocess.run(command, cwd=folder, check=True)
    return ctypes.CDLL(folder / f"{name}.so")


def _passed(argument: Any) -> Any:
    """A number or a struct by value, an array as a pointer."""
    if isinstance(argument, np.generic):
        return {4: ctypes.c_int32, 8: ctypes.c_int64}[argument.nbytes](int(argument))
    if argument.dtype.names is None:
        return ctypes.c_void_p(argument.ctypes.data)
    words = argument.dtype.itemsize // 8
    struct = type("Struct", (ctypes.Structure,), {"_fields_": [("words", ctypes.c_uint64 * words)]})
    return struct.from_buffer_copy(argument.tobytes())
