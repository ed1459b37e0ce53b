"""Unstructured dictionaries: the method of optimal directions, K-SVD and AK-SVD."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, sparse

from kronlearn import _native
from kronlearn.comparators.codes import CodesComparator, positions_by_atom, residuals
from kronlearn.comparators.learners import Comparator
from kronlearn.core.dictionary import Dictionary, KroneckerDictionary
from kronlearn.core.init import dct_factor, perturbation, starting_dictionary
from kronlearn.core.instruction_sets import instruction_set
from kronlearn.core.source import Source
from kronlearn.core.updates import canonical
from kronlearn.io.arrays import ArraySource
from kronlearn.parameters import count, positive_integers, random_numbers

__all__ = ["AKSVD", "KSVD", "MOD"]


@dataclass(eq=False, repr=False)
class UnstructuredComparator(Comparator):
    """A method whose dictionary is a matrix (n_features, n_atoms) with unit columns.

    Parameters
    ----------
    n_atoms : int, default 256
        The number of atoms.
    patch_shape : tuple of int, optional
        ``(m_1, …, m_d)`` of samples given as rows; it affects only the start.
    init : {"dct", "data", "random"}, dictionary or array (n_features, n_atoms), default "dct"
        Start: perturbed cosines, directions of random samples, noise, or your own.
    """

    n_atoms: int = count(256)

    def _sizes(self, sample_shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        if self.patch_shape is not None:
            sample_shape = positive_integers("patch_shape", self.patch_shape)
        return sample_shape, (int(self.n_atoms),)

    def _start(self, source: Source, n_atoms: tuple[int, ...]) -> Dictionary:
        init, rng = self.init, random_numbers(self.random_state)
        m, n = source.n_features, n_atoms[0]
        if isinstance(init, Dictionary):
            init = [init.to_dense()]
        elif isinstance(init, np.ndarray) and init.ndim == 2:
            init = [init]
        elif isinstance(init, str) and init == "dct":
            noise = rng.standard_normal((m, n)) / np.sqrt(m)
            columns = cosines(source.patch_shape, n) + perturbation(m, n) * noise
            init = [canonical(columns, noise)[0]]
        rows = ArraySource(source.read(0, len(source)), (m,))
        return starting_dictionary(init, rows, n_atoms, rng)


@dataclass(eq=False, repr=False)
class MOD(UnstructuredComparator):
    """Method of optimal directions (Engan, Aase and Husøy, 1999): ``D = Y Xᵀ (X Xᵀ)⁻¹``.

    This is the general method with a single factor. The update never raises the error; coding may.

    Examples
    --------
    >>> import numpy as np
    >>> from kronlearn.comparators import MOD
    >>> Y = np.random.default_rng(0).standard_normal((300, 4, 4))
    >>> model = MOD(24, n_nonzero_coefs=3, max_iter=5, random_state=0).fit(Y)
    >>> model.dictionary_.n_atoms, model.transform(Y).shape
    ((24,), (300, 24))
    """


@dataclass(eq=False, repr=False)
class KSVD(UnstructuredComparator, CodesComparator):
    """K-SVD (Aharon, Elad and Bruckstein, 2006).

    For each atom in turn, with E the samples that use it minus all other atoms, one per row, the
    atom and its coefficients become the leading singular pair of E, its best rank-1 approximation
    ``E ≈ x dᵀ``. An update never raises the error; coding may. The residuals of all samples are
    kept in memory, in float64.

    Examples
    --------
    >>> import numpy as np
    >>> from kronlearn.comparators import KSVD
    >>> Y = np.random.default_rng(0).standard_normal((300, 4, 4))
    >>> model = KSVD(24, n_nonzero_coefs=3, max_iter=5, random_state=0).fit(Y)
    >>> model.dictionary_.n_atoms, model.transform(Y).shape
    ((24,), (300, 24))
    """

    def _update(
        self, source: Source, dictionary: Dictionary, codes: sparse.csr_array
    ) -> Dictionary:
        """Update all atoms once, in order, each by a singular pair."""
        atoms = np.array(dictionary.stacks[0][0].T, order="C")
        all_residuals = residuals(source, dictionary, codes)
        positions = positions_by_atom(codes)
        for j, d in enumerate(atoms):
            of_atom = slice(*positions.indptr[j : j + 2])
            if of_atom.start == of_atom.stop:
                continue
            entries, samples = positions.data[of_atom], positions.indices[of_atom]
            E = all_residuals.take(samples, axis=0)
            E += np.outer(codes.data[entries].astype(np.float64), d)
            best = _leading_direction(E)[:, None]
            d[:] = canonical(best, d[:, None])[0][:, 0]
            x = E @ d
            all_residuals[samples] = E - np.outer(x, d)
            codes.data[entries] = x
        return dictionary.with_stacks([atoms.T[None]])


@dataclass(eq=False, repr=False)
class AKSVD(UnstructuredComparator, CodesComparator):
    """Approximate K-SVD (Rubinstein, Zibulevsky and Elad, 2008).

    For each atom d in turn, with E the samples that use it minus all other atoms, one per row, and
    x its coefficients:

        ``d = Eᵀx / ‖Eᵀx‖``, then ``x = E d``

    which is one power iteration towards the singular pair of :class:`KSVD`. Both steps are exact,
    so an update never raises the error; coding may. E is never formed: thanks to
    ``Eᵀx = Yᵀx − D (Xᵀx) + d ‖x‖²``, an update costs about as much as reading each sample twice for
    each of its nonzeros. Since samples are read in any order, samples that are not C-contiguous
    float32 or float64 are copied for the duration of an update. The update runs in one thread;
    coding runs in ``n_jobs``.

    Examples
    --------
    >>> import numpy as np
    >>> from kronlearn.comparators import AKSVD
    >>> Y = np.random.default_rng(0).standard_normal((300, 4, 4))
    >>> model = AKSVD(24, n_nonzero_coefs=3, max_iter=5, random_state=0).fit(Y)
    >>> model.dictionary_.n_atoms, model.transform(Y).shape
    ((24,), (300, 24))
    """

    def _update(
        self, source: Source, dictionary: Dictionary, codes: sparse.csr_array
    ) -> Dictionary:
        """Update all atoms once, in order, each by one power iteration."""
        atoms = np.array(dictionary.stacks[0][0].T, order="C")
        samples = source.read(0, len(source))
        _native.sweep_atoms(
            samples, codes.indptr, codes.indices, codes.data, atoms, instruction_set()
        )
        return dictionary.with_stacks([atoms.T[None]])


def cosines(patch_shape: tuple[int, ...], n_atoms: int) -> NDArray[np.float64]:
    """Return the n products of overcomplete cosines of lowest frequency, (m_1·…·m_d, n)."""
    overcompleteness = (n_atoms / math.prod(patch_shape)) ** (1 / len(patch_shape))
    counts = [max(1, math.ceil(m * overcompleteness - 1e-9)) for m in patch_shape]
    factors = [dct_factor(m, n) for m, n in zip(patch_shape, counts, strict=True)]
    columns = KroneckerDictionary(factors).to_dense()
    frequencies = np.meshgrid(*(np.arange(n) / n for n in counts), indexing="ij")
    order = np.argsort(np.sum(frequencies, axis=0), axis=None, kind="stable")[:n_atoms]
    return columns[:, np.sort(order)]


def _leading_direction(E: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a multiple of the leading right singular vector of a matrix."""
    largest = np.abs(E).max()
    if largest == 0 or not np.isfinite(largest):
        return np.zeros(E.shape[1])
    # Divided by its largest entry, so that no square over- or underflows.
    E = E / largest
    wide = len(E) < E.shape[1]
    gram = E @ E.T if wide else E.T @ E
    last = len(gram) - 1
    vector = linalg.eigh(gram, subset_by_index=[last, last], check_finite=False)[1][:, 0]
    return np.asarray(vector @ E if wide else vector)
