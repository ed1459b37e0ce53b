"""STARK: an unstructured dictionary drawn to low rank by nuclear norms of its unfoldings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from kronlearn.comparators.learners import Comparator
from kronlearn.comparators.shrinkage import (
    NormedDictionary,
    ridge_parts,
    svt,
    terms_needed,
    unit_columns,
)
from kronlearn.core.dictionary import Dictionary, KroneckerDictionary
from kronlearn.core.kronecker_sum import KroneckerSumDictionary, rearranged, restored
from kronlearn.core.moments import Moments
from kronlearn.core.plan import Progress
from kronlearn.core.structures import FromMoments, Structure
from kronlearn.io.arrays import ArraySource
from kronlearn.parameters import check_count, check_number

__all__ = ["STARK"]

# The relative error of a column of what is handed out.
_ROUNDING = 1e-10


class STARK(Comparator):
    """STARK (Ghassemi, Shakeri, Sarwate and Bajwa, 2017): low rank by a penalty.

    An update lowers ``½‖Y − D X‖² + λ Σ_k ‖unfold_k(R(D))‖_*`` over all matrices D, where the
    rearrangement R makes outer products of Kronecker products, by some steps of ADMM from where the
    last update ended. Coding is with D, its columns scaled to norm 1; the codes stay as they are.
    The error may rise, and no rank is promised: D is near low-rank copies that ADMM keeps, not low
    in rank itself.

    On 9216 mean-free 8 × 8 image patches (grey levels 0 … 255, 16 × 16 atoms, 6 nonzeros, 100
    iterations) the published λ gave an RMSE of 4.4, copies of rank 3 and a D that differs from them
    by 6 %; a tenth of it 3.9 and rank 54, three times as much 4.6 and rank 2. At a hundred times as
    much nothing is learned. The published λ does not scale as the squared error does: for grey
    levels 0 … 1 it weighs 16 times as much.

    Parameters
    ----------
    n_atoms : tuple of int or int
        Columns of each factor; one number means the same for every mode.
    patch_shape : tuple of int, optional
        ``(m_1, …, m_d)`` of samples given as rows.
    n_nonzero_coefs : int, optional
        The most nonzeros a sample may have.
    tol : float, optional
        The ℓ2 norm a sample's residual may have. At least one of the two is needed.
    penalty : float, optional
        λ; without it the published ``‖Y‖_F^1.5 / 10``.
    gamma_ratio : float
        λ/γ, by which ADMM lowers singular values in a step; γ is its own penalty.
    n_steps : int
        Steps of ADMM per update.
    rank_tol : float
        The fraction of the norm of D that ``n_terms_`` leaves out.
    method : {"omp", "ols"}
        The coder.
    max_iter : int
        Iterations.
    init : {"dct", "data", "random"}, KroneckerDictionary or list of factors
        Start: a perturbed overcomplete DCT, directions of random samples, noise, or your own.
    random_state, n_jobs, verbose, time_budget, callback
        As for :class:`kronlearn.KroneckerDictionaryLearning`.

    Attributes
    ----------
    dictionary_ : KroneckerSumDictionary of two modes, otherwise KroneckerDictionary of one
        The D that coded best itself, to rounding. Written as a sum of Kronecker products it has up
        to min(m_1 n_1, m_2 n_2) terms, which cost nothing: sums are used as one matrix.
    n_terms_ : int
        The rank that was found, of at most two modes: how many Kronecker products are D, with the
        norms its columns had, but for ``rank_tol`` of its Frobenius norm.
    history_, n_iter_, stop_reason_, patch_shape_
        As for :class:`kronlearn.KroneckerDictionaryLearning`.

    Examples
    --------
    >>> import numpy as np
    >>> from kronlearn.comparators import STARK
    >>> Y = np.random.default_rng(0).standard_normal((300, 4, 4))
    >>> model = STARK((6, 5), n_nonzero_coefs=3, max_iter=5, random_state=0).fit(Y)
    >>> model.dictionary_.n_atoms, model.transform(Y).shape
    ((6, 5), (300, 30))
    """

    def __init__(
        self,
        n_atoms: tuple[int, ...] | int = (16, 16),
        patch_shape: tuple[int, ...] | None = None,
        n_nonzero_coefs: int | None = 6,
        tol: float | None = None,
        penalty: float | None = None,
        gamma_ratio: float = 20.0,
        n_steps: int = 10,
        rank_tol: float = 0.01,
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
        self.penalty = penalty
        self.gamma_ratio = gamma_ratio
        self.n_steps = n_steps
        self.rank_tol = rank_tol
        self.method = method
        self.max_iter = max_iter
        self.init = init
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose
        self.time_budget = time_budget
        self.callback = callback

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_count("n_steps", self.n_steps, 1)
        for name in ("penalty", "gamma_ratio", "rank_tol"):
            value = getattr(self, name)
            if name == "penalty" and value is None:
                continue
            check_number(name, value)
            if not 0 < float(value) < np.inf:
                raise ValueError(f"{name}={value} is not a positive, finite number.")

    @property
    def n_terms_(self) -> int:
        """How many Kronecker products are the dictionary but for ``rank_tol``."""
        check_is_fitted(self, "dictionary_")
        if len(self.patch_shape_) > 2:
            raise AttributeError(
                "Kronecker products are counted by singular values, which dictionaries of "
                f"{len(self.patch_shape_)} modes do not have."
            )
        dictionary = self.dictionary_
        if not isinstance(dictionary, KroneckerSumDictionary) or dictionary.n_terms == 1:
            return 1
        D = dictionary.to_dense().astype(np.float64) * dictionary.column_norms
        matrix = rearranged(D, dictionary.patch_shape, dictionary.n_atoms)
        return terms_needed(np.linalg.svd(matrix, compute_uv=False), float(self.rank_tol))

    def _start(self, source: ArraySource, n_atoms: tuple[int, ...]) -> Dictionary:
        start = super()._start(source, n_atoms)
        return NormedDictionary(start.to_dense(), (start.patch_shape, start.n_atoms))

    def _structure(self, dictionary: Dictionary) -> Structure:
        assert isinstance(dictionary, NormedDictionary)
        return LowRank(
            dictionary,
            None if self.penalty is None else float(self.penalty),
            float(self.gamma_ratio),
            int(self.n_steps),
        )


class LowRank(FromMoments):
    """Matrices whose unfolded rearrangements have small nuclear norms.

    ``copies`` are the low-rank W_k of ADMM and ``multipliers`` its A_k divided by γ, tensors like
    R(D). The two unfoldings of a matrix are transposes of each other, so with two modes one copy
    stands for both.
    """

    name = "stark"
    keeps_fit = False

    def __init__(
        self,
        start: NormedDictionary,
        penalty: float | None,
        gamma_ratio: float,
        n_steps: int,
    ) -> None:
        self.penalty, self.gamma_ratio, self.n_steps = penalty, gamma_ratio, n_steps
        self.modes = start.modes
        n_modes = len(self.modes[0])
        tensor = start.rearranged()
        self.copies = [tensor] * (1 if n_modes == 2 else n_modes)
        self.multipliers = [np.zeros_like(tensor) for _ in self.copies]

    def update(self, dictionary: Dictionary, moments: Moments) -> Dictionary:
        """The matrix after some steps of ADMM, from where the last update ended."""
        assert isinstance(dictionary, NormedDictionary)
        if moments.energy == 0:
            return dictionary
        columns, norms = unit_columns(self._minimised(moments), dictionary.factors[0])
        return NormedDictionary(columns, self.modes, norms) if norms.any() else dictionary

    def _minimised(self, moments: Moments) -> NDArray[np.float64]:
        weight = self.penalty
        if weight is None:
            weight = moments.energy**0.75 / 10
        ridge = weight / self.gamma_ratio * len(self.modes[0])
        fitted, kept = ridge_parts(moments.full_xx(), moments.full_xy(), ridge)
        for _ in range(self.n_steps):
            pull = np.mean(self.multipliers, axis=0) + np.mean(self.copies, axis=0)
            D = fitted + restored(pull, *self.modes) @ kept
            tensor = rearranged(D, *self.modes)
            for k, multiplier in enumerate(self.multipliers):
                self.copies[k] = _shrunk(tensor - multiplier, k, self.gamma_ratio)
                self.multipliers[k] = multiplier - (tensor - self.copies[k])
        return D

    def result(self, dictionary: Dictionary) -> Dictionary:
        """D; of two modes as the sum of Kronecker products that it is."""
        assert isinstance(dictionary, NormedDictionary)
        if len(self.modes[0]) == 2:
            return dictionary.kronecker_sum(_ROUNDING)
        return KroneckerDictionary(dictionary.factors)


def _shrunk(tensor: NDArray[np.float64], mode: int, threshold: float) -> NDArray[np.float64]:
    """The tensor with the singular values of one unfolding lowered by a threshold."""
    moved = np.moveaxis(tensor, mode, 0)
    unfolded, _ = svt(moved.reshape(len(moved), -1), threshold)
    return np.moveaxis(unfolded.reshape(moved.shape), 0, mode)
