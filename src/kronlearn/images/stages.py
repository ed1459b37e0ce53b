"""The stages of a longer piece of work: how long each took and how far it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Progress", "Stages", "part_of"]

#: Called with the name of a stage and the share of it that is done.
Progress = Callable[[str, float], object]


class Stages:
    """Times stages and tells of their progress.

    ``seconds`` holds the time of every stage so far, by name; ``finish`` is called before one
    ends, to wait for a GPU.
    """

    def __init__(
        self, progress: Progress | None = None, finish: Callable[[], None] | None = None
    ) -> None:
        if progress is not None and not callable(progress):
            raise TypeError(f"progress={progress!r} is not a function of a name and a share.")
        self.progress, self.finish = progress, finish
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[Callable[[float], None] | None]:
        """A stage; yields what to call with the share done, None if progress is not asked for."""
        tell = None
        if self.progress is not None:
            progress = self.progress

            def tell(share: float) -> None:
                progress(name, share)

            tell(0.0)
        start = time.perf_counter()
        yield tell
        if self.finish is not None:
            self.finish()
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
        if tell is not None:
            tell(1.0)


def part_of(
    tell: Callable[[float], None] | None, number: int, count: int
) -> Callable[[float], None] | None:
    """What the part of a stage with this number, of so many, calls with the share of it done."""
    if tell is None:
        return None
    return lambda share: tell((number + share) / count)
