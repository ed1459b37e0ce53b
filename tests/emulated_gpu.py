"""An emulated GPU: arrays of NumPy, and kernels compiled for the processor."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from scipy import sparse

from kronlearn.cuda.arrays import is_on_gpu
from kronlearn.cuda.device import include_options, kernel_texts, macros

COMPILER = shutil.which("g++") or shutil.which("clang++")
HERE = Path(__file__).parent
#: Folder of compiled kernels; conftest.py replaces it by pytest's cache folder if one is set.
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "kronlearn-tests"
# Compiled kernels that have not been used for this many seconds are removed.
_KEPT_FOR = 30 * 86400

_ENVIRONMENT = dict(os.environ)
_HEADERS = ("cuda_emulation.hpp", "cuda_functions.hpp", "cuda_matrices.hpp")
# The kernels break strict aliasing, which CUDA does not assume.
OPTIONS = ("-std=c++17", "-O1", "-fno-strict-aliasing", "-w", "-fPIC")

_SOURCE = """
#include "cuda_emulation.hpp"
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


def digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def _sized(file: str, **sizes: object) -> tuple[str, tuple[str, ...]]:
    return file, macros(**sizes)


def _alone(file: str, **sizes: object) -> tuple[str, tuple[str, ...]]:
    return file, (*macros(**sizes), *_ALONE)


# Teams of a single thread.
_ALONE = macros(LANES=1)
_SHARED = 227 * 1024
# The types of samples and of the arithmetic, and whether there are weights.
_KINDS = (
    *(("float", "float", 0), ("float", "double", 0), ("double", "double", 0)),
    *(("float", "float", 1), ("float", "double", 1), ("double", "double", 1)),
)
# The kernels of all tests that are not slow, roughly in the order in which they are needed.
_NEEDED = (
    *(_alone("coder.cu", S=s, T=t, WEIGHTED=w) for s, t, w in _KINDS),
    *(_alone(f"{name}.cu") for name in ("codes", "block_sums")),
    *(_sized("pursuit_pairs.cu", WIDTH=s, OLS=ols) for s, ols in ((4, 0), (4, 1), (15, 0))),
    _sized("pursuit_lanes.cu", M=8, N=16, WIDTH=6, OLS=0, BLOCK=8, SHARED=_SHARED),
    _sized("pursuit_lanes.cu", M=8, N=16, WIDTH=5, OLS=1, BLOCK=4, SHARED=_SHARED),
    *(_sized("threshold_fused.cu", WIDTH=s) for s in (5, 16)),
    _sized("full_updates.cu", M=8, N=8),
    *(_alone("code_patches.cu", T="float", N=n, WEIGHTED=0) for n in (0, 8, 16)),
    _alone("code_patches.cu", T="float", N=0, WEIGHTED=1),
    _alone("code_patches.cu", T="double", N=0, WEIGHTED=0),
    _alone("screen_patches.cu"),
    *(_alone("pixels.cu", PIXEL=kind) for kind in ("float", "double", "unsigned char")),
    _alone("add_patches.cu"),
    _sized("groups.cu"),
    *(_sized("code_patches.cu", T="float", N=n, WEIGHTED=0) for n in (0, 8, 16)),
    _sized("code_patches.cu", T="float", N=0, WEIGHTED=1),
    _sized("code_patches.cu", T="double", N=0, WEIGHTED=0),
    *(_sized(f"{name}.cu") for name in ("block_sums", "screen_patches", "add_patches")),
    *(_sized("noise.cu", PIXEL=kind) for kind in ("float", "double", "unsigned char")),
    _sized("chunk_sums.cu"),
    _sized("pursuit_lanes.cu", M=32, N=32, WIDTH=8, OLS=1, BLOCK=8, SHARED=_SHARED),
    _sized("mode_updates.cu", M=8, N=16),
)
_ahead = ThreadPoolExecutor(1)
_compiling: dict[Any, Future[ctypes.CDLL]] = {}


def compile_ahead() -> None:
    """Compile the kernels of the tests in the background, one after the other."""
    for key in _NEEDED:
        _compiling[key] = _ahead.submit(_compiled, *key)


def stop_compiling() -> None:
    """Cancel all compilations that have not begun."""
    _ahead.shutdown(wait=False, cancel_futures=True)


def compiled(file: str, options: tuple[str, ...] = ()) -> ctypes.CDLL:
    """The kernels of a file, compiled for the processor or found in the cache."""
    ahead = _compiling.get((file, options))
    if ahead is None or ahead.cancel():
        return _compiled(file, options)
    return ahead.result()


@cache
def _compiled(file: str, options: tuple[str, ...]) -> ctypes.CDLL:
    texts = kernel_texts(file)
    plain = re.sub(r"__launch_bounds__\([^()]*\)", "", "\n".join(texts.values()))
    kernels = re.findall(r"^KRONLEARN_KERNEL.*?\s(\w+)\(", plain, re.M | re.S)
    calls = "".join(f"KRONLEARN_CALL({kernel})\n" for kernel in kernels)
    source = _SOURCE.format(file=file, calls=calls)
    alone = tuple(option for option in options if option in _ALONE)
    command = (*include_emulation(alone), *include_options(), *options, "-shared", "-x", "c++")
    return ctypes.CDLL(str(_built(f"{Path(file).stem}.so", source, command, texts)))


@cache
def include_emulation(options: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Compiler options for the emulation's headers.

    They take longer to compile than most kernels, so g++ precompiles them.
    """
    texts = {name: (HERE / name).read_text() for name in _HEADERS}
    command = (f"-I{HERE}", *options, "-x", "c++-header")
    source = f'#include "{_HEADERS[0]}"\n'
    return f"-I{_built(f'{_HEADERS[0]}.gch', source, command, texts).parent}", *command[:1]


def _built(name: str, source: str, options: tuple[str, ...], texts: dict[str, str]) -> Path:
    """Compile a source to a file in a folder that is named by a digest of all inputs.

    If another process is compiling the same file, wait for it.
    """
    import fcntl

    assert COMPILER is not None
    command = [COMPILER, *OPTIONS, *options]
    folder = CACHE / digest(name, source, *command, *(texts[file] for file in sorted(texts)))[:32]
    folder.mkdir(parents=True, exist_ok=True)
    os.utime(folder)
    built, text = folder / name, folder / "source.cpp"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            _forget_old()
            text.write_text(source)
            made = folder / f"{name}.made"
            # Not the current environment, which a test may be changing in another thread.
            subprocess.run([*command, str(text), "-o", str(made)], check=True, env=_ENVIRONMENT)
            made.replace(built)
    return built


def _forget_old() -> None:
    """Remove compiled kernels that no test has used for a long time."""
    for folder in CACHE.iterdir():
        if time.time() - folder.stat().st_mtime > _KEPT_FOR:
            shutil.rmtree(folder, ignore_errors=True)


class EmulatedGpu:
    """The interface of :class:`kronlearn.cuda.device.Gpu`, with teams of one thread."""

    xp: Any = np
    n_teams = 1
    n_multiprocessors = 1
    capability = 9, 0
    shared_memory = 227 * 1024

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

    def compile_ahead(self, files: Any) -> None:
        pass

    def launch(
        self, file: str, kernel: str, n_teams: int, *arguments: Any, options: tuple[str, ...] = ()
    ) -> None:
        """Run a kernel with a team of one thread."""
        self.launch_blocks(file, kernel, 1, 1, *arguments, options=(*options, *_ALONE))

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
        """Run a kernel with all of its threads."""
        holders = [_passed(argument) for argument in arguments]
        addresses = (ctypes.c_void_p * len(holders))(*(ctypes.addressof(h) for h in holders))
        call = getattr(compiled(file, options), f"call_{kernel}")
        call(ctypes.c_uint(blocks), ctypes.c_uint(threads), ctypes.c_size_t(shared), addresses)

    def resident_blocks(
        self, file: str, kernel: str, threads: int, options: tuple[str, ...], shared: int
    ) -> int:
        return (self.shared_memory + 1024) // (shared + 1024)

    def record(self, enqueue: Callable[[], None], times: int) -> list[Callable[[], None]]:
        return [enqueue] * times

    def replay(self, works: list[list[Callable[[], None]]]) -> float:
        begin = time.perf_counter()
        for work in works:
            for enqueue in work:
                enqueue()
        return time.perf_counter() - begin


class WarpGpu(EmulatedGpu):
    """An emulated GPU whose teams are 32 threads each, as on a real one; slow."""

    n_teams = 4

    def launch(
        self, file: str, kernel: str, n_teams: int, *arguments: Any, options: tuple[str, ...] = ()
    ) -> None:
        """Run a kernel with two teams per block, which share memory."""
        blocks, threads = 1 if n_teams <= 2 else 2, 64 if n_teams > 1 else 32
        self.launch_blocks(file, kernel, blocks, threads, *arguments, options=options)


class OnEmulatedGpu(np.ndarray):
    """An array of NumPy that claims to be on a GPU."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return dict(self.__array_interface__)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __array_ufunc__(self, ufunc: Any, method: str, *given: Any, **options: Any) -> Any:
        _check_places(given, options.get("out", ()))
        return _there(getattr(ufunc, method)(*_plain_arrays(given), **_plain_arrays(options)))

    def __array_function__(self, function: Any, _: Any, given: Any, options: Any) -> Any:
        if function is not np.asarray:
            _check_places(given, options.values())
        return _there(function(*_plain_arrays(given), **_plain_arrays(options)))


class ArraysOnGpu:
    """NumPy as a stand-in for CuPy: its arrays claim to be on a GPU."""

    ndarray = OnEmulatedGpu
    cuda = SimpleNamespace(
        Device=nullcontext,
        get_allocator=lambda: None,
        runtime=SimpleNamespace(memGetInfo=lambda: (1 << 30, 1 << 30)),
    )

    def __getattr__(self, name: str) -> Any:
        found = getattr(np, name)
        if isinstance(found, type | ModuleType) or not callable(found):
            return found
        return lambda *given, **options: _there(found(*given, **options))

    def from_dlpack(self, array: Any) -> Any:
        # 1 is DLPack's number for the default stream.
        return _there(array.__dlpack__(stream=1))

    def asnumpy(self, array: Any) -> np.ndarray:
        assert is_on_gpu(array)
        return np.array(array).view(np.ndarray)


class CodesOnGpu:
    """The interface of CuPy's sparse matrices, on an emulated GPU."""

    ndim = 2

    def __init__(self, arrays: Any, shape: tuple[int, int]) -> None:
        self.data, self.indices, self.indptr = map(_there, arrays)
        self.shape, self.dtype, self.nnz = shape, self.data.dtype, self.data.size

    def get(self) -> sparse.csr_matrix:
        arrays = (np.asarray(part) for part in (self.data, self.indices, self.indptr))
        return sparse.csr_matrix(tuple(arrays), shape=self.shape)

    def tocsr(self) -> CodesOnGpu:
        return self

    def toarray(self) -> Any:
        return _there(self.get().toarray())

    def __getitem__(self, rows: slice) -> CodesOnGpu:
        part = self.get()[rows]
        return CodesOnGpu((part.data, part.indices, part.indptr), part.shape)


def _check_places(*collections: Any) -> None:
    """Raise, as CuPy does, if arrays on the GPU are combined with arrays in memory."""
    for collection in collections:
        for each in collection:
            if type(each) is np.ndarray and each.ndim > 0:
                raise TypeError("Unsupported type <class 'numpy.ndarray'>")


def _plain_arrays(given: Any) -> Any:
    """The arguments with arrays on the GPU as plain arrays of NumPy."""
    if isinstance(given, dict):
        return {name: _plain_arrays(part) for name, part in given.items()}
    if isinstance(given, tuple | list):
        return type(given)(map(_plain_arrays, given))
    return given.view(np.ndarray) if isinstance(given, OnEmulatedGpu) else given


def _there(array: Any) -> Any:
    # The result of a reduction is a scalar of NumPy, but an array of CuPy.
    is_array = isinstance(array, np.ndarray | np.generic)
    return np.asarray(array).view(OnEmulatedGpu) if is_array else array


class ArrayGpu(EmulatedGpu):
    """An emulated GPU that tells its arrays from others; ``left`` counts downloaded numbers."""

    xp = ArraysOnGpu()
    left = 0

    def upload(self, array: Any) -> Any:
        return _there(np.array(array))

    def address(self, array: Any) -> int:
        assert is_on_gpu(array)
        return super().address(array)

    def download(self, array: Any) -> Any:
        self.left += array.size
        return self.xp.asnumpy(array)


def aligned(a: np.ndarray) -> np.ndarray:
    """A copy that starts at a multiple of 16 bytes, as arrays on a GPU do."""
    room = np.empty(a.nbytes + 16, np.uint8)
    first = -room.ctypes.data % 16
    copy = room[first : first + a.nbytes].view(a.dtype).reshape(a.shape)
    copy[...] = a
    return copy


def _passed(argument: Any) -> Any:
    """An argument of a kernel: a number or a struct by value, an array as a pointer."""
    if argument is None:
        return ctypes.c_void_p(0)
    if isinstance(argument, np.generic):
        return {4: ctypes.c_int32, 8: ctypes.c_int64}[argument.nbytes](int(argument))
    if argument.dtype.names is None:
        return ctypes.c_void_p(argument.ctypes.data)
    words = argument.dtype.itemsize // 8
    struct = type("Struct", (ctypes.Structure,), {"_fields_": [("words", ctypes.c_uint64 * words)]})
    return struct.from_buffer_copy(argument.tobytes())
