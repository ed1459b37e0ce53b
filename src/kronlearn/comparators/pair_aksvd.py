"""PairAK-SVD: one atom of one factor after the other, its coefficients refitted in between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from kronlearn.comparators.codes import CodesComparator
from kronlearn.core.dictionary import Dictionary
from kronlearn.core.source import Source
from kronlearn.core.updates import canonical

__all__ = ["PairAKSVD"]

# Products of samples with the other modes' atoms are computed in blocks of about this size.
_BLOCK_NUMBERS = 1 << 17

# A pivot of a Gram matrix of unit columns below this sends it to the pseudo-inverse, in which
# eigenvalues below the second fraction of the largest count as zero.
_SMALLEST_PIVOT = 1e-6
_RANK_TOLERANCE = 1e-10


@dataclass(eq=False, repr=False)
class PairAKSVD(CodesComparator):
    """PairAK-SVD (Irofti and Dumitrescu, 2019): separable dictionaries atom by atom.

    For each atom of each factor in turn, with ``E_k`` sample k without that atom, unfolded along
    the atom's mode, ``B`` the other factors' Kronecker product and ``x_k`` the atom's coefficients:

        ``d = F / ‖F‖,  F = Σ_k E_k B x_k``, then ``x_k = argmin ‖E_kᵀ d − B x_k‖`` on its support.

    Both are exact, so an update never raises the error; coding may. The sums come from Gram
    matrices, so that no residuals are ever formed: with ``P = Σ X_k BᵀB X_kᵀ`` and
    ``C = Σ Y_k B X_kᵀ``, ``F = C_i − D P_i + P_ii d_i``. An update needs room for
    ``n_nonzero_coefs · max(m_i)`` numbers per sample; samples are read in order, in blocks.

    Examples
    --------
    >>> import numpy as np
    >>> from kronlearn.comparators import PairAKSVD
    >>> Y = np.random.default_rng(0).standard_normal((300, 4, 4))
    >>> model = PairAKSVD((6, 5), n_nonzero_coefs=3, max_iter=5, random_state=0).fit(Y)
    >>> model.dictionary_.n_atoms, model.transform(Y).shape
    ((6, 5), (300, 30))
    """

    def _update(
        self, source: Source, dictionary: Dictionary, codes: sparse.csr_array
    ) -> Dictionary:
        """All atoms of all modes updated once, in order."""
        counts = np.diff(codes.indptr)
        # Rows of one width, padded with zeros.
        counted = np.arange(max(counts.max(), 1)) < counts[:, None]
        index, x = np.zeros(counted.shape, np.intp), np.zeros(counted.shape)
        index[counted], x[counted] = codes.indices, codes.data
        places = np.unravel_index(index, dictionary.n_atoms)
        factors = [stack[0].copy() for stack in dictionary.stacks]
        for mode in range(len(factors)):
            sweep = _Sweep(mode, factors, places, counted, source)
            for atom in range(dictionary.n_atoms[mode]):
                sweep.update(atom, x)
        codes.data[:] = x[counted]
        return dictionary.with_stacks([factor[None] for factor in factors])


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
        source: Source,
    ) -> None:
        others = [other for other in range(len(factors)) if other != mode]
        self.factor, self.rows = factors[mode], places[mode]
        self.partners = [places[other] for other in others]
        self.grams = [factors[other].T @ factors[other] for other in others]
        self.order, self.bounds = _by_atom(self.rows, counted, self.factor.shape[1])
        # Padding goes to a last row that is never read.
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
    source: Source,
) -> Iterator[tuple[slice, NDArray[np.float64]]]:
    """Blocks of samples times the partners of their coefficients, ``(rows, (block, s, m))``."""
    m, s = source.patch_shape[mode], places[mode].shape[1]
    columns = [np.ascontiguousarray(factor.T) for factor in factors]
    step = max(1, _BLOCK_NUMBERS // ((s + m) * source.n_features // m))
    for start in range(0, len(source), step):
        rows = slice(start, min(start + step, len(source)))
        partners = np.ones((rows.stop - start, s, 1))
        for other, place in enumerate(places):
            if other != mode:
                further = columns[other][place[rows]]
                partners = (partners[..., None] * further[:, :, None]).reshape(len(further), s, -1)
        samples = source.read(start, rows.stop).astype(np.float64, copy=False)
        unfolded = np.moveaxis(samples.reshape(-1, *source.patch_shape), 1 + mode, -1)
        yield rows, partners @ unfolded.reshape(len(samples), -1, m)


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
