"""SuKro: sums of Kronecker products, of a given number or as few as a penalty leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from kronlearn.comparators.learners import Comparator
from kronlearn.comparators.shrinkage import (
    VANISHED,
    Modes,
    ridge_parts,
    singular_terms,
    svt,
    unit_columns,
)
from kronlearn.core.dictionary import Dictionary, KroneckerDictionary
from kronlearn.core.init import starting_dictionary
from kronlearn.core.kronecker_sum import KroneckerSumDictionary, rearranged, restored
from kronlearn.core.moments import Moments
from kronlearn.core.plan import Progress
from kronlearn.core.structures import FromMoments, General, Structure
from kronlearn.io.arrays import ArraySource
from kronlearn.parameters import check_count, check_number

__all__ = ["SuKro"]

# Singular values below this fraction of the largest are those of rounding.
_RANK_TOLERANCE = 1e-10


class SuKro(Comparator):
    """Sums of Kronecker products (Dantas, da Costa and Lopes, 2017; Dantas et al., 2019).

    With ``n_terms`` R every update cycles through the modes and finds the factors of all R terms of
    a mode by least squares, several times over. It never raises the error; coding may. One term and
    one sweep is the general method of the paper.

    With ``alpha`` every update is ``min_D ½‖Y − D X‖² + λ‖R(D)‖_*`` over all matrices D, by ADMM
    from where the last one ended. The rearrangement R turns a sum of r Kronecker products into a
    matrix of rank r, and the nuclear norm makes that small. Coding is with D, its columns scaled to
    norm 1, which undoes that the penalty pulls D towards 0. Old codes do not fit the new D, so what
    an iteration records is the RMSE of its coding, with the D of the iteration before; it may rise.
    The dictionary that is handed out is not D but the matrix W of low rank that ADMM holds near
    R(D), see the notes.

    The weight is ``λ = alpha·‖Y‖₂`` with the spectral norm of the data matrix (n_features, N), so
    ``alpha`` grows with the data: samples ``c·Y`` need ``c·alpha`` and ``c²·u`` for the same
    result. The 2.15 and 500 that the paper uses for gray levels from 0 to 1 are
    ``2.15·255 ≈ 548`` and ``500·255² ≈ 3.3e7`` for gray levels up to 255. With 9216 image
    patches of 8 × 8 such gray levels, 6 nonzeros and 16 × 16 atoms, 548 and 150 left one term, 50
    three and 20 eleven. The same penalty per sample needs an ``alpha`` that grows with √N.

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
    method : {"omp", "ols"}
        The coder.
    max_iter : int
        Iterations.
    init : {"dct", "data", "random"}, KroneckerDictionary or list of factors
        Start: a perturbed overcomplete DCT, directions of random samples, noise, or your own. Of
        several terms it is the first.
    random_state, n_jobs, verbose, time_budget, callback
        As for :class:`kronlearn.KroneckerDictionaryLearning`.

    Attributes
    ----------
    dictionary_ : KroneckerSumDictionary; KroneckerDictionary for ``n_terms=1``
        ``dictionary_.n_terms`` is the number of terms that were asked for, or that were left. With
        ``alpha`` it is W, not the D that was coded with.
    penalty_ : float
        λ, with ``alpha``.
    history_, n_iter_, stop_reason_, patch_shape_
        As for :class:`kronlearn.KroneckerDictionaryLearning`. With ``alpha`` the errors are those
        of D, and ``-score`` of the same samples, which is that of W, may be higher.

    Notes
    -----
    With ``alpha`` D and W differ in two ways. They are the same where ADMM has converged, and only
    near to each other where it has not: on 300 smooth samples of 4 × 4 with one nonzero and
    ``alpha=100``, ten steps per update ended at an RMSE of 0.95 in ``history_``, and that of
    ``dictionary_`` is 1.08. More ``n_steps`` and a smaller ``step_tol`` bring them together. And
    atoms replaced for lack of use are in D alone, as they would add terms, until the next update
    fits them: 1.124 and 1.144 in the same case with a thousand steps.

    W is that of the D that coded best; if nothing is left of W, the Kronecker product nearest to D.
    A column of W below 1e-8 of the largest takes the direction of D's: nearly and without further
    terms if the whole atom of a mode has vanished, otherwise by as many further terms as it takes.

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

    penalty_: float

    def __init__(
        self,
        n_atoms: tuple[int, ...] | int = (16, 16),
        patch_shape: tuple[int, ...] | None = None,
        n_nonzero_coefs: int | None = 6,
        tol: float | None = None,
        n_terms: int | None = None,
        alpha: float | None = None,
        n_sweeps: int = 30,
        sweep_tol: float = 1e-3,
        u: float | None = None,
        n_steps: int = 100,
        step_tol: float = 1e-4,
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
        self.n_terms = n_terms
        self.alpha = alpha
        self.n_sweeps = n_sweeps
        self.sweep_tol = sweep_tol
        self.u = u
        self.n_steps = n_steps
        self.step_tol = step_tol
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
        if self.n_terms is not None and self.alpha is not None:
            raise ValueError(
                f"n_terms={self.n_terms} and alpha={self.alpha} are both given; pass the number "
                "of terms or the penalty on it."
            )
        if self.n_terms is not None:
            check_count("n_terms", self.n_terms, 1)
        check_count("n_sweeps", self.n_sweeps, 1)
        check_count("n_steps", self.n_steps, 1)
        for name in ("alpha", "u", "sweep_tol", "step_tol"):
            value = getattr(self, name)
            if value is None and name in ("alpha", "u"):
                continue
            check_number(name, value)
            if not 0 <= float(value) < np.inf or (value == 0 and name in ("alpha", "u")):
                least = "positive" if name in ("alpha", "u") else "nonnegative"
                raise ValueError(f"{name}={value} is not a {least} number.")

    def _start(self, source: ArraySource, n_atoms: tuple[int, ...]) -> Dictionary:
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
        # Of a sum it is the matrix without unit columns that has low rank.
        norms = start.column_norms if isinstance(start, KroneckerSumDictionary) else 1.0
        return RelaxedDictionary(D, rearranged(D * norms, source.patch_shape, n_atoms), n_atoms)

    def _structure(self, dictionary: Dictionary) -> Structure:
        if not isinstance(dictionary, RelaxedDictionary):
            return Sweeps(int(self.n_sweeps), float(self.sweep_tol))
        return NuclearNorm(
            dictionary,
            self.penalty_,
            None if self.u is None else float(self.u),
            int(self.n_steps),
            float(self.step_tol),
        )


class Sweeps(FromMoments):
    """Sums of R Kronecker products, fitted by several sweeps of least squares per coding."""

    name = "sukro"

    def __init__(self, n_sweeps: int, sweep_tol: float) -> None:
        self.n_sweeps, self.sweep_tol = n_sweeps, sweep_tol
        self.sweep = General()

    def update(self, dictionary: Dictionary, moments: Moments) -> Dictionary:
        """All modes updated in order, again and again until little is gained."""
        error = moments.squared_error(dictionary)
        for _ in range(self.n_sweeps):
            dictionary = self.sweep.update(dictionary, moments)
            before, error = error, moments.squared_error(dictionary)
            if before - error <= self.sweep_tol * before:
                break
        return dictionary


class RelaxedDictionary(KroneckerDictionary):
    """A matrix D with unit columns, and the matrix W of low rank that R(D) is close to.

    Parameters
    ----------
    D : array of shape (m_1·m_2, n_1·n_2)
        Unit columns.
    low_rank : array of shape (m_1·n_1, m_2·n_2)
    n_atoms : (n_1, n_2)
    """

    __slots__ = ("atoms", "low_rank")

    low_rank: NDArray[np.float64]
    atoms: tuple[int, ...]

    def __init__(
        self, D: NDArray[Any], low_rank: NDArray[np.float64], n_atoms: tuple[int, ...]
    ) -> None:
        super().__init__([D])
        object.__setattr__(self, "low_rank", low_rank)
        object.__setattr__(self, "atoms", n_atoms)

    @property
    def modes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """``(m_1, m_2)`` and ``(n_1, n_2)``."""
        sizes = zip(self.low_rank.shape, self.atoms, strict=True)
        return tuple(size // n for size, n in sizes), self.atoms

    def with_stacks(self, stacks: Sequence[NDArray[Any]]) -> RelaxedDictionary:
        """Other unit columns, an array ``(1, m, n)``, beside the same matrix of low rank."""
        return RelaxedDictionary(stacks[0][0], self.low_rank, self.atoms)


class NuclearNorm(FromMoments):
    """Matrices D whose rearrangement has a small nuclear norm.

    ``D``, with columns of any norm, and the scaled dual variable ``Z`` are kept between updates.
    The codes are those of unit columns, so D, least squares but for the penalty, has columns of
    norm 1 but for the penalty.
    """

    name = "sukro"
    keeps_fit = False

    def __init__(
        self,
        start: RelaxedDictionary,
        penalty: float,
        u: float | None,
        n_steps: int,
        step_tol: float,
    ) -> None:
        self.penalty, self.u, self.n_steps, self.step_tol = penalty, u, n_steps, step_tol
        self.modes = start.modes
        self.D = np.array(start.factors[0])
        self.Z = np.zeros_like(start.low_rank)

    def update(self, dictionary: Dictionary, moments: Moments) -> Dictionary:
        """The matrix at which ADMM stops, with unit columns; the codes stay what they are."""
        assert isinstance(dictionary, RelaxedDictionary)
        xx, xy = moments.full_xx(), moments.full_xy()
        if self.u is None:
            # On image patches a third of it took twice the steps and ended up to 1 % lower; three
            # times as much ended up to 6 % higher.
            self.u = float(np.trace(xx) / len(xx)) or 1.0
        low_rank = self._minimise(xx, xy)
        if low_rank is None:
            low_rank = dictionary.low_rank
        # A column that vanished keeps its direction.
        columns, _ = unit_columns(self.D, dictionary.factors[0])
        return RelaxedDictionary(columns, low_rank, self.modes[1])

    def _minimise(
        self, xx: NDArray[np.float64], xy: NDArray[np.float64]
    ) -> NDArray[np.float64] | None:
        """Steps of ADMM, which change D and Z; returns W, of low rank, near R(D).

        If the penalty leaves nothing of W, it is the nearest matrix of rank 1 that is returned, and
        nothing if D is zero.
        """
        assert self.u is not None
        fitted, kept = ridge_parts(xx, xy, self.u)
        R = rearranged(self.D, *self.modes)
        for _ in range(self.n_steps):
            W, _ = svt(R + self.Z, self.penalty / self.u)
            self.D = fitted + restored(W - self.Z, *self.modes) @ kept
            R = rearranged(self.D, *self.modes)
            self.Z = self.Z + R - W
            if np.linalg.norm(R - W) < self.step_tol * np.linalg.norm(self.D):
                break
        if not W.any():
            u, values, vt = np.linalg.svd(R, full_matrices=False)
            W = values[0] * np.outer(u[:, 0], vt[0])
        return W if W.any() else None

    def result(self, dictionary: Dictionary) -> Dictionary:
        """The sum of Kronecker products that W is."""
        assert isinstance(dictionary, RelaxedDictionary)
        return _kronecker_sum(dictionary)


def _kronecker_sum(dictionary: RelaxedDictionary) -> KroneckerSumDictionary:
    """The sum that a dictionary's low rank matrix W is, by its singular vectors.

    An atom of a mode that has vanished from all terms gets, in the first, the direction that the
    dictionary's columns have most of. Other columns that have vanished get the dictionary's own, by
    further terms.
    """
    modes = dictionary.modes
    stacks = _terms(dictionary.low_rank / np.abs(dictionary.low_rank).max(), modes)
    own = dictionary.factors[0].reshape(*modes[0], *modes[1])
    for mode, stack in enumerate(stacks):
        norms = np.linalg.norm(stack, axis=(0, 1))
        for atom in np.flatnonzero(norms <= VANISHED * norms.max()):
            columns = np.moveaxis(own.take(atom, axis=2 + mode), mode, 0)
            u, _, _ = np.linalg.svd(columns.reshape(len(columns), -1), full_matrices=False)
            stack[:, :, atom] = 0.0
            stack[0, :, atom] = u[:, 0] * norms.max()
    W = restored(np.tensordot(_flat(stacks[0]), _flat(stacks[1]), (0, 0)), *modes)
    norms = np.linalg.norm(W, axis=0)
    vanished = norms <= VANISHED * norms.max()
    if vanished.any():
        missing = dictionary.factors[0] * np.where(vanished, norms.max(), 0.0)
        further = _terms(rearranged(missing, *modes), modes)
        stacks = [np.concatenate(pair) for pair in zip(stacks, further, strict=True)]
    return KroneckerSumDictionary(zip(*stacks, strict=True))


def _terms(matrix: NDArray[np.float64], modes: Modes) -> list[NDArray[np.float64]]:
    """The factors ``(r, m_i, n_i)`` of both modes that a rearranged matrix of rank r has."""
    u, values, vt = np.linalg.svd(matrix, full_matrices=False)
    rank = int(np.count_nonzero(values > _RANK_TOLERANCE * values[0]))
    return singular_terms(u[:, :rank], values[:rank], vt[:rank], modes)


def _flat(stack: NDArray[np.float64]) -> NDArray[np.float64]:
    return stack.reshape(len(stack), -1)


def _spectral_norm(source: ArraySource) -> float:
    """The largest singular value of the samples as a matrix (n_features, N)."""
    # Raises for samples that are not finite.
    total = source.energy
    sums = np.zeros((source.n_features, source.n_features))
    for _, samples in source.blocks(1):
        for start in range(0, len(samples), 65536):
            part = samples[start : start + 65536].astype(np.float64)
            sums += part.T @ part
    return float(np.sqrt(np.linalg.eigvalsh(sums)[-1])) if total > 0 else 0.0
