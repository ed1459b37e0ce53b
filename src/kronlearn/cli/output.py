"""The output of commands: text and progress for people, JSON for programs, figures."""

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


# Clearer names for entries of records.
_NAMES = {"n_nonzero_coefs": "max nonzeros", "rmse": "RMSE"}


@dataclass(frozen=True)
class Output:
    """The output of a command, for people or for programs."""

    #: Print one JSON object at the end and nothing else.
    as_json: bool = False
    #: Print no text, progress or warnings.
    quiet: bool = False
    #: Print text on standard error, because standard output gets an image.
    aside: bool = False
    _console: Console = field(default_factory=lambda: _console(stderr=False))
    _error_console: Console = field(default_factory=lambda: _console(stderr=True))

    def __post_init__(self) -> None:
        if self.quiet:
            # The filters are restored when the command ends.
            warnings.simplefilter("ignore")

    def say(self, *texts: Any, aside: bool = False) -> None:
        """Print text or tables for people; with ``aside``, on standard error."""
        if not (self.as_json or self.quiet):
            console = self._error_console if aside or self.aside else self._console
            console.print(*texts)

    def finish(self, record: dict[str, Any]) -> None:
        """Print the record as JSON, if asked for."""
        if self.as_json:
            print(json.dumps(_plain(record), indent=2))

    @contextmanager
    def progress(self, description: str, total: int) -> Iterator[Callable[..., None]]:
        """Show a progress bar; yields a function to call after each step, with a note to show."""
        with self._bar(MofNCompleteColumn()) as bar:
            task = bar.add_task(description, total=total, note="")
            yield lambda note="": bar.update(task, advance=1, note=note)

    @contextmanager
    def learning(self, description: str, max_iter: int) -> Iterator[Callable[[Any], None]]:
        """Show a progress bar for learning; yields a callback for the estimator."""
        with self.progress(description, max_iter) as advance:

            def after_pass(state: Any) -> None:
                # The pass of iteration 0 only measures the error of the initial dictionary.
                if state.iteration:
                    advance(f"RMSE {state.rmse:.5g}")

            yield after_pass

    @contextmanager
    def stages(self, description: str) -> Iterator[Callable[[str, float], None]]:
        """Show a bar for work in stages; yields a function of a stage and the fraction done."""
        with self._bar(TaskProgressColumn()) as bar:
            # Rich would stop the clock of a full bar, but the next stage starts from 0 again.
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
            console=self._error_console,
            transient=True,
            disable=self.as_json or self.quiet or not self._error_console.is_terminal,
        )


def _console(*, stderr: bool) -> Console:
    # File names and the contents of model files may look like markup.
    console = Console(stderr=stderr, markup=False, emoji=False, highlight=False)
    if not console.is_terminal:
        # Tables in a file or a pipe need not fit into 80 columns.
        console.width = max(console.width, 140)
    return console


def facts_table(facts: Iterable[tuple[str, Any]]) -> Table:
    """A table of names and values, without those that are None."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim")
    table.add_column()
    for name, value in facts:
        if value is not None:
            table.add_row(name, str(value))
    return table


def facts_of(record: Mapping[str, Any]) -> list[tuple[str, str | None]]:
    """The names and values of a record as text for people."""
    facts = []
    for name, value in record.items():
        plain = str(_readable(name)).removeprefix("n_").removeprefix("is_").replace("_", " ")
        facts.append((_NAMES.get(name, plain), _readable(value)))
    return facts


def times(sizes: Iterable[int]) -> str:
    """``8 × 8`` for sizes (8, 8)."""
    return " × ".join(map(str, sizes))


def counted(number: int, noun: str) -> str:
    """``1 band`` or ``2 bands``."""
    return f"{number} {noun}" + "s" * (number != 1)


def _readable(value: Any) -> str | None:
    """A value as short text without control characters; None stays None."""
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
    """A value with types that JSON has: numbers that are not finite become None, paths text."""
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
    """Write a figure to an image file and close it."""
    from matplotlib import pyplot

    with atomic_write(path, overwrite=overwrite) as (temporary,):
        figure.savefig(temporary, dpi=dpi)
    pyplot.close(figure)
