"""``kronlearn bench gpu``: everything that runs on a GPU, through the public interface.

- A to I: milliseconds per iteration of learning from samples on the GPU, and for coding them once,
  compared with the processor and with the package batched-omp, where installed,
- whole: 100 iterations of A, from an array in memory to factors in memory,
- denoise: 512 × 512 pixels with a ready dictionary of 8 × 8 pixels and 16 × 16 atoms, and with one
  that is learned first; 8192 × 8192 pixels, and the peak of the GPU's memory,
- streaming: samples three times as large as the memory that they may take, compared with the time
  of copying them.

Numbers are medians of several runs after one that compiles.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

import kronlearn as kl
from kronlearn.cuda.device import current_gpu
from kronlearn.experiments.data import included_images, noisy, perturbed_dct, psnr
from kronlearn.experiments.report import Report, Table
from kronlearn.experiments.store import save_rows
from kronlearn.experiments.timing import Progress, benchmark, median_seconds, seconds_per_iteration
from kronlearn.options import Quick, Repetitions, Rows

__all__ = ["CASES", "Case", "Row", "run"]


@dataclass(frozen=True)
class Case:
    """N samples of m × m, n × n atoms, s nonzeros or an error target.

    A tenth of the entries of ``incomplete`` samples are missing.
    """

    samples: int
    m: int
    n: int
    s: int | None
    structure: str = "general"
    dtype: str = "float32"
    tol: float | None = None
    incomplete: bool = False


#: The paper's hyperspectral patches with both structures; image patches, many, few and large; and
#: cases that only the general kernels serve: another shape, float64, an error target, weights.
CASES = {
    "A": Case(3_913_140, 8, 8, 16),
    "B": Case(3_913_140, 8, 8, 16, "orthonormal"),
    "C": Case(255_025, 8, 16, 6),
    "D": Case(9_216, 8, 16, 6),
    "E": Case(8_000, 32, 32, 8),
    "F": Case(255_025, 9, 15, 7),
    "G": Case(255_025, 8, 16, 6, dtype="float64"),
    "H": Case(255_025, 8, 16, None, tol=30.0),
    "I": Case(255_025, 8, 16, 6, incomplete=True),
}


@dataclass(frozen=True)
class Row:
    """A measured value, and ``beside`` it that of the processor or another program, ``of``."""

    what: str
    settings: str
    value: float
    unit: str
    beside: float | None = None
    of: str = ""


_PLAIN: dict[str, Any] = {"method": "omp"}
_SIGMA = 20.0
_QUICK_SAMPLES = 400
# On the slower processor, fewer iterations suffice for a median.
_ITERATIONS, _ITERATIONS_OF_PROCESSOR = 40, 4
# batched-omp gets samples in blocks whose intermediate arrays hold about this many numbers.
_NUMBERS_AT_A_TIME = 1 << 28
_CASES_OF_BATCHED_OMP = "ACDEF"


def _case(text: str) -> str:
    if text.upper() not in tuple("ABCDEFGHI"):
        raise typer.BadParameter(f"{text!r} is not a case; give one of A to I.")
    return text.upper()


def run(
    *,
    progress: Progress,
    cases: Annotated[
        list[Any] | None,
        typer.Option(
            "--case",
            parser=_case,
            metavar="A",
            help="A case to measure, A to I; may be repeated.",
            show_default="all",
        ),
    ] = None,
    everything: Annotated[
        bool,
        typer.Option(
            "--all", help="Also measure images, whole fits and streaming; takes three minutes."
        ),
    ] = False,
    repetitions: Repetitions = 5,
    csv: Rows = None,
    quick: Quick = False,
) -> Report:
    """Time cases A to I, all by default, and with ``everything`` the other parts too."""
    parts: dict[str, Callable[[], Iterator[Row]]] = {
        name: partial(_measure_case, name, repetitions, quick) for name in cases or CASES
    }
    if everything:
        parts |= {"whole": _whole, "denoise": _denoise, "streaming": _streaming}
    with progress("GPU", len(parts)) as advance:

        def measure() -> Iterator[Row]:
            for name, part in parts.items():
                yield from part()
                advance(name)

        rows = [asdict(row) for row in save_rows(measure(), csv, Row)]
    batched_omp, reason = competitor()
    shown: list[str | Table] = [
        f"GPU {_gpu_name()}; samples on the GPU, or in memory for all cores.",
        *([] if batched_omp else [f"batched-omp {reason}: left out."]),
        Table.of("On a GPU", rows, "what settings value:.4g unit beside:.6g of"),
    ]
    name = "batched-omp" if batched_omp else None
    return benchmark(shown, gpu=_gpu_name(), competitor=name, rows=rows)


def _gpu_name() -> str:
    cuda = current_gpu().xp.cuda
    return str(cuda.runtime.getDeviceProperties(cuda.Device().id)["name"].decode())


def _measure_case(name: str, repetitions: int, quick: bool) -> Iterator[Row]:
    """Time iterations and coding of samples on the GPU."""
    case = CASES[name]
    case = replace(case, samples=min(case.samples, _QUICK_SAMPLES)) if quick else case
    samples = image_like(case.samples, case.m).astype(case.dtype, copy=False)
    on_gpu = current_gpu().upload(samples)
    if not case.incomplete:
        yield from _learning(name, case, samples, on_gpu, quick)
    yield from _coding(name, case, samples, on_gpu, repetitions)


def _learning(name: str, case: Case, samples: Any, on_gpu: Any, quick: bool) -> Iterator[Row]:
    """Time iterations with the paper's coder and with all defaults."""
    few = {"max_iter": _ITERATIONS_OF_PROCESSOR}
    many = few if quick else {"max_iter": _ITERATIONS}
    for kind, settings in (("plain", _PLAIN), ("defaults", {})):
        # The first fit compiles kernels.
        _learner(case, device="cuda", **few, **settings).fit(on_gpu)
        gpu = _milliseconds_per_iteration(case, on_gpu, device="cuda", **many, **settings)
        processor = _milliseconds_per_iteration(case, samples, n_jobs=-1, **few, **settings)
        yield Row(name, kind, gpu, "ms", processor, "processor")


def _coding(name: str, case: Case, samples: Any, on_gpu: Any, repetitions: int) -> Iterator[Row]:
    method = "threshold" if case.structure == "orthonormal" else "omp"
    dictionary = perturbed_dct((case.m, case.m), (case.n, case.n))
    if method == "threshold":
        dictionary = kl.KroneckerDictionary([np.linalg.qr(f)[0] for f in dictionary.factors])
    settings = case.s, case.tol, method
    weights = np.random.default_rng(0).random(samples.shape) < 0.9 if case.incomplete else None
    code = partial(kl.sparse_code, weights=weights)
    work = partial(code, on_gpu, dictionary, *settings, device="cuda")
    gpu = 1e3 * _median_seconds(work, repetitions)
    others = {"processor": partial(code, samples, dictionary, *settings, n_jobs=-1)}
    if competitor()[0] is not None and name in _CASES_OF_BATCHED_OMP:
        others["batched-omp"] = partial(_batched_omp, dictionary, case, on_gpu)
    for other, work in others.items():
        yield Row(name, "coding", gpu, "ms", 1e3 * _median_seconds(work, repetitions), other)


@cache
def image_like(count: int, m: int) -> NDArray[np.float32]:
    """Make smooth samples (count, m, m) with edges, and keep them."""
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
    return kl.KroneckerDictionaryLearning(
        case.n,
        n_nonzero_coefs=case.s,
        tol=case.tol,
        structure=case.structure,
        random_state=0,
        **settings,
    )


def _milliseconds_per_iteration(case: Case, samples: Any, **settings: Any) -> float:
    return 1e3 * seconds_per_iteration(_learner(case, **settings).fit(samples))


def _median_seconds(work: Callable[[], Any], repetitions: int) -> float:
    """Return the median seconds of work, until the GPU has finished it."""

    def finish() -> None:
        work()
        current_gpu().finish()

    return median_seconds(finish, repetitions)


def competitor() -> tuple[Any, str]:
    """Import PyTorch and batched-omp's coding function; or return None and the reason why not."""
    if find_spec("batched_omp") is None:
        return None, "is not installed"
    try:
        with warnings.catch_warnings():
            # batched-omp warns that it was renamed.
            warnings.simplefilter("ignore", DeprecationWarning)
            return (import_module("torch"), import_module("batched_omp").run_omp), ""
    except Exception as problem:
        # Without PyTorch, or with PyTorch for another CUDA, imports raise errors of many types.
        return None, f"cannot be imported ({problem})"


def _batched_omp(dictionary: Any, case: Case, on_gpu: Any) -> None:
    """Code all samples by batched-omp, in blocks that keep its intermediate arrays small."""
    torch, run_omp = competitor()[0]
    samples = torch.from_dlpack(on_gpu).reshape(len(on_gpu), -1)
    atoms = torch.as_tensor(dictionary.to_dense(), device=samples.device)
    step = max(1, _NUMBERS_AT_A_TIME // (case.s * dictionary.n_codes))
    for start in range(0, len(samples), step):
        part = samples[start : start + step]
        run_omp(atoms, part, case.s, normalize=False, fit_intercept=False)
    torch.cuda.synchronize()


def _whole() -> Iterator[Row]:
    """Time 100 iterations of A, from an array in memory to factors in memory."""
    case = CASES["A"]
    samples = image_like(case.samples, case.m)
    model = _learner(case, device="cuda", max_iter=100, **_PLAIN)
    seconds = _median_seconds(lambda: model.fit(samples), 3)
    yield Row("whole", "A, 100 iterations, NumPy", seconds, "s")


def _denoise() -> Iterator[Row]:
    """Time denoising 512 × 512 pixels, on the GPU and in memory, and 8192 × 8192 pixels."""
    (clean,) = included_images(["camera"])
    image = noisy(clean, _SIGMA)
    first = kl.images.denoise(
        image, _SIGMA, patch_size=8, n_atoms=16, quality="dictionary", full=True
    )
    ready = partial(kl.images.denoise, dictionary=first.dictionary)
    on_gpu = partial(ready, device="cuda")
    for name, work in {
        "ready dictionary, on the GPU": partial(on_gpu, current_gpu().upload(image), _SIGMA),
        "ready dictionary, in memory": partial(on_gpu, image, _SIGMA),
        "ready dictionary, fast, in memory": partial(on_gpu, image, _SIGMA, quality="fast"),
        "ready dictionary, best, in memory": partial(on_gpu, image, _SIGMA, quality="best"),
        "ready dictionary alone, in memory": partial(on_gpu, image, _SIGMA, quality="dictionary"),
        "ready dictionary, noise unknown, in memory": partial(on_gpu, image),
        "all defaults, in memory": partial(kl.images.denoise, image, device="cuda"),
    }.items():
        yield Row("denoise", name, 1e3 * _median_seconds(work, 20), "ms")
    gpu, processor = on_gpu(image, _SIGMA), ready(image, _SIGMA, n_jobs=-1)
    quality = psnr(clean, gpu), "dB", psnr(clean, processor), "processor"
    yield Row("denoise", "ready dictionary", *quality)
    large, pool = np.tile(image, (16, 16)), current_gpu().xp.get_default_memory_pool()
    pool.free_all_blocks()
    before = pool.total_bytes()
    yield Row("denoise", "8192 × 8192", _median_seconds(partial(on_gpu, large, _SIGMA), 1), "s")
    # The pool keeps free blocks, so this is the peak.
    yield Row("denoise", "8192 × 8192, memory", (pool.total_bytes() - before) / 1e9, "GB")
    pool.free_all_blocks()


def _streaming() -> Iterator[Row]:
    """Time learning from samples three times as large as the memory they may take.

    They may take half of the memory limit; the times are compared with those of copying them.
    """
    samples = image_like(CASES["A"].samples, CASES["A"].m)
    copy = samples.nbytes / 1e6 / _copy_bandwidth()
    # With 16 × 16 atoms the modes are summed one after the other, which reads the samples twice.
    for name, case, n_reads in (
        ("A", CASES["A"], 1),
        ("B", CASES["B"], 1),
        ("16 × 16 atoms", replace(CASES["A"], n=16, s=6), 2),
    ):
        for kind, settings in (("plain", _PLAIN), ("defaults", {})):
            fit = {"device": "cuda", "max_iter": 10, **settings}
            with kl.cuda.memory_limit(2 * samples.nbytes // 3):
                took = _milliseconds_per_iteration(case, samples, **fit)
            yield Row("streaming", f"{name}, {kind}", took, "ms", n_reads * copy, "copies alone")


def _copy_bandwidth() -> float:
    """Return the GB/s of a copy from pinned memory to the GPU."""
    xp, count = current_gpu().xp, 1 << 28
    pinned = np.frombuffer(xp.cuda.alloc_pinned_memory(count), np.uint8, count)
    target = xp.empty(count, np.uint8)
    return count / 1e9 / _median_seconds(lambda: target.set(pinned), 10)
