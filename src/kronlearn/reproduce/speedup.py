"""Measure Table II or IV where only the core of this library is installed.

    python -m kronlearn.reproduce.speedup table2 --output FOLDER
    python -m kronlearn.reproduce.speedup table4 --output FOLDER

Writes the csv files that ``kronlearn reproduce table2`` and ``table4`` read and go on with; needs
neither scikit-image nor matplotlib, typer or tensorly. On such a machine samples come from a file.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kronlearn.reproduce import table2, table4
from kronlearn.reproduce.methods import METHODS, methods_named
from kronlearn.reproduce.scaling import (
    Machine,
    Patches,
    Result,
    Run,
    Setting,
    engines_named,
    processor_counts,
    run,
    runs,
    this_machine,
)

__all__ = ["ENGINES", "METHODS_OF_THE_PAPER", "Choice", "main", "work_folder"]

METHODS_OF_THE_PAPER = "general,orthonormal"
ENGINES = "threads,dask,processes"

_QUICK_WINDOW = 0.2


@dataclass(frozen=True)
class Choice:
    """What is measured: engines, numbers of processors, methods, rounds; as a command has them."""

    jobs: str | None = None
    engines: str = ENGINES
    methods: str = METHODS_OF_THE_PAPER
    rounds: int = 3
    iterations: int | None = None
    quick: bool = False

    @property
    def method_names(self) -> tuple[str, ...]:
        """The methods; only this library's own run on every engine."""
        names = methods_named(self.methods.split(","))
        for name in names:
            if not METHODS[name].ours or METHODS[name].kind != "one term":
                raise ValueError(
                    f"{name} does not run on every engine; choose from general, orthonormal and "
                    "default."
                )
        return names

    def runs(self, settings: Sequence[Setting], machine: Machine) -> list[Run]:
        """The runs of these settings."""
        engines = engines_named(self.engines)
        counts = processor_counts(self.jobs, machine.cores)
        return runs(settings, engines, counts, 1 if self.quick else self.rounds)

    def measure(
        self,
        settings: Sequence[Setting],
        patches: Callable[[Run], Patches],
        file: Path,
        machine: Machine,
    ) -> Iterator[Result]:
        """The results of all runs, as they come."""
        window = {"window": _QUICK_WINDOW} if self.quick else {}
        return run(self.runs(settings, machine), patches, file, machine, **window)


@contextmanager
def work_folder(folder: Path | None) -> Iterator[Path]:
    """The given folder, made if need be, or a temporary one."""
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="kronlearn-") as name:
            yield Path(name)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    given = _parser().parse_args(arguments)
    choice = Choice(
        given.jobs, given.engines, given.methods, given.rounds, given.iterations, given.quick
    )
    try:
        given.output.mkdir(parents=True, exist_ok=True)
        with work_folder(given.work) as work:
            {"table2": _table2, "table4": _table4}[given.table](given, choice, work)
    except (ValueError, OSError, ImportError, RuntimeError) as problem:
        sys.exit(f"Error: {problem}")


def _table2(given: argparse.Namespace, choice: Choice, work: Path) -> None:
    if given.images is None:
        print("No --images: made-up images stand in.")
        images, name = table2.made_up_images(), "made-up images"
    else:
        images, name = table2.read_images(given.images), given.images.name
    settings = table2.settings(choice.method_names, choice.iterations, choice.quick)
    _measure(choice, settings, table2.prepared(images, name, work), given.output / "table2.csv")


def _table4(given: argparse.Namespace, choice: Choice, work: Path) -> None:
    scale = table4.QUICK_SCALE if choice.quick else given.scale
    chosen = table4.Cube(given.cube, given.patches, scale, given.format)
    patches, samples = chosen.prepared(work)
    settings = table4.settings(choice.method_names, samples, choice.iterations, choice.quick)
    _measure(choice, settings, lambda _: patches, given.output / "table4.csv")


def _measure(
    choice: Choice, settings: Sequence[Setting], patches: Callable[[Run], Patches], file: Path
) -> None:
    machine = this_machine()
    total = len(choice.runs(settings, machine))
    print(f"{machine}; {total} runs, written to {file}")
    for number, result in enumerate(choice.measure(settings, patches, file, machine), start=1):
        at = result.run
        print(
            f"{number}/{total}: {at.method}, m = {at.m}, {at.engine}, p = {at.processors}: "
            f"{result.found.seconds_per_iteration:.4g} s",
            flush=True,
        )


def _parser() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False)
    add = shared.add_argument
    add("--output", type=Path, default=Path(), metavar="FOLDER", help="where the csv file goes")
    add("--work", type=Path, metavar="FOLDER", help="for the samples; a temporary one by default")
    add("--jobs", metavar="P,…", help="numbers of processors; 1, 2, 4 … and all by default")
    add("--engines", default=ENGINES, metavar="NAME,…", help=f"some of {ENGINES}")
    add("--methods", default=METHODS_OF_THE_PAPER, metavar="NAME,…", help="default may be added")
    add("--rounds", type=_count, default=3, metavar="N", help="how often everything is measured")
    add("--iterations", type=_count, metavar="N", help="of every fit")
    add("--quick", action="store_true", help="little data, few iterations, one round")
    parser = argparse.ArgumentParser(
        prog="python -m kronlearn.reproduce.speedup", description=__doc__.partition("\n")[0]
    )
    tables = parser.add_subparsers(dest="table", required=True)
    images = tables.add_parser("table2", parents=[shared], help="patches of images, in memory")
    images.add_argument(
        "--images", type=Path, metavar="FILE.npy", help="gray images (K, rows, columns)"
    )
    cube = tables.add_parser("table4", parents=[shared], help="patches of a cube, on the disk")
    add = cube.add_argument
    add("--cube", type=Path, metavar="FILE", help="a small cube, .npy or .npz, to be enlarged")
    add("--patches", type=Path, metavar="FILE.npy", help="patches (N, 8, 8) that exist already")
    add("--scale", type=float, default=1.0, metavar="X", help="share of the paper's patches")
    add("--format", choices=table4.FORMATS, default="npy", help="of the file of patches")
    return parser


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


if __name__ == "__main__":
    main()
