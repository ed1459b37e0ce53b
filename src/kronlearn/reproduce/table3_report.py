"""Table III as Markdown and as a picture, with the paper's numbers beside ours."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kronlearn.reproduce.published import BM3D, IMAGES, KSVD, SIGMAS, TABLE3
from kronlearn.reproduce.table3 import METHODS, Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "Means",
    "Verdict",
    "markdown",
    "means",
    "paper_best",
    "paper_psnr",
    "picture",
    "summary",
    "verdicts",
]

#: (PSNR, SSIM, seconds) by (noise level, image, method), averaged over the draws.
Means = dict[tuple[int, str, str], tuple[float, float, float]]

_PAPER = ("general", "orthonormal", "PairAK-SVD")
# What is asked of a row with the paper's settings: its own row, and the best row, less this.
_ROW_MARGIN, _BEST_MARGIN = 0.1, 0.15

_EXPLANATION = """
**The paper's "general" row.** It lies up to 4 dB below the other two at low noise, on barbara most
of all. Coding patches with the two learned factors exchanged (`D_2 X D_1ᵀ` for `D_1 X D_2ᵀ`), after
learning from a random start, gives the same pattern: the row "swapped". With the factors the right
way round, "general", nothing of the kind is seen. (The orthonormal method suffers less: started
from cosines its two factors stay nearly equal.)
"""


@dataclass(frozen=True)
class Verdict:
    """What a cell shows: whether the rows with the paper's settings hold, and distances in dB."""

    sigma: int
    image: str
    rows_hold: bool
    over_paper: float
    over_ksvd: float | None
    under_bm3d: float | None


def means(results: Iterable[Result]) -> Means:
    """Averages over the draws."""
    groups: dict[tuple[int, str, str], list[tuple[float, float, float]]] = {}
    for result in results:
        key = (result.sigma, result.image, result.method)
        groups.setdefault(key, []).append((result.psnr, result.ssim, result.seconds))
    return {
        key: tuple(float(v) for v in np.mean(values, axis=0))  # type: ignore[misc]
        for key, values in groups.items()
    }


def paper_psnr(sigma: int, image: str, method: str) -> float:
    """The paper's PSNR."""
    return TABLE3[sigma, method][IMAGES.index(image)][0]


def paper_best(sigma: int, image: str) -> float:
    """The best of the paper's three rows."""
    return max(paper_psnr(sigma, image, method) for method in _PAPER)


def verdicts(found: Means) -> list[Verdict]:
    """One for each complete cell."""
    records = []
    for sigma in SIGMAS:
        for image in IMAGES:
            if any((sigma, image, method) not in found for method in METHODS):
                continue
            ours = {method: found[sigma, image, method][0] for method in METHODS}
            best = paper_best(sigma, image)
            rows_hold = (
                all(
                    ours[method] >= paper_psnr(sigma, image, method) - _ROW_MARGIN
                    for method in ("general", "orthonormal")
                )
                and max(ours["general"], ours["orthonormal"]) >= best - _BEST_MARGIN
            )
            records.append(
                Verdict(
                    sigma,
                    image,
                    rows_hold,
                    ours["default"] - best,
                    _difference(ours["default"], KSVD.get((sigma, image))),
                    _difference(BM3D.get((sigma, image)), ours["default"]),
                )
            )
    return records


def _difference(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


def markdown(found: Means, draws: int) -> str:
    """The whole report."""
    records = verdicts(found)
    parts = [
        "# Table III: denoising",
        f"PSNR in dB (SSIM), mean over {draws} draw(s) of the noise; the paper's rows in italics.",
        _table(found, records),
        summary(records),
        _EXPLANATION.strip(),
        _times(found),
    ]
    return "\n\n".join(parts) + "\n"


def _table(found: Means, records: list[Verdict]) -> str:
    images = [image for image in IMAGES if any(key[1] == image for key in found)]
    lines = [
        "| σ | method | " + " | ".join(images) + " |",
        "|---|---|" + "---|" * len(images),
    ]
    for sigma in SIGMAS:
        for method in _PAPER:
            cells = [TABLE3[sigma, method][IMAGES.index(image)] for image in images]
            numbers = " | ".join(f"*{psnr:.2f} ({ssim:.3f})*" for psnr, ssim in cells)
            lines.append(f"| {sigma} | *{method}, the paper* | {numbers} |")
        for method in METHODS:
            row = [found.get((sigma, image, method)) for image in images]
            numbers = " | ".join("" if c is None else f"{c[0]:.2f} ({c[1]:.3f})" for c in row)
            lines.append(f"| {sigma} | {method} | {numbers} |")
        verdict = []
        for image in images:
            record = next((r for r in records if (r.sigma, r.image) == (sigma, image)), None)
            verdict.append("" if record is None else _verdict(record))
        lines.append(f"| {sigma} | **verdict** | " + " | ".join(verdict) + " |")
    return "\n".join(lines)


def _verdict(record: Verdict) -> str:
    settings = "rows hold" if record.rows_hold else "**a row falls short**"
    below = "" if record.over_paper > 0 else " **below**"
    return f"{settings}; default {record.over_paper:+.2f} dB{below}"


def summary(records: list[Verdict]) -> str:
    """What the cells show together, a few lines of Markdown."""
    if not records:
        return "No cell is complete yet."
    gains = [record.over_paper for record in records]
    lines = [
        f"- With the paper's settings {sum(r.rows_hold for r in records)} of {len(records)} cells "
        f"hold: each row at least the paper's same row − {_ROW_MARGIN} dB, the better one at least "
        f"the paper's best − {_BEST_MARGIN} dB.",
        f"- The default is above the paper's best row in {sum(g > 0 for g in gains)} of "
        f"{len(gains)} cells, by {min(gains):+.2f} to {max(gains):+.2f} dB.",
    ]
    ksvd = [r.over_ksvd for r in records if r.over_ksvd is not None]
    if ksvd:
        lines.append(
            f"- It is above K-SVD (Elad and Aharon, 2006) in {sum(d > 0 for d in ksvd)} of "
            f"{len(ksvd)} cells, by {min(ksvd):+.2f} to {max(ksvd):+.2f} dB."
        )
    bm3d = [r.under_bm3d for r in records if r.under_bm3d is not None]
    if bm3d:
        lines.append(f"- BM3D is {np.mean(bm3d):.2f} dB above it on average ({len(bm3d)} cells).")
    return "\n".join(lines)


def _times(found: Means) -> str:
    lines = ["Seconds per image, learning included:", "", "| method | mean |", "|---|---|"]
    for method in METHODS:
        seconds = [value[2] for key, value in found.items() if key[2] == method]
        if seconds:
            lines.append(f"| {method} | {np.mean(seconds):.2f} |")
    return "\n".join(lines)


def picture(found: Means) -> Figure:
    """For each noise level the distance of every method to the best of the paper's rows."""
    from matplotlib.figure import Figure

    levels = [sigma for sigma in SIGMAS if any(key[0] == sigma for key in found)]
    figure = Figure(figsize=(2.6 * len(levels) + 1.2, 3.6), layout="constrained")
    axes = np.atleast_1d(figure.subplots(1, len(levels), sharey=True))
    for ax, sigma in zip(axes, levels, strict=True):
        images = [image for image in IMAGES if (sigma, image, "default") in found]
        places = np.arange(len(images))
        ax.axhline(0, color="0.5", lw=0.8)
        for name, marker, color, values in _series(found, sigma, images):
            ax.plot(places, values, marker, color=color, ms=6, label=name, mfc=color, alpha=0.9)
        ax.set_title(f"σ = {sigma}", fontsize="medium")
        ax.set_xticks(places, images, rotation=45, ha="right")
        ax.grid(axis="y", alpha=0.25, lw=0.6)
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("dB above the paper's best row")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=min(len(labels), 2 * len(levels)),
        frameon=False,
    )
    return figure


def _series(
    found: Means, sigma: int, images: list[str]
) -> Iterable[tuple[str, str, str, list[float]]]:
    best = [paper_best(sigma, image) for image in images]

    def above(values: Iterable[float | None]) -> list[float]:
        return [np.nan if v is None else v - b for v, b in zip(values, best, strict=True)]

    def ours(method: str) -> list[float]:
        return above(
            found[sigma, image, method][0] if (sigma, image, method) in found else None
            for image in images
        )

    paper_general = above(paper_psnr(sigma, image, "general") for image in images)
    yield "the paper's general", "x", "0.4", paper_general
    yield "swapped", "v", "#b07d2b", ours("swapped")
    yield "general", "s", "#4878a8", ours("general")
    yield "orthonormal", "D", "#6aa56a", ours("orthonormal")
    yield "default", "o", "#c0392b", ours("default")
    yield "BM3D", "_", "0.1", above(BM3D.get((sigma, image)) for image in images)
