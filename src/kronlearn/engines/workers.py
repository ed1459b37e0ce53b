"""Who does the work on images and cubes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kronlearn.engines.selection import chosen_device
from kronlearn.engines.threads import resolve_n_jobs

if TYPE_CHECKING:
    from kronlearn.cuda.device import Gpu

__all__ = ["Workers"]


@dataclass(frozen=True)
class Workers:
    """Threads of this process, and a GPU if there is one to be used."""

    n_threads: int = 1
    gpu: Gpu | None = None

    @classmethod
    def of(cls, n_jobs: int | None, device: str, data: Any) -> Workers:
        """As ``n_jobs`` and ``device`` say it, for an image or a cube."""
        if chosen_device(device, data) == "cpu":
            return cls(resolve_n_jobs(n_jobs))
        from kronlearn.cuda.device import current_gpu

        return cls(resolve_n_jobs(n_jobs), current_gpu())

    @property
    def device(self) -> str:
        """Where samples are coded: "cuda" or "cpu"."""
        return "cpu" if self.gpu is None else "cuda"
