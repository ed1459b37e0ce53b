"""Check and time everything that runs on a GPU, in one call.

    python benchmarks/gpu.py [--only checks,A,B,…] [--csv benchmarks/gpu.csv]

Through the public interface, medians of several runs after one that compiles:

- checks: the tests that need a GPU,
- A to E: milliseconds per iteration of learning from samples that lie on the GPU, and the RMSE
  beside the processor's,
- coding: the samples of A to E that lie on the GPU coded once, beside the package batched-omp
  where that is installed,
- whole: 100 iterations of A, from an array in memory to factors in memory,
- denoise: 512 × 512 pixels with a ready dictionary of 8 × 8 pixels and 16 × 16 atoms, and how long
  each kernel takes,
- learn: the same with a dictionary that is learned first, and noise that is estimated,
- large: 8192 × 8192 pixels, and the most memory that was taken on the GPU,
- streaming: samples of three times the memory that they may take, beside what a copy can do.

Limits are for an H200. Needs CuPy and a GPU; takes about three minutes.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from skimage.data import camera

import kronlearn as kl
from kronlearn.cli.bench_gpu import CASES, Case, coders, image_like, learner, milliseconds
from kronlearn.cuda.device import current_gpu
from kronlearn.io.arrays import ArraySource

HERE = Path(__file__).resolve().parent
# The most milliseconds that an iteration may take; with all defaults twice as many.
MOST = {"A": 5.0, "B": 0.75, "C": 0.35, "D": 0.06, "E": 0.16}
PLAIN = {"method": "omp"}
COLUMNS = ("what", "settings", "value", "unit", "limit", "beside", "of")
SIGMA = 20.0
# Samples that the processor learns from, too, and how many iterations both do.
COMPARED, COMPARED_ITERATIONS = 100_000, 20
# Learning from samples that come in chunks is to take no longer than copies at this share of the
# bandwidth.
LEAST_OF_BANDWIDTH = 0.8

Row = tuple[Any, ...]


def main() -> int:
    """Run the command line; 0 if all checks pass."""
    parts: dict[str, Callable[[], Iterator[Row]]] = {
        **{case.name: lambda case=case: iterations(case) for case in CASES},
        "coding": coding,
        "whole": whole,
        "denoise": denoise,
        "learn": learn,
        "large": large,
        "streaming": streaming,
    }
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default=",".join(["checks", *parts]))
    parser.add_argument("--csv", type=Path, default=HERE / "gpu.csv")
    options = parser.parse_args()
    asked = options.only.split(",")
    unknown = set(asked) - {"checks", *parts}
    if unknown:
        parser.error(f"--only: {', '.join(sorted(unknown))} does not exist.")
    code = checks() if "checks" in asked else 0
    with options.csv.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for name, part in parts.items():
            for row in part() if name in asked else ():
                writer.writerow(row)
                file.flush()
                tell(row)
    return code


def tell(row: Row) -> None:
    """Print a row, and whether its limit is kept."""
    what, settings, value, unit, limit, beside, of = row
    text = f"{what:10} {settings:34} {value:10.4g} {unit:6}"
    if limit is not None:
        text += f" limit {limit:g}{'' if value <= limit else ' EXCEEDED'}"
    if beside is not None:
        text += f"  {of} {beside:.6g}"
    print(text, flush=True)


def checks() -> int:
    """The tests that need a GPU."""
    tests = sorted(str(path) for path in (HERE.parent / "tests").glob("test_cuda*.py"))
    command = [sys.executable, "-m", "pytest", "-q", "-m", "slow or not slow", "-k", "[cuda"]
    return subprocess.run([*command, *tests], check=False).returncode


@cache
def samples_of(count: int, m: int) -> np.ndarray:
    """Samples of a case, made once."""
    return image_like(count, m)


def iterations(case: Case) -> Iterator[Row]:
    """Iterations with the paper's coder and with all defaults, samples on the GPU."""
    samples = samples_of(case.samples, case.m)
    few = samples[:COMPARED]
    on_gpu = current_gpu().upload(samples)
    for name, settings, factor in (("plain", PLAIN, 1.0), ("defaults", {}, 2.0)):
        learner(case, device="cuda", max_iter=3, **settings).fit(on_gpu)
        found = learner(case, device="cuda", max_iter=40, **settings).fit(on_gpu)
        yield case.name, name, milliseconds(found), "ms", factor * MOST[case.name], None, ""
        both = {"max_iter": COMPARED_ITERATIONS, **settings}
        ours = learner(case, device="cuda", **both).fit(few)
        processor = learner(case, n_jobs=-1, **both).fit(few)
        errors = [min(model.history_["rmse"]) for model in (ours, processor)]
        yield case.name, name, errors[0], "RMSE", None, errors[1], "processor"


def coding() -> Iterator[Row]:
    """Codes of samples on the GPU, which stay there."""
    for case in CASES:
        on_gpu = current_gpu().upload(samples_of(case.samples, case.m))
        took = {
            name: 1e3 * median(work, 5)
            for name, work in coders(case, current_gpu(), on_gpu).items()
        }
        other = took.get("batched-omp")
        yield "coding", case.name, took["coding"], "ms", None, other, "batched-omp"


def whole() -> Iterator[Row]:
    """100 iterations of A from an array in memory to factors in memory."""
    case = CASES[0]
    samples = samples_of(case.samples, case.m)
    learner(case, device="cuda", max_iter=2, **PLAIN).fit(samples)
    model = learner(case, device="cuda", max_iter=100, **PLAIN)
    seconds = median(lambda: model.fit(samples), 3)
    yield "whole", "A, 100 iterations, NumPy", seconds, "s", 1.0, None, ""


def denoise() -> Iterator[Row]:
    """An image of 512 × 512 with a ready dictionary, from the GPU and from memory."""
    image, dictionary = noisy_camera(), ready_dictionary()
    places = {"gpu": current_gpu().upload(image), "memory": image}
    for stages in (1, 2):
        settings = {"dictionary": dictionary, "stages": stages}
        beside = quality(kl.images.denoise(image, SIGMA, n_jobs=-1, **settings))
        for place, given in places.items():
            for sigma in (SIGMA, None):

                def work(given: Any = given, sigma: Any = sigma, settings: Any = settings) -> Any:
                    return kl.images.denoise(given, sigma, device="cuda", **settings)

                name = f"{stages} stages, in {place}" + ("" if sigma else ", noise unknown")
                yield "denoise", name, 1e3 * median(work, 20), "ms", 3.0, None, ""
        found = current_gpu().download(
            kl.images.denoise(places["gpu"], SIGMA, device="cuda", **settings)
        )
        yield "denoise", f"{stages} stages", quality(found), "dB", None, beside, "processor"
    settings = {"dictionary": dictionary, "device": "cuda"}
    for kernel, took in kernels(lambda: kl.images.denoise(places["gpu"], **settings)).items():
        yield "denoise", kernel, took, "ms", None, None, ""


def kernels(work: Callable[[], Any], runs: int = 5) -> dict[str, float]:
    """The milliseconds of each kernel in the median of some runs, and of the calls that start them.

    What is measured includes the little that the GPU waits for a kernel that follows.
    """
    here, event = current_gpu(), current_gpu().xp.cuda.Event
    launch, found = here.launch_blocks, []

    def timed(file: str, kernel: str, *arguments: Any, **options: Any) -> None:
        events = event(), event()
        events[0].record()
        launch(file, kernel, *arguments, **options)
        events[1].record()
        found[-1].append((kernel, events))

    here.launch_blocks = timed  # type: ignore[method-assign]
    started = []
    try:
        for _ in range(runs):
            found.append([])
            here.finish()
            start = time.perf_counter()
            work()
            started.append(1e3 * (time.perf_counter() - start))
            here.finish()
    finally:
        del here.launch_blocks  # type: ignore[method-assign]
    elapsed, took = here.xp.cuda.get_elapsed_time, {}
    for run in found:
        of_run: dict[str, float] = {}
        for kernel, events in run:
            of_run[kernel] = of_run.get(kernel, 0.0) + elapsed(*events)
        for kernel, milliseconds_ in of_run.items():
            took.setdefault(kernel, []).append(milliseconds_)
    medians = {kernel: statistics.median(times) for kernel, times in took.items()}
    return medians | {
        "all kernels": sum(medians.values()),
        "whole call": statistics.median(started),
    }


def learn() -> Iterator[Row]:
    """The same image with nothing known about it."""
    image = noisy_camera()
    seconds = median(lambda: kl.images.denoise(image, device="cuda"), 5)
    yield "learn", "all defaults, in memory", 1e3 * seconds, "ms", 150.0, None, ""
    full = kl.images.denoise(image, device="cuda", full=True)
    for stage, took in full.seconds.items():
        yield "learn", stage, 1e3 * took, "ms", None, None, ""
    processor = kl.images.denoise(image, n_jobs=-1)
    yield "learn", "all defaults", quality(full.image), "dB", None, quality(processor), "processor"


def large() -> Iterator[Row]:
    """An image of 8192 × 8192 from memory."""
    pool = current_gpu().xp.get_default_memory_pool()
    clean = np.tile(camera().astype(np.float32), (16, 16))
    noise = np.random.default_rng(0).standard_normal(clean.shape, np.float32)
    noisy, dictionary = clean + np.float32(SIGMA) * noise, ready_dictionary()
    pool.free_all_blocks()
    before, shares = pool.total_bytes(), []

    def on_share(stage: str, share: float) -> None:
        shares.append((stage, share))

    start = time.perf_counter()
    found = kl.images.denoise(noisy, SIGMA, dictionary=dictionary, device="cuda", progress=on_share)
    yield "large", "8192 × 8192", time.perf_counter() - start, "s", None, len(shares), "steps"
    # Blocks that are free are kept: all that was ever taken at a time is counted.
    taken = (pool.total_bytes() - before) / 1e9
    patches = clean.size * 64 * 4 / 1e9
    yield "large", "most memory on the GPU", taken, "GB", None, patches, "GB in patches"
    yield "large", "8192 × 8192", quality(found, clean), "dB", None, None, ""
    pool.free_all_blocks()


def streaming() -> Iterator[Row]:
    """Samples that take three times the memory they may take."""
    case = CASES[0]
    samples = samples_of(case.samples, case.m)
    size, bandwidth = samples.nbytes / 1e9, copy_bandwidth()
    for name, seconds in passes(samples).items():
        yield "streaming", f"chunks alone, {name}", size / seconds, "GB/s", None, bandwidth, "copy"
    atoms_16 = replace(case, n=16, s=6)
    # Sums of one mode after the other need the samples twice.
    for name, what, settings, times in (
        ("A", case, PLAIN, 1),
        ("A, defaults", case, {}, 1),
        ("B", CASES[1], {}, 1),
        ("16 × 16 atoms", atoms_16, PLAIN, 2),
        ("16 × 16 atoms, defaults", atoms_16, {}, 2),
    ):
        with kl.cuda.memory_limit(2 * samples.nbytes // 3):
            took = milliseconds(learner(what, device="cuda", max_iter=10, **settings).fit(samples))
        limit = 1e3 * times * size / (LEAST_OF_BANDWIDTH * bandwidth)
        yield "streaming", f"learning, {name}", took, "ms", limit, None, ""
        speed = times * size / (took / 1e3)
        yield "streaming", f"learning, {name}", speed, "GB/s", None, bandwidth, "copy"


def passes(samples: np.ndarray) -> dict[str, float]:
    """Seconds in which samples come to the GPU, in chunks, and nothing is done with them."""
    source, chunk = ArraySource(samples, samples.shape[1:]), len(samples) // 64
    pieces = [slice(a, min(a + chunk, len(samples))) for a in range(0, len(samples), chunk)]

    def work() -> None:
        for _ in current_gpu().stream(source, pieces):
            pass

    # The first pass copies, the second pins; later ones do neither.
    return {"first pass": median(work, 1, warm=False), "later passes": median(work, 5)}


def copy_bandwidth() -> float:
    """GB/s of a copy from pinned memory to the GPU."""
    xp, count = current_gpu().xp, 1 << 28
    pinned = np.frombuffer(xp.cuda.alloc_pinned_memory(count), np.uint8, count)
    there = xp.empty(count, np.uint8)
    return count / 1e9 / median(lambda: there.set(pinned), 10)


@cache
def noisy_camera() -> np.ndarray:
    """An image of 512 × 512 with noise, float32."""
    noise = np.random.default_rng(0).standard_normal((512, 512), np.float32)
    return camera().astype(np.float32) + np.float32(SIGMA) * noise


@cache
def ready_dictionary() -> Any:
    """A dictionary of 8 × 8 pixels and 16 × 16 atoms for the image."""
    settings = {"patch_size": 8, "n_atoms": 16, "stages": 1}
    return kl.images.denoise(noisy_camera(), SIGMA, n_jobs=-1, full=True, **settings).dictionary


def quality(found: np.ndarray, clean: Any = None) -> float:
    """The PSNR in dB."""
    clean = camera() if clean is None else clean
    return float(-10 * np.log10(np.mean((found - clean.astype(np.float64)) ** 2) / 255**2))


def median(work: Callable[[], Any], count: int, warm: bool = True) -> float:
    """The median seconds of some runs; the GPU has finished when one ends."""
    finish = current_gpu().xp.cuda.Device().synchronize
    seconds = []
    for run in range(count + warm):
        start = time.perf_counter()
        work()
        finish()
        if run >= warm:
            seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


if __name__ == "__main__":
    sys.exit(main())
