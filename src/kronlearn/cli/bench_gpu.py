"""``kronlearn bench gpu``: learning and coding on this machine's GPU, beside its processor."""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

import kronlearn as kl
from kronlearn.cli.bench_coding import perturbed_dct
from kronlearn.cli.devices import use_device
from kronlearn.cli.output import Output
from kronlearn.cli.timing import interleaved, machine
from kronlearn.cuda.device import current_gpu

__all__ = [
    "CASES",
    "Case",
    "cases_named",
    "coders",
    "competitor",
    "image_like",
    "learner",
    "milliseconds",
    "run",
]


@dataclass(frozen=True)
class Case:
    """N samples of m × m, n × n atoms, s nonzeros."""

    name: str
    samples: int
    m: int
    n: int
    s: int
    structure: str = "general"


#: The paper's hyperspectral patches with both structures, image patches, few of them, large ones.
CASES = (
    Case("A", 3_913_140, 8, 8, 16),
    Case("B", 3_913_140, 8, 8, 16, "orthonormal"),
    Case("C", 255_025, 8, 16, 6),
    Case("D", 9_216, 8, 16, 6),
    Case("E", 8_000, 32, 32, 8),
)
_QUICK_SAMPLES = 400
# The paper's coder, beside the default one.
_PLAIN: dict[str, Any] = {"method": "omp"}
# The processor takes longer: fewer iterations of it are enough for a median.
_ITERATIONS, _ITERATIONS_OF_PROCESSOR = 40, 4
# Torch tensors of about this many numbers are what batched-omp works with at a time.
_NUMBERS_AT_A_TIME = 1 << 28
# The package batched-omp, by its name and by its earlier one.
_COMPETITORS = ("orthogonal_matching_pursuit_gpu", "batched_omp")


def cases_named(names: Sequence[str]) -> list[Case]:
    """The cases of these names; all without any."""
    known = {case.name: case for case in CASES}
    for name in names:
        if name.upper() not in known:
            raise ValueError(f"--case {name} does not exist; choose one of {', '.join(known)}.")
    return [known[name.upper()] for name in names] or list(CASES)


def run(cases: Sequence[Case], repetitions: int, quick: bool, output: Output) -> None:
    """Time every case on the GPU and on all cores, and print the table."""
    use_device("cuda", output, "bench gpu", "bench learning needs none")
    gpu = current_gpu()
    facts = {"GPU": _gpu_name(gpu), **machine()}
    output.say(", ".join(f"{name} {value}" for name, value in facts.items()))
    output.say("float32; samples lie on the GPU, or for the processor, on all cores, in memory.")
    if quick:
        output.say("A quick run: too few samples for the times to mean much.")
    if competitor() is None:
        output.say("batched-omp is not installed: left out.")
    rows = []
    for case in cases:
        few = replace(case, samples=min(case.samples, _QUICK_SAMPLES)) if quick else case
        samples = image_like(few.samples, few.m)
        on_gpu = gpu.upload(samples)
        row = _learning(few, samples, on_gpu, quick, output)
        runs, times = coders(few, gpu, on_gpu), 1 if quick else repetitions
        seconds = interleaved(runs, times, output, f"{few.name}, coding")
        row |= {f"{name} ms": 1e3 * value for name, value in seconds.items()}
        rows.append(row)
    output.say(_table(rows))
    output.finish({"machine": facts, "competitor": competitor(), "rows": rows})


def competitor() -> str | None:
    """The module of batched-omp, if it is installed."""
    return next((name for name in _COMPETITORS if find_spec(name)), None)


def image_like(count: int, m: int) -> NDArray[np.float32]:
    """Smooth samples (count, m, m) with edges."""
    rng = np.random.default_rng(0)
    samples = np.empty((count, m, m), np.float32)
    for start in range(0, count, 65536):
        size = min(65536, count - start)
        smooth = rng.standard_normal((size, m, m), np.float32).cumsum(axis=1).cumsum(axis=2)
        edge = np.arange(m) > rng.integers(m, size=(size, 1, 1))
        jumps = rng.standard_normal((size, 1, 1), np.float32) * edge
        samples[start : start + size] = 4 * smooth + 30 * jumps
    return samples


def learner(case: Case, **settings: Any) -> kl.KroneckerDictionaryLearning:
    """The estimator of a case."""
    usual: dict[str, Any] = {"n_nonzero_coefs": case.s, "structure": case.structure}
    usual["random_state"] = 0
    return kl.KroneckerDictionaryLearning(case.n, **(usual | settings))


def milliseconds(model: kl.KroneckerDictionaryLearning) -> float:
    """The median iteration of a fitted model; the first ones, which set up, do not count."""
    steps = np.diff(model.history_["seconds"])
    return 1e3 * statistics.median(steps[len(steps) // 4 :])


def _learning(
    case: Case, samples: NDArray[np.float32], on_gpu: Any, quick: bool, output: Output
) -> dict[str, Any]:
    """Milliseconds of an iteration, and how well both do after the same number of them."""
    iterations = _ITERATIONS_OF_PROCESSOR if quick else _ITERATIONS
    few = {"max_iter": _ITERATIONS_OF_PROCESSOR}
    found: dict[str, Any] = {"case": case.name, "samples": case.samples}
    found |= {"m": case.m, "n": case.n, "s": case.s, "structure": case.structure}
    with output.progress(f"{case.name}, learning", 6) as advance:
        for name, settings in (("plain", _PLAIN), ("defaults", {})):
            # The first fit compiles kernels, and says how well the GPU does.
            early = learner(case, device="cuda", **settings, **few).fit(on_gpu)
            advance()
            late = learner(case, device="cuda", **settings, max_iter=iterations).fit(on_gpu)
            advance()
            processor = learner(case, n_jobs=-1, **settings, **few).fit(samples)
            advance()
            found[f"{name} ms"] = milliseconds(late)
            found[f"{name} processor ms"] = milliseconds(processor)
            found[f"{name} rmse"] = min(early.history_["rmse"])
            found[f"{name} processor rmse"] = min(processor.history_["rmse"])
    return found


def coders(case: Case, gpu: Any, on_gpu: Any) -> dict[str, Callable[[], Any]]:
    """What codes the samples of a case alone, samples and codes on the GPU, by name."""
    dictionary = perturbed_dct((case.m, case.m), (case.n, case.n))
    if case.structure == "orthonormal":
        dictionary = kl.KroneckerDictionary([np.linalg.qr(f)[0] for f in dictionary.factors])
    method = "threshold" if case.structure == "orthonormal" else "omp"

    def ours() -> None:
        codes = kl.sparse_code(on_gpu, dictionary, case.s, method=method, device="cuda")
        # One number of them: it is there when they all are.
        gpu.download(codes.data[:1])

    runs: dict[str, Callable[[], Any]] = {"coding": ours}
    module = competitor()
    if module is not None and method == "omp":
        runs["batched-omp"] = partial(_batched_omp, module, dictionary, case, on_gpu)
    return runs


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


def _gpu_name(gpu: Any) -> str:
    runtime = gpu.xp.cuda.runtime
    return str(runtime.getDeviceProperties(gpu.xp.cuda.Device().id)["name"].decode())


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="Milliseconds per iteration, and of coding alone", title_justify="left")
    headings = ("case", "samples", "m, n, s", "omp", "processor", "ratio", "defaults", "processor")
    for heading in (*headings, "ratio", "RMSE, GPU / processor", "coding", "batched-omp"):
        table.add_column(heading, justify="left" if heading == "case" else "right")
    for row in rows:
        cells = [f"{row['case']}, {row['structure']}", f"{row['samples']:,}"]
        cells.append(f"{row['m']}, {row['n']}, {row['s']}")
        for name in ("plain", "defaults"):
            own, other = row[f"{name} ms"], row[f"{name} processor ms"]
            cells += [_number(own), _number(other), _number(other / own)]
        cells.append(f"{row['defaults rmse']:.5g} / {row['defaults processor rmse']:.5g}")
        cells += [_number(row.get("coding ms")), _number(row.get("batched-omp ms"))]
        table.add_row(*cells)
    return table


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"
