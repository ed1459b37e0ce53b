"""Files and folders written whole or not at all: beside their place first, then moved there."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["beside", "commit", "explained", "remove", "replace_file", "write_at"]

_FULL = "the disk is full (no space left on the device); make room or choose another disk"


def replace_file(target: Path, content: bytes) -> None:
    """Write a file: a reader sees the old one or the new one, also after a crash."""
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a folder; give the name of a file.")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"The folder {target.parent} does not exist; create it first.")
    temporary = beside(target)
    try:
        with open(temporary, "xb") as file:
            file.write(content)
        commit([(temporary, target)])
    except OSError as problem:
        raise explained(problem, target) from problem
    finally:
        remove(temporary)


def beside(target: Path) -> Path:
    """A name for a temporary file or folder beside a target, with the same ending."""
    # Not tempfile: its files are private to the user, and the target would stay so.
    return target.parent / f".kronlearn-{secrets.token_hex(8)}{target.suffix}"


def commit(moves: Sequence[tuple[Path, Path]]) -> None:
    """Move files or folders ``(temporary, target)`` to their places once all are on the disk."""
    for temporary, _ in moves:
        for place in [*temporary.rglob("*"), temporary]:
            _sync(place)
    for temporary, target in moves:
        _move(temporary, target)
        _sync(target.parent)


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


def explained(problem: OSError, target: Path) -> OSError:
    """The error with the name of the target, and in plain words for a full disk."""
    text = problem.strerror or str(problem.__cause__ or problem)
    if str(target) in text:
        return problem
    # GDAL says only that it failed.
    room = shutil.disk_usage(target.absolute().parent).free
    full = problem.errno in (errno.ENOSPC, errno.EDQUOT) or room < 1 << 16
    if full or "No space left" in str(problem):
        return OSError(errno.ENOSPC, f"{target} could not be written: {_FULL}")
    return OSError(problem.errno or errno.EIO, f"{target} could not be written: {text}")


def _sync(place: Path) -> None:
    """Make sure that a file, or the list of the files of a folder, has reached the disk."""
    if place.is_dir() and os.name != "posix":
        return
    descriptor = os.open(place, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _move(temporary: Path, target: Path) -> None:
    """Move a file or folder to its place, whatever is there."""
    if not target.is_dir():
        os.replace(temporary, target)
        return
    old = beside(target)
    os.rename(target, old)
    try:
        os.rename(temporary, target)
    except BaseException:
        os.rename(old, target)
        raise
    shutil.rmtree(old, ignore_errors=True)
