"""PairAK-SVD: update one atom of one factor at a time, and refit its coefficients."""

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

# Products of samples with the other modes' atoms are computed in blocks of about this many numbers.
_BLOCK_NUMBERS = 1 << 17

# Systems with a pivot below _SMALLEST_PIVOT are solved by the pseudo-inverse of their Gram matrix,
# in which eigenvalues below _RANK_TOLERANCE of the largest count as zero.
_SMALLEST_PIVOT = 1e-6
_RANK_TOLERANCE = 1e-10


@dataclass(eq=False, repr=False)
class PairAKSVD(CodesComparator):
    """PairAK-SVD (Irofti and Dumitrescu, 2019): separable dictionaries atom by atom.

    For each atom of each factor in turn, with ``E_k`` sample k without that atom, unfolded along
    the atom's mode, ``B`` the other factors' Kronecker product and ``x_k`` the atom's coefficients:

        ``d = F / ‖F‖,  F = Σ_k E_k B x_k``, then ``x_k = argmin ‖E_kᵀ d − B x_k‖`` on its support.

    Both are exact, so an update never raises the error; coding may. The sums are computed from Gram
    matrices, without residuals: with ``P = Σ X_k BᵀB X_kᵀ`` and ``C = Σ Y_k B X_kᵀ``,
    ``F = C_i − D P_i + P_ii d_i``. An update needs memory for ``n_nonzero_coefs · max(m_i)``
    numbers per sample; samples are read in order, in blocks.

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
        """Update all atoms of all modes once, in order."""
        counts = np.diff(codes.indptr)
        # Codes as rows of one width, padded with zeros where ``is_code`` is False.
        is_code = np.arange(max(counts.max(), 1)) < counts[:, None]
        index, x = np.zeros(is_code.shape, np.intp), np.zeros(is_code.shape)
        index[is_code], x[is_code] = codes.indices, codes.data
        atoms = np.unravel_index(index, dictionary.n_atoms)
        factors = [stack[0].copy() for stack in dictionary.stacks]
        for mode in range(len(factors)):
            sweep = _Sweep(mode, factors, atoms, is_code, source)
            for atom in range(dictionary.n_atoms[mode]):
                sweep.update(atom, x)
        codes.data[:] = x[is_code]
        return dictionary.with_stacks([factor[None] for factor in factors])


class _Sweep:
    """The update of one mode's atoms.

    A coefficient belongs to an atom of this mode, ``own_atoms`` (N, s), and to a partner: the
    Kronecker product of its atoms of the other modes, ``partners``. ``order`` lists the
    coefficients, as positions in the flattened (N, s), by atom and then by how many coefficients
    the sample has with that atom: those of atom i in samples with c of them begin at
    ``bounds[i, c]``. In that order, ``projections`` (coefficients, m) are the samples times the
    partners, ``Y_k b``.
    """

    def __init__(
        self,
        mode: int,
        factors: list[NDArray[np.float64]],
        atoms: Sequence[NDArray[np.intp]],
        is_code: NDArray[np.bool_],
        source: Source,
    ) -> None:
        others = [other for other in range(len(factors)) if other != mode]
        self.factor, self.own_atoms = factors[mode], atoms[mode]
        self.partners = [atoms[other] for other in others]
        self.grams = [factors[other].T @ factors[other] for other in others]
        self.order, self.bounds = _ordered_by_atom(self.own_atoms, is_code, self.factor.shape[1])
        # Projections of padding are written to a last row that is never read.
        rank = np.full(is_code.shape, len(self.order))
        rank.reshape(-1)[self.order] = np.arange(len(self.order))
        self.projections = np.empty((len(self.order) + 1, self.factor.shape[0]))
        for block, projections in _projections(mode, factors, atoms, source):
            self.projections[rank[block]] = projections

    def update(self, atom: int, x: NDArray[np.float64]) -> None:
        """Find the best direction of an atom, then its best coefficients; change x (N, s)."""
        first, last = self.bounds[atom, [0, -1]]
        if first == last:
            return
        positions, projections = self.order[first:last], self.projections[first:last]
        samples = positions // x.shape[1]
        used, old = self.own_atoms.take(samples, axis=0), x.take(positions)
        products = self._gram_rows(positions, samples) * x.take(samples, axis=0)
        p = np.bincount(used.ravel(), (products * old[:, None]).ravel(), self.factor.shape[1])
        p[atom] = 0.0
        best = (old @ projections - self.factor @ p)[:, None]
        self.factor[:, atom] = canonical(best, self.factor[:, atom, None])[0][:, 0]
        d = self.factor[:, atom]
        products *= (d @ self.factor).take(used)
        change = projections @ d - products.sum(axis=1)
        for c in range(1, x.shape[1] + 1):
            group = slice(*(self.bounds[atom, c : c + 2] - first))
            if group.start < group.stop:
                grams = self._grams(positions[group].reshape(-1, c))
                change[group] = _solve(grams, change[group].reshape(-1, c)).reshape(-1)
        x.reshape(-1)[positions] = old + change

    def _gram_rows(
        self, positions: NDArray[np.intp], samples: NDArray[np.intp]
    ) -> NDArray[np.float64]:
        """Return inner products of partners with all partners of their samples, (·, s)."""
        products = np.ones(())
        for gram, partners in zip(self.grams, self.partners, strict=True):
            entries = partners.take(positions)[:, None] * len(gram) + partners.take(samples, axis=0)
            products = products * gram.take(entries)
        return np.broadcast_to(products, (len(positions), self.own_atoms.shape[1]))

    def _grams(self, positions: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return inner products (L, c, c) among the partners at positions (L, c)."""
        products = np.ones((len(positions), positions.shape[1], positions.shape[1]))
        for gram, partners in zip(self.grams, self.partners, strict=True):
            atoms = partners.take(positions)
            products *= gram[atoms[:, :, None], atoms[:, None, :]]
        return products


def _ordered_by_atom(
    atoms: NDArray[np.intp], is_code: NDArray[np.bool_], n: int
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the ``order`` and ``bounds`` of a sweep."""
    s = atoms.shape[1]
    n_shared = np.zeros(atoms.shape, np.intp)
    for t in range(s):
        n_shared += (atoms == atoms[:, t, None]) & is_code[:, t, None]
    key = np.where(is_code, atoms * (s + 1) + n_shared, n * (s + 1))
    starts = np.append(0, np.cumsum(np.bincount(key.reshape(-1), minlength=n * (s + 1))))
    bounds = starts[np.arange(n)[:, None] * (s + 1) + np.arange(s + 2)]
    # NumPy sorts 16-bit integers by radix, more than ten times as fast.
    key = key.astype(np.int16) if n * (s + 1) < 1 << 15 else key
    return np.argsort(key, axis=None, kind="stable")[: bounds[-1, -1]], bounds


def _projections(
    mode: int,
    factors: Sequence[NDArray[np.float64]],
    atoms: Sequence[NDArray[np.intp]],
    source: Source,
) -> Iterator[tuple[slice, NDArray[np.float64]]]:
    """Yield rows and their samples times the partners of their coefficients, (rows, s, m)."""
    m, s = source.patch_shape[mode], atoms[mode].shape[1]
    columns = [np.ascontiguousarray(factor.T) for factor in factors]
    step = max(1, _BLOCK_NUMBERS // ((s + m) * source.n_features // m))
    for start in range(0, len(source), step):
        rows = slice(start, min(start + step, len(source)))
        partners = np.ones((rows.stop - start, s, 1))
        for other, of_mode in enumerate(atoms):
            if other != mode:
                vectors = columns[other][of_mode[rows]]
                partners = (partners[..., None] * vectors[:, :, None]).reshape(len(vectors), s, -1)
        samples = source.read(start, rows.stop).astype(np.float64, copy=False)
        unfolded = np.moveaxis(samples.reshape(-1, *source.patch_shape), 1 + mode, -1)
        yield rows, partners @ unfolded.reshape(len(samples), -1, m)


def _solve(grams: NDArray[np.float64], slopes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Solve many small systems with Gram matrices (L, c, c) of unit vectors, for (L, c).

    Eliminating all systems at once is several times as fast as one after the other.
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
