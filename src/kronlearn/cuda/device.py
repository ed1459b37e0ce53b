"""The GPU: arrays on it, and kernels that are compiled for it at their first use."""

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
from kronlearn.cuda.streaming import streamed

__all__ = ["C_TYPES", "Gpu", "c_type", "current_gpu", "defined", "include_options", "kernel_texts"]

logger = logging.getLogger(__name__)

#: What C++ calls the dtypes that kernels know.
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
# Where the kernels' files are, and those that they share with the native code: an installed package
# has these among the kernels, a source tree where the native code is.
_FOLDERS = (_KERNELS, Path(__file__).parents[3] / "native")
_TEAM = 32
_TEAMS_PER_BLOCK = 4
# Bytes of shared memory that a block takes besides its own.
_SYSTEM_SHARED = 1024
# NVRTC compiles as many files at a time as there are threads that ask it to.
_compilers = ThreadPoolExecutor(min(8, os.cpu_count() or 1), "kronlearn-compiler")


def current_gpu() -> Gpu:
    """The current GPU.

    Raises
    ------
    ImportError
        If CuPy is not installed.
    RuntimeError
        If there is no GPU, its driver does not answer, or there is no compiler for kernels.
    """
    return _current()


def _current() -> Gpu:
    return _gpu(int(cupy().cuda.Device().id))


@cache
def _gpu(device: int) -> Gpu:
    """The same for the same GPU: what is kept on one is of no use to another."""
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
    """A GPU, through CuPy; several threads may use it at the same time.

    Parameters
    ----------
    cupy : module
    device : int
        Which GPU it is.

    Attributes
    ----------
    xp : module
        CuPy: the functions of NumPy for arrays on the GPU.
    """

    def __init__(self, cupy: Any, device: int = 0) -> None:
        self.xp, self._device = cupy, device
        self._of_thread = threading.local()
        self._shared_sizes = threading.Lock()

    @cached_property
    def n_multiprocessors(self) -> int:
        """How many multiprocessors the GPU has."""
        return int(self._properties["multiProcessorCount"])

    @cached_property
    def capability(self) -> tuple[int, int]:
        """The compute capability, such as (9, 0)."""
        return int(self._properties["major"]), int(self._properties["minor"])

    @cached_property
    def shared_memory(self) -> int:
        """Bytes of shared memory that a block can have.

        For tests, the environment variable KRONLEARN_SHARED_MEMORY lowers it.
        """
        most = int(self._properties["sharedMemPerBlockOptin"])
        return min(most, int(os.environ.get("KRONLEARN_SHARED_MEMORY", most)))

    @cached_property
    def _properties(self) -> Any:
        return self.xp.cuda.runtime.getDeviceProperties(self._device)

    @property
    def n_teams(self) -> int:
        """How many teams of threads work at the same time."""
        # Sixteen warps on each multiprocessor: more would not find their scratch in its cache.
        return self.n_multiprocessors * 16

    def upload(self, array: NDArray[Any]) -> Any:
        """A copy of an array on the GPU."""
        return self.xp.asarray(array)

    def download(self, array: Any) -> NDArray[Any]:
        """A copy of an array in the memory of the processor."""
        return np.asarray(self.xp.asnumpy(array))

    def address(self, array: Any) -> int:
        """Where an array begins."""
        return int(array.data.ptr)

    def finish(self) -> None:
        """Wait until everything that was asked of the GPU is done."""
        self.xp.cuda.get_current_stream().synchronize()

    def free_memory(self) -> int:
        """Bytes that new arrays can have."""
        return free_memory(self.xp)

    def stream(self, source: Source, pieces: Iterable[slice]) -> Iterator[tuple[slice, Any]]:
        """Chunks of a source, each valid until the next is asked for."""
        return streamed(self.xp, source, pieces)

    def compile_ahead(self, files: Iterable[tuple[str, tuple[str, ...]]]) -> None:
        """Begin to compile files, each with its options, all at the same time."""
        for file, options in files:
            _compiling(self, file, options)

    def launch(
        self, file: str, kernel: str, n_teams: int, *arguments: Any, options: tuple[str, ...] = ()
    ) -> None:
        """Run a kernel of a file, compiled with options, with so many teams."""
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
        """Run a kernel of a file, compiled with options, with ``shared`` bytes for each block."""
        function = _function(self, file, kernel, options, shared)
        function((blocks,), (threads,), tuple(map(_plain, arguments)), shared_mem=shared)

    def blocks_at_once(
        self, file: str, kernel: str, threads: int, options: tuple[str, ...], shared: int
    ) -> int:
        """How many blocks of a kernel a multiprocessor has room for."""
        function = _function(self, file, kernel, options, shared).kernel.ptr
        ask = self.xp.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor
        # A multiprocessor has as much shared memory as a block can have, and all of what blocks
        # take for the system.
        room = (self.shared_memory + _SYSTEM_SHARED) // (shared + _SYSTEM_SHARED)
        return min(int(ask(function, threads, shared)), room)

    def recorded(self, enqueue: Callable[[], None], times: int) -> Any:
        """Some work, so many times, for :meth:`replayed`; it is done once for this."""
        # Kernels are compiled before the recording begins.
        enqueue()
        self.xp.cuda.get_current_stream().synchronize()
        with self._replaying:
            self._replaying.begin_capture()
            try:
                for _ in range(times):
                    enqueue()
            finally:
                # Whatever happens, the stream is to be of use again.
                work = self._replaying.end_capture()
            return work

    def replayed(self, works: Sequence[Any]) -> float:
        """Do recorded works in turn; the seconds that they took."""
        stream, begin, end = self._replaying, self.xp.cuda.Event(), self.xp.cuda.Event()
        self.xp.cuda.get_current_stream().synchronize()
        begin.record(stream)
        for work in works:
            work.launch(stream)
        end.record(stream)
        stream.synchronize()
        return float(self.xp.cuda.get_elapsed_time(begin, end)) / 1e3

    @property
    def _replaying(self) -> Any:
        """The thread's own stream: what others do meanwhile must not get into a recording."""
        if not hasattr(self._of_thread, "stream"):
            self._of_thread.stream = self.xp.cuda.Stream(non_blocking=True)
        return self._of_thread.stream


def _plain(argument: Any) -> Any:
    """A struct without its fields: CuPy has NumPy list them for every launch, which takes long."""
    if isinstance(argument, np.ndarray) and argument.dtype.names is not None:
        return argument.view((np.void, argument.itemsize))
    return argument


def defined(**values: object) -> tuple[str, ...]:
    """Options that define what kernels are compiled for."""
    return tuple(f"-DKRONLEARN_{name}={value}" for name, value in values.items())


def c_type(dtype: Any) -> str:
    """What C++ calls one of the dtypes in :data:`C_TYPES`."""
    return C_TYPES[np.dtype(dtype)]


def kernel_texts(file: str) -> dict[str, str]:
    """The texts of a file and of all that it includes, by their names."""
    texts: dict[str, str] = {}
    left = [file]
    while left:
        name = left.pop()
        if name not in texts:
            path = next(folder / name for folder in _FOLDERS if (folder / name).exists())
            texts[name] = path.read_text("utf-8")
            left += re.findall(r'^#include "(.+)"', texts[name], re.MULTILINE)
    return texts


def include_options() -> tuple[str, ...]:
    """What tells a compiler where the files are that kernels include."""
    return tuple(f"-I{folder}" for folder in _FOLDERS)


class _Log:
    """What CuPy writes a compiler's log to: only where it has not found the kernels on disk."""

    def __init__(self, file: str) -> None:
        self.file, self.begin = file, time.perf_counter()

    def write(self, _: str) -> None:
        seconds = time.perf_counter() - self.begin
        logger.info("Compiled %s for this GPU in %.1f s; it is kept.", self.file, seconds)


@cache
def _function(gpu: Gpu, file: str, kernel: str, options: tuple[str, ...], shared: int) -> Any:
    """A kernel that may have so many bytes of shared memory for a block."""
    code, options, log = _compiling(gpu, file, options).result()
    function = gpu.xp.RawKernel(code, kernel, options)
    # CuPy has the compiled file in memory, by all three of these.
    function.compile(log_stream=log)
    with gpu._shared_sizes:
        if shared > function.max_dynamic_shared_size_bytes:
            function.max_dynamic_shared_size_bytes = shared
    return function


@cache
def _compiling(gpu: Gpu, file: str, options: tuple[str, ...]) -> Future[Any]:
    return _compilers.submit(_compiled, gpu, file, options)


def _compiled(gpu: Gpu, file: str, options: tuple[str, ...]) -> tuple[str, tuple[str, ...], _Log]:
    """The code of a file, options and log, once it is compiled for a GPU and loaded."""
    texts = kernel_texts(file)
    # CuPy finds kept kernels by the text of the file alone.
    digest = hashlib.sha256("\0".join(texts[name] for name in sorted(texts)).encode()).hexdigest()
    code, log = f"{texts[file]}\n// {digest}\n", _Log(file)
    options = ("-std=c++17", *include_options(), *options)
    with gpu.xp.cuda.Device(gpu._device):
        gpu.xp.RawModule(code=code, options=options).compile(log_stream=log)
    return code, options, log
