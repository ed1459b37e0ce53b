"""The threads and the GPU that work on images and cubes."""

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
    """A number of threads of this process, and the GPU to use, if any."""

    n_threads: int = 1
    gpu: Gpu | None = None

    @classmethod
    def of(cls, n_jobs: int | None, device: str, data: Any) -> Workers:
        """The workers that ``n_jobs`` and ``device`` ask for, given an image or a cube."""
        if chosen_device(device, data) == "cpu":
            return cls(resolve_n_jobs(n_jobs))
        from kronlearn.cuda.device import current_gpu

        return cls(resolve_n_jobs(n_jobs), current_gpu())

    @property
    def device(self) -> str:
        """The device that codes samples, "cuda" or "cpu"."""
        return "cpu" if self.gpu is None else "cuda"
