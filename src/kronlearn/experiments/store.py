"""Results as csv files that grow line by line, and averages over several of them."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Generic, TypeVar, get_type_hints

from kronlearn.experiments.timing import Progress, no_progress

__all__ = ["Store", "deviation", "grouped", "mean", "recorded"]

Row = TypeVar("Row")
Key = TypeVar("Key", bound=Hashable)

_PARSERS: dict[Any, Callable[[str], Any]] = {
    int: int,
    float: float,
    str: str,
    float | None: lambda text: float(text) if text else None,
    tuple[float, ...]: lambda text: tuple(map(float, text.split())),
}


class Store(Generic[Row]):
    """The results of an experiment in a csv file, read once and added to.

    Parameters
    ----------
    file : path
    kind : type
        A dataclass; its fields are the columns, in the file's order where there is a file.
    """

    def __init__(self, file: Path, kind: type[Row]) -> None:
        self.file, self._kind, self._types = file, kind, get_type_hints(kind)
        self._columns = list(self._types)
        self.rows: list[Row] = self._read() if file.exists() else []

    def run(
        self,
        wanted: Iterable[Any],
        measure: Callable[[Any], dict[str, Any]],
        progress: Progress = no_progress,
    ) -> Iterator[Row]:
        """The results of all wanted runs; only what the file does not hold is measured.

        A run is a dataclass with the columns that tell it from others; ``measure`` returns the rest
        of the columns. Each result is written at once.
        """
        runs = list(wanted)
        with progress(self.file.stem, len(runs)) as advance:
            for run in runs:
                known = asdict(run)
                yield self.find(**known) or self.add(self._kind(**known, **measure(run)))
                advance(str(run))

    def find(self, **values: Any) -> Row | None:
        """The first result that has all these values."""
        return next(
            (row for row in self.rows if all(getattr(row, k) == v for k, v in values.items())), None
        )

    def add(self, row: Row) -> Row:
        """Write a result; returns it as it is read back, with six digits."""
        texts = [_text(getattr(row, name)) for name in self._columns]
        line = io.StringIO()
        writer = csv.writer(line, lineterminator="\n")
        if not self.file.exists() or self.file.stat().st_size == 0:
            writer.writerow(self._columns)
        writer.writerow(texts)
        # In one piece, so that an interruption leaves the whole line or none of it.
        with self.file.open("a", newline="", encoding="utf-8") as stream:
            stream.write(line.getvalue())
        self.rows.append(self._parsed(texts))
        return self.rows[-1]

    def _read(self) -> list[Row]:
        text = self.file.read_text("utf-8", errors="replace")
        lines = list(csv.reader(text.splitlines()))
        if lines and sorted(lines[0]) != sorted(self._columns):
            raise ValueError(
                f"{self.file} does not hold results of this experiment; give another folder."
            )
        self._columns = lines[0] if lines else self._columns
        rows = []
        for number, line in enumerate(lines[1:], start=2):
            # The last line may end in the middle of a number.
            complete = number < len(lines) or text.endswith("\n")
            with suppress(ValueError):
                rows += [self._parsed(line)] if complete else []
            if len(rows) < number - 1:
                raise ValueError(f"Line {number} of {self.file} cannot be read; remove it.")
        return rows

    def _parsed(self, texts: list[str]) -> Row:
        pairs = zip(self._columns, texts, strict=True)
        return self._kind(**{name: _PARSERS[self._types[name]](text) for name, text in pairs})


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(_text, value))
    if isinstance(value, float):
        return f"{value:.6g}"
    return "" if value is None else str(value)


def recorded(rows: Iterable[Row], file: Path | None, kind: type[Row]) -> Iterator[Row]:
    """The rows; with a file, each is written to a new csv file as soon as it is measured."""
    if file is None:
        yield from rows
        return
    file.unlink(missing_ok=True)
    yield from map(Store(file, kind).add, rows)


def grouped(rows: Iterable[Row], key: Callable[[Row], Key]) -> dict[Key, list[Row]]:
    """The results that have the same key, in the order in which they come."""
    groups: dict[Key, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def mean(rows: Sequence[Any], name: str) -> float:
    """The mean of a column."""
    return statistics.fmean(getattr(row, name) for row in rows)


def deviation(rows: Sequence[Any], name: str) -> float | None:
    """The standard deviation of a column; None for one result."""
    return statistics.stdev(getattr(row, name) for row in rows) if len(rows) > 1 else None
