"""The output of an experiment: tables, claims with their verdicts, figures, Markdown pages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Claim", "Outcome", "Report", "Table", "check_claims", "join", "publish"]

Setting = TypeVar("Setting")

_EXPERIMENTS = ("table1", "figure1", "figure2", "table2", "table3", "table4")

_INTRODUCTION = """# The paper's experiments, run again

C. Rusu and P. Irofti, "Efficient and Parallel Separable Dictionary Learning", 2020 (arXiv
2007.03800). Each section is written by `kronlearn reproduce` from the CSV file beside it."""


@dataclass(frozen=True)
class Table:
    """Cells of text under headings."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]

    @classmethod
    def of(cls, title: str, records: Iterable[Mapping[str, Any]], columns: str) -> Table:
        """Make a table of records.

        ``columns`` lists the names of the values to show, with their formats: ``m psnr:.2f``.
        """
        specs = [column.partition(":") for column in columns.split()]
        rows = [[_text(record[name], form) for name, _, form in specs] for record in records]
        return cls(title, [name.replace("_", " ") for name, *_ in specs], rows)

    def markdown(self) -> str:
        """Return the title and the table as Markdown."""
        lines = [self.headings, ["---"] * len(self.headings), *self.rows]
        table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        return f"{self.title}:\n\n{table}"


def _text(value: Any, form: str) -> str:
    """Format a value: None as an empty text, a list as 8 × 8, numbers above 1000 in full."""
    if value is None:
        return ""
    if isinstance(value, list):
        return " × ".join(map(str, value))
    return f"{value:.0f}" if form == ".3g" and abs(value) >= 1000 else format(value, form)


@dataclass(frozen=True)
class Outcome:
    """Whether a claim holds at one setting, and the number that decides."""

    at: str
    holds: bool
    found: str


@dataclass(frozen=True)
class Claim:
    """A statement, and its outcome at every setting that it applies to."""

    text: str
    outcomes: Sequence[Outcome]

    def __str__(self) -> str:
        missed = [f"{each.at}: {each.found}" for each in self.outcomes if not each.holds]
        held = len(self.outcomes) - len(missed)
        text = f"- {self.text}: holds at {held} of {len(self.outcomes)}"
        return f"{text}, **missed** at {'; '.join(missed)}." if missed else f"{text}."


def check_claims(
    checks: Mapping[str, Callable[[Setting], Outcome | None]], settings: Iterable[Setting]
) -> list[Claim]:
    """Check every claim at every setting; keep the claims that apply somewhere.

    ``checks`` maps the text of a claim to a function that returns its outcome at a setting, or None
    if the claim does not apply there.
    """
    settings = list(settings)
    claims = []
    for text, check in checks.items():
        outcomes = [outcome for at in settings if (outcome := check(at)) is not None]
        if outcomes:
            claims.append(Claim(text, outcomes))
    return claims


@dataclass(frozen=True)
class Report:
    """What a command prints, for people (``shown``) and for programs (``record``)."""

    shown: Sequence[str | Table]
    record: dict[str, Any]


def publish(
    file: Path,
    title: str,
    parts: Sequence[str | Table | list[Claim]],
    figure: Figure | None = None,
    notes: Sequence[str] = (),
    **record: Any,
) -> Report:
    """Write a Markdown page of notes, texts, tables and claims, and the figure beside it.

    The report shows the notes, tables and claims; its record also has the claims.
    """
    page, shown = [f"# {title}", *notes], list[str | Table](notes)
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
    if figure is not None:
        picture = file.with_suffix(".png")
        page.append(f"![{title}]({picture.name})")
        figure.savefig(picture, dpi=150)
    file.write_text("\n\n".join(page) + "\n", encoding="utf-8")
    return Report([*shown, f"Written: {file}."], record)


def join(folder: Path) -> Report:
    """Join the reports in a folder into one page, RESULTS.md."""
    names = [f"{name}.md" for name in _EXPERIMENTS]
    pages = [(folder / n).read_text("utf-8").strip() for n in names if (folder / n).is_file()]
    if not pages:
        raise ValueError(
            f"{folder} has none of {', '.join(names)}; run kronlearn reproduce with this folder as "
            "--output first."
        )
    # The titles of the pages become headings of sections.
    sections = [re.sub(r"^(#+ )", r"#\1", page, flags=re.MULTILINE) for page in pages]
    file = folder / "RESULTS.md"
    file.write_text("\n\n".join([_INTRODUCTION, *sections]) + "\n", encoding="utf-8")
    return Report([f"Written: {file}."], {"page": file})
