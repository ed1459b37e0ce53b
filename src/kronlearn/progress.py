"""A progress bar for long runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["progress_bar"]


@contextmanager
def progress_bar(verbose: int, total: int, done: int = 0) -> Iterator[Callable[[float], None]]:
    """Show a progress bar if ``verbose``; yield a function that advances it, given the RMSE."""
    if not verbose:
        yield lambda rmse: None
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("learning"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("RMSE {task.fields[rmse]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns) as progress:
        task = progress.add_task("learning", total=total, completed=done, rmse="…")
        yield lambda rmse: progress.update(task, advance=1, rmse=f"{rmse:.4g}")
