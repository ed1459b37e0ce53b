"""What goes with a run of learning: a progress bar, a callback, checkpoints and its history."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

__all__ = ["checkpoint_is_due", "followed", "history_columns", "progress_bar"]


def followed(
    states: Iterator[Any],
    advance: Callable[[float], None],
    stops: Callable[[Any], bool],
    save: Callable[[Any], None] | None,
) -> Iterator[Any]:
    """Yield the states of a run until one has a reason to stop, and give news of each.

    ``advance`` gets the RMSE; ``stops`` calls the callback, and tells whether that asks to stop;
    ``save`` writes the checkpoint. A state is yielded before all three, so that it is the caller's
    last one whatever they raise, and again if the callback stops the run.
    """
    for state in states:
        yield state
        if state.n_iterations:
            advance(state.history[-1].rmse)
        # A run that has converged stays so: resumed, it must not continue.
        if stops(state) and state.stop_reason != "converged":
            state = state._replace(stop_reason="callback")
            yield state
        if save is not None:
            save(state)
        if state.stop_reason is not None:
            return


def checkpoint_is_due(state: Any, every: int) -> bool:
    """Whether to write a checkpoint: every few iterations, and at the end."""
    return state.stop_reason is not None or state.n_iterations % every == 0


def history_columns(names: Sequence[str], history: Sequence[Sequence[Any]]) -> dict[str, list[Any]]:
    """The entries of a history as one list for each of the names of their parts."""
    return {name: [entry[k] for entry in history] for k, name in enumerate(names)}


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
