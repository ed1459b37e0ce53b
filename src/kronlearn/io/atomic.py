"""Files and folders written whole or not at all: beside their place first, then moved there."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

__all__ = ["atomic_write", "check_targets", "explaining", "remove", "temporary_place", "write_at"]

_NO_SPACE = "No space left"
_FULL = "the disk is full (no space left on the device); free some space or choose another disk"


@contextlib.contextmanager
def atomic_write(
    *targets: str | os.PathLike[str], overwrite: bool = True
) -> Iterator[tuple[Path, ...]]:
    """Temporary places, one for each target, for files or folders that are to be written there.

    When the block ends, what was written is brought to the disk and moved to its targets, in their
    order: a reader sees the old file or the new one, also after a crash. After an error nothing is
    left of it, and the targets are as they were. A link stays a link to what is replaced. A target
    that exists, or has come to exist meanwhile, is an error if ``overwrite`` is false.
    """
    final = tuple(Path(os.path.realpath(target)) for target in targets)
    check_targets(final, overwrite)
    places = tuple(map(temporary_place, final))
    try:
        with explaining(final[0]):
            yield places
            for place in places:
                for part in [*place.rglob("*"), place]:
                    _sync(part)
            check_targets(final, overwrite)
            for place, target in zip(places, final, strict=True):
                _move(place, target)
                _sync(target.parent)
    finally:
        remove(*places)


def temporary_place(target: Path) -> Path:
    """A name for a temporary file or folder beside a target, with the same ending."""
    # Not tempfile: its files are private to the user, and the target would stay so.
    return target.parent / f".kronlearn-{secrets.token_hex(8)}{target.suffix}"


def remove(*places: Path) -> None:
    """Remove what is left at temporary places."""
    for place in places:
        if place.is_dir():
            shutil.rmtree(place, ignore_errors=True)
        else:
            place.unlink(missing_ok=True)


def write_at(descriptor: int, content: Any, place: int) -> None:
    """Write all bytes at a place of a file."""
    view = memoryview(content).cast("B")
    while view:
        written = os.pwrite(descriptor, view, place)
        view, place = view[written:], place + written


@contextlib.contextmanager
def explaining(target: Path) -> Iterator[None]:
    """Errors of the system get the name of the target, and plain words for a full disk."""
    try:
        yield
    except OSError as problem:
        if str(target) in str(problem):
            raise
        number, text = problem.errno or errno.EIO, problem.strerror
        # GDAL says only that it failed.
        room = shutil.disk_usage(target.absolute().parent).free
        if number in (errno.ENOSPC, errno.EDQUOT) or room < 1 << 16 or _NO_SPACE in str(problem):
            number, text = errno.ENOSPC, _FULL
        text = text or str(problem.__cause__ or problem)
        raise OSError(number, f"{target} could not be written: {text}") from problem


def check_targets(targets: Iterable[Path], overwrite: bool) -> None:
    """Raise unless files or folders may be written there."""
    for target in targets:
        if not target.parent.is_dir():
            raise FileNotFoundError(f"The folder {target.parent} does not exist; create it first.")
        if target.exists() and not overwrite:
            raise FileExistsError(f"{target} already exists; it was not replaced.")


def _sync(place: Path) -> None:
    """Make sure that a file, or the list of the files of a folder, has reached the disk."""
    descriptor = os.open(place, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _move(place: Path, target: Path) -> None:
    """Move a file or folder to its place; a folder is replaced by a folder only."""
    if target.is_dir() and not place.is_dir():
        raise IsADirectoryError(f"{target} is a folder; give the name of a file.")
    if not target.is_dir():
        os.replace(place, target)
        return
    old = temporary_place(target)
    os.rename(target, old)
    try:
        os.rename(place, target)
    except BaseException:
        os.rename(old, target)
        raise
    remove(old)
