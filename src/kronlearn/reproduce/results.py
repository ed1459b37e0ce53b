"""Results as csv files that grow line by line, and one page for all experiments of a folder."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

__all__ = ["EXPERIMENTS", "append_row", "join", "read_rows"]

Parsed = TypeVar("Parsed")

EXPERIMENTS = ("table1", "figure1", "figure2", "table2", "table3", "table4")

_INTRODUCTION = """# The paper's experiments, run again

C. Rusu and P. Irofti, "Efficient and Parallel Separable Dictionary Learning", 2020 (arXiv
2007.03800). Each section is written by `kronlearn reproduce` from the csv file beside it."""


def append_row(file: Path, columns: Sequence[str], values: Iterable[Any]) -> None:
    """Add a line to a csv file, under a line with the columns' names if it is new."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if not file.exists() or file.stat().st_size == 0:
        writer.writerow(columns)
    writer.writerow(values)
    # In one piece: an interruption leaves the whole line or none of it.
    with file.open("a", newline="", encoding="utf-8") as stream:
        stream.write(text.getvalue())


def read_rows(
    file: Path, columns: Sequence[str], parse: Callable[[list[str]], Parsed]
) -> list[Parsed]:
    """What the lines of a csv file with these columns stand for."""
    try:
        text = file.read_text("utf-8")
    except UnicodeDecodeError:
        text = "?"
    rows = list(csv.reader(text.splitlines()))
    if rows and rows[0] != list(columns):
        raise ValueError(f"{file} does not hold results of this experiment; give another folder.")
    parsed = []
    for number, row in enumerate(rows[1:], start=2):
        try:
            parsed.append(parse(row))
        except ValueError:
            raise ValueError(f"Line {number} of {file} cannot be read; remove it.") from None
    if rows and not text.endswith("\n"):
        raise ValueError(f"Line {len(rows)} of {file} is not complete; remove it.")
    return parsed


def join(folder: Path) -> str:
    """The reports of the experiments in a folder as one page of Markdown."""
    reports = [name for name in EXPERIMENTS if (folder / f"{name}.md").is_file()]
    if not reports:
        raise ValueError(
            f"{folder} has none of {', '.join(f'{name}.md' for name in EXPERIMENTS)}; run "
            "kronlearn reproduce with this folder as --output first."
        )
    parts = [_INTRODUCTION]
    for name in reports:
        text = (folder / f"{name}.md").read_text("utf-8").strip()
        # Its title becomes a section of this page.
        parts.append(re.sub(r"^(#+ )", r"#\1", text, flags=re.MULTILINE))
        if (folder / f"{name}.png").is_file() and f"({name}.png)" not in text:
            parts.append(f"![{name}]({name}.png)")
    return "\n\n".join(parts) + "\n"
