"""One page for all experiments that lie in a folder."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["EXPERIMENTS", "join"]

EXPERIMENTS = ("table1", "figure1", "figure2", "table2", "table3", "table4")

_INTRODUCTION = """# The paper's experiments, run again

C. Rusu and P. Irofti, "Efficient and Parallel Separable Dictionary Learning", 2020 (arXiv
2007.03800). Each section is written by `kronlearn reproduce` from the csv file beside it."""


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
