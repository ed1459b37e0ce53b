"""What commands check before the work: where they write, and whether there is a GPU."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kronlearn.cli.output import Output, counted
from kronlearn.engines.selection import check_device

__all__ = ["check_places", "one_or_each", "use_device"]

# Options for files that matplotlib writes.
_DRAWINGS = ("--comparison", "--convergence", "--picture")

_COMPILING = (
    "Preparing kernels for this GPU, which takes some seconds the first time; they are kept on "
    "disk."
)


def check_places(
    outputs: Iterable[tuple[str, Path | None]],
    inputs: Iterable[Path],
    overwrite: bool,
    folders: bool = False,
) -> None:
    """Raise ValueError, before the work, for an output that cannot or must not be written.

    ``outputs`` pairs the name of an option with its file, or None. ``inputs`` must stay as they
    are; other files that exist may be replaced with ``overwrite``. A checkpoint may exist: learning
    resumes from it. With ``folders`` an output may be a folder.
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
            raise ValueError(f"{option}: the folder {path.parent} cannot be written to.")
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
            f"{option} {path} does not have the extension of a picture format: "
            f"{', '.join('.' + ending for ending in sorted(known))}."
        )


def use_device(
    device: str,
    output: Output,
    named: str = "--device cuda",
    otherwise: str = "leave the option out",
) -> None:
    """Raise ValueError unless there is such a device; announce kernels that are compiled for it.

    ``named`` is what in the command asks for a GPU, ``otherwise`` what can be done without one.
    """
    if device == "cuda":
        logger = logging.getLogger("kronlearn.cuda.device")

        def announce(record: logging.LogRecord) -> bool:
            logger.filters = []
            output.say(_COMPILING, aside=True)
            return False

        logger.setLevel(logging.INFO)
        logger.filters = [announce]
    try:
        check_device(device)
    except (ImportError, RuntimeError) as problem:
        text = str(problem).replace('device="cuda"', named)
        raise ValueError(text.replace('pass device="cpu"', otherwise)) from problem


def one_or_each(levels: Any, count: int, noun: str) -> Any:
    """The noise level of all channels or bands, or that of each, as --sigma has it."""
    if levels is None:
        return None
    if len(levels) not in (1, count):
        raise ValueError(
            f"--sigma has {counted(len(levels), 'number')} for {counted(count, noun)}; give one "
            f"number, or one per {noun}."
        )
    return float(levels[0]) if len(levels) == 1 else levels
