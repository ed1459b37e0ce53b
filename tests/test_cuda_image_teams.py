"""Passes over images by teams of 32 threads, as a GPU has them, emulated on the processor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import reference
from emulated_gpu import COMPILER, WarpGpu
from kronlearn.cuda.pixels import Pixels
from test_cuda_images import assert_same_average, axes_of, coded
from test_image_passes import METHODS


@pytest.fixture(scope="module")
def warps() -> Any:
    if COMPILER is None:
        pytest.skip("no C++ compiler is at hand")
    return WarpGpu()


@pytest.mark.parametrize("method", [*METHODS, "known"])
def test_teams_of_many_threads_code_as_one_does(warps, rng, method):
    image = rng.standard_normal((7, 9)).astype(np.float32)
    factors = reference.random_factors(rng, (5, 7), (6, 8))
    known = None
    if method == "threshold":
        factors = reference.orthonormal_factors(rng, (5, 7))
    if method == "known":
        known, method = (rng.random(image.shape) < 0.8).astype(np.float32), "ols"
    settings = (image, factors, axes_of(image.shape, (5, 7), (1, 2)), method, 3, 1.5)
    found = coded(warps, *settings, known=known)
    assert_same_average(found, coded(None, *settings, known=known))


@pytest.mark.parametrize("tol", [-1.0, 4.0, 1e-3])
@pytest.mark.parametrize("method", ["omp", "ols"])
@pytest.mark.parametrize("n", [8, 16])
def test_teams_of_many_threads_code_the_usual_shapes(warps, rng, n, method, tol):
    image = np.cumsum(rng.standard_normal((10, 11)), axis=0).astype(np.float32)
    factors = reference.random_factors(rng, (8, 8), (n, n))
    settings = (image, factors, axes_of(image.shape, (8, 8), (1, 1)), method, 9, tol)
    assert_same_average(coded(warps, *settings), coded(None, *settings))


def test_teams_whose_scratch_is_in_the_memory_of_the_gpu(warps, rng):
    image = rng.standard_normal((20, 21)).astype(np.float32)
    factors = reference.random_factors(rng, (20, 20), (21, 21))
    settings = (image, factors, axes_of(image.shape, (20, 20), (1, 1)), "omp", 3, -1.0)
    assert_same_average(coded(warps, *settings), coded(None, *settings))


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
