"""Where commands write: checked before the work, and each file written whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path

__all__ = ["check_places", "write_whole"]


def check_places(
    outputs: Iterable[tuple[str, Path | None]],
    inputs: Iterable[Path],
    overwrite: bool,
    resumed: Iterable[str] = (),
) -> None:
    """Refuse, before the work and not after it, to write where it cannot be or must not be.

    Parameters
    ----------
    outputs : pairs of str and path or None
        The options that name files to be written, and the files; None where none is wanted.
    inputs : paths
        Files that must stay as they are.
    overwrite : bool
        Whether files that exist may be replaced.
    resumed : names of options
        Whose files may exist in any case.
    """
    taken = {path.resolve(): f"the input {path}" for path in inputs}
    for option, path in outputs:
        if path is None:
            continue
        if path.is_dir():
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
                f"{option} {path} exists already; give another name, or --overwrite to replace it."
            )
        taken[path.resolve()] = f"the file of {option}"


def write_whole(path: Path, write: Callable[[Path], None], overwrite: bool) -> None:
    """Let ``write`` fill a file beside its place, then move it there in one step.

    A file that has come to be at ``path`` in the meantime is not replaced unless asked for.
    """
    target = Path(os.path.realpath(path))
    # The same ending, by which writers know the format.
    temporary = target.parent / f".kronlearn-{secrets.token_hex(8)}{target.suffix}"
    try:
        write(temporary)
        if target.exists() and not overwrite:
            raise ValueError(f"{path} has come to exist since the start; it was not replaced.")
        os.replace(temporary, target)
    except BaseException as problem:
        temporary.unlink(missing_ok=True)
        if isinstance(problem, OSError) and problem.strerror:
            raise OSError(
                problem.errno, f"{path} could not be written: {problem.strerror}"
            ) from None
        raise
