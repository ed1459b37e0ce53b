"""How learning scales with the number of processors: the runs behind Tables II and IV.

Every run is measured in a process of its own, and its result is added to a csv file at once. Only
numpy and the core of this library are needed, and Dask where Dask is measured.
"""

from __future__ import annotations

import os
import platform
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import joblib
import numpy as np

from kronlearn.core.instruction_sets import instruction_set
from kronlearn.reproduce.measurement import ENGINES, Found, Job, measure, stored_samples
from kronlearn.reproduce.results import append_row, read_rows

__all__ = [
    "Machine",
    "Patches",
    "Result",
    "Run",
    "Setting",
    "engines_named",
    "processor_counts",
    "read_results",
    "run",
    "runs",
    "this_machine",
]


@dataclass(frozen=True)
class Setting:
    """A method, samples of m × m, n atoms per mode, s nonzeros, N samples, and iterations."""

    method: str
    m: int
    n: int
    s: int
    samples: int
    iterations: int


@dataclass(frozen=True)
class Run(Setting):
    """One measurement: an engine with p threads, workers or processes; ``round`` counts repeats."""

    engine: str
    processors: int
    round: int


@dataclass(frozen=True)
class Machine:
    """Where it was measured; ``cores`` are those that the process may use."""

    processor: str
    cores: int
    instruction_set: str

    def __str__(self) -> str:
        cores = "1 core" if self.cores == 1 else f"{self.cores} cores"
        return f"{self.processor}, {cores}, {self.instruction_set}"


@dataclass(frozen=True)
class Patches:
    """A file of samples (N, m, m), and where they came from."""

    file: Path
    data: str
    #: Whether they stay on the disk while they are learned from.
    streamed: bool

    def checksum(self) -> int:
        """A number that tells these samples from others, from 16 runs of 64 of them."""
        stored = stored_samples(self.file)
        crc = 0
        for start in np.linspace(0, max(0, stored.shape[0] - 64), 16).astype(int).tolist():
            crc = zlib.crc32(np.ascontiguousarray(stored[start : start + 64]).tobytes(), crc)
        return crc


@dataclass(frozen=True)
class Result:
    """What a run found, on which data and where."""

    run: Run
    data: str
    checksum: int
    found: Found
    machine: Machine


def this_machine() -> Machine:
    """The machine that this process runs on."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    name = re.search(r"^model name\s*: *(.+)$", text, re.MULTILINE)
    processor = name[1] if name else platform.processor() or platform.machine()
    return Machine(processor.strip(), joblib.cpu_count(), instruction_set())


def engines_named(text: str) -> tuple[str, ...]:
    """``threads,dask`` as names of engines."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in ENGINES:
            raise ValueError(f"There is no engine {name!r}; choose from {', '.join(ENGINES)}.")
    return names


def processor_counts(text: str | None, cores: int) -> tuple[int, ...]:
    """``2,4`` as (1, 2, 4); None means 1, 2, 4, 8 … and all cores. 1 is always among them."""
    if text is None:
        return tuple(sorted({*(1 << k for k in range(cores.bit_length())), cores}))
    if not re.fullmatch(r" *[1-9]\d{0,3} *(, *[1-9]\d{0,3} *)*", text):
        raise ValueError(f"--jobs {text} is not a list of numbers; write it as in 1,2,4.")
    return tuple(sorted({1, *map(int, text.split(","))}))


def runs(
    settings: Sequence[Setting], engines: Sequence[str], processors: Sequence[int], rounds: int
) -> list[Run]:
    """All runs, a whole round before the next; what is compared is measured side by side."""
    return [
        Run(**asdict(setting), engine=engine, processors=p, round=number)
        for number in range(rounds)
        for setting in settings
        for p in processors
        for engine in engines
    ]


def run(
    wanted: Iterable[Run],
    patches: Callable[[Run], Patches],
    file: Path,
    machine: Machine,
    window: float = 1.5,
) -> Iterator[Result]:
    """Results, each added to a csv file as soon as it is there.

    Runs whose results the file holds already, on the same data and machine, are not repeated.
    ``patches`` gives the samples of a run; ``window`` is how long independent processes are timed.
    """
    before = read_results(file) if file.exists() else []
    done = {(r.run, r.data, r.checksum, r.machine): r for r in before}
    checksums: dict[Patches, int] = {}
    for cell in wanted:
        given = patches(cell)
        if given not in checksums:
            checksums[given] = given.checksum()
        checksum = checksums[given]
        key = (cell, given.data, checksum, machine)
        if key in done:
            yield done[key]
            continue
        found = measure(_job(cell, given, window))
        result = Result(cell, given.data, checksum, _rounded(found), machine)
        _append(file, result)
        yield result


def _job(cell: Run, given: Patches, window: float) -> Job:
    return Job(
        file=os.fspath(given.file.absolute()),
        method=cell.method,
        n=cell.n,
        s=cell.s,
        iterations=cell.iterations,
        engine=cell.engine,
        processors=cell.processors,
        streamed=given.streamed,
        window=window,
    )


def _rounded(found: Found) -> Found:
    """To six digits, as the csv file has it: a run gives what reading it back gives."""
    values: dict[str, Any] = asdict(found)
    for name, value in values.items():
        if isinstance(value, float):
            values[name] = float(f"{value:.6g}")
    return Found(**values)


_TYPES = {
    **{field.name: field.type for field in fields(Run)},
    "data": "str",
    "checksum": "int",
    **{field.name: field.type for field in fields(Found)},
    **{field.name: field.type for field in fields(Machine)},
}


def _append(file: Path, result: Result) -> None:
    parts = (result.run, result.found, result.machine)
    run_, found, machine = ([*asdict(part).values()] for part in parts)
    # The csv module writes nothing for None, and as many digits of a number as it has.
    append_row(file, list(_TYPES), [*run_, result.data, result.checksum, *found, *machine])


def read_results(file: Path) -> list[Result]:
    """The results in a csv file that :func:`run` wrote."""
    return read_rows(file, list(_TYPES), _parsed)


def _parsed(row: list[str]) -> Result:
    values: dict[str, Any] = {}
    for (name, kind), text in zip(_TYPES.items(), row, strict=True):
        optional = str(kind).endswith(" | None")
        parse = {"int": int, "float": float, "str": str}[str(kind).removesuffix(" | None")]
        values[name] = None if optional and not text else parse(text)

    def part(kind: Any) -> Any:
        return kind(**{field.name: values[field.name] for field in fields(kind)})

    return Result(part(Run), values["data"], values["checksum"], part(Found), part(Machine))
