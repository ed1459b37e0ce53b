"""What the comparators share: code with OMP, update by the method's structure, again."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from kronlearn.core.dictionary import Dictionary, KroneckerDictionary
from kronlearn.core.init import STARTS, dct_factor, perturbation, starting_dictionary
from kronlearn.core.plan import Plan, Progress
from kronlearn.core.structures import Structure
from kronlearn.core.updates import canonical
from kronlearn.io.arrays import ArraySource
from kronlearn.learner import DictionaryLearner
from kronlearn.parameters import check_common_parameters, check_count, positive_integers

__all__ = ["Comparator", "UnstructuredComparator"]


class Comparator(DictionaryLearner):
    """A method that codes all samples afresh, then updates the dictionary, in every iteration."""

    def __init__(
        self,
        n_atoms: tuple[int, ...] | int = (16, 16),
        patch_shape: tuple[int, ...] | None = None,
        n_nonzero_coefs: int | None = 6,
        tol: float | None = None,
        method: str = "omp",
        max_iter: int = 100,
        init: Any = "dct",
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
        time_budget: float | None = None,
        callback: Callable[[Progress], bool | None] | None = None,
    ) -> None:
        self.n_atoms = n_atoms
        self.patch_shape = patch_shape
        self.n_nonzero_coefs = n_nonzero_coefs
        self.tol = tol
        self.method = method
        self.max_iter = max_iter
        self.init = init
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose
        self.time_budget = time_budget
        self.callback = callback

    @abstractmethod
    def _structure(self, dictionary: Dictionary) -> Structure:
        """How the method updates a dictionary; made anew for every run, so it may keep a state."""

    def _check_parameters(self) -> None:
        check_common_parameters(self)

    def _start(self, source: ArraySource, n_atoms: tuple[int, ...]) -> Dictionary:
        if isinstance(self.init, Dictionary) and self.init.n_terms > 1:
            raise ValueError(
                f"init is a sum of {self.init.n_terms} Kronecker products; "
                f"{type(self).__name__} starts from one: pass other factors, or the first term's, "
                "KroneckerDictionary.normalized(init.terms[0])."
            )
        rng = check_random_state(self.random_state)
        return starting_dictionary(self.init, source, n_atoms, rng)

    def _plan(self, dictionary: Dictionary) -> Plan:
        return Plan(
            self._coder(dictionary),
            structure=self._structure(dictionary),
            monotone=False,
            max_iter=self.max_iter,
            time_budget=self.time_budget,
        )


class UnstructuredComparator(Comparator):
    """A method whose dictionary is any matrix (n_features, n_atoms) with unit columns."""

    def __init__(
        self,
        n_atoms: Any = 256,
        patch_shape: tuple[int, ...] | None = None,
        n_nonzero_coefs: int | None = 6,
        tol: float | None = None,
        method: str = "omp",
        max_iter: int = 100,
        init: Any = "dct",
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
        time_budget: float | None = None,
        callback: Callable[[Progress], bool | None] | None = None,
    ) -> None:
        super().__init__(
            n_atoms,
            patch_shape,
            n_nonzero_coefs,
            tol,
            method,
            max_iter,
            init,
            random_state,
            n_jobs,
            verbose,
            time_budget,
            callback,
        )

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if isinstance(self.n_atoms, tuple | list):
            raise TypeError(
                f"n_atoms={self.n_atoms!r}: an unstructured dictionary has one number of atoms, "
                f"for example {math.prod(self.n_atoms)}."
            )
        check_count("n_atoms", self.n_atoms, 1)

    def _sizes(self, sample_shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        if self.patch_shape is not None:
            sample_shape = positive_integers("patch_shape", self.patch_shape)
        return sample_shape, (int(self.n_atoms),)

    def _start(self, source: ArraySource, n_atoms: tuple[int, ...]) -> Dictionary:
        rng = check_random_state(self.random_state)
        if not isinstance(self.init, str):
            return _given(self.init, source.n_features, n_atoms[0])
        if self.init not in STARTS:
            raise ValueError(
                f"init={self.init!r} does not exist; choose one of {', '.join(STARTS)}, or pass a "
                "dictionary."
            )
        noise = rng.standard_normal((source.n_features, n_atoms[0])) / np.sqrt(source.n_features)
        if self.init == "dct":
            columns = cosines(source.patch_shape, n_atoms[0])
            columns += perturbation(source.n_features, n_atoms[0]) * noise
        elif self.init == "data":
            rows = rng.randint(len(source), size=n_atoms[0])
            samples = np.asarray(source.array[rows], dtype=np.float64)
            columns = samples.reshape(n_atoms[0], -1).T + 1e-3 * noise
        else:
            columns = noise
        return KroneckerDictionary([canonical(columns, noise)[0]])


def cosines(patch_shape: tuple[int, ...], n_atoms: int) -> NDArray[np.float64]:
    """The n products of overcomplete cosines of lowest frequency, (m_1·…·m_d, n)."""
    share = (n_atoms / math.prod(patch_shape)) ** (1 / len(patch_shape))
    counts = [max(1, math.ceil(m * share - 1e-9)) for m in patch_shape]
    factors = [dct_factor(m, n) for m, n in zip(patch_shape, counts, strict=True)]
    columns = KroneckerDictionary(factors).to_dense()
    frequencies = np.meshgrid(*(np.arange(n) / n for n in counts), indexing="ij")
    order = np.argsort(np.sum(frequencies, axis=0), axis=None, kind="stable")[:n_atoms]
    return columns[:, np.sort(order)]


def _given(init: Any, n_features: int, n_atoms: int) -> Dictionary:
    """The dictionary given, or the matrix of a structured one."""
    if not isinstance(init, Dictionary):
        matrix = isinstance(init, np.ndarray) and init.ndim == 2
        init = KroneckerDictionary([init] if matrix else init)
    if (init.n_features, init.n_codes) != (n_features, n_atoms):
        raise ValueError(
            f"init has {init.n_codes} atoms for samples of {init.n_features} numbers; "
            f"n_atoms={n_atoms} and samples of {n_features} were asked for."
        )
    return KroneckerDictionary([init.to_dense().astype(np.float64)])
