"""Samples that single precision is not trusted with: coded again on the GPU, and added up."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.cuda.codes import GpuCodes
from kronlearn.cuda.device import Gpu
from kronlearn.cuda.updates import MOST_DOUBTFUL, DeviceUpdate

__all__ = ["Settling"]

_FILE = "settle.cu"
_THREADS = 256

#: The struct Settling of the kernels.
_SETTLING = np.dtype(
    [
        *((name, np.int32) for name in ("most", "in_place")),
        *((name, np.uint64) for name in ("arrived", "sums", "counts")),
    ],
    align=True,
)


class Settling:
    """Codes the samples on a list in double precision and adds up their moments.

    Parameters
    ----------
    gpu : Gpu
    update : DeviceUpdate
        Which gets the sums.
    task : struct Task
        How samples are coded, with the list of doubtful ones.
    """

    def __init__(self, gpu: Gpu, update: DeviceUpdate, task: NDArray[Any]) -> None:
        self.gpu, self.update = gpu, update
        xp, self.blocks = gpu.xp, gpu.n_multiprocessors
        self.codes = GpuCodes.empty(gpu, MOST_DOUBTFUL, int(task["width"]), np.float32)
        self.arrived = xp.zeros(1, np.int32)
        needs = xp.zeros(2, np.int64)
        gpu.launch_blocks(_FILE, "settle_needs", 1, 1, task, needs, options=update.options)
        fixed, each = gpu.download(needs).tolist()
        self.shared_bytes = fixed + MOST_DOUBTFUL * each

    def run(self, task: NDArray[Any]) -> None:
        """Enqueue it; codes go to where the task says, or are forgotten."""
        address, in_place = self.gpu.address, bool(task["index"])
        task = task.copy()
        task["list"], task["list_count"] = task["doubtful"], task["doubtful_count"]
        task["doubtful"] = task["doubtful_count"] = 0
        if not in_place:
            for name, place in self.codes.addresses(address).items():
                task[name] = place
        settling = np.zeros((), _SETTLING)
        settling["most"], settling["in_place"] = MOST_DOUBTFUL, in_place
        settling["arrived"] = address(self.arrived)
        settling["sums"] = address(self.update.further)
        settling["counts"] = address(self.update.further_counts)
        self.gpu.launch_blocks(
            _FILE,
            "settle",
            self.blocks,
            _THREADS,
            task,
            self.update.double_tables,
            settling,
            options=self.update.options,
            shared=self.shared_bytes,
        )
