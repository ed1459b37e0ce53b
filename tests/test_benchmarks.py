"""The benchmarks: how time is measured, and what ``kronlearn bench`` reports."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from command_line import fails, record_of, succeeds
from kronlearn.experiments import (
    coding,
    learning,
    scaling,
    timing,
)
from kronlearn.experiments.data import (
    included_images,
    sampled_patches,
)
from kronlearn.experiments.store import Store


def test_the_warm_up_round_does_not_count(monkeypatch: pytest.MonkeyPatch):
    seconds = iter([100.0, 1.0, 3.0])
    clock = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock[0])

    def work() -> None:
        clock[0] += next(seconds)

    assert timing.median_seconds(work, 2) == 2


def test_the_first_tenth_of_the_iterations_does_not_count():
    model = SimpleNamespace(history_={"seconds": [0, 100, 101, 104]})
    assert timing.seconds_per_iteration(model) == 2


def test_sampled_patches_have_no_means_and_are_reproducible():
    pixels = included_images()
    patches = sampled_patches(pixels, (8, 6), 101)
    assert (patches.shape, patches.dtype) == ((101, 8, 6), np.float32)
    assert np.abs(patches.mean(axis=(1, 2))).max() < 1e-4
    assert np.array_equal(patches, sampled_patches(pixels, (8, 6), 101))


def test_bench_coding_compares_times_and_errors():
    record = record_of("bench", "coding", "--quick", "--case", "4,6,3")
    rows = {row["coder"]: row for row in record["rows"]}
    # Even a quick run has enough samples that the start of a call does not matter.
    assert rows["omp"]["samples"] > 10_000
    assert rows["omp"]["rmse"] == pytest.approx(rows["scikit-learn"]["rmse"], rel=1e-3)
    assert rows["ols"]["µs"] > 0
    assert rows["bound"]["times_omp"] > 0
    if "SPAMS" not in record["absent"]:
        assert rows["ols"]["rmse"] == pytest.approx(rows["SPAMS"]["rmse"], rel=1e-3)


def test_bench_coding_names_programs_that_are_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(coding, "find_spec", lambda module: None)
    options = ("--quick", "--case", "4,6,3", "--threads", 2)
    text = succeeds("bench", "coding", *options).output
    assert "SPAMS is not installed: left out." in text
    assert "ols, 2 threads" in text
    line = fails("bench", "coding", "--images", tmp_path, *options)
    assert "contains no images of these kinds: .bmp" in line


@pytest.mark.slow
def test_bench_convolutional_compares_structures():
    record = record_of("bench", "convolutional", "--quick")
    kinds = [row["filters"] for row in record["learning"]]
    assert kinds == ["kronlearn, kronecker", "kronlearn, separable", "kronlearn, dense"]
    # A smaller tolerance cannot raise the objective.
    objectives = [row["objective"] for row in record["coding"]]
    assert objectives == sorted(objectives, reverse=True)


def test_bench_learning_measures_every_ratio(monkeypatch: pytest.MonkeyPatch):
    # In this process, whose peak was reached earlier: starting another process takes seconds.
    monkeypatch.setattr(learning, "measured_in_a_process", lambda work, *sizes: work(*sizes))
    record = record_of("bench", "learning", "--quick")
    assert len(record["rows"]) == 6
    assert all(row["ratio"] is None or row["ratio"] >= 0 for row in record["rows"])


@pytest.mark.slow
def test_bench_images_compares_every_method():
    record = record_of("bench", "images", "--quick")
    assert len({row["task"] for row in record["rows"]}) == 2 * 2 + 1 + 3 * 4
    assert all(row["psnr"] > 20 and row["seconds"] > 0 for row in record["rows"])
    assert record["memory"] is None or record["memory"]["ratio"] > 0


@pytest.mark.slow
def test_bench_cube_compares_learning_and_denoising():
    record = record_of("bench", "cube", "--quick")
    two, three = (
        next(row for row in record["learning"] if row["patch"] == patch)
        for patch in ([8, 8], [8, 8, 10])
    )
    assert three["nonzeros_per_64"] == two["nonzeros_per_64"]
    assert three["rmse"] < two["rmse"]
    rows = {(row["added"], row["method"], row["sigma"]): row for row in record["denoising"]}
    for sigma in ("known", "estimated"):
        ours = rows["100", "kronlearn", sigma]
        for other in ("wavelets", "total variation"):
            assert ours["psnr"] > rows["100", other, sigma]["psnr"]


@pytest.mark.slow
def test_passes_of_threads_and_workers_are_timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(scaling, "_REPEATS", 1)
    monkeypatch.setattr(scaling, "_TASKS", (4, 32))
    file = tmp_path / "scaling.csv"
    rows = record_of("bench", "scaling", "--workers", "1,2", "--samples", 2000, "--csv", file)[
        "rows"
    ]
    assert [row["what"] for row in rows].count("tasks") == 8
    assert all(row["seconds"] > 0 for row in rows)
    assert [dataclasses.asdict(row) for row in Store(file, scaling.Pass).rows] == rows
