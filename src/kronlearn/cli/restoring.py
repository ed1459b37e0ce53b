"""What ``denoise`` and ``inpaint`` share: image files in, image files and reports out."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

import kronlearn as kl
from kronlearn.cli.checks import check_outputs, use_device
from kronlearn.cli.errors import print_error
from kronlearn.cli.output import Output, facts_table, save_figure, times
from kronlearn.cli.record import thinned_history
from kronlearn.cli.report import Page, save_report
from kronlearn.cli.scores import decibels, image_scores, score_facts
from kronlearn.io.conversion import converted
from kronlearn.io.images import Picture, check_writable, read_picture, save_picture, write_picture
from kronlearn.io.model_files import load_dictionary, save_dictionary
from kronlearn.plots import ComparisonDisplay

__all__ = ["Restored", "numeric_pixels", "read_mask", "restore_files"]

# Standard input or output, in place of a file.
_STANDARD = Path("-")
# Masks drawn with a few values are fine; those with more have been blurred.
_MOST_MASK_VALUES = 16


@dataclass(frozen=True)
class Restored:
    """A restored image and what it was restored from."""

    picture: Picture
    #: ``Denoised`` or ``Inpainted``.
    result: Any
    before: NDArray[Any]
    reference: Picture | None
    #: Where pixels were missing, in the picture's shape.
    mask: NDArray[np.bool_] | None
    #: Further facts to print, and entries of the JSON object.
    facts: list[tuple[str, str]] = field(default_factory=list)
    record: dict[str, Any] = field(default_factory=dict)


#: Restores a picture; also takes its reference, or None, and arguments for the library.
Restore = Callable[[Picture, Picture | None, dict[str, Any]], Restored]


def numeric_pixels(picture: Picture) -> NDArray[Any]:
    """The pixels, with black and white as 0 and 1."""
    is_bool = picture.pixels.dtype == np.bool_
    return picture.pixels.astype(np.float32) if is_bool else picture.pixels


def read_mask(path: Path, picture: Picture) -> NDArray[np.bool_]:
    """Where the image of ``--mask`` is nonzero, in the picture's shape."""
    mask = read_picture(path)
    marked = mask.pixels != 0
    if mask.has_channels:
        marked = marked.any(axis=-1)
    n_values = len(np.unique(mask.pixels))
    if n_values > _MOST_MASK_VALUES:
        warnings.warn(
            f"--mask {path} has {n_values} different values, and every pixel that is not zero "
            "counts as missing; JPEG and scaling blur the edges of a mask.",
            stacklevel=1,
        )
    if marked.shape not in (picture.shape, picture.shape[-2:]):
        raise ValueError(f"--mask {path} is {mask}; it must be as large as the image, {picture}.")
    return np.broadcast_to(marked, picture.shape).copy()


def restore_files(done: str, restore: Restore, options: Mapping[str, Any]) -> None:
    """Restore images, write them with what else was asked for, and print the results.

    ``done`` is what happens to an image, "Denoised"; ``options`` are those of the command.
    """
    inputs, output, clean = options["inputs"], options["output"], options["clean"]
    to_standard = Path(output) == _STANDARD
    if to_standard and options["as_json"]:
        raise ValueError("OUT - and --json both write to standard output; give OUT a file name.")
    shown = Output(options["as_json"], options["quiet"], aside=to_standard)
    use_device(options["device"], shown)
    extras = {
        "--report": options["report"],
        "--comparison": options["comparison"],
        "--save-dictionary": options["save_dictionary"],
    }
    if len(inputs) > 1:
        for option, file in {**extras, "--clean": clean}.items():
            if file is not None:
                raise ValueError(f"{option} works with one image only; {len(inputs)} were given.")
    pairs = _pairs(inputs, output)
    outputs = [("OUT", target) for _, target in pairs if not to_standard]
    read = [path for path in (clean, options["dictionary"], options["mask"], *inputs) if path]
    check_outputs([*outputs, *extras.items()], read, options["overwrite"])
    arguments = _arguments(options)
    records = []
    for path, target in pairs:
        try:
            picture = _read(path)
            for note in (*picture.notes, *check_writable(target, picture)):
                shown.say(note)
            reference = None if clean is None else _read_reference(clean, picture)
            _check_colour(options["dictionary"], arguments.get("dictionary"), path, picture)
            with shown.stages(path.name) as progress:
                image = {"channel_axis": picture.channel_axis, "progress": progress}
                try:
                    restored = restore(picture, reference, {**arguments, **image})
                except ValueError as problem:
                    raise ValueError(f"{path}: {problem}") from problem
            title = f"{done}: {path.name}"
            records.append(_write(title, restored, path, target, options, shown))
        except (ValueError, OSError) as problem:
            if len(pairs) == 1:
                raise
            print_error(problem)
    shown.finish(records[0] if len(pairs) == 1 else {"images": records})
    if len(records) < len(pairs):
        failed = len(pairs) - len(records)
        raise ValueError(f"{failed} of {len(pairs)} images could not be restored.")


def _pairs(inputs: list[Path], output: str) -> list[tuple[Path, Path]]:
    """Every input with the file to write.

    Several files go to a folder, and one does if ``output`` ends in a slash; it may be new.
    """
    path, several, has_slash = Path(output), len(inputs) > 1, output.endswith("/")
    may_be_new = has_slash or (several and path != _STANDARD and not path.suffix)
    if may_be_new and not path.exists():
        if not any(source == _STANDARD or source.is_file() for source in inputs):
            # Raise the error of the first input instead of making a folder for nothing.
            _read(inputs[0])
        path.mkdir()
    if path.is_dir():
        names = [source.name for source in inputs]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"Two inputs are named {twice}; {path} can hold only one.")
        return [(source, path / source.name) for source in inputs]
    if several:
        raise ValueError(f"OUT must be a folder for {len(inputs)} images; {path} is not.")
    if has_slash:
        raise ValueError(f"OUT {output} is a file; leave out the slash, or name a folder.")
    # Standard output gets a PNG.
    return [(inputs[0], Path("-.png") if path == _STANDARD else path)]


def _arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that denoising and inpainting have in common."""
    arguments = {"random_state": options["seed"], "full": True}
    arguments |= {name: options[name] for name in ("n_jobs", "device")}
    if options["dictionary"] is None:
        return {**arguments, "patch_size": options["patch"], "n_atoms": options["atoms"]}
    for name in ("patch", "atoms"):
        if options[name] is not None:
            raise ValueError(f"--dictionary determines --{name}; leave --{name} out.")
    return {**arguments, "dictionary": load_dictionary(options["dictionary"])}


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


def _read_reference(path: Path, picture: Picture) -> Picture:
    """The image of ``--clean``, which must be like the picture."""
    reference = read_picture(path)
    found, needed = reference.pixels, picture.pixels
    if (found.shape, found.dtype) != (needed.shape, needed.dtype):
        part = "size" if found.shape != needed.shape else "type of pixels"
        raise ValueError(
            f"--clean {path} is {reference}; it must have the same {part} as the image, {picture}."
        )
    return reference


def _check_colour(file: Path | None, dictionary: Any, path: Path, picture: Picture) -> None:
    """Raise ValueError if the dictionary is for RGB images and the picture is grey."""
    shape = () if dictionary is None else dictionary.patch_shape
    if picture.channel_axis is None and shape[-1:] == (3,) and len(shape) == len(picture.shape) + 1:
        raise ValueError(
            f"--dictionary {file} is for RGB images, with patches of {times(shape)}; {path} is "
            "grey."
        )


def _write(
    title: str,
    restored: Restored,
    path: Path,
    target: Path,
    options: Mapping[str, Any],
    shown: Output,
) -> dict[str, Any]:
    """Write the image and the other files, print the facts, and return the entries for JSON."""
    result, picture = restored.result, restored.picture
    after = replace(picture, pixels=converted(result.image, picture.pixels.dtype))
    facts, record = [("image", str(picture)), *restored.facts], restored.record
    if restored.mask is not None:
        record = {**record, "missing": float(restored.mask.mean())}
        facts.append(("missing", f"{100 * record['missing']:.3g} % of the pixels"))
        if picture.alpha is not None:
            # Make pixels that were filled in opaque.
            alpha = np.where(restored.mask, picture.alpha.max(), picture.alpha)
            after = replace(after, alpha=alpha)
    if shown.aside:
        with TemporaryDirectory() as folder:
            file = Path(folder) / target
            save_picture(file, after)
            sys.stdout.buffer.write(file.read_bytes())
        target = _STANDARD
    else:
        write_picture(target, after, options["overwrite"])
    scores = _scores(restored, after)
    facts += [("time", f"{sum(result.seconds.values()):.3g} s"), *score_facts(scores)]
    page = _page(title, restored, after, facts)
    files = [target, *_write_extras(page, scores, path.name, options)]
    shown.say(path)
    shown.say(facts_table([*facts, ("saved as", ", ".join(map(str, files)))]))
    return {
        "input": str(path),
        "output": str(target),
        "shape": picture.pixels.shape,
        "dtype": picture.pixels.dtype.name,
        **record,
        "scores": scores,
        "settings": result.settings,
        "seconds": {name.replace(" ", "_"): value for name, value in result.seconds.items()},
        "files": [str(file) for file in files],
    }


def _scores(restored: Restored, after: Picture) -> dict[str, dict[str, float]]:
    """PSNR and SSIM of the image before and after, if there is a reference.

    An image with missing pixels has no scores before.
    """
    if restored.reference is None:
        return {}
    images = {} if restored.mask is not None else {"before": restored.before}
    images["after"] = after.pixels
    return {name: image_scores(restored.reference, image) for name, image in images.items()}


def _page(title: str, restored: Restored, after: Picture, facts: list[tuple[str, str]]) -> Page:
    """The content of the report and the comparison; a stack is shown by its middle page."""
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
    page: Page, scores: Mapping[str, Any], source: str, options: Mapping[str, Any]
) -> list[Path]:
    """Write the comparison, the report and the dictionary, if asked for; return the files.

    A dictionary that was not needed is not saved.
    """
    written, overwrite = [], options["overwrite"]
    comparison, report, model = (
        options[name] for name in ("comparison", "report", "save_dictionary")
    )
    if comparison is not None:
        before, after = (
            f"{name}, {decibels(scores[name]['psnr'])}" if name in scores else name
            for name in ("before", "after")
        )
        # A difference from missing pixels would mean nothing.
        against = "before" if page.missing is None or page.reference is None else "reference"
        images = page.before, page.after, page.reference
        display = ComparisonDisplay(*images, names=(before, after), against=against).plot()
        # One pixel of the figure for each of the image, within reason.
        dpi = min(max(page.after.shape[1] / 4, 150), 500)
        save_figure(display.figure_, comparison, overwrite, dpi)
        written.append(comparison)
    if report is not None:
        save_report(page, report, overwrite)
        written.append(report)
    if model is not None and page.dictionary is not None:
        info: dict[str, Any] = {"source": source, "kronlearn_version": kl.__version__}
        if page.history is not None:
            info["history"] = thinned_history(page.history)
        save_dictionary(page.dictionary, model, info=info)
        written.append(model)
    return written
