"""``kronlearn bench gpu``: everything that runs on a GPU, through the public interface.

- A to E: milliseconds per iteration of learning from samples that lie on the GPU, beside the
  processor's, and the RMSE of both; the same samples coded once, beside the package batched-omp
  where that is installed,
- whole: 100 iterations of A, from an array in memory to factors in memory,
- denoise: 512 × 512 pixels with a ready dictionary of 8 × 8 pixels and 16 × 16 atoms, and how long
  each kernel takes,
- learn: the same with a dictionary that is learned first, and noise that is estimated,
- large: 8192 × 8192 pixels, and the most memory that was taken on the GPU,
- streaming: samples of three times the memory that they may take, beside what a copy can do.

Numbers are medians of several runs after one that compiles. Limits are for an H200.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import kronlearn as kl
from kronlearn.cuda.device import current_gpu
from kronlearn.experiments.data import included_images, perturbed_dct, psnr
from kronlearn.experiments.report import Report, Table
from kronlearn.experiments.store import Store
from kronlearn.experiments.timing import Progress, benchmark, no_progress
from kronlearn.io.arrays import ArraySource

__all__ = ["CASES", "Case", "Row", "run"]


@dataclass(frozen=True)
class Case:
    """N samples of m × m, n × n atoms, s nonzeros; the most milliseconds of an iteration.

    That is with the paper's coder; with all defaults it may take twice as many.
    """

    samples: int
    m: int
    n: int
    s: int
    limit: float
    structure: str = "general"


#: The paper's hyperspectral patches with both structures, image patches, few of them, large ones.
CASES = {
    "A": Case(3_913_140, 8, 8, 16, 5.0),
    "B": Case(3_913_140, 8, 8, 16, 0.75, "orthonormal"),
    "C": Case(255_025, 8, 16, 6, 0.35),
    "D": Case(9_216, 8, 16, 6, 0.06),
    "E": Case(8_000, 32, 32, 8, 0.16),
}


@dataclass(frozen=True)
class Row:
    """A measured value, the limit it should keep, and another number beside it."""

    what: str
    settings: str
    value: float
    unit: str
    limit: float | None = None
    beside: float | None = None
    of: str = ""


_PLAIN: dict[str, Any] = {"method": "omp"}
_SIGMA = 20.0
_QUICK_SAMPLES = 400
# The processor takes longer: fewer iterations of it are enough for a median. How well both do is
# compared on some of the samples.
_ITERATIONS, _ITERATIONS_OF_PROCESSOR = 40, 4
_COMPARED, _COMPARED_ITERATIONS = 100_000, 20
# Learning from samples that come in chunks is to take no longer than copies at this share of the
# bandwidth.
_LEAST_OF_BANDWIDTH = 0.8
# Torch tensors of about this many numbers are what batched-omp works with at a time.
_NUMBERS_AT_A_TIME = 1 << 28
# The package batched-omp, by its name and by its earlier one.
_COMPETITORS = ("orthogonal_matching_pursuit_gpu", "batched_omp")


def run(
    *,
    cases: Sequence[str] = (),
    everything: bool = False,
    csv: Path | None = None,
    repetitions: int = 5,
    quick: bool = False,
    progress: Progress = no_progress,
) -> Report:
    """Time some of A to E, or all of them, or everything."""
    parts: dict[str, Callable[[], Iterator[Row]]] = {
        name: partial(_case, name, repetitions, quick) for name in cases_named(cases)
    }
    if everything:
        parts |= {"whole": _whole, "denoise": _denoise, "learn": _learn}
        parts |= {"large": _large, "streaming": _streaming}
    if csv is not None:
        csv.unlink(missing_ok=True)
    store = None if csv is None else Store(csv, Row)
    rows = []
    with progress("GPU", len(parts)) as advance:
        for name, part in parts.items():
            for row in part():
                rows.append(row if store is None else store.add(row))
            advance(name)
    records = [asdict(row) for row in rows]
    columns = "what settings value:.4g unit limit:.3g beside:.6g of"
    missed = [f"{r.what}, {r.settings}: {r.value:.3g} {r.unit}" for r in rows if _exceeds(r)]
    shown: list[str | Table] = [
        f"GPU {_gpu_name()}; float32, samples on the GPU, or in memory for all cores.",
        *([] if competitor() else ["batched-omp is not installed: left out."]),
        *(["A quick run: too few samples for the times to mean much."] if quick else []),
        Table.of("On a GPU", records, columns),
        *([] if quick else [f"Limits (of an H200) exceeded: {'; '.join(missed) or 'none'}."]),
    ]
    return benchmark(shown, gpu=_gpu_name(), competitor=competitor(), rows=records)


def cases_named(names: Sequence[str]) -> list[str]:
    """These cases; all without any."""
    for name in names:
        if name.upper() not in CASES:
            raise ValueError(f"--case {name} does not exist; choose one of {', '.join(CASES)}.")
    return [name.upper() for name in names] or list(CASES)


def _exceeds(row: Row) -> bool:
    return row.limit is not None and row.value > row.limit


def _gpu_name() -> str:
    cuda = current_gpu().xp.cuda
    return str(cuda.runtime.getDeviceProperties(cuda.Device().id)["name"].decode())


def _synchronize() -> None:
    current_gpu().xp.cuda.Device().synchronize()


def _case(name: str, repetitions: int, quick: bool) -> Iterator[Row]:
    """Iterations with the paper's coder and with all defaults, and coding; samples on the GPU."""
    case = CASES[name]
    case = replace(case, samples=min(case.samples, _QUICK_SAMPLES)) if quick else case
    samples = image_like(case.samples, case.m)
    on_gpu = current_gpu().upload(samples)
    few = {"max_iter": _ITERATIONS_OF_PROCESSOR}
    many = few if quick else {"max_iter": _ITERATIONS}
    for kind, settings, factor in (("plain", _PLAIN, 1.0), ("defaults", {}, 2.0)):
        # The first fit compiles kernels.
        _learner(case, device="cuda", **few, **settings).fit(on_gpu)
        found = _milliseconds(_learner(case, device="cuda", **many, **settings).fit(on_gpu))
        beside = _milliseconds(_learner(case, n_jobs=-1, **few, **settings).fit(samples))
        yield Row(name, kind, found, "ms", factor * case.limit, beside, "processor")
        both = {"max_iter": 3 if quick else _COMPARED_ITERATIONS, **settings}
        models = [
            _learner(case, **where, **both).fit(samples[:_COMPARED])
            for where in ({"device": "cuda"}, {"n_jobs": -1})
        ]
        found, beside = (min(model.history_["rmse"]) for model in models)
        yield Row(name, kind, found, "RMSE", None, beside, "processor")
    took = {k: 1e3 * _median(work, repetitions) for k, work in _coders(case, on_gpu).items()}
    other = took.get("batched-omp")
    yield Row(name, "coding", took["coding"], "ms", None, other, "batched-omp" if other else "")


@cache
def image_like(count: int, m: int) -> NDArray[np.float32]:
    """Smooth samples (count, m, m) with edges, made once."""
    rng = np.random.default_rng(0)
    samples = np.empty((count, m, m), np.float32)
    for start in range(0, count, 65536):
        size = min(65536, count - start)
        smooth = rng.standard_normal((size, m, m), np.float32).cumsum(axis=1).cumsum(axis=2)
        edge = np.arange(m) > rng.integers(m, size=(size, 1, 1))
        jumps = rng.standard_normal((size, 1, 1), np.float32) * edge
        samples[start : start + size] = 4 * smooth + 30 * jumps
    return samples


def _learner(case: Case, **settings: Any) -> kl.KroneckerDictionaryLearning:
    usual: dict[str, Any] = {"n_nonzero_coefs": case.s, "structure": case.structure}
    return kl.KroneckerDictionaryLearning(case.n, random_state=0, **(usual | settings))


def _milliseconds(model: kl.KroneckerDictionaryLearning) -> float:
    """The median iteration of a fitted model; the first ones, which set up, do not count."""
    steps = np.diff(model.history_["seconds"])
    return 1e3 * statistics.median(steps[len(steps) // 4 :])


def _median(work: Callable[[], Any], count: int, warm: bool = True) -> float:
    """The median seconds of some runs; the GPU has finished when one ends."""
    seconds = []
    for number in range(count + warm):
        start = time.perf_counter()
        work()
        _synchronize()
        if number >= warm:
            seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def competitor() -> str | None:
    """The module of batched-omp, if it is installed."""
    return next((name for name in _COMPETITORS if find_spec(name)), None)


def _coders(case: Case, on_gpu: Any) -> dict[str, Callable[[], Any]]:
    """What codes the samples of a case alone, samples and codes on the GPU, by name."""
    dictionary = perturbed_dct((case.m, case.m), (case.n, case.n))
    if case.structure == "orthonormal":
        dictionary = kl.KroneckerDictionary([np.linalg.qr(f)[0] for f in dictionary.factors])
    method = "threshold" if case.structure == "orthonormal" else "omp"
    ours = partial(kl.sparse_code, on_gpu, dictionary, case.s, method=method, device="cuda")
    module = competitor()
    if module is None or method != "omp":
        return {"coding": ours}
    return {"coding": ours, "batched-omp": partial(_batched_omp, module, dictionary, case, on_gpu)}


def _batched_omp(module: str, dictionary: Any, case: Case, on_gpu: Any) -> None:
    """Code all samples by batched-omp, as many at a time as its intermediates allow."""
    torch = import_module("torch")
    with warnings.catch_warnings():
        # The earlier name is still a package of its own, which warns that it is.
        warnings.simplefilter("ignore", DeprecationWarning)
        run_omp = import_module(module).run_omp
    samples = torch.from_dlpack(on_gpu).reshape(len(on_gpu), -1)
    atoms = torch.as_tensor(dictionary.to_dense(), device=samples.device)
    step = max(1, _NUMBERS_AT_A_TIME // (case.s * dictionary.n_codes))
    for start in range(0, len(samples), step):
        part = samples[start : start + step]
        run_omp(atoms, part, case.s, normalize=False, fit_intercept=False)
    torch.cuda.synchronize()


def _whole() -> Iterator[Row]:
    """100 iterations of A from an array in memory to factors in memory."""
    case = CASES["A"]
    samples = image_like(case.samples, case.m)
    _learner(case, device="cuda", max_iter=2, **_PLAIN).fit(samples)
    model = _learner(case, device="cuda", max_iter=100, **_PLAIN)
    seconds = _median(lambda: model.fit(samples), 3)
    yield Row("whole", "A, 100 iterations, NumPy", seconds, "s", 1.0)


@cache
def _camera() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """An image of 512 × 512, clean and with noise."""
    (clean,) = included_images(["camera"])
    noise = np.random.default_rng(0).standard_normal(clean.shape, np.float32)
    return clean, clean + np.float32(_SIGMA) * noise


@cache
def _ready_dictionary() -> Any:
    """A dictionary of 8 × 8 pixels and 16 × 16 atoms for the image."""
    settings: dict[str, Any] = {"patch_size": 8, "n_atoms": 16, "stages": 1, "full": True}
    return kl.images.denoise(_camera()[1], _SIGMA, n_jobs=-1, **settings).dictionary


def _denoise() -> Iterator[Row]:
    """An image of 512 × 512 with a ready dictionary, from the GPU and from memory."""
    clean, image = _camera()
    on_gpu = current_gpu().upload(image)
    for stages in (1, 2):
        settings = {"dictionary": _ready_dictionary(), "stages": stages}
        for place, given in (("gpu", on_gpu), ("memory", image)):
            for sigma in (_SIGMA, None):
                work = partial(kl.images.denoise, given, sigma, device="cuda", **settings)
                name = f"{stages} stages, in {place}" + ("" if sigma else ", noise unknown")
                yield Row("denoise", name, 1e3 * _median(work, 20), "ms", 3.0)
        found = kl.images.denoise(on_gpu, _SIGMA, device="cuda", **settings)
        found = psnr(clean, current_gpu().download(found))
        beside = psnr(clean, kl.images.denoise(image, _SIGMA, n_jobs=-1, **settings))
        yield Row("denoise", f"{stages} stages", found, "dB", None, beside, "processor")
    work = partial(kl.images.denoise, on_gpu, dictionary=_ready_dictionary(), device="cuda")
    for kernel, took in _kernels(work).items():
        yield Row("denoise", kernel, took, "ms")


def _kernels(work: Callable[[], Any], runs: int = 5) -> dict[str, float]:
    """The milliseconds of each kernel in the median of some runs, and of the calls that start them.

    What is measured includes the little that the GPU waits for a kernel that follows.
    """
    here, event = current_gpu(), current_gpu().xp.cuda.Event
    launch = here.launch_blocks
    found: list[list[tuple[str, Any]]] = []

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
        del here.launch_blocks
    elapsed = here.xp.cuda.get_elapsed_time
    took: dict[str, list[float]] = {}
    for launched in found:
        of_run: dict[str, float] = {}
        for kernel, events in launched:
            of_run[kernel] = of_run.get(kernel, 0.0) + elapsed(*events)
        for kernel, milliseconds in of_run.items():
            took.setdefault(kernel, []).append(milliseconds)
    medians = {kernel: statistics.median(times) for kernel, times in took.items()}
    whole = {"all kernels": sum(medians.values()), "whole call": statistics.median(started)}
    return medians | whole


def _learn() -> Iterator[Row]:
    """The same image with nothing known about it."""
    clean, image = _camera()
    seconds = _median(lambda: kl.images.denoise(image, device="cuda"), 5)
    yield Row("learn", "all defaults, in memory", 1e3 * seconds, "ms", 150.0)
    full = kl.images.denoise(image, device="cuda", full=True)
    for stage, took in full.seconds.items():
        yield Row("learn", stage, 1e3 * took, "ms")
    beside = psnr(clean, kl.images.denoise(image, n_jobs=-1))
    yield Row("learn", "all defaults", psnr(clean, full.image), "dB", None, beside, "processor")


def _large() -> Iterator[Row]:
    """An image of 8192 × 8192 from memory."""
    pool = current_gpu().xp.get_default_memory_pool()
    clean = np.tile(_camera()[0], (16, 16))
    noise = np.random.default_rng(0).standard_normal(clean.shape, np.float32)
    noisy, dictionary = clean + np.float32(_SIGMA) * noise, _ready_dictionary()
    pool.free_all_blocks()
    before, shares = pool.total_bytes(), []
    settings = {"dictionary": dictionary, "device": "cuda"}
    start = time.perf_counter()
    found = kl.images.denoise(noisy, _SIGMA, progress=lambda *at: shares.append(at), **settings)
    seconds = time.perf_counter() - start
    yield Row("large", "8192 × 8192", seconds, "s", None, len(shares), "steps")
    # Blocks that are free are kept: all that was ever taken at a time is counted.
    taken, patches = (pool.total_bytes() - before) / 1e9, clean.size * 64 * 4 / 1e9
    yield Row("large", "most memory on the GPU", taken, "GB", None, patches, "GB in patches")
    yield Row("large", "8192 × 8192", psnr(clean, found), "dB")
    pool.free_all_blocks()


def _streaming() -> Iterator[Row]:
    """Samples that take three times the memory they may take."""
    case = CASES["A"]
    samples = image_like(case.samples, case.m)
    size, bandwidth = samples.nbytes / 1e9, _copy_bandwidth()
    for name, seconds in _passes(samples).items():
        speed = size / seconds
        yield Row("streaming", f"chunks alone, {name}", speed, "GB/s", None, bandwidth, "copy")
    atoms_16 = replace(case, n=16, s=6)
    # Sums of one mode after the other need the samples twice.
    for name, what, settings, times in (
        ("A", case, _PLAIN, 1),
        ("A, defaults", case, {}, 1),
        ("B", CASES["B"], {}, 1),
        ("16 × 16 atoms", atoms_16, _PLAIN, 2),
        ("16 × 16 atoms, defaults", atoms_16, {}, 2),
    ):
        with kl.cuda.memory_limit(2 * samples.nbytes // 3):
            model = _learner(what, device="cuda", max_iter=10, **settings).fit(samples)
        took = _milliseconds(model)
        limit = 1e3 * times * size / (_LEAST_OF_BANDWIDTH * bandwidth)
        yield Row("streaming", f"learning, {name}", took, "ms", limit)
        speed = times * size / (took / 1e3)
        yield Row("streaming", f"learning, {name}", speed, "GB/s", None, bandwidth, "copy")


def _passes(samples: NDArray[np.float32]) -> dict[str, float]:
    """Seconds in which samples come to the GPU, in chunks, and nothing is done with them."""
    source, chunk = ArraySource(samples, samples.shape[1:]), len(samples) // 64
    pieces = [slice(a, min(a + chunk, len(samples))) for a in range(0, len(samples), chunk)]

    def work() -> None:
        for _ in current_gpu().stream(source, pieces):
            pass

    # The first pass copies, the second pins; later ones do neither.
    return {"first pass": _median(work, 1, warm=False), "later passes": _median(work, 5)}


def _copy_bandwidth() -> float:
    """GB/s of a copy from pinned memory to the GPU."""
    xp, count = current_gpu().xp, 1 << 28
    pinned = np.frombuffer(xp.cuda.alloc_pinned_memory(count), np.uint8, count)
    there = xp.empty(count, np.uint8)
    return count / 1e9 / _median(lambda: there.set(pinned), 10)
