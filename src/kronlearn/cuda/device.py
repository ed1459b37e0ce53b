"""The GPU: memory, launches, and kernels that are compiled for it at first use."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.core.source import Source
from kronlearn.cuda.arrays import cupy
from kronlearn.cuda.memory import free_memory
from kronlearn.cuda.streaming import stream_chunks

__all__ = ["C_TYPES", "Gpu", "c_type", "current_gpu", "include_options", "kernel_texts", "macros"]

logger = logging.getLogger(__name__)

#: The dtypes that kernels support, with their names in C++.
C_TYPES = {
    np.dtype(np.float32): "float",
    np.dtype(np.float64): "double",
    np.dtype(np.int8): "signed char",
    np.dtype(np.uint8): "unsigned char",
    np.dtype(np.int16): "short",
    np.dtype(np.uint16): "unsigned short",
    np.dtype(np.int32): "int",
    np.dtype(np.uint32): "unsigned int",
    np.dtype(np.int64): "long long",
    np.dtype(np.uint64): "unsigned long long",
}

_KERNELS = Path(__file__).parent / "kernels"
# Folders of the kernels and of the headers that they share with the native code. An installed
# package has these headers among the kernels, a source tree in the folder of the native code.
_FOLDERS = (_KERNELS, Path(__file__).parents[3] / "native")
# Threads of a team (a warp), and teams of a block.
_TEAM, _TEAMS_PER_BLOCK = 32, 4
# Bytes of shared memory that the system takes for each block.
_SYSTEM_SHARED = 1024
# NVRTC compiles one file per calling thread.
_compilers = ThreadPoolExecutor(min(8, os.cpu_count() or 1), "kronlearn-compiler")


def current_gpu() -> Gpu:
    """The current GPU.

    Raises
    ------
    ImportError
        If CuPy is not installed.
    RuntimeError
        If there is no GPU, its driver does not respond, or NVRTC, the compiler, is missing.
    """
    return _current()


def _current() -> Gpu:
    # Tests replace this function where other modules have imported current_gpu already.
    return _gpu(int(cupy().cuda.Device().id))


@cache
def _gpu(device: int) -> Gpu:
    """The one object for a GPU, which caches keyed by GPUs rely on."""
    xp = cupy()
    try:
        xp.cuda.nvrtc.getVersion()
    except (ImportError, RuntimeError) as problem:
        raise RuntimeError(
            'device="cuda" compiles its kernels with NVRTC, which CuPy cannot load '
            f"({str(problem).strip()}): pip install '.[cuda13]' in the checkout of kronlearn, or "
            "'.[cuda12]' where the driver is too old for CUDA 13."
        ) from None
    return Gpu(xp, device)


class Gpu:
    """A GPU, driven through CuPy; several threads may use it at the same time.

    Parameters
    ----------
    cupy : module
    device : int
        CUDA's number of the GPU.

    Attributes
    ----------
    xp : module
        CuPy: NumPy's functions for arrays on the GPU.
    """

    def __init__(self, cupy: Any, device: int = 0) -> None:
        self.xp, self._device = cupy, device
        self._thread = threading.local()
        self._shared_memory_lock = threading.Lock()

    @cached_property
    def n_multiprocessors(self) -> int:
        """The number of multiprocessors."""
        return int(self._properties["multiProcessorCount"])

    @cached_property
    def capability(self) -> tuple[int, int]:
        """The compute capability, such as (9, 0)."""
        return int(self._properties["major"]), int(self._properties["minor"])

    @cached_property
    def shared_memory(self) -> int:
        """The largest shared memory of a block, in bytes.

        For tests, the environment variable KRONLEARN_SHARED_MEMORY sets a lower value.
        """
        most = int(self._properties["sharedMemPerBlockOptin"])
        return min(most, int(os.environ.get("KRONLEARN_SHARED_MEMORY", most)))

    @cached_property
    def _properties(self) -> Any:
        return self.xp.cuda.runtime.getDeviceProperties(self._device)

    @property
    def n_teams(self) -> int:
        """The number of teams (warps) that should run at the same time."""
        # The scratch of more than 16 warps would not fit into the cache of a multiprocessor.
        return self.n_multiprocessors * 16

    def upload(self, array: NDArray[Any]) -> Any:
        """A copy of an array on the GPU."""
        return self.xp.asarray(array)

    def download(self, array: Any) -> NDArray[Any]:
        """A copy of an array in the memory of the processor."""
        return np.asarray(self.xp.asnumpy(array))

    def address(self, array: Any) -> int:
        """The address of an array."""
        return int(array.data.ptr)

    def finish(self) -> None:
        """Wait until all work in the current stream is done."""
        self.xp.cuda.get_current_stream().synchronize()

    def free_memory(self) -> int:
        """Bytes that new arrays may take."""
        return free_memory(self.xp)

    def stream(self, source: Source, pieces: Iterable[slice]) -> Iterator[tuple[slice, Any]]:
        """Copy a source to the GPU chunk by chunk; each chunk is valid until the next one."""
        return stream_chunks(self.xp, source, pieces)

    def compile_ahead(self, files: Iterable[tuple[str, tuple[str, ...]]]) -> None:
        """Start compiling files, each with its options, in background threads."""
        for file, options in files:
            _compilation(self, file, options)

    def launch(
        self, file: str, kernel: str, n_teams: int, *arguments: Any, options: tuple[str, ...] = ()
    ) -> None:
        """Launch a kernel with at least ``n_teams`` teams, in blocks of four."""
        blocks, threads = -(-n_teams // _TEAMS_PER_BLOCK), _TEAMS_PER_BLOCK * _TEAM
        self.launch_blocks(file, kernel, blocks, threads, *arguments, options=options)

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
        """Launch a kernel with ``shared`` bytes of dynamic shared memory per block."""
        function = _function(self, file, kernel, options, shared)
        function((blocks,), (threads,), tuple(map(_without_fields, arguments)), shared_mem=shared)

    def resident_blocks(
        self, file: str, kernel: str, threads: int, options: tuple[str, ...], shared: int
    ) -> int:
        """The number of blocks of a kernel that a multiprocessor runs at the same time."""
        function = _function(self, file, kernel, options, shared).kernel.ptr
        occupancy = self.xp.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor
        # A multiprocessor has as much shared memory as the largest block takes, including what the
        # system takes for each block.
        room = (self.shared_memory + _SYSTEM_SHARED) // (shared + _SYSTEM_SHARED)
        return min(int(occupancy(function, threads, shared)), room)

    def record(self, enqueue: Callable[[], None], times: int) -> Any:
        """Record ``times`` repetitions of some work for :meth:`replay`; runs the work once."""
        # Compiling and loading kernels cannot be recorded.
        enqueue()
        self.xp.cuda.get_current_stream().synchronize()
        stream = self._recording_stream
        with stream:
            stream.begin_capture()
            try:
                for _ in range(times):
                    enqueue()
            finally:
                # Even after an error, the stream must leave capture mode.
                recording = stream.end_capture()
            return recording

    def replay(self, recordings: Sequence[Any]) -> float:
        """Run recordings one after the other; return the seconds that they took."""
        stream, begin, end = self._recording_stream, self.xp.cuda.Event(), self.xp.cuda.Event()
        self.xp.cuda.get_current_stream().synchronize()
        begin.record(stream)
        for recording in recordings:
            recording.launch(stream)
        end.record(stream)
        stream.synchronize()
        return float(self.xp.cuda.get_elapsed_time(begin, end)) / 1e3

    @property
    def _recording_stream(self) -> Any:
        """A stream of the calling thread alone: a shared one would record others' work, too."""
        if not hasattr(self._thread, "stream"):
            self._thread.stream = self.xp.cuda.Stream(non_blocking=True)
        return self._thread.stream


def _without_fields(argument: Any) -> Any:
    """A struct as plain bytes: CuPy would have NumPy list the fields at every launch, slowly."""
    if isinstance(argument, np.ndarray) and argument.dtype.names is not None:
        return argument.view((np.void, argument.itemsize))
    return argument


def macros(**values: object) -> tuple[str, ...]:
    """Compiler options that define the macros ``KRONLEARN_<name>``."""
    return tuple(f"-DKRONLEARN_{name}={value}" for name, value in values.items())


def c_type(dtype: Any) -> str:
    """The name in C++ of one of the dtypes in :data:`C_TYPES`."""
    return C_TYPES[np.dtype(dtype)]


def kernel_texts(file: str) -> dict[str, str]:
    """The texts of a file and of all files that it includes, by name."""
    texts: dict[str, str] = {}
    pending = [file]
    while pending:
        name = pending.pop()
        if name not in texts:
            path = next(folder / name for folder in _FOLDERS if (folder / name).exists())
            texts[name] = path.read_text("utf-8")
            pending += re.findall(r'^#include "(.+)"', texts[name], re.MULTILINE)
    return texts


def include_options() -> tuple[str, ...]:
    """Compiler options that name the folders of the files that kernels include."""
    return tuple(f"-I{folder}" for folder in _FOLDERS)


class _CompilationLog:
    """The log that CuPy writes when it compiles a file, but not when it finds it on disk."""

    def __init__(self, file: str) -> None:
        self.file, self.begin = file, time.perf_counter()

    def write(self, _: str) -> None:
        seconds = time.perf_counter() - self.begin
        logger.info("Compiled %s for this GPU in %.1f s and cached it on disk.", self.file, seconds)


@cache
def _function(gpu: Gpu, file: str, kernel: str, options: tuple[str, ...], shared: int) -> Any:
    """A kernel that may be launched with ``shared`` bytes of dynamic shared memory per block."""
    code, options, log = _compilation(gpu, file, options).result()
    function = gpu.xp.RawKernel(code, kernel, options)
    # CuPy finds the compiled file in memory only by the same code, options and log.
    function.compile(log_stream=log)
    with gpu._shared_memory_lock:
        if shared > function.max_dynamic_shared_size_bytes:
            function.max_dynamic_shared_size_bytes = shared
    return function


@cache
def _compilation(gpu: Gpu, file: str, options: tuple[str, ...]) -> Future[Any]:
    return _compilers.submit(_compile, gpu, file, options)


def _compile(
    gpu: Gpu, file: str, options: tuple[str, ...]
) -> tuple[str, tuple[str, ...], _CompilationLog]:
    """Compile a file and load it; return the code, options and log by which CuPy finds it."""
    texts = kernel_texts(file)
    # CuPy's cache on disk does not look at included files, so the code must depend on them.
    digest = hashlib.sha256("\0".join(texts[name] for name in sorted(texts)).encode()).hexdigest()
    code, log = f"{texts[file]}\n// {digest}\n", _CompilationLog(file)
    options = ("-std=c++17", *include_options(), *options)
    with gpu.xp.cuda.Device(gpu._device):
        gpu.xp.RawModule(code=code, options=options).compile(log_stream=log)
    return code, options, log
