"""SuKro: sums of Kronecker products, with a fixed number of terms or a penalty on it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kronlearn.comparators.learners import MomentsComparator, finite_samples
from kronlearn.comparators.low_rank import has_no_zeros, ridge_parts, singular_pairs, svt
from kronlearn.comparators.stateful import StatefulDictionary
from kronlearn.core.dictionary import Dictionary
from kronlearn.core.kronecker_sum import KroneckerSumDictionary, rearranged, restored
from kronlearn.core.moments import Moments
from kronlearn.core.source import Source
from kronlearn.core.structures import General
from kronlearn.parameters import count, number

__all__ = ["SuKro"]

# Singular values below this fraction of the largest are due to rounding.
_RANK_TOLERANCE = 1e-10


@dataclass(eq=False, repr=False)
class SuKro(MomentsComparator):
    """Sums of Kronecker products (Dantas, da Costa and Lopes, 2017; Dantas et al., 2019).

    With ``n_terms`` R, an update sweeps over the modes several times; for each mode it finds the
    factors of all R terms by least squares. It never raises the error; coding may. One term and one
    sweep give the general method of the paper.

    With ``alpha``, an update solves ``min_D ½‖Y − D X‖² + λ‖R(D)‖_*`` over all matrices D by ADMM,
    which continues where the last update ended. The rearrangement R turns a sum of r Kronecker
    products into a matrix of rank r, which the nuclear norm makes small. Samples are coded with W,
    the matrix of low rank that ADMM keeps near R(D). Its columns, which the penalty shrinks, are
    scaled to norm 1; the codes stay as they are. The error may rise.

    If a column of W is zero (1e-8 of the largest), because no code uses it or because of the
    penalty, the dictionary does not change in that iteration.

    The weight is ``λ = alpha·‖Y‖₂`` with the spectral norm of the data matrix (n_features, N), so
    ``alpha`` scales with the data: samples ``c·Y`` need ``c·alpha`` and ``c²·u`` for the same
    result. The 2.15 and 500 that the paper uses for grey levels from 0 to 1 become
    ``2.15·255 ≈ 548`` and ``500·255² ≈ 3.3e7`` for grey levels from 0 to 255. With 9216 such image
    patches of 8 × 8, 6 nonzeros and 16 × 16 atoms, an ``alpha`` of 548 or 150 left one term, 50
    three and 20 eleven. The same penalty per sample needs an ``alpha`` that grows with √N.

    Parameters
    ----------
    n_terms : int, optional
        The number R of Kronecker products. Two if neither this nor ``alpha`` is given.
    alpha : float, optional
        The penalty on the number of terms; only for samples with two modes.
    n_sweeps : int, default 30
        With ``n_terms``, the maximum number of sweeps over the modes per update.
    sweep_tol : float, default 1e-3
        Stop when a sweep lowers the squared error by at most this fraction.
    u : float, optional
        With ``alpha``, the penalty parameter of ADMM; by default the mean of the diagonal of the
        first ``X Xᵀ``. Much larger values stop ADMM far from the minimum, much smaller ones make it
        slow.
    n_steps : int, default 100
        The maximum number of ADMM steps per update.
    step_tol : float, default 1e-4
        Stop when a step changes the dual variable by less than this fraction of ``‖D‖_F``.

    Attributes
    ----------
    dictionary_ : KroneckerSumDictionary; KroneckerDictionary for ``n_terms=1``
        ``dictionary_.n_terms`` is ``n_terms``, or the number of terms that the penalty left.

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
            return self._start_of_terms(source, n_atoms, n_terms)
        if len(n_atoms) != 2:
            raise ValueError(
                f"alpha={self.alpha} needs samples of two modes, and these have {len(n_atoms)}; "
                "pass n_terms instead."
            )
        n_terms = self.init.n_terms if isinstance(self.init, Dictionary) else 1
        start = self._start_of_terms(source, n_atoms, n_terms)
        D = start.to_dense()
        dual = np.zeros_like(rearranged(D, source.patch_shape, n_atoms))
        penalty = float(self.alpha) * float(np.linalg.norm(finite_samples(source), 2))
        admm = Admm(D, dual, penalty, None if self.u is None else float(self.u))
        return StatefulDictionary(KroneckerSumDictionary(start.terms), admm)

    def _update(self, dictionary: Dictionary, moments: Moments) -> Dictionary:
        if self.alpha is None:
            return self._sweep(dictionary, moments)[0]
        assert isinstance(dictionary, StatefulDictionary)
        return self._minimise_penalised(dictionary, moments)

    def _sweep(self, dictionary: Dictionary, moments: Moments) -> tuple[Dictionary, Moments]:
        """Update all modes in order until a sweep gains little.

        Returns the dictionary and the moments of the codes rescaled for it.
        """
        error = moments.squared_error(dictionary)
        for _ in range(self.n_sweeps):
            dictionary, scale = General().update(dictionary, moments)
            moments = moments.rescaled(scale)
            before, error = error, moments.squared_error(dictionary)
            if before - error <= self.sweep_tol * before:
                break
        return dictionary, moments

    def _minimise_penalised(self, dictionary: StatefulDictionary, moments: Moments) -> Dictionary:
        """Continue ADMM; return its W as a sum of Kronecker products."""
        modes = dictionary.patch_shape, dictionary.n_atoms
        admm, W = self._run_admm(dictionary.method_state, moments, modes)
        values = np.linalg.svd(W, compute_uv=False)
        rank = max(1, int(np.count_nonzero(values > _RANK_TOLERANCE * values[0])))
        pairs = singular_pairs(W, rank)
        stacks = [side.T.reshape(rank, m, n) for side, m, n in zip(pairs, *modes, strict=True)]
        updated = dictionary.dictionary
        if has_no_zeros(stacks):
            updated = KroneckerSumDictionary(zip(*stacks, strict=True))
        return StatefulDictionary(updated, admm)

    def _run_admm(
        self,
        admm: Admm,
        moments: Moments,
        modes: tuple[tuple[int, ...], tuple[int, ...]],
    ) -> tuple[Admm, NDArray[np.float64]]:
        """Take steps of ADMM; return its state and W, the matrix of low rank near R(D)."""
        assert moments.xx is not None
        # On image patches, a third of this u took twice the steps and ended up to 1 % lower; three
        # times this u ended up to 6 % higher.
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

    ``penalty`` is λ; ``u`` is None until the first update, if that chooses it.
    """

    D: NDArray[np.float64]
    Z: NDArray[np.float64]
    penalty: float
    u: float | None = None
