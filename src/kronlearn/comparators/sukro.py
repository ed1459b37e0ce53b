"""SuKro: sums of Kronecker products, of a given number or as few as a penalty leaves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kronlearn.comparators.learners import MomentsComparator, finite_samples
from kronlearn.comparators.low_rank import has_no_zeros, ridge_parts, singular_pairs, svt
from kronlearn.comparators.memory import RememberingDictionary
from kronlearn.core.dictionary import Dictionary
from kronlearn.core.kronecker_sum import KroneckerSumDictionary, rearranged, restored
from kronlearn.core.moments import Moments
from kronlearn.core.source import Source
from kronlearn.core.structures import General
from kronlearn.parameters import count, number

__all__ = ["SuKro"]

# Singular values below this fraction of the largest are those of rounding.
_RANK_TOLERANCE = 1e-10


@dataclass(eq=False, repr=False)
class SuKro(MomentsComparator):
    """Sums of Kronecker products (Dantas, da Costa and Lopes, 2017; Dantas et al., 2019).

    With ``n_terms`` R every update cycles through the modes and finds the factors of all R terms of
    a mode by least squares, several times over. For given codes it never raises the error; coding
    may. One term and one sweep is the general method of the paper.

    With ``alpha`` every update is ``min_D ½‖Y − D X‖² + λ‖R(D)‖_*`` over all matrices D, by ADMM
    from where the last one ended. The rearrangement R turns a sum of r Kronecker products into a
    matrix of rank r, and the nuclear norm makes that small. Samples are coded with W, the matrix of
    low rank that ADMM holds near R(D), its columns scaled to norm 1, which undoes that the penalty
    pulls them towards 0; the codes stay as they are. The error may rise.

    If a column of W is zero (1e-8 of the largest), since no code uses it or the penalty leaves
    nothing of it, the dictionary stays what it was for that iteration.

    The weight is ``λ = alpha·‖Y‖₂`` with the spectral norm of the data matrix (n_features, N), so
    ``alpha`` grows with the data: samples ``c·Y`` need ``c·alpha`` and ``c²·u`` for the same
    result. The 2.15 and 500 that the paper uses for grey levels from 0 to 1 are
    ``2.15·255 ≈ 548`` and ``500·255² ≈ 3.3e7`` for grey levels up to 255. With 9216 image
    patches of 8 × 8 such grey levels, 6 nonzeros and 16 × 16 atoms, 548 and 150 left one term, 50
    three and 20 eleven. The same penalty per sample needs an ``alpha`` that grows with √N.

    Parameters
    ----------
    n_terms : int, optional
        R: how many Kronecker products are summed. Two if neither this nor ``alpha`` is given.
    alpha : float, optional
        The penalty on the number of terms; for samples of two modes.
    n_sweeps : int, default 30
        The most sweeps through the modes per update, with ``n_terms``.
    sweep_tol : float, default 1e-3
        A sweep that lowers the squared error by no more than this fraction is the last one.
    u : float, optional
        The parameter of ADMM, with ``alpha``; without it the mean of the diagonal of the first
        ``X Xᵀ``. Much larger ones stop ADMM far from the minimum, much smaller ones make it slow.
    n_steps : int, default 100
        The most steps of ADMM per update.
    step_tol : float, default 1e-4
        A step that changes the dual variable by less than this fraction of ``‖D‖_F`` is the last.

    Attributes
    ----------
    dictionary_ : KroneckerSumDictionary; KroneckerDictionary for ``n_terms=1``
        ``dictionary_.n_terms`` is the number of terms that were asked for, or that were left.

    Examples
    --------
    >>> import numpy as np
    >>> from kronlearn.comparators import SuKro
    >>> Y = np.random.default_rng(0).standard_normal((300, 4, 4))
    >>> model = SuKro((6, 5), n_nonzero_coefs=3, n_terms=3, max_iter=5, random_state=0).fit(Y)
    >>> model.dictionary_.n_terms, model.transform(Y).shape
    (3, (300, 30))
    >>> model = SuKro((6, 5), n_nonzero_coefs=3, alpha=1.0, max_iter=5, random_state=0).fit(Y)
    >>> model.dictionary_.n_terms < 16
    True
    """

    n_terms: int | None = count(None)
    alpha: float | None = number(None, "(0, inf)")
    n_sweeps: int = count(30)
    sweep_tol: float = number(1e-3, "[0, inf)")
    u: float | None = number(None, "(0, inf)")
    n_steps: int = count(100)
    step_tol: float = number(1e-4, "[0, inf)")

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.n_terms is not None and self.alpha is not None:
            raise ValueError(
                f"n_terms={self.n_terms} and alpha={self.alpha} are both given; pass the number "
                "of terms or the penalty on it."
            )

    def _start(self, source: Source, n_atoms: tuple[int, ...]) -> Dictionary:
        if self.alpha is None:
            n_terms = 2 if self.n_terms is None else int(self.n_terms)
            return self._sum_to_start(source, n_atoms, n_terms)
        if len(n_atoms) != 2:
            raise ValueError(
                f"alpha={self.alpha} needs samples of two modes, and these have {len(n_atoms)}; "
                "pass n_terms instead."
            )
        given = self.init.n_terms if isinstance(self.init, Dictionary) else 1
        start = self._sum_to_start(source, n_atoms, given)
        D = start.to_dense()
        dual = np.zeros_like(rearranged(D, source.patch_shape, n_atoms))
        penalty = float(self.alpha) * float(np.linalg.norm(finite_samples(source), 2))
        admm = Admm(D, dual, penalty, None if self.u is None else float(self.u))
        return RememberingDictionary(KroneckerSumDictionary(start.terms), admm)

    def _update(self, dictionary: Dictionary, moments: Moments) -> Dictionary:
        if self.alpha is None:
            return self._swept(dictionary, moments)[0]
        assert isinstance(dictionary, RememberingDictionary)
        return self._penalized(dictionary, moments)

    def _swept(self, dictionary: Dictionary, moments: Moments) -> tuple[Dictionary, Moments]:
        """All modes updated in order, again and again until little is gained.

        Returns the dictionary, and the moments of the codes that belong to it.
        """
        error = moments.squared_error(dictionary)
        for _ in range(self.n_sweeps):
            dictionary, scale = General().update(dictionary, moments)
            moments = moments.rescaled(scale)
            before, error = error, moments.squared_error(dictionary)
            if before - error <= self.sweep_tol * before:
                break
        return dictionary, moments

    def _penalized(self, dictionary: RememberingDictionary, moments: Moments) -> Dictionary:
        """The sum of Kronecker products that ADMM's last W is."""
        modes = dictionary.patch_shape, dictionary.n_atoms
        admm, W = self._minimised(dictionary.memory, moments, modes)
        values = np.linalg.svd(W, compute_uv=False)
        rank = max(1, int(np.count_nonzero(values > _RANK_TOLERANCE * values[0])))
        pairs = singular_pairs(W, rank)
        stacks = [part.T.reshape(rank, m, n) for part, m, n in zip(pairs, *modes, strict=True)]
        updated = dictionary.dictionary
        if has_no_zeros(stacks):
            updated = KroneckerSumDictionary(zip(*stacks, strict=True))
        return RememberingDictionary(updated, admm)

    def _minimised(
        self,
        admm: Admm,
        moments: Moments,
        modes: tuple[tuple[int, ...], tuple[int, ...]],
    ) -> tuple[Admm, NDArray[np.float64]]:
        """The state that ADMM ends in, and W, the matrix of low rank near R(D)."""
        assert moments.xx is not None
        # On image patches a third of it took twice the steps and ended up to 1 % lower; three times
        # as much ended up to 6 % higher.
        u = admm.u or float(np.trace(moments.xx) / len(moments.xx)) or 1.0
        fitted, kept = ridge_parts(moments.xx, moments.xy, u)
        Z = admm.Z
        R = rearranged(admm.D, *modes)
        for _ in range(self.n_steps):
            W = svt(R + Z, admm.penalty / u)
            D = fitted + restored(W - Z, *modes) @ kept
            R = rearranged(D, *modes)
            Z = Z + R - W
            if np.linalg.norm(R - W) < self.step_tol * np.linalg.norm(D):
                break
        return Admm(D, Z, admm.penalty, u), W


@dataclass(frozen=True)
class Admm:
    """The state of ADMM: ``D``, with columns of any norm, and the scaled dual variable ``Z``.

    ``penalty`` is λ; ``u`` is None until the first update if it is to come from that. The codes
    are those of unit columns, so D, least squares but for the penalty, has columns of norm 1 but
    for the penalty.
    """

    D: NDArray[np.float64]
    Z: NDArray[np.float64]
    penalty: float
    u: float | None = None
