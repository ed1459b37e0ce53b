"""STARK: an unstructured dictionary drawn to low rank by nuclear norms of its unfoldings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from kronlearn.comparators.learners import Comparator, check_positive
from kronlearn.comparators.memory import RememberingDictionary
from kronlearn.comparators.shrinkage import (
    Modes,
    exact_sum,
    ridge_parts,
    svt,
    terms_needed,
    unit_columns,
)
from kronlearn.core.dictionary import Dictionary, KroneckerDictionary
from kronlearn.core.kronecker_sum import KroneckerSumDictionary, rearranged, restored
from kronlearn.core.moments import Moments
from kronlearn.core.source import Source
from kronlearn.core.structures import Structure
from kronlearn.parameters import check_count

__all__ = ["STARK"]


@dataclass(eq=False, repr=False)
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

    Parameters and attributes that are not listed here are described in
    :class:`~kronlearn.comparators.learners.Comparator`.

    Parameters
    ----------
    penalty : float, optional
        λ; without it the published ``‖Y‖_F^1.5 / 10``.
    gamma_ratio : float
        λ/γ, by which ADMM lowers singular values in a step; γ is its own penalty.
    n_steps : int
        Steps of ADMM per update.
    rank_tol : float
        The fraction of the norm of D that ``n_terms_`` leaves out.

    Attributes
    ----------
    dictionary_ : KroneckerSumDictionary of two modes, otherwise KroneckerDictionary of one
        The D that coded best. Written as a sum of Kronecker products it has as many terms as any
        matrix needs, min(m_1 n_1, m_2 n_2), which cost nothing: sums are used as one matrix.
    n_terms_ : int
        The rank that was found, of at most two modes: how many Kronecker products are D, with the
        norms its columns had, but for ``rank_tol`` of its Frobenius norm.

    Examples
    --------
    >>> import numpy as np
    >>> from kronlearn.comparators import STARK
    >>> Y = np.random.default_rng(0).standard_normal((300, 4, 4))
    >>> model = STARK((6, 5), n_nonzero_coefs=3, max_iter=5, random_state=0).fit(Y)
    >>> model.dictionary_.n_atoms, model.transform(Y).shape
    ((6, 5), (300, 30))
    """

    penalty: float | None = None
    gamma_ratio: float = 20.0
    n_steps: int = 10
    rank_tol: float = 0.01

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_count("n_steps", self.n_steps, 1)
        check_positive(self, "gamma_ratio", "rank_tol")
        if self.penalty is not None:
            check_positive(self, "penalty")

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

    def _start(self, source: Source, n_atoms: tuple[int, ...]) -> Dictionary:
        D = super()._start(source, n_atoms).to_dense()
        tensor = rearranged(D, source.patch_shape, n_atoms)
        # The two unfoldings of a matrix are transposes of each other: one copy stands for both.
        n_copies = 1 if len(n_atoms) == 2 else len(n_atoms)
        copies, multipliers = (tensor,) * n_copies, (np.zeros_like(tensor),) * n_copies
        admm = Admm((source.patch_shape, n_atoms), np.ones(D.shape[1]), copies, multipliers)
        return RememberingDictionary(KroneckerDictionary([D]), admm)

    def _structure(self, dictionary: Dictionary) -> Structure:
        return LowRank(self.penalty, float(self.gamma_ratio), int(self.n_steps))


@dataclass(frozen=True)
class Admm:
    """Where ADMM ended.

    ``modes`` are (m_1, …, m_d) and (n_1, …, n_d), ``norms`` those that the columns of D had,
    ``copies`` the low-rank W_k and ``multipliers`` the A_k divided by γ, tensors like R(D).
    """

    modes: Modes
    norms: NDArray[np.float64]
    copies: tuple[NDArray[np.float64], ...]
    multipliers: tuple[NDArray[np.float64], ...]


class LowRank(Structure):
    """Matrices whose unfolded rearrangements have small nuclear norms."""

    name = "stark"

    def __init__(self, penalty: float | None, gamma_ratio: float, n_steps: int) -> None:
        self.penalty, self.gamma_ratio, self.n_steps = penalty, gamma_ratio, n_steps

    def update(
        self, dictionary: Dictionary, moments: Moments
    ) -> tuple[Dictionary, NDArray[np.float64]]:
        """The matrix after some steps of ADMM, from where the last update ended."""
        assert isinstance(dictionary, RememberingDictionary)
        unscaled = np.ones(dictionary.n_codes)
        if moments.energy == 0:
            return dictionary, unscaled
        D, copies, multipliers = self._minimised(dictionary.memory, moments)
        columns, norms = unit_columns(D, dictionary.coding_factors[0])
        if not norms.any():
            columns, norms = dictionary.coding_factors[0], dictionary.memory.norms
        admm = Admm(dictionary.memory.modes, norms, copies, multipliers)
        return RememberingDictionary(KroneckerDictionary([columns]), admm), unscaled

    def _minimised(self, admm: Admm, moments: Moments) -> tuple[NDArray[np.float64], Any, Any]:
        """The D, the copies and the multipliers that ADMM ends with."""
        assert moments.xx is not None
        weight = moments.energy**0.75 / 10 if self.penalty is None else float(self.penalty)
        ridge = weight / self.gamma_ratio * len(admm.modes[0])
        fitted, kept = ridge_parts(moments.xx, moments.xy, ridge)
        copies, multipliers = list(admm.copies), list(admm.multipliers)
        for _ in range(self.n_steps):
            pull = np.mean(multipliers, axis=0) + np.mean(copies, axis=0)
            D = fitted + restored(pull, *admm.modes) @ kept
            tensor = rearranged(D, *admm.modes)
            for k, multiplier in enumerate(multipliers):
                copies[k] = _shrunk(tensor - multiplier, k, self.gamma_ratio)
                multipliers[k] = multiplier - (tensor - copies[k])
        return D, tuple(copies), tuple(multipliers)

    def result(self, dictionary: Dictionary) -> Dictionary:
        """D; of two modes as the sum of Kronecker products that it is."""
        assert isinstance(dictionary, RememberingDictionary)
        admm = dictionary.memory
        if len(admm.modes[0]) == 2:
            return exact_sum(dictionary.coding_factors[0] * admm.norms, admm.modes)
        return dictionary.dictionary


def _shrunk(tensor: NDArray[np.float64], mode: int, threshold: float) -> NDArray[np.float64]:
    """The tensor with the singular values of one unfolding lowered by a threshold."""
    moved = np.moveaxis(tensor, mode, 0)
    unfolded, _ = svt(moved.reshape(len(moved), -1), threshold)
    return np.moveaxis(unfolded.reshape(moved.shape), 0, mode)
