"""Checks before the work starts: files that would be written, the GPU, noise levels."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kronlearn.cli.output import Output, counted
from kronlearn.engines.selection import check_device

__all__ = ["check_outputs", "one_or_each", "use_device"]

# Options for files that matplotlib writes.
_DRAWINGS = ("--comparison", "--convergence", "--picture")


def check_outputs(
    outputs: Iterable[tuple[str, Path | None]],
    inputs: Iterable[Path],
    overwrite: bool,
    folders: bool = False,
) -> None:
    """Raise ValueError for an output that cannot or must not be written.

    ``outputs`` pairs the name of an option with its file, or None. An input is never overwritten,
    another existing file only with ``overwrite``, except that learning resumes from an existing
    checkpoint. With ``folders`` an output may be a folder.
    """
    taken = {path.resolve(): f"the input {path}" for path in inputs}
    for option, path in outputs:
        if path is None:
            continue
        if path.is_dir() and not folders:
            raise ValueError(f"{option} {path} is a folder; give the name of a file.")
        folder = path.absolute().parent
        if not folder.is_dir():
            raise ValueError(f"{option}: the folder {path.parent} does not exist; create it first.")
        if not os.access(folder, os.W_OK):
            raise ValueError(f"{option}: the folder {path.parent} is not writable.")
        if path.resolve() in taken:
            raise ValueError(
                f"{option} {path} would overwrite {taken[path.resolve()]}; give another name."
            )
        if path.exists() and not overwrite and option != "--checkpoint":
            raise ValueError(
                f"{option} {path} already exists; give another name, or --overwrite to replace it."
            )
        if option in _DRAWINGS:
            _check_drawable(option, path)
        taken[path.resolve()] = f"the file of {option}"


def _check_drawable(option: str, path: Path) -> None:
    """Raise ValueError for a file whose extension matplotlib has no format for."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    known = FigureCanvasAgg.get_supported_filetypes()
    if path.suffix.lower().removeprefix(".") not in known:
        raise ValueError(
            f"{option} {path} needs the extension of a picture format: "
            f"{', '.join('.' + extension for extension in sorted(known))}."
        )


def use_device(
    device: str,
    output: Output,
    requested_by: str = "--device cuda",
    alternative: str = "leave the option out",
) -> None:
    """Raise ValueError if the GPU is needed and missing; announce the compilation of its kernels.

    Errors say what requested a GPU, and suggest the alternative.
    """
    if device == "cuda":
        logger = logging.getLogger("kronlearn.cuda.device")

        def announce(record: logging.LogRecord) -> bool:
            logger.filters = []
            output.say(
                "Preparing kernels for this GPU, which takes some seconds the first time; they "
                "are kept on disk.",
                aside=True,
            )
            return False

        logger.setLevel(logging.INFO)
        logger.filters = [announce]
    try:
        check_device(device)
    except (ImportError, RuntimeError) as problem:
        text = str(problem).replace('device="cuda"', requested_by)
        raise ValueError(text.replace('pass device="cpu"', alternative)) from problem


def one_or_each(levels: Any, count: int, noun: str) -> Any:
    """``--sigma`` as one noise level for all channels or bands, or one for each."""
    if levels is None:
        return None
    if len(levels) not in (1, count):
        raise ValueError(
            f"--sigma has {counted(len(levels), 'number')} for {counted(count, noun)}; give one "
            f"number, or one per {noun}."
        )
    return float(levels[0]) if len(levels) == 1 else levels
