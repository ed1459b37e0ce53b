from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

class SumTree:
    def __init__(self, size: int, blocks: int) -> None: ...
    def add(self, level: int, index: int, sums: NDArray[np.float64]) -> None: ...
    def nodes(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """Levels (k), indices (k) and sums (k, size)."""

    def total(self) -> NDArray[np.float64]: ...

class _Dictionary:
    def __init__(self, factors: list[NDArray[np.float64]]) -> None: ...
    def run(
        self,
        feed: Any,
        count: int,
        chunk: int,
        coding: str,
        method: str,
        width: int,
        tree: SumTree,
        sums: str = "none",
        mode: int = -1,
        weights: NDArray[Any] | None = None,
        tol: float = -1.0,
        tols: NDArray[Any] | None = None,
        keep_better: bool = False,
        half: int = -1,
        first: int = 0,
        index: NDArray[np.int32] | None = None,
        value: NDArray[Any] | None = None,
        nonzeros: NDArray[np.int32] | None = None,
        residual2: NDArray[Any] | None = None,
        threads: int = 1,
        block: int = 4096,
        file: int = -1,
        file_offset: int = 0,
    ) -> int:
        """The first sample that is not finite, or -1.

        ``feed.get(i)`` gives the i-th chunk of samples, or None to stop; ``feed.done(i)`` takes it
        back. Neither may raise. With ``file``, a descriptor, samples are read from there instead.
        """

    def code_image(
        self,
        image: NDArray[Any],
        numerator: NDArray[Any],
        denominator: NDArray[Any],
        axes: list[tuple[int, int, int, int]],
        method: str,
        width: int,
        tol: float,
        known: NDArray[Any] | None = None,
        favour_sparse: bool = True,
        threads: int = 1,
        progress: Callable[[float], object] | None = None,
    ) -> None: ...
    def shrink_image(
        self,
        synthesis: Any,
        image: NDArray[Any],
        guide: NDArray[Any],
        numerator: NDArray[Any],
        denominator: NDArray[Any],
        axes: list[tuple[int, int, int, int]],
        group: int,
        noise: float,
        taper: NDArray[Any],
        threads: int = 1,
        progress: Callable[[float], object] | None = None,
    ) -> None: ...

class DictionaryFloat32(_Dictionary): ...
class DictionaryFloat64(_Dictionary): ...

def compress(
    index: NDArray[np.int32],
    value: NDArray[Any],
    nonzeros: NDArray[np.int32],
    indices: NDArray[np.int32],
    data: NDArray[Any],
) -> None: ...
def sweep_atoms(
    samples: NDArray[Any],
    index: NDArray[np.int32],
    nonzeros: NDArray[np.int32],
    value: NDArray[Any],
    atoms: NDArray[np.float64],
) -> None:
    """One pass of approximate K-SVD over the rows of ``atoms``; changes them and ``value``."""

def instruction_sets() -> list[str]: ...
def instruction_set() -> str: ...
def use_instruction_set(name: str) -> bool: ...
def end_passes() -> None: ...
