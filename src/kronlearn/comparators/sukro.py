"""SuKro: sums of Kronecker products, of a given number or as few as a penalty leaves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from kronlearn.comparators.learners import Comparator, check_nonnegative, check_positive
from kronlearn.comparators.memory import RememberingDictionary
from kronlearn.comparators.shrinkage import (
    VANISHED,
    Modes,
    has_no_zeros,
    ridge_parts,
    singular_terms,
    svt,
)
from kronlearn.core.dictionary import Dictionary
from kronlearn.core.init import starting_dictionary
from kronlearn.core.kronecker_sum import KroneckerSumDictionary, rearranged, restored
from kronlearn.core.moments import Moments
from kronlearn.core.source import Source, check_finite
from kronlearn.core.structures import General, Structure
from kronlearn.parameters import check_count

__all__ = ["SuKro"]

# Singular values below this fraction of the largest are those of rounding.
_RANK_TOLERANCE = 1e-10


@dataclass(eq=False, repr=False)
class SuKro(Comparator):
    """Sums of Kronecker products (Dantas, da Costa and Lopes, 2017; Dantas et al., 2019).

    With ``n_terms`` R every update cycles through the modes and finds the factors of all R terms of
    a mode by least squares, several times over. For given codes it never raises the error; coding
    may. One term and one sweep is the general method of the paper.

    With ``alpha`` every update is ``min_D ½‖Y − D X‖² + λ‖R(D)‖_*`` over all matrices D, by ADMM
    from where the last one ended. The rearrangement R turns a sum of r Kronecker products into a
    matrix of rank r, and the nuclear norm makes that small. Samples are coded with W, the matrix of
    low rank that ADMM holds near R(D), its columns scaled to norm 1, which undoes that the penalty
    pulls them towards 0; the codes stay as they are. The error may rise.

    An atom of a mode that has vanished from W (1e-8 of the largest) keeps a direction that it has
    now. If the penalty leaves nothing of W, the Kronecker product nearest to D takes its place; if
    a column of W is zero even then, the dictionary stays what it was for that iteration.

    The weight is ``λ = alpha·‖Y‖₂`` with the spectral norm of the data matrix (n_features, N), so
    ``alpha`` grows with the data: samples ``c·Y`` need ``c·alpha`` and ``c²·u`` for the same
    result. The 2.15 and 500 that the paper uses for gray levels from 0 to 1 are
    ``2.15·255 ≈ 548`` and ``500·255² ≈ 3.3e7`` for gray levels up to 255. With 9216 image
    patches of 8 × 8 such gray levels, 6 nonzeros and 16 × 16 atoms, 548 and 150 left one term, 50
    three and 20 eleven. The same penalty per sample needs an ``alpha`` that grows with √N.

    Parameters and attributes that are not listed here are described in
    :class:`~kronlearn.comparators.learners.Comparator`.

    Parameters
    ----------
    n_terms : int, optional
        R: how many Kronecker products are summed. Two if neither this nor ``alpha`` is given.
    alpha : float, optional
        The penalty on the number of terms; for samples of two modes.
    n_sweeps : int
        The most sweeps through the modes per update, with ``n_terms``.
    sweep_tol : float
        A sweep that lowers the squared error by no more than this fraction is the last one.
    u : float, optional
        The parameter of ADMM, with ``alpha``; without it the mean of the diagonal of the first
        ``X Xᵀ``. Much larger ones stop ADMM far from the minimum, much smaller ones make it slow.
    n_steps : int
        The most steps of ADMM per update.
    step_tol : float
        A step that changes the dual variable by less than this fraction of ``‖D‖_F`` is the last.

    Attributes
    ----------
    dictionary_ : KroneckerSumDictionary; KroneckerDictionary for ``n_terms=1``
        ``dictionary_.n_terms`` is the number of terms that were asked for, or that were left.
    penalty_ : float
        λ, with ``alpha``.

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

    n_terms: int | None = None
    alpha: float | None = None
    n_sweeps: int = 30
    sweep_tol: float = 1e-3
    u: float | None = None
    n_steps: int = 100
    step_tol: float = 1e-4

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.n_terms is not None and self.alpha is not None:
            raise ValueError(
                f"n_terms={self.n_terms} and alpha={self.alpha} are both given; pass the number "
                "of terms or the penalty on it."
            )
        if self.n_terms is not None:
            check_count("n_terms", self.n_terms, 1)
        check_count("n_sweeps", self.n_sweeps, 1)
        check_count("n_steps", self.n_steps, 1)
        check_nonnegative(self, "sweep_tol", "step_tol")
        check_positive(self, *(name for name in ("alpha", "u") if getattr(self, name) is not None))

    def _start(self, source: Source, n_atoms: tuple[int, ...]) -> Dictionary:
        rng = check_random_state(self.random_state)
        if self.alpha is None:
            n_terms = 2 if self.n_terms is None else int(self.n_terms)
            return starting_dictionary(self.init, source, n_atoms, rng, n_terms=n_terms)
        if len(n_atoms) != 2:
            raise ValueError(
                f"alpha={self.alpha} needs samples of two modes, and these have {len(n_atoms)}; "
                "pass n_terms instead."
            )
        self.penalty_ = float(self.alpha) * _spectral_norm(source)
        given = self.init.n_terms if isinstance(self.init, Dictionary) else 1
        start = starting_dictionary(self.init, source, n_atoms, rng, n_terms=given)
        D = start.to_dense()
        dual = np.zeros_like(rearranged(D, source.patch_shape, n_atoms))
        admm = Admm(D, dual, None if self.u is None else float(self.u))
        return RememberingDictionary(KroneckerSumDictionary(start.terms), admm)

    def _structure(self, dictionary: Dictionary) -> Structure:
        if self.alpha is None:
            return Sweeps(int(self.n_sweeps), float(self.sweep_tol))
        return NuclearNorm(self.penalty_, int(self.n_steps), float(self.step_tol))


class Sweeps(Structure):
    """Sums of R Kronecker products, fitted by several sweeps of least squares per coding."""

    name = "sukro"

    def __init__(self, n_sweeps: int, sweep_tol: float) -> None:
        self.n_sweeps, self.sweep_tol = n_sweeps, sweep_tol
        self.sweep = General()

    def update(
        self, dictionary: Dictionary, moments: Moments
    ) -> tuple[Dictionary, NDArray[np.float64]]:
        """All modes updated in order, again and again until little is gained."""
        scale = np.ones(dictionary.n_codes)
        error = moments.squared_error(dictionary)
        for _ in range(self.n_sweeps):
            dictionary, further = self.sweep.update(dictionary, moments)
            moments, scale = moments.rescaled(further), scale * further
            before, error = error, moments.squared_error(dictionary)
            if before - error <= self.sweep_tol * before:
                break
        return dictionary, scale


@dataclass(frozen=True)
class Admm:
    """Where ADMM ended: ``D``, with columns of any norm, the scaled dual variable ``Z``, and ``u``.

    The codes are those of unit columns, so D, least squares but for the penalty, has columns of
    norm 1 but for the penalty.
    """

    D: NDArray[np.float64]
    Z: NDArray[np.float64]
    u: float | None


class NuclearNorm(Structure):
    """Sums of Kronecker products that are a matrix W near one with a small nuclear norm."""

    name = "sukro"

    def __init__(self, penalty: float, n_steps: int, step_tol: float) -> None:
        self.penalty, self.n_steps, self.step_tol = penalty, n_steps, step_tol

    def update(
        self, dictionary: Dictionary, moments: Moments
    ) -> tuple[Dictionary, NDArray[np.float64]]:
        """The sum that W is where ADMM stops; the codes stay what they are."""
        assert isinstance(dictionary, RememberingDictionary)
        assert moments.xx is not None
        admm = dictionary.memory
        # On image patches a third of it took twice the steps and ended up to 1 % lower; three times
        # as much ended up to 6 % higher.
        u = admm.u or float(np.trace(moments.xx) / len(moments.xx)) or 1.0
        modes = dictionary.patch_shape, dictionary.n_atoms
        admm, W = self._minimised(Admm(admm.D, admm.Z, u), moments, modes)
        updated = _sum_of(W, dictionary) if W.any() else dictionary.dictionary
        return RememberingDictionary(updated, admm), np.ones(dictionary.n_codes)

    def _minimised(
        self, admm: Admm, moments: Moments, modes: Modes
    ) -> tuple[Admm, NDArray[np.float64]]:
        """Where ADMM stops, and W, of low rank, near R(D).

        If the penalty leaves nothing of W, it is the matrix of rank 1 nearest to R(D).
        """
        D, Z, u = admm.D, admm.Z, admm.u
        assert u is not None
        assert moments.xx is not None
        fitted, kept = ridge_parts(moments.xx, moments.xy, u)
        R = rearranged(D, *modes)
        for _ in range(self.n_steps):
            W, _ = svt(R + Z, self.penalty / u)
            D = fitted + restored(W - Z, *modes) @ kept
            R = rearranged(D, *modes)
            Z = Z + R - W
            if np.linalg.norm(R - W) < self.step_tol * np.linalg.norm(D):
                break
        if not W.any():
            left, values, right = np.linalg.svd(R, full_matrices=False)
            W = values[0] * np.outer(left[:, 0], right[0])
        return Admm(D, Z, u), W

    def result(self, dictionary: Dictionary) -> Dictionary:
        """The sum without what ADMM goes on from."""
        assert isinstance(dictionary, RememberingDictionary)
        return dictionary.dictionary


def _sum_of(W: NDArray[np.float64], present: RememberingDictionary) -> Dictionary:
    """The sum that a rearranged matrix of low rank is, or the present one if columns are zero."""
    u, values, vt = np.linalg.svd(W / np.abs(W).max(), full_matrices=False)
    rank = int(np.count_nonzero(values > _RANK_TOLERANCE * values[0]))
    modes = present.patch_shape, present.n_atoms
    stacks = singular_terms(u[:, :rank], values[:rank], vt[:rank], modes)
    for stack, before in zip(stacks, present.stacks, strict=True):
        _keep_vanished(stack, before)
    if not has_no_zeros(stacks):
        return present.dictionary
    return KroneckerSumDictionary(zip(*stacks, strict=True))


def _keep_vanished(stack: NDArray[np.float64], present: NDArray[np.float64]) -> None:
    """Give atoms that have vanished from all terms of a mode the largest direction they have."""
    norms = np.linalg.norm(stack, axis=(0, 1))
    for atom in np.flatnonzero(norms <= VANISHED * norms.max()):
        sizes = np.linalg.norm(present[:, :, atom], axis=1)
        stack[:, :, atom] = 0.0
        stack[0, :, atom] = present[sizes.argmax(), :, atom] * (norms.max() / sizes.max())


def _spectral_norm(source: Source) -> float:
    """The largest singular value of the samples as a matrix (n_features, N)."""
    sums = np.zeros((source.n_features, source.n_features))
    step = source.step(1)
    for start in range(0, len(source), step):
        samples = source.read(start, min(start + step, len(source))).astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            part = samples.T @ samples
        if not np.isfinite(part).all():
            check_finite(samples, start, source.name)
        sums += part
    return float(np.sqrt(max(np.linalg.eigvalsh(sums)[-1], 0.0)))
