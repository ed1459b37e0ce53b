"""Results in CSV files that grow line by line, and statistics of groups of results."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Generic, TypeVar, get_type_hints

from kronlearn.experiments.timing import Progress, no_progress

__all__ = ["Store", "deviation", "grouped", "mean", "save_rows"]

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
    """The results of an experiment, kept in a CSV file.

    Parameters
    ----------
    file : path
    kind : type
        A dataclass whose fields are the columns. An existing file may have them in another order.
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
        """Yield the results of all wanted runs, measuring those that the file lacks.

        A run is a dataclass with the columns that identify it; ``measure`` returns the other
        columns. Each new result is written at once.
        """
        runs = list(wanted)
        with progress(self.file.stem, len(runs)) as advance:
            for run in runs:
                identity = asdict(run)
                yield self.find(**identity) or self.add(self._kind(**identity, **measure(run)))
                advance(str(run))

    def find(self, **values: Any) -> Row | None:
        """Return the first result that has all these values, or None."""
        return next(
            (row for row in self.rows if all(getattr(row, k) == v for k, v in values.items())), None
        )

    def add(self, row: Row) -> Row:
        """Write a result and return it as it will be read back, with six digits."""
        texts = [_text(getattr(row, name)) for name in self._columns]
        lines = io.StringIO()
        writer = csv.writer(lines, lineterminator="\n")
        if not self.file.exists() or self.file.stat().st_size == 0:
            writer.writerow(self._columns)
        writer.writerow(texts)
        # One write call: an interruption leaves the whole line or nothing.
        with self.file.open("a", newline="", encoding="utf-8") as stream:
            stream.write(lines.getvalue())
        self.rows.append(self._parsed(texts))
        return self.rows[-1]

    def _read(self) -> list[Row]:
        text = self.file.read_text("utf-8", errors="replace")
        lines = list(csv.reader(text.splitlines()))
        if not lines:
            return []
        if sorted(lines[0]) != sorted(self._columns):
            raise ValueError(
                f"{self.file} does not hold results of this experiment; give another folder."
            )
        self._columns = lines[0]
        if not text.endswith("\n"):
            # The line may have been cut in the middle of a number.
            raise self._unreadable(len(lines))
        rows = []
        for number, line in enumerate(lines[1:], start=2):
            try:
                rows.append(self._parsed(line))
            except ValueError:
                raise self._unreadable(number) from None
        return rows

    def _unreadable(self, number: int) -> ValueError:
        return ValueError(f"Line {number} of {self.file} cannot be read; remove it.")

    def _parsed(self, texts: list[str]) -> Row:
        pairs = zip(self._columns, texts, strict=True)
        return self._kind(**{name: _PARSERS[self._types[name]](text) for name, text in pairs})


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(_text, value))
    if isinstance(value, float):
        return f"{value:.6g}"
    return "" if value is None else str(value)


def save_rows(rows: Iterable[Row], file: Path | None, kind: type[Row]) -> Iterator[Row]:
    """Yield the rows; with a file, replace it and write each row as soon as it is measured."""
    if file is None:
        yield from rows
        return
    file.unlink(missing_ok=True)
    yield from map(Store(file, kind).add, rows)


def grouped(rows: Iterable[Row], key: Callable[[Row], Key]) -> dict[Key, list[Row]]:
    """Group results by a key, in the order of their first appearance."""
    groups: dict[Key, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def mean(rows: Sequence[Any], column: str) -> float:
    """Return the mean of a column."""
    return statistics.fmean(getattr(row, column) for row in rows)


def deviation(rows: Sequence[Any], column: str) -> float | None:
    """Return the standard deviation of a column, or None for a single row."""
    return statistics.stdev(getattr(row, column) for row in rows) if len(rows) > 1 else None
