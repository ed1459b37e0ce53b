"""What commands write about an image besides the image: report, comparison, dictionary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import kronlearn as kl
from kronlearn.cli import drawing
from kronlearn.cli.pictures import Picture
from kronlearn.cli.quality import decibels, quality
from kronlearn.cli.record import thinned_history
from kronlearn.cli.report import Page, save_report
from kronlearn.core.dictionary import Dictionary
from kronlearn.io.model_files import save_dictionary

__all__ = ["Extras", "Story", "score_facts", "write_extras"]


@dataclass(frozen=True)
class Extras:
    """The files that were asked for."""

    report: Path | None
    comparison: Path | None
    save_dictionary: Path | None

    def places(self) -> list[tuple[str, Path | None]]:
        """The options, and the files that they name."""
        return [
            ("--report", self.report),
            ("--comparison", self.comparison),
            ("--save-dictionary", self.save_dictionary),
        ]


@dataclass(frozen=True)
class Story:
    """What was done to an image, and what came out."""

    #: "Denoised", say.
    done: str
    source: Path
    #: The image as it is now.
    after: Picture
    before: NDArray[Any]
    reference: Picture | None
    #: None where there was nothing to do.
    dictionary: Dictionary | None
    history: Mapping[str, Any] | None
    settings: Mapping[str, Any]
    seconds: Mapping[str, float]
    #: Where pixels were missing, of the picture's shape.
    mask: NDArray[np.bool_] | None = None
    #: PSNR and SSIM, of "before" and "after".
    scores: dict[str, dict[str, float]] = field(init=False)

    def __post_init__(self) -> None:
        images = {"before": self.before, "after": self.after.pixels}
        if self.mask is not None or self.before is self.reference_pixels:
            del images["before"]
        scores = {}
        if self.reference is not None:
            scores = {name: quality(self.reference, image) for name, image in images.items()}
        object.__setattr__(self, "scores", scores)

    @property
    def reference_pixels(self) -> NDArray[Any] | None:
        """What the image should look like."""
        return None if self.reference is None else self.reference.pixels


def score_facts(scores: Mapping[str, Mapping[str, float]]) -> list[tuple[str, str]]:
    """``20.17 dB → 31.94 dB``, for every score."""
    names = {"psnr": ("PSNR", decibels), "ssim": ("SSIM", "{:.4f}".format)}
    return [
        (name, " → ".join(text(values[key]) for values in scores.values()))
        for key, (name, text) in names.items()
        if scores and all(key in values for values in scores.values())
    ]


def write_extras(
    story: Story, extras: Extras, facts: list[tuple[str, str]], overwrite: bool
) -> list[Path]:
    """Write what was asked for; the files. No dictionary is saved where none was needed."""
    written = [extras.comparison, extras.report]
    if extras.save_dictionary is not None and story.dictionary is not None:
        info: dict[str, Any] = {"source": story.source.name, "kronlearn_version": kl.__version__}
        if story.history is not None:
            info["history"] = thinned_history(story.history)
        save_dictionary(story.dictionary, extras.save_dictionary, info=info)
        written.append(extras.save_dictionary)
    if extras.comparison is not None:
        _compare(story, extras.comparison, overwrite)
    if extras.report is not None:
        save_report(_page(story, facts), extras.report, overwrite)
    return [path for path in written if path is not None]


def _compare(story: Story, path: Path, overwrite: bool) -> None:
    scores = story.scores
    before, after = (
        f"{name}, {decibels(scores[name]['psnr'])}" if name in scores else name
        for name in ("before", "after")
    )
    show, reference = story.after.shown, story.reference_pixels
    if reference is story.before:
        reference = None
    drawing.save_comparison(
        show(story.before),
        show(story.after.pixels),
        None if reference is None else show(reference),
        (before, after),
        # Where pixels were missing there is nothing to take away.
        "before" if story.mask is None or reference is None else "reference",
        path,
        overwrite,
    )


def _page(story: Story, facts: list[tuple[str, str]]) -> Page:
    picture = story.after
    pages = picture.shape[0] if len(picture.shape) == 3 else 1
    mask, reference = story.mask, story.reference_pixels
    return Page(
        title=f"{story.done}: {story.source.name}",
        before=picture.shown(story.before),
        after=picture.shown(picture.pixels),
        missing=mask if mask is None or pages == 1 else mask[pages // 2],
        reference=None if reference is None else picture.shown(reference),
        facts=facts,
        scores=story.scores,
        dictionary=story.dictionary,
        history=story.history,
        settings=story.settings,
        seconds=story.seconds,
        notes=[f"Page {pages // 2 + 1} of {pages} is shown."] if pages > 1 else [],
    )
