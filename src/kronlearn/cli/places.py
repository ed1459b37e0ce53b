"""Where commands write, checked before the work."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

__all__ = ["check_places"]


def check_places(
    outputs: Iterable[tuple[str, Path | None]],
    inputs: Iterable[Path],
    overwrite: bool,
    resumed: Iterable[str] = (),
    folders: bool = False,
) -> None:
    """Raise ValueError, before the work, for an output that cannot or must not be written.

    ``outputs`` pairs the name of an option with its file, or None. ``inputs`` must stay as they
    are; other files that exist may be replaced with ``overwrite``, or if their option is
    ``resumed``. With ``folders`` an output may be a folder.
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
        if path.exists() and not overwrite and option not in resumed:
            raise ValueError(
                f"{option} {path} already exists; give another name, or --overwrite to replace it."
            )
        taken[path.resolve()] = f"the file of {option}"
