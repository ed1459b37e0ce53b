"""What commands print and draw: text, pictures, JSON for programs, progress in a terminal."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from kronlearn.io.atomic import atomic_write

__all__ = ["Output", "counted", "facts_of", "facts_table", "save_figure", "times"]


# Names of records that people would not understand.
_WORDS = {"n_nonzero_coefs": "max nonzeros", "rmse": "RMSE"}


@dataclass(frozen=True)
class Output:
    """Where a command's results go: to a reader, to a program, or nowhere."""

    #: Print one JSON object, at the end, and nothing else.
    as_json: bool = False
    #: Print nothing but JSON, if asked for, and errors.
    quiet: bool = False
    #: Print text for people on the error stream: standard output holds an image.
    aside: bool = False
    _console: Console = field(default_factory=lambda: _console(stderr=False))
    _progress_console: Console = field(default_factory=lambda: _console(stderr=True))

    def __post_init__(self) -> None:
        if self.quiet:
            # Until the command ends; the command line restores the filters.
            warnings.simplefilter("ignore")

    def say(self, *what: Any, aside: bool = False) -> None:
        """Print text or tables for people; ``aside``, on the error stream."""
        if not (self.as_json or self.quiet):
            console = self._progress_console if aside or self.aside else self._console
            console.print(*what)

    def finish(self, record: dict[str, Any]) -> None:
        """Print the record as JSON, if that is wanted."""
        if self.as_json:
            print(json.dumps(_plain(record), indent=2))

    @contextmanager
    def progress(self, description: str, total: int) -> Iterator[Callable[..., None]]:
        """A progress bar; call what it yields after every step, with a text to show beside it."""
        with self._bar(MofNCompleteColumn()) as bar:
            task = bar.add_task(description, total=total, note="")
            yield lambda note="": bar.update(task, advance=1, note=note)

    @contextmanager
    def learning(self, description: str, max_iter: int) -> Iterator[Callable[[Any], None]]:
        """A progress bar for learning; yields the callback of the estimator that moves it."""
        with self.progress(description, max_iter) as advance:

            def after_pass(state: Any) -> None:
                # The first pass, of iteration 0, judges the start.
                if state.iteration:
                    advance(f"RMSE {state.rmse:.5g}")

            yield after_pass

    @contextmanager
    def stages(self, description: str) -> Iterator[Callable[[str, float], None]]:
        """A bar for work in stages; call what it yields with a stage and the fraction done."""
        with self._bar(TaskProgressColumn()) as bar:
            # A bar that is full counts as finished for good; the next stage empties it again.
            task = bar.add_task(description, total=1.0 + 1e-6, note="")
            yield lambda stage, fraction: bar.update(task, completed=fraction, note=stage)

    def _bar(self, count: ProgressColumn) -> Progress:
        return Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            count,
            TextColumn("{task.fields[note]}", markup=False),
            TimeElapsedColumn(),
            console=self._progress_console,
            transient=True,
            disable=self.as_json or self.quiet or not self._progress_console.is_terminal,
        )


def _console(*, stderr: bool) -> Console:
    # File names and the contents of model files may look like markup; they are not.
    console = Console(stderr=stderr, markup=False, emoji=False, highlight=False)
    if not console.is_terminal:
        # In a file or a pipe, tables need not be squeezed into 80 columns.
        console.width = max(console.width, 140)
    return console


def facts_table(facts: Iterable[tuple[str, Any]]) -> Table:
    """A two-column table of names and values; values of None are left out."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim")
    table.add_column()
    for name, value in facts:
        if value is not None:
            table.add_row(name, str(value))
    return table


def facts_of(record: Mapping[str, Any]) -> list[tuple[str, str | None]]:
    """The names and values of a record as people read them."""
    facts = []
    for name, value in record.items():
        plain = str(_readable(name)).removeprefix("n_").removeprefix("is_").replace("_", " ")
        facts.append((_WORDS.get(name, plain), _readable(value)))
    return facts


def times(sizes: Iterable[int]) -> str:
    """Sizes as people write them, ``8 × 8``."""
    return " × ".join(map(str, sizes))


def counted(number: int, noun: str) -> str:
    """``1 band``, ``2 bands``."""
    return f"{number} {noun}" + "s" * (number != 1)


def _readable(value: Any) -> str | None:
    """A value in short, with nothing in it that a terminal would obey; None stays None."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.5g}"
    if isinstance(value, tuple):
        return times(value)
    if isinstance(value, list):
        value = ", ".join(str(_readable(each)) for each in value)
    text = "".join(c if c.isprintable() else "�" for c in str(value)[:201])
    return text if len(text) <= 200 else text[:200] + "…"


def _plain(value: Any) -> Any:
    """A value as JSON can say it: numbers that are not finite become null, paths text."""
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, (bool, int, float)) else str(value)


def save_figure(figure: Any, path: Path, overwrite: bool, dpi: float = 200) -> None:
    """Write a figure to an image file, and forget it."""
    from matplotlib import pyplot

    with atomic_write(path, overwrite=overwrite) as (place,):
        figure.savefig(place, dpi=dpi)
    pyplot.close(figure)
