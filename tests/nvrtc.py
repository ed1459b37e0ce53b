"""Compilation of kernels with NVRTC, which needs no GPU."""

from __future__ import annotations

import ctypes
import re
from ctypes.util import find_library
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from kronlearn.cuda.device import include_options, kernel_texts

# The packages of CUDA 13 and 12 that contain NVRTC.
_PACKAGES = ("nvidia.cu13", "nvidia.cuda_nvrtc")


@dataclass(frozen=True)
class Resources:
    """Registers per thread of a kernel, and the bytes that did not fit into them."""

    registers: int
    spilled: int


@cache
def library() -> ctypes.CDLL | None:
    """NVRTC, if it is installed."""
    for package in _PACKAGES:
        try:
            spec = find_spec(package)
        except ModuleNotFoundError:
            continue
        for folder in spec.submodule_search_locations or () if spec else ():
            for path in sorted(Path(folder, "lib").glob("libnvrtc.so.*")):
                return ctypes.CDLL(str(path))
    name = find_library("nvrtc")
    return ctypes.CDLL(name) if name else None


def compiled(file: str, options: tuple[str, ...], architecture: str) -> dict[str, Resources]:
    """Compile a file for an architecture, with CuPy's own options, too; the kernels' resources."""
    nvrtc, program = library(), ctypes.c_void_p()
    assert nvrtc is not None
    source, name = kernel_texts(file)[file].encode(), file.encode()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, name, 0, None, None) == 0
    flags = [f"-arch={architecture}", "-std=c++17", "-ftz=true", "--ptxas-options=-v"]
    given = [flag.encode() for flag in (*flags, *include_options(), *options)]
    failed = nvrtc.nvrtcCompileProgram(program, len(given), (ctypes.c_char_p * len(given))(*given))
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    text = log.value.decode()
    assert not failed, f"{file} {options} for {architecture}: {text}"
    found = re.findall(
        r"entry function '(\w+)'.*?(\d+) bytes spill stores.*?Used (\d+) registers", text, re.S
    )
    return {name: Resources(int(registers), int(spilled)) for name, spilled, registers in found}
