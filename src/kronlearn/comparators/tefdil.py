"""TeFDiL: the least-squares dictionary, then the nearest sum of Kronecker products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from kronlearn.comparators.cp import cp_terms
from kronlearn.comparators.learners import Comparator
from kronlearn.comparators.shrinkage import VANISHED
from kronlearn.core.dictionary import Dictionary
from kronlearn.core.init import starting_dictionary
from kronlearn.core.kronecker_sum import KroneckerSumDictionary, rearranged
from kronlearn.core.moments import Moments
from kronlearn.core.plan import Progress
from kronlearn.core.replacement import unused_by_mode
from kronlearn.core.structures import FromMoments, Structure
from kronlearn.core.updates import canonical
from kronlearn.io.arrays import ArraySource
from kronlearn.parameters import check_count, check_number

__all__ = ["TeFDiL"]

# A ridge below this is left out, and directions with less than this share of S_xx stay zero.
_RANK_TOLERANCE = 1e-10


class TeFDiL(Comparator):
    """TeFDiL (Ghassemi, Shakeri, Sarwate and Bajwa, 2020): sums of Kronecker products.

    An update finds the unstructured least-squares dictionary with a ridge,
    ``D = Y Xᵀ (X Xᵀ + ε‖X Xᵀ‖_F I)⁻¹``, and replaces it by the nearest sum of R Kronecker products,
    which is a CP decomposition of the rearranged D. All entries of D weigh the same there, although
    some atoms are used much more than others, so the update may raise the error. The columns are
    then scaled to norm 1 and the codes stay as they are, as published: the norms that the ridge has
    shrunk say little. (With codes that take up the norms the RMSE of 16 × 16 atoms for 8 × 8 image
    patches is recorded as 10, and falls to 4.8 as soon as they are coded again.) It needs the full
    moments, ``n_codes²`` numbers.

    A column of D that no code uses is 0, and the terms that fit the other columns fill it. If they
    leave a column of a sum at zero (1e-8 of the largest), the unused columns of D are set to the
    present ones and the nearest sum is found again; if it has a column of zero even then, the
    dictionary stays what it was for that iteration.

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
    n_terms : int
        R: how many Kronecker products are summed.
    ridge : float
        ε.
    method : {"omp", "ols"}
        The coder.
    max_iter : int
        Iterations.
    init : {"dct", "data", "random"}, dictionary or list of factors
        Start: a perturbed overcomplete DCT, directions of random samples, noise, or your own. It
        may have fewer terms than R.
    random_state, n_jobs, verbose, time_budget, callback
        As for :class:`kronlearn.KroneckerDictionaryLearning`.

    Attributes
    ----------
    dictionary_ : KroneckerDictionary, or KroneckerSumDictionary for several terms
    history_, n_iter_, stop_reason_, patch_shape_
        As for :class:`kronlearn.KroneckerDictionaryLearning`.

    Examples
    --------
    >>> import numpy as np
    >>> from kronlearn.comparators import TeFDiL
    >>> Y = np.random.default_rng(0).standard_normal((300, 4, 4))
    >>> model = TeFDiL((6, 5), n_nonzero_coefs=3, n_terms=2, max_iter=5, random_state=0).fit(Y)
    >>> model.dictionary_.n_terms, model.transform(Y).shape
    (2, (300, 30))
    """

    def __init__(
        self,
        n_atoms: tuple[int, ...] | int = (16, 16),
        patch_shape: tuple[int, ...] | None = None,
        n_nonzero_coefs: int | None = 6,
        tol: float | None = None,
        n_terms: int = 1,
        ridge: float = 0.01,
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
        self.ridge = ridge
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
        check_count("n_terms", self.n_terms, 1)
        check_number("ridge", self.ridge)
        if not 0 <= float(self.ridge) < np.inf:
            raise ValueError(f"ridge={self.ridge} is negative or not finite.")

    def _start(self, source: ArraySource, n_atoms: tuple[int, ...]) -> Dictionary:
        rng = check_random_state(self.random_state)
        return starting_dictionary(self.init, source, n_atoms, rng, n_terms=self.n_terms)

    def _structure(self, dictionary: Dictionary) -> Structure:
        return NearestSum(float(self.ridge))


class NearestSum(FromMoments):
    """Sums of Kronecker products near to a least-squares dictionary."""

    name = "tefdil"
    keeps_fit = False

    def __init__(self, ridge: float) -> None:
        self.ridge = ridge
        # The norms that the columns of a single term had: the next decomposition starts from them.
        self.norms: list[NDArray[np.float64]] | None = None

    def update(self, dictionary: Dictionary, moments: Moments) -> Dictionary:
        """The nearest sum to the least-squares dictionary; atoms that no code uses stay."""
        D = least_squares_dictionary(moments, self.ridge)
        if isinstance(dictionary, KroneckerSumDictionary):
            return _nearest_sum(D, dictionary, moments.used())
        present = list(dictionary.stacks)
        if self.norms is not None:
            present = [stack * norms for stack, norms in zip(present, self.norms, strict=True)]
        stacks = _nearest(D, present, unused_by_mode(moments.used()))
        self.norms = []
        for mode, (new, stack) in enumerate(zip(stacks, dictionary.stacks, strict=True)):
            columns, scale = canonical(new[0], stack[0])
            stacks[mode] = columns[None]
            self.norms.append(np.abs(scale))
            moments.rescale(mode, np.sign(scale))
        return dictionary.with_stacks(stacks)


def _nearest(
    D: NDArray[np.float64],
    present: Sequence[NDArray[np.float64]],
    kept: Sequence[NDArray[np.intp]],
) -> list[NDArray[np.float64]]:
    """The factors ``(R, m_i, n_i)`` of the sum nearest to D, but for the atoms of a mode kept."""
    sizes = [stack.shape[1:] for stack in present]
    patch_shape, n_atoms = zip(*sizes, strict=True)
    tensor = rearranged(D, patch_shape, n_atoms)
    found = cp_terms(tensor, [stack.reshape(len(stack), -1).T for stack in present])
    stacks = []
    for columns, stack, atoms in zip(found, present, kept, strict=True):
        new = columns.T.reshape(stack.shape)
        new[:, :, atoms] = stack[:, :, atoms]
        stacks.append(new)
    return stacks


def _nearest_sum(
    D: NDArray[np.float64], dictionary: KroneckerSumDictionary, used: NDArray[np.bool_]
) -> KroneckerSumDictionary:
    """The sum nearest to D, or near to both D and the dictionary if columns of that are zero."""
    stacks = _nearest(D, dictionary.stacks, unused_by_mode(used))
    if _has_no_zeros(stacks):
        return dictionary.with_stacks(stacks)
    norms = np.linalg.norm(D, axis=0)
    fitted = used.ravel() & (norms > VANISHED * norms.max())
    D = np.where(fitted, D, dictionary.to_dense() * dictionary.column_norms)
    stacks = _nearest(D, dictionary.stacks, [np.arange(0)] * used.ndim)
    return dictionary.with_stacks(stacks) if _has_no_zeros(stacks) else dictionary


def _has_no_zeros(stacks: Sequence[NDArray[np.float64]]) -> bool:
    """Whether no column of a sum of Kronecker products vanishes beside the largest."""
    total = sum(reduce(np.kron, term) for term in zip(*stacks, strict=True))
    norms = np.linalg.norm(total, axis=0)
    return bool(norms.min() > VANISHED * norms.max())


def least_squares_dictionary(moments: Moments, ridge: float) -> NDArray[np.float64]:
    """``S_xyᵀ (S_xx + ridge·‖S_xx‖_F I)⁻¹``, (n_features, n_codes)."""
    xx, xy = moments.full_xx(), moments.full_xy()
    # Squares of the sums may be too large or too small for a number. Codes of no samples are zero.
    size = np.abs(xx).max() or 1.0
    xx, xy = xx / size, xy / size
    if ridge < _RANK_TOLERANCE:
        return (np.linalg.pinv(xx, rcond=_RANK_TOLERANCE, hermitian=True) @ xy).T
    xx[np.diag_indices_from(xx)] += ridge * np.linalg.norm(xx) or 1.0
    return np.asarray(np.linalg.solve(xx, xy).T, np.float64)
