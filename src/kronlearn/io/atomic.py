"""Files and folders written as a whole or not at all: to a temporary path first, then moved."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

__all__ = ["atomic_write", "check_targets", "explain_write_errors", "remove", "temporary_path"]
__all__ += ["write_at"]

_NO_SPACE = "No space left"
_FULL = "the disk is full (no space left on the device); free some space or choose another disk"


@contextlib.contextmanager
def atomic_write(
    *targets: str | os.PathLike[str], overwrite: bool = True, folders: bool = False
) -> Iterator[tuple[Path, ...]]:
    """Yield one temporary path per target, to which the block writes files, or else ``folders``.

    At the end of the block, they are synced to the disk and moved to the targets, in their order:
    readers see the old file or the new one, even after a crash. After an error the temporary files
    are removed and the targets stay as they were. If a target is a link, the file that it leads to
    is replaced. Unless ``overwrite``, raise FileExistsError if a target exists before or after the
    block.
    """
    final = tuple(Path(os.path.realpath(target)) for target in targets)
    check_targets(final, overwrite, folders)
    paths = tuple(map(temporary_path, final))
    try:
        with explain_write_errors(final[0]):
            yield paths
            for path in paths:
                for part in [*path.rglob("*"), path]:
                    _sync(part)
            check_targets(final, overwrite, folders)
            for path, target in zip(paths, final, strict=True):
                _move(path, target)
                _sync(target.parent)
    finally:
        remove(*paths)


def temporary_path(target: Path) -> Path:
    """A path beside the target for a temporary file or folder, with the same ending."""
    # Not tempfile, whose files are private to the user: the target would be, too.
    return target.parent / f".kronlearn-{secrets.token_hex(8)}{target.suffix}"


def remove(*paths: Path) -> None:
    """Remove temporary files and folders, as far as they exist."""
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def write_at(descriptor: int, content: Any, offset: int) -> None:
    """Write all bytes at an offset of a file."""
    view = memoryview(content).cast("B")
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


@contextlib.contextmanager
def explain_write_errors(target: Path) -> Iterator[None]:
    """Add the name of the target to OSErrors of the block, and say so if the disk is full."""
    try:
        yield
    except OSError as problem:
        if str(target) in str(problem):
            raise
        number, text = problem.errno or errno.EIO, problem.strerror
        # GDAL only says that it failed.
        free = shutil.disk_usage(target.absolute().parent).free
        if number in (errno.ENOSPC, errno.EDQUOT) or free < 1 << 16 or _NO_SPACE in str(problem):
            number, text = errno.ENOSPC, _FULL
        text = text or str(problem.__cause__ or problem)
        raise OSError(number, f"{target} could not be written: {text}") from problem


def check_targets(targets: Iterable[Path], overwrite: bool, folders: bool) -> None:
    """Raise if a target has no folder, or exists but must not or cannot be replaced.

    A folder replaces only a folder, and a file only a file.
    """
    for target in targets:
        if not target.parent.is_dir():
            raise FileNotFoundError(f"The folder {target.parent} does not exist; create it first.")
        if target.exists() and not overwrite:
            raise FileExistsError(f"{target} already exists; it was not replaced.")
        if target.is_dir() and not folders:
            raise IsADirectoryError(f"{target} is a folder; give the name of a file.")
        if target.is_file() and folders:
            raise NotADirectoryError(
                f"{target} is a file; this format needs a folder, so give another name."
            )


def _sync(path: Path) -> None:
    """Sync a file, or the list of the files in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _move(path: Path, target: Path) -> None:
    """Move a file or folder to its target, which is replaced."""
    if not target.is_dir():
        os.replace(path, target)
        return
    old = temporary_path(target)
    os.rename(target, old)
    try:
        os.rename(path, target)
    except BaseException:
        os.rename(old, target)
        raise
    remove(old)
