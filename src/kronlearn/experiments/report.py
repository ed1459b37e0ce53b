"""The output of an experiment: tables, claims with their verdicts, figures, Markdown pages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Claim", "Outcome", "Report", "Table", "join", "publish"]

_EXPERIMENTS = ("table1", "figure1", "figure2", "table2", "table3", "table4")

_INTRODUCTION = """# The paper's experiments, run again

C. Rusu and P. Irofti, "Efficient and Parallel Separable Dictionary Learning", 2020 (arXiv
2007.03800). Each section is written by `kronlearn reproduce` from the csv file beside it."""


@dataclass(frozen=True)
class Table:
    """Cells under headings."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]

    @classmethod
    def of(cls, title: str, rows: Iterable[Mapping[str, Any]], columns: str) -> Table:
        """A table of records; ``columns`` has the names of values, with formats: ``m psnr:.2f``."""
        pairs = [column.partition(":") for column in columns.split()]
        cells = [[_text(row[name], form) for name, _, form in pairs] for row in rows]
        return cls(title, [name.replace("_", " ") for name, *_ in pairs], cells)

    def markdown(self) -> str:
        """The table in Markdown, under its title."""
        lines = [self.headings, ["---"] * len(self.headings), *self.rows]
        table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        return f"{self.title}:\n\n{table}"


def _text(value: Any, form: str) -> str:
    """A value as text; a number of 1000 or more has no exponent, None is empty, a list 8 × 8."""
    if value is None:
        return ""
    if isinstance(value, list):
        return " × ".join(map(str, value))
    return f"{value:.0f}" if form == ".3g" and abs(value) >= 1000 else format(value, form)


@dataclass(frozen=True)
class Outcome:
    """Whether a claim holds at one setting, and the number that decides it."""

    at: str
    holds: bool
    found: str


@dataclass(frozen=True)
class Claim:
    """A sentence, and the outcome at every setting that it is about."""

    text: str
    outcomes: Sequence[Outcome]

    def __str__(self) -> str:
        missed = [f"{found.at}: {found.found}" for found in self.outcomes if not found.holds]
        held = len(self.outcomes) - len(missed)
        text = f"- {self.text}: holds at {held} of {len(self.outcomes)}"
        return f"{text}, **missed** at {'; '.join(missed)}." if missed else f"{text}."


@dataclass(frozen=True)
class Report:
    """What a command prints, for people and for programs."""

    shown: Sequence[str | Table]
    record: dict[str, Any]


def publish(
    file: Path,
    title: str,
    parts: Sequence[str | Table | list[Claim]],
    drawing: Figure | None = None,
    **record: Any,
) -> Report:
    """Write a page of texts, tables and claims, and beside it the drawing, if there is one.

    Its tables and claims are shown, and the claims are added to the record.
    """
    page, shown = [f"# {title}"], list[str | Table]()
    for part in parts:
        if isinstance(part, str):
            page.append(part.strip())
        elif isinstance(part, Table):
            page.append(part.markdown())
            shown.append(part)
        else:
            record["claims"] = [asdict(claim) for claim in part]
            if part:
                page.append("\n".join(map(str, part)))
                shown.append(page[-1].replace("**", ""))
    if drawing is not None:
        picture = file.with_suffix(".png")
        page.append(f"![{title}]({picture.name})")
        drawing.savefig(picture, dpi=150)
    file.write_text("\n\n".join(page) + "\n", encoding="utf-8")
    return Report([*shown, f"Written: {file}."], record)


def join(folder: Path) -> Report:
    """Write RESULTS.md: the reports of the experiments in a folder as one page."""
    names = [f"{name}.md" for name in _EXPERIMENTS]
    texts = [(folder / n).read_text("utf-8").strip() for n in names if (folder / n).is_file()]
    if not texts:
        raise ValueError(
            f"{folder} has none of {', '.join(names)}; run kronlearn reproduce with this folder as "
            "--output first."
        )
    # Their titles become sections of this page.
    sections = [re.sub(r"^(#+ )", r"#\1", text, flags=re.MULTILINE) for text in texts]
    page = folder / "RESULTS.md"
    page.write_text("\n\n".join([_INTRODUCTION, *sections]) + "\n", encoding="utf-8")
    return Report([f"Written: {page}."], {"page": page})
