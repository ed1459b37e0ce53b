"""Who does the work on images and cubes."""

from __future__ import annotations

from dataclasses import dataclass

from kronlearn.cuda.device import Gpu, current_gpu
from kronlearn.engines.selection import check_device
from kronlearn.engines.threads import resolve_n_jobs

__all__ = ["Workers"]


@dataclass(frozen=True)
class Workers:
    """Threads of this process, and a graphics card if there is one to be used."""

    n_threads: int = 1
    card: Gpu | None = None

    @classmethod
    def of(cls, n_jobs: int | None, device: str) -> Workers:
        """As ``n_jobs`` and ``device`` say it."""
        check_device(device)
        return cls(resolve_n_jobs(n_jobs), current_gpu() if device == "cuda" else None)

    @property
    def device(self) -> str:
        """Where samples are coded: "cuda" or "cpu"."""
        return "cpu" if self.card is None else "cuda"
