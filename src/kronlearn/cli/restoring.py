"""What ``denoise`` and ``inpaint`` share: image files in, image files and reports out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import kronlearn as kl
from kronlearn.cli import drawing
from kronlearn.cli.errors import report
from kronlearn.cli.options import parse_sizes
from kronlearn.cli.output import Output, facts_table, times
from kronlearn.cli.places import check_places
from kronlearn.cli.quality import decibels, plain_quality, quality
from kronlearn.cli.record import thinned_history
from kronlearn.cli.report import Page, save_report
from kronlearn.io.conversion import converted
from kronlearn.io.images import Picture, check_writable, read_picture, write_picture
from kronlearn.io.model_files import load_dictionary, save_dictionary

__all__ = ["Restored", "dictionary_options", "restore_files", "values"]


@dataclass(frozen=True)
class Restored:
    """What came out, and what went in."""

    #: ``Denoised`` or ``Inpainted``.
    result: Any
    before: NDArray[Any]
    reference: Picture | None
    #: For people.
    fact: tuple[str, str]
    #: For programs.
    record: dict[str, Any]
    #: Where pixels were missing, of the picture's shape.
    mask: NDArray[np.bool_] | None = None


#: Restores a picture, given a reference or None, and arguments for the library.
Restore = Callable[[Picture, Picture | None, dict[str, Any]], Restored]


def dictionary_options(
    dictionary: Path | None, patch: str | None, atoms: str | None
) -> dict[str, Any]:
    """The arguments of the library that say which dictionary to use, or to learn."""
    sizes = {"--patch": patch, "--atoms": atoms}
    if dictionary is not None:
        for option, text in sizes.items():
            if text is not None:
                raise ValueError(f"The dictionary sets {option}; leave it out with --dictionary.")
        return {"dictionary": load_dictionary(dictionary)}
    patch_size, n_atoms = (parse_sizes(option, text) for option, text in sizes.items())
    return {"patch_size": patch_size, "n_atoms": n_atoms}


def values(picture: Picture) -> NDArray[Any]:
    """The pixels, with black and white as numbers."""
    is_bool = picture.pixels.dtype == np.bool_
    return picture.pixels.astype(np.float32) if is_bool else picture.pixels


def restore_files(
    done: str,
    restore: Restore,
    options: Mapping[str, Any],
    inputs: list[Path],
    place: Path,
    *,
    clean: Path | None,
    extras: Mapping[str, Path | None],
    read_too: list[Path | None],
    overwrite: bool,
    output: Output,
) -> None:
    """Restore images, write them and the extras, and tell how it went.

    ``done`` is what is done to an image, "Denoised", ``options`` are arguments for the library,
    ``place`` is the file or the folder to write to, ``clean`` the reference, ``extras`` are the
    files of --report, --comparison and --save-dictionary. What is in ``read_too`` is not
    overwritten, as the inputs are not.
    """
    pairs = _pairs(inputs, place)
    if len(pairs) > 1:
        for option, path in {**extras, "--clean": clean}.items():
            if path is not None:
                raise ValueError(f"{option} is for one image; {len(pairs)} were given.")
    outputs = [("OUT", place) for _, place in pairs]
    read = [path for path in (clean, *read_too, *inputs) if path]
    check_places([*outputs, *extras.items()], read, overwrite)
    drawing.check_drawable("--comparison", extras["--comparison"])
    records = []
    for path, target in pairs:
        try:
            picture = read_picture(path)
            for note in (*picture.notes, *check_writable(target, picture)):
                output.say(note)
            restored = _restored(picture, path, restore, options, clean, output)
            files = f"{done}: {path.name}", path, target
            records.append(_write(restored, picture, *files, extras, overwrite, output))
        except (ValueError, OSError) as problem:
            if len(pairs) == 1:
                raise
            # The others can be restored all the same.
            report(problem)
    output.finish(records[0] if len(pairs) == 1 else {"images": records})
    if len(records) < len(pairs):
        failed = len(pairs) - len(records)
        raise ValueError(f"{failed} of {len(pairs)} images could not be restored.")


def _pairs(inputs: list[Path], place: Path) -> list[tuple[Path, Path]]:
    """What to read, and where to write it to."""
    several = len(inputs) > 1
    if several and not place.exists() and not place.suffix:
        place.mkdir()
    if place.is_dir():
        names = [path.name for path in inputs]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"Two inputs are named {twice}; {place} can hold only one.")
        return [(path, place / path.name) for path in inputs]
    if several:
        raise ValueError(f"OUT must be a folder for {len(inputs)} images; {place} is not.")
    return [(inputs[0], place)]


def _restored(
    picture: Picture,
    path: Path,
    restore: Restore,
    options: Mapping[str, Any],
    clean: Path | None,
    output: Output,
) -> Restored:
    """What came out for one picture."""
    dictionary = options.get("dictionary")
    if dictionary is not None and dictionary.patch_shape[len(picture.shape) :] == (3,):
        raise ValueError(
            f"{path}: the dictionary is for RGB patches of {times(dictionary.patch_shape)}, and "
            "channels are restored one by one; use one that was learned without --colour."
        )
    reference = _reference(clean, picture)
    with output.stages(path.name) as progress:
        more = {"channel_axis": picture.channel_axis, "progress": progress, "full": True}
        try:
            return restore(picture, reference, {**options, **more})
        except ValueError as problem:
            raise ValueError(f"{path}: {problem}") from problem


def _write(
    restored: Restored,
    picture: Picture,
    title: str,
    path: Path,
    place: Path,
    extras: Mapping[str, Path | None],
    overwrite: bool,
    output: Output,
) -> dict[str, Any]:
    """Write what came out, and tell people; what there is to tell programs."""
    result = restored.result
    after = replace(picture, pixels=converted(result.image, picture.pixels.dtype))
    if restored.mask is not None and picture.alpha is not None:
        # What was filled in is to be seen.
        after = replace(after, alpha=np.where(restored.mask, picture.alpha.max(), picture.alpha))
    write_picture(place, after, overwrite)
    scores = _scores(restored, after)
    seconds = sum(result.seconds.values())
    facts = [("image", str(picture)), restored.fact, ("time", f"{seconds:.3g} s")]
    page = _page(title, restored, after, facts, scores)
    files = [place, *_write_extras(page, path, extras, overwrite)]
    names = ", ".join(map(str, files))
    output.say(path)
    output.say(facts_table([*facts, *_score_facts(scores), ("saved as", names)]))
    return {
        "input": str(path),
        "output": str(place),
        "shape": picture.pixels.shape,
        "dtype": picture.pixels.dtype.name,
        **restored.record,
        "quality": {name: plain_quality(found) for name, found in scores.items()},
        "settings": result.settings,
        "seconds": {name.replace(" ", "_"): value for name, value in result.seconds.items()},
        "files": [str(file) for file in files],
    }


def _reference(path: Path | None, picture: Picture) -> Picture | None:
    if path is None:
        return None
    reference = read_picture(path)
    found, needed = (p.pixels for p in (reference, picture))
    if (found.shape, found.dtype) != (needed.shape, needed.dtype):
        raise ValueError(f"--clean {path} is {reference}; it must be like the image, {picture}.")
    return reference


def _scores(restored: Restored, after: Picture) -> dict[str, dict[str, float]]:
    """PSNR and SSIM, of "before" and "after", if there is a reference."""
    if restored.reference is None:
        return {}
    images = {"before": restored.before, "after": after.pixels}
    if restored.mask is not None:
        del images["before"]
    return {name: quality(restored.reference, image) for name, image in images.items()}


def _score_facts(scores: Mapping[str, Mapping[str, float]]) -> list[tuple[str, str]]:
    """``20.17 dB → 31.94 dB``, for every score."""
    names = {"psnr": ("PSNR", decibels), "ssim": ("SSIM", "{:.4f}".format)}
    return [
        (name, " → ".join(text(found[key]) for found in scores.values()))
        for key, (name, text) in names.items()
        if scores and all(key in found for found in scores.values())
    ]


def _page(
    title: str,
    restored: Restored,
    after: Picture,
    facts: list[tuple[str, str]],
    scores: Mapping[str, Mapping[str, float]],
) -> Page:
    """What the report and the comparison show: of a stack the page in the middle."""
    pages = after.shape[0] if len(after.shape) == 3 else 1
    mask, reference, result = restored.mask, restored.reference, restored.result
    return Page(
        title=title,
        before=after.shown(restored.before),
        after=after.shown(after.pixels),
        missing=mask if mask is None or pages == 1 else mask[pages // 2],
        reference=None if reference is None else after.shown(reference.pixels),
        facts=facts,
        scores=scores,
        dictionary=result.dictionary,
        history=result.history,
        settings=result.settings,
        seconds=result.seconds,
        notes=[f"Page {pages // 2 + 1} of {pages} is shown."] if pages > 1 else [],
    )


def _write_extras(
    page: Page, source: Path, extras: Mapping[str, Path | None], overwrite: bool
) -> list[Path]:
    """Write what was asked for; the files. No dictionary is saved where none was needed."""
    written = []
    options = ("--comparison", "--report", "--save-dictionary")
    comparison, page_file, saved = (extras[option] for option in options)
    if comparison is not None:
        _compare(page, comparison, overwrite)
        written.append(comparison)
    if page_file is not None:
        save_report(page, page_file, overwrite)
        written.append(page_file)
    if saved is not None and page.dictionary is not None:
        info: dict[str, Any] = {"source": source.name, "kronlearn_version": kl.__version__}
        if page.history is not None:
            info["history"] = thinned_history(page.history)
        save_dictionary(page.dictionary, saved, info=info)
        written.append(saved)
    return written


def _compare(page: Page, path: Path, overwrite: bool) -> None:
    before, after = (
        f"{name}, {decibels(page.scores[name]['psnr'])}" if name in page.scores else name
        for name in ("before", "after")
    )
    # Where pixels were missing there is nothing to subtract from.
    against = "before" if page.missing is None or page.reference is None else "reference"
    drawing.save_comparison(
        page.before, page.after, page.reference, (before, after), against, path, overwrite
    )
