"""PairAK-SVD: one atom of one factor after the other, its coefficients refitted in between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from kronlearn.comparators.learners import Comparator
from kronlearn.core.dictionary import Dictionary, KroneckerDictionary
from kronlearn.core.engine import Codes
from kronlearn.core.structures import FromCodes, Structure
from kronlearn.core.updates import canonical
from kronlearn.io.arrays import ArraySource

__all__ = ["PairAKSVD"]

# Products of samples with the other modes' atoms are made for about this many numbers at a time.
_BLOCK_NUMBERS = 1 << 17

# A pivot of a Gram matrix of unit columns below this sends it to the pseudo-inverse, in which
# eigenvalues below the second fraction of the largest count as zero.
_SMALLEST_PIVOT = 1e-6
_RANK_TOLERANCE = 1e-10


class PairAKSVD(Comparator):
    """PairAK-SVD (Irofti and Dumitrescu, 2019): separable dictionaries atom by atom.

    For each atom of each factor in turn, with ``E_k`` sample k without that atom, unfolded along
    the atom's mode, ``B`` the other factors' Kronecker product and ``x_k`` the atom's coefficients:

        ``d = F / ‖F‖,  F = Σ_k E_k B x_k``, then ``x_k = argmin ‖E_kᵀ d − B x_k‖`` on its support.

    Both are exact, so an update never raises the error; coding may. The sums come from Gram
    matrices, so that no residuals are ever formed: with ``P = Σ X_k BᵀB X_kᵀ`` and
    ``C = Σ Y_k B X_kᵀ``, ``F = C_i − D P_i + P_ii d_i``. An update needs room for
    ``n_nonzero_coefs · max(m_i)`` numbers per sample; samples are read in order, in blocks.

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
    dictionary_ : KroneckerDictionary
    factors_, history_, n_iter_, stop_reason_, patch_shape_
        As for :class:`kronlearn.KroneckerDictionaryLearning`.

    Examples
    --------
    >>> import numpy as np
    >>> from kronlearn.comparators import PairAKSVD
    >>> Y = np.random.default_rng(0).standard_normal((300, 4, 4))
    >>> model = PairAKSVD((6, 5), n_nonzero_coefs=3, max_iter=5, random_state=0).fit(Y)
    >>> model.dictionary_.n_atoms, model.transform(Y).shape
    ((6, 5), (300, 30))
    """

    def _structure(self, dictionary: Dictionary) -> Structure:
        return AtomByAtom()


class AtomByAtom(FromCodes):
    """Kronecker products whose factors are updated atom by atom, with their coefficients."""

    name = "pair-aksvd"

    def update(self, dictionary: Dictionary, source: ArraySource, codes: Codes) -> Dictionary:
        """All atoms of all modes updated once, in order."""
        assert codes.index is not None
        assert codes.nonzeros is not None
        assert codes.value is not None
        counted = np.arange(codes.index.shape[1]) < codes.nonzeros[:, None]
        places = np.unravel_index(np.where(counted, codes.index, 0), dictionary.n_atoms)
        x = np.where(counted, codes.value, 0.0).astype(np.float64, copy=False)
        factors = [stack[0].copy() for stack in dictionary.stacks]
        for mode in range(len(factors)):
            sweep = _Sweep(mode, factors, places, counted, source)
            for atom in range(dictionary.n_atoms[mode]):
                sweep.update(atom, x)
        codes.value[:] = x
        return KroneckerDictionary(factors)


class _Sweep:
    """The update of one mode's atoms.

    A coefficient belongs to an atom of this mode, ``rows`` (N, s), and to a partner, the Kronecker
    product of the atoms it uses of the other modes, whose numbers are ``partners``. ``order`` lists
    the coefficients, as places in the flat (N, s), by atom and then by how many the same sample has
    with that atom: those of atom i in samples with c of them begin at ``bounds[i, c]``. In that
    order ``images`` (entries, m) are the samples times the partners, ``Y_k b``.
    """

    def __init__(
        self,
        mode: int,
        factors: list[NDArray[np.float64]],
        places: Sequence[NDArray[np.intp]],
        counted: NDArray[np.bool_],
        source: ArraySource,
    ) -> None:
        others = [other for other in range(len(factors)) if other != mode]
        self.factor, self.rows = factors[mode], places[mode]
        self.partners = [places[other] for other in others]
        self.grams = [factors[other].T @ factors[other] for other in others]
        self.order, self.bounds = _by_atom(self.rows, counted, self.factor.shape[1])
        # What does not count goes to a last row that nobody reads.
        position = np.full(counted.shape, len(self.order))
        position.reshape(-1)[self.order] = np.arange(len(self.order))
        self.images = np.empty((len(self.order) + 1, self.factor.shape[0]))
        for rows, images in _images(mode, factors, places, source):
            self.images[position[rows]] = images

    def update(self, atom: int, x: NDArray[np.float64]) -> None:
        """One atom's best direction, then the best coefficients x (N, s) with that."""
        first, last = self.bounds[atom, [0, -1]]
        if first == last:
            return
        entries, images = self.order[first:last], self.images[first:last]
        samples = entries // x.shape[1]
        rows, own = self.rows.take(samples, axis=0), x.take(entries)
        products = self._gram_rows(entries, samples) * x.take(samples, axis=0)
        p = np.bincount(rows.ravel(), (products * own[:, None]).ravel(), self.factor.shape[1])
        p[atom] = 0.0
        best = (own @ images - self.factor @ p)[:, None]
        self.factor[:, atom] = canonical(best, self.factor[:, atom, None])[0][:, 0]
        d = self.factor[:, atom]
        products *= (d @ self.factor).take(rows)
        slope = images @ d - products.sum(axis=1)
        for c in range(1, x.shape[1] + 1):
            part = slice(*(self.bounds[atom, c : c + 2] - first))
            if part.start < part.stop:
                grams = self._grams(entries[part].reshape(-1, c))
                slope[part] = _solved(grams, slope[part].reshape(-1, c)).reshape(-1)
        x.reshape(-1)[entries] = own + slope

    def _gram_rows(
        self, entries: NDArray[np.intp], samples: NDArray[np.intp]
    ) -> NDArray[np.float64]:
        """Inner products of the entries' partners with all partners of their samples, (·, s)."""
        found = np.ones(())
        for gram, partners in zip(self.grams, self.partners, strict=True):
            place = partners.take(entries)[:, None] * len(gram) + partners.take(samples, axis=0)
            found = found * gram.take(place)
        return np.broadcast_to(found, (len(entries), self.rows.shape[1]))

    def _grams(self, entries: NDArray[np.intp]) -> NDArray[np.float64]:
        """Inner products among the partners of entries (L, c), an array (L, c, c)."""
        found = np.ones((len(entries), entries.shape[1], entries.shape[1]))
        for gram, partners in zip(self.grams, self.partners, strict=True):
            place = partners.take(entries)
            found *= gram[place[:, :, None], place[:, None, :]]
        return found


def _by_atom(
    rows: NDArray[np.intp], counted: NDArray[np.bool_], n: int
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The ``order`` and ``bounds`` of a sweep."""
    s = rows.shape[1]
    shared = np.zeros(rows.shape, np.intp)
    for t in range(s):
        shared += (rows == rows[:, t, None]) & counted[:, t, None]
    key = np.where(counted, rows * (s + 1) + shared, n * (s + 1))
    starts = np.append(0, np.cumsum(np.bincount(key.reshape(-1), minlength=n * (s + 1))))
    bounds = starts[np.arange(n)[:, None] * (s + 1) + np.arange(s + 2)]
    # NumPy sorts 16-bit integers by radix, more than ten times as fast.
    key = key.astype(np.int16) if n * (s + 1) < 1 << 15 else key
    return np.argsort(key, axis=None, kind="stable")[: bounds[-1, -1]], bounds


def _images(
    mode: int,
    factors: Sequence[NDArray[np.float64]],
    places: Sequence[NDArray[np.intp]],
    source: ArraySource,
) -> Iterator[tuple[slice, NDArray[np.float64]]]:
    """Blocks of samples times the partners of their coefficients, ``(rows, (block, s, m))``."""
    m, s = source.patch_shape[mode], places[mode].shape[1]
    columns = [np.ascontiguousarray(factor.T) for factor in factors]
    step = max(1, _BLOCK_NUMBERS // ((s + m) * source.n_features // m))
    for block, samples in source.blocks(step):
        for start in range(block.start, block.stop, step):
            rows = slice(start, min(start + step, block.stop))
            part = samples[rows.start - block.start : rows.stop - block.start]
            partners = np.ones((len(part), s, 1))
            for other, place in enumerate(places):
                if other != mode:
                    further = columns[other][place[rows]]
                    partners = (partners[..., None] * further[:, :, None]).reshape(len(part), s, -1)
            part = part.astype(np.float64, copy=False).reshape(-1, *source.patch_shape)
            unfolded = np.moveaxis(part, 1 + mode, -1)
            yield rows, partners @ unfolded.reshape(len(part), -1, m)


def _solved(grams: NDArray[np.float64], slopes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Solutions (L, c) of many small systems with Gram matrices (L, c, c) of unit vectors.

    All systems are eliminated at once, which is several times as fast as one after the other.
    """
    c = slopes.shape[1]
    if c == 1:
        return slopes / grams[:, 0]
    systems = np.concatenate([grams, slopes[:, :, None]], axis=2).transpose(1, 2, 0).copy()
    singular = np.zeros(len(slopes), bool)
    for j in range(c):
        singular |= systems[j, j] < _SMALLEST_PIVOT
        systems[j] /= np.where(singular, 1.0, systems[j, j])
        for i in range(c):
            if i != j:
                systems[i] -= systems[i, j] * systems[j]
    solved = systems[:, c].T
    if singular.any():
        inverses = np.linalg.pinv(grams[singular], rcond=_RANK_TOLERANCE, hermitian=True)
        solved[singular] = (inverses @ slopes[singular, :, None])[:, :, 0]
    return solved
