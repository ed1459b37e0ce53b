"""Passes over images by teams of 32 threads, as a card has them, emulated on the processor."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reference
from emulated_card import COMPILER, KERNELS, EmulatedCard, _passed
from kronlearn.cuda.pixels import Pixels
from test_cuda_images import NAMES, ROUNDING, assert_same_sums, axes_of, coded, shrunk
from test_image_passes import DTYPES, METHODS


class WarpCard(EmulatedCard):
    """An emulated card whose teams are 32 threads each, as on a real one; slow."""

    def launch(self, file: str, kernel: str, n_teams: int, *arguments: Any) -> None:
        if file not in self.libraries:
            self.libraries[file] = ctypes.CDLL(str(_with_threads(self.folder, file)))
        # Two teams a block: they share what is shared within one.
        blocks = 1 if n_teams <= 2 else 2
        threads = 64 if n_teams > 1 else 32
        launch = getattr(self.libraries[file], f"launch_{kernel}")
        launch(ctypes.c_uint(blocks), ctypes.c_uint(threads), *map(_passed, arguments))


def _with_threads(folder: Path, file: str) -> Path:
    """A library that runs the kernels of a file, each with a function that launches it."""
    kernels = re.findall(
        r"KRONLEARN_KERNEL(?: KRONLEARN_BLOCKS\(\d\))? void (\w+)\((.*?)\) {",
        (KERNELS / file).read_text("utf-8"),
        re.DOTALL,
    )
    emulation = Path(__file__).with_name("cuda_emulation.hpp")
    lines = [
        "#include <algorithm>",
        "#include <bit>",
        f'#include "{emulation}"',
        *MISSING,
        f'#include "{KERNELS / file}"',
    ]
    for name, parameters in kernels:
        names = ", ".join(re.findall(r"(\w+)(?:,|$)", parameters))
        lines.append(
            f'extern "C" void launch_{name}(unsigned blocks, unsigned threads, {parameters}) '
            f"{{ emulation::launch({name}, blocks, threads, 0, {names}); }}"
        )
    source, built = folder / f"{file}.cpp", folder / f"{file}.threads.so"
    source.write_text("\n".join(lines))
    assert COMPILER is not None
    command = [COMPILER, "-std=c++20", "-O1", "-shared", "-fPIC", "-pthread"]
    subprocess.run([*command, str(source), "-o", str(built)], check=True)
    return built


# What the emulation does not have.
MISSING = [
    "#include <algorithm>",
    "#include <bit>",
    "#define __grid_constant__",
    "inline float __fmul_rn(float x, float y) { return x * y; }",
    "inline double __dmul_rn(double x, double y) { return x * y; }",
    "inline long long __double2ll_rn(double x) { return std::llrint(x); }",
    "inline long long __double_as_longlong(double x) { return std::bit_cast<long long>(x); }",
    "inline double __longlong_as_double(long long x) { return std::bit_cast<double>(x); }",
    "inline float __fdividef(float x, float y) { return x / y; }",
    """
    inline unsigned __reduce_min_sync(unsigned mask, unsigned x) {
      for (int o = 16; o > 0; o /= 2) x = std::min(x, __shfl_xor_sync(mask, x, o));
      return x;
    }
    """,
]


@pytest.fixture(scope="module")
def warps(tmp_path_factory: pytest.TempPathFactory) -> Any:
    if COMPILER is None:
        pytest.skip("no C++ compiler is at hand")
    made = WarpCard(tmp_path_factory.mktemp("threads"))
    made.n_teams = 4
    return made


@pytest.mark.parametrize("dtype", DTYPES, ids=NAMES)
@pytest.mark.parametrize("method", [*METHODS, "known"])
def test_teams_of_many_threads_code_as_one_does(warps, rng, method, dtype):
    image = rng.standard_normal((7, 9)).astype(dtype)
    factors = reference.random_factors(rng, (5, 7), (6, 8))
    known = None
    if method == "threshold":
        factors = reference.orthonormal_factors(rng, (5, 7))
    if method == "known":
        known, method = (rng.random(image.shape) < 0.8).astype(dtype), "ols"
    settings = (image, factors, axes_of(image.shape, (5, 7), (1, 2)), method, 3, 1.5)
    found = coded(warps, *settings, known=known)
    assert_same_sums(found, coded(None, *settings, known=known), dtype)


@pytest.mark.parametrize("tol", [-1.0, 4.0, 1e-3])
@pytest.mark.parametrize("method", ["omp", "ols"])
@pytest.mark.parametrize("n", [8, 16])
def test_teams_of_many_threads_code_the_usual_shapes(warps, rng, n, method, tol):
    image = np.cumsum(rng.standard_normal((10, 11)), axis=0).astype(np.float32)
    factors = reference.random_factors(rng, (8, 8), (n, n))
    settings = (image, factors, axes_of(image.shape, (8, 8), (1, 1)), method, 9, tol)
    assert_same_sums(coded(warps, *settings), coded(None, *settings), np.float32)


def test_teams_whose_scratch_is_in_the_memory_of_the_card(warps, rng):
    image = rng.standard_normal((20, 21))
    factors = reference.random_factors(rng, (20, 20), (21, 21))
    settings = (image, factors, axes_of(image.shape, (20, 20), (1, 1)), "omp", 3, -1.0)
    assert_same_sums(coded(warps, *settings), coded(None, *settings), np.float64)


@pytest.mark.parametrize("dtype", DTYPES, ids=NAMES)
@pytest.mark.parametrize(
    ("shape", "patch", "group", "window"),
    [
        ((1, 9, 8), (5, 4), 4, (2, 3)),
        ((2, 6, 12), (5, 7), 5, (1, 2)),
        ((1, 20), (5,), 3, (0,)),
        ((1, 6, 10), (4, 8), 16, (2, 2)),
        ((1, 21, 14), (8, 8), 16, (5, 9)),
        ((2, 10, 22), (8, 8), 16, (2, 20)),
        ((1, 9, 8), (8, 8), 16, (2, 2)),
    ],
)
def test_teams_of_many_threads_shrink_as_one_does(warps, rng, shape, patch, group, window, dtype):
    guide = rng.integers(0, 3, shape).astype(dtype)
    planes = guide + rng.standard_normal(shape).astype(dtype)
    settings = (planes, guide, patch, group, tuple(max(1, m // 2) for m in patch), window)
    for found, wanted in zip(shrunk(warps, *settings), shrunk(None, *settings), strict=True):
        atol = ROUNDING[dtype] * np.abs(wanted).max()
        np.testing.assert_allclose(found, wanted, rtol=0, atol=atol)


@pytest.mark.parametrize("dtype", [np.float32, np.uint8], ids=str)
def test_teams_of_many_threads_make_planes_as_one_does(warps, rng, dtype):
    image = rng.integers(0, 200, (2, 47, 45)).astype(dtype)
    pixels = Pixels(warps, image)
    for found, channel in zip(pixels.contents(), image, strict=True):
        assert (found.low, found.high) == (channel.min(), channel.max())
        assert found.mean == pytest.approx(channel.mean(dtype=np.float64), rel=1e-14)
        assert found.is_finite
    plane = np.empty((47, 45), np.float32)
    pixels.to_plane(1, 60.0, 2.0, plane)
    np.testing.assert_array_equal(plane, (image[1].astype(np.float32) - 60) / 2)
    target = np.zeros_like(image)
    Pixels(warps, target).from_plane(0, 60.0, 2.0, plane)
    np.testing.assert_array_equal(target, [image[1], np.zeros_like(image[1])])
