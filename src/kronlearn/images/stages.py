"""Named stages of a long computation: how long each took and how far it has come."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Progress", "Stages", "part_of"]

#: Called with the name of a stage and the fraction of it that is done.
Progress = Callable[[str, float], object]


class Stages:
    """Times named stages and reports their progress.

    ``seconds`` maps the names of the stages so far to their times. ``finish`` is called at the end
    of each stage, to wait for a GPU.
    """

    def __init__(
        self, progress: Progress | None = None, finish: Callable[[], None] | None = None
    ) -> None:
        if progress is not None and not callable(progress):
            raise TypeError(
                f"progress={progress!r} is not a function; pass one that takes the name of a stage "
                "and a fraction."
            )
        self.progress, self.finish = progress, finish
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[Callable[[float], None] | None]:
        """Run a stage; yield a callback for the fraction done, or None without ``progress``."""
        on_share = None
        if self.progress is not None:
            progress = self.progress

            def on_share(share: float) -> None:
                progress(name, share)

            on_share(0.0)
        start = time.perf_counter()
        yield on_share
        if self.finish is not None:
            self.finish()
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
        if on_share is not None:
            on_share(1.0)


def part_of(
    on_share: Callable[[float], None] | None, number: int, count: int
) -> Callable[[float], None] | None:
    """Return the callback for one of ``count`` equal parts of a stage, or None without one."""
    if on_share is None:
        return None
    return lambda share: on_share((number + share) / count)
