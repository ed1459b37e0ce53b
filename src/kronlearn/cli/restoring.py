"""What ``denoise`` and ``inpaint`` share: image files in, image files and reports out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

import kronlearn as kl
from kronlearn.cli.checks import check_places, use_device
from kronlearn.cli.errors import print_error
from kronlearn.cli.output import Output, facts_table, save_figure, times
from kronlearn.cli.record import thinned_history
from kronlearn.cli.report import Page, save_report
from kronlearn.cli.scores import decibels, image_scores, score_facts
from kronlearn.io.conversion import converted
from kronlearn.io.images import Picture, check_writable, read_picture, save_picture, write_picture
from kronlearn.io.model_files import load_dictionary, save_dictionary
from kronlearn.plots import ComparisonDisplay

__all__ = ["Restored", "read_mask", "restore_files", "values"]

# In place of a file: standard input or output.
_STANDARD = Path("-")


@dataclass(frozen=True)
class Restored:
    """What came out, and what went in."""

    #: ``Denoised`` or ``Inpainted``.
    result: Any
    before: NDArray[Any]
    reference: Picture | None
    #: Where pixels were missing, of the picture's shape.
    mask: NDArray[np.bool_] | None
    #: What else there is to tell people, and programs.
    facts: list[tuple[str, str]] = field(default_factory=list)
    record: dict[str, Any] = field(default_factory=dict)


#: Restores a picture, given a reference or None, and arguments for the library.
Restore = Callable[[Picture, Picture | None, dict[str, Any]], Restored]


def values(picture: Picture) -> NDArray[Any]:
    """The pixels, with black and white as numbers."""
    is_bool = picture.pixels.dtype == np.bool_
    return picture.pixels.astype(np.float32) if is_bool else picture.pixels


def read_mask(path: Path, picture: Picture) -> NDArray[np.bool_]:
    """Where the image of ``--mask`` is nonzero, of the picture's shape."""
    mask = read_picture(path)
    marked = mask.pixels != 0
    if mask.has_channels:
        marked = marked.any(axis=-1)
    if marked.shape not in (picture.shape, picture.shape[-2:]):
        raise ValueError(f"--mask {path} is {mask}; it must be as large as the image, {picture}.")
    return np.broadcast_to(marked, picture.shape).copy()


def restore_files(
    done: str, restore: Restore, given: Mapping[str, Any], read_too: Path | None = None
) -> None:
    """Restore images, write them and what else was asked for, and tell how it went.

    ``done`` is what is done to an image, "Denoised"; ``given`` is what the command was given.
    ``read_too``, as the other inputs, is not overwritten.
    """
    to_standard = given["output"] == _STANDARD
    if to_standard and given["as_json"]:
        raise ValueError("OUT - and --json both write to standard output; give OUT a file name.")
    output = Output(given["as_json"], given["quiet"], aside=to_standard)
    use_device(given["device"], output)
    inputs, clean = given["inputs"], given["clean"]
    extras = {
        "--report": given["report"],
        "--comparison": given["comparison"],
        "--save-dictionary": given["save_dictionary"],
    }
    pairs = _pairs(inputs, given["output"])
    if len(pairs) > 1:
        for option, path in {**extras, "--clean": clean}.items():
            if path is not None:
                raise ValueError(f"{option} works with one image only; {len(pairs)} were given.")
    read = [path for path in (clean, given["dictionary"], read_too, *inputs) if path]
    outputs = [("OUT", place) for _, place in pairs if not to_standard]
    check_places([*outputs, *extras.items()], read, given["overwrite"])
    arguments = _arguments(given)
    records = []
    for path, place in pairs:
        try:
            picture = _read(path)
            target = Path("-.png") if to_standard else place
            for note in (*picture.notes, *check_writable(target, picture)):
                output.say(note)
            reference = _reference(clean, picture)
            _check_colour(given["dictionary"], arguments.get("dictionary"), path, picture)
            with output.stages(path.name) as progress:
                more = {"channel_axis": picture.channel_axis, "progress": progress}
                try:
                    restored = restore(picture, reference, {**arguments, **more})
                except ValueError as problem:
                    raise ValueError(f"{path}: {problem}") from problem
            title = f"{done}: {path.name}"
            records.append(_write(restored, picture, title, path, place, given, output))
        except (ValueError, OSError) as problem:
            if len(pairs) == 1:
                raise
            # The others can be restored all the same.
            print_error(problem)
    output.finish(records[0] if len(pairs) == 1 else {"images": records})
    if len(records) < len(pairs):
        failed = len(pairs) - len(records)
        raise ValueError(f"{failed} of {len(pairs)} images could not be restored.")


def _read(path: Path) -> Picture:
    """The image in a file or on standard input."""
    if path != _STANDARD:
        return read_picture(path)
    with TemporaryDirectory() as folder:
        copy = Path(folder) / "stdin"
        copy.write_bytes(sys.stdin.buffer.read())
        try:
            return read_picture(copy)
        except ValueError as problem:
            raise ValueError(str(problem).replace(str(copy), "standard input")) from problem


def _arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """What denoising and inpainting are told in the same words."""
    arguments: dict[str, Any] = {
        "random_state": given["seed"],
        "n_jobs": given["n_jobs"],
        "device": given["device"],
        "full": True,
    }
    if given["dictionary"] is None:
        return {**arguments, "patch_size": given["patch"], "n_atoms": given["atoms"]}
    for name in ("patch", "atoms"):
        if given[name] is not None:
            raise ValueError(f"--dictionary determines --{name}; leave --{name} out.")
    return {**arguments, "dictionary": load_dictionary(given["dictionary"])}


def _check_colour(place: Path | None, dictionary: Any, path: Path, picture: Picture) -> None:
    """Raise ValueError if the dictionary is for RGB images and the picture is grey."""
    shape = () if dictionary is None else dictionary.patch_shape
    if picture.channel_axis is None and shape[-1:] == (3,) and len(shape) == len(picture.shape) + 1:
        raise ValueError(
            f"--dictionary {place} is for RGB images, with patches of {times(shape)}; {path} is "
            "grey."
        )


def _pairs(inputs: list[Path], place: Path) -> list[tuple[Path, Path]]:
    """What to read, and where to write it to."""
    several = len(inputs) > 1
    if several and place != _STANDARD and not place.exists() and not place.suffix:
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


def _write(
    restored: Restored,
    picture: Picture,
    title: str,
    path: Path,
    place: Path,
    given: Mapping[str, Any],
    output: Output,
) -> dict[str, Any]:
    """Write what came out, and tell people; what there is to tell programs."""
    result = restored.result
    after = replace(picture, pixels=converted(result.image, picture.pixels.dtype))
    facts, record = [("image", str(picture)), *restored.facts], restored.record
    if restored.mask is not None:
        record = {**record, "missing": float(restored.mask.mean())}
        facts.append(("missing", f"{100 * record['missing']:.3g} % of the pixels"))
        if picture.alpha is not None:
            # What was filled in is to be seen.
            alpha = np.where(restored.mask, picture.alpha.max(), picture.alpha)
            after = replace(after, alpha=alpha)
    if place == _STANDARD:
        with TemporaryDirectory() as folder:
            file = Path(folder) / "stdout.png"
            save_picture(file, after)
            sys.stdout.buffer.write(file.read_bytes())
    else:
        write_picture(place, after, given["overwrite"])
    scores = _scores(restored, after)
    facts += [("time", f"{sum(result.seconds.values()):.3g} s"), *score_facts(scores)]
    page = _page(title, restored, after, facts)
    files = [place, *_write_extras(page, scores, path, given)]
    output.say(path)
    output.say(facts_table([*facts, ("saved as", ", ".join(map(str, files)))]))
    return {
        "input": str(path),
        "output": str(place),
        "shape": picture.pixels.shape,
        "dtype": picture.pixels.dtype.name,
        **record,
        "scores": scores,
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
        raise ValueError(f"--clean {path} is {reference}; it must match the image, {picture}.")
    return reference


def _scores(restored: Restored, after: Picture) -> dict[str, dict[str, float]]:
    """PSNR and SSIM, of "before" and "after", if there is a reference."""
    if restored.reference is None:
        return {}
    images = {} if restored.mask is not None else {"before": restored.before}
    images["after"] = after.pixels
    return {name: image_scores(restored.reference, image) for name, image in images.items()}


def _page(title: str, restored: Restored, after: Picture, facts: list[tuple[str, str]]) -> Page:
    """What the report and the comparison show: of a stack the page in the middle."""
    pages = after.shape[0] if len(after.shape) == 3 else 1
    result, mask, reference = restored.result, restored.mask, restored.reference
    return Page(
        title=title,
        before=after.shown(restored.before),
        after=after.shown(after.pixels),
        facts=facts,
        seconds=result.seconds,
        settings=result.settings,
        dictionary=result.dictionary,
        history=result.history,
        missing=mask if mask is None or pages == 1 else mask[pages // 2],
        reference=None if reference is None else after.shown(reference.pixels),
        notes=[f"Page {pages // 2 + 1} of {pages} is shown."] if pages > 1 else [],
    )


def _write_extras(
    page: Page, scores: Mapping[str, Any], source: Path, given: Mapping[str, Any]
) -> list[Path]:
    """Write what was asked for; the files. No dictionary is saved where none was needed."""
    written, overwrite = [], given["overwrite"]
    if given["comparison"] is not None:
        before, after = (
            f"{name}, {decibels(scores[name]['psnr'])}" if name in scores else name
            for name in ("before", "after")
        )
        # Where pixels were missing there is nothing to subtract from.
        against = "before" if page.missing is None or page.reference is None else "reference"
        images = page.before, page.after, page.reference
        display = ComparisonDisplay(*images, names=(before, after), against=against).plot()
        # As many pixels as the images have, within reason.
        dpi = min(max(page.after.shape[1] / 4, 150), 500)
        save_figure(display.figure_, given["comparison"], overwrite, dpi)
        written.append(given["comparison"])
    if given["report"] is not None:
        save_report(page, given["report"], overwrite)
        written.append(given["report"])
    if given["save_dictionary"] is not None and page.dictionary is not None:
        info: dict[str, Any] = {"source": source.name, "kronlearn_version": kl.__version__}
        if page.history is not None:
            info["history"] = thinned_history(page.history)
        save_dictionary(page.dictionary, given["save_dictionary"], info=info)
        written.append(given["save_dictionary"])
    return written
