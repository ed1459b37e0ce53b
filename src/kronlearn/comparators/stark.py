"""STARK: an unstructured dictionary near to low rank, by nuclear norms of its unfoldings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kronlearn.comparators.learners import MomentsComparator
from kronlearn.comparators.low_rank import ridge_parts, svt
from kronlearn.comparators.stateful import StatefulDictionary
from kronlearn.core.dictionary import Dictionary, KroneckerDictionary
from kronlearn.core.kronecker_sum import rearranged, restored
from kronlearn.core.moments import Moments
from kronlearn.core.source import Source
from kronlearn.core.updates import canonical
from kronlearn.parameters import count, number

__all__ = ["STARK"]


@dataclass(eq=False, repr=False)
class STARK(MomentsComparator):
    """STARK (Ghassemi, Shakeri, Sarwate and Bajwa, 2017): low rank by a penalty.

    An update lowers ``½‖Y − D X‖² + λ Σ_k ‖unfold_k(R(D))‖_*`` over all matrices D by some steps of
    ADMM, which continue where the last update ended. The rearrangement R turns Kronecker products
    into outer products. Samples are coded with D, its columns scaled to norm 1; the codes stay as
    they are. The error may rise. The rank of D is not low in itself: D is near to low-rank copies
    that ADMM keeps.

    On 9216 mean-free 8 × 8 image patches (grey levels 0 … 255, 16 × 16 atoms, 6 nonzeros, 100
    iterations) the published λ gave an RMSE of 4.4, copies of rank 3 and a D that differs from them
    by 6 %; a tenth of this λ gave 3.9 and rank 54, three times this λ 4.6 and rank 2. With a
    hundred times this λ nothing is learned. The published λ does not scale with the squared error:
    for grey levels 0 … 1 it weighs 16 times as much.

    Parameters
    ----------
    penalty : float, optional
        The weight λ; by default the published ``‖Y‖_F^1.5 / 10``.
    gamma_ratio : float, default 20
        The ratio λ/γ by which a step of ADMM lowers singular values; γ is ADMM's own penalty.
    n_steps : int, default 10
        Steps of ADMM per update.

    Attributes
    ----------
    dictionary_ : KroneckerDictionary of one mode
        The best D, a matrix (m_1·…·m_d, n_1·…·n_d) with unit columns.

    Examples
    --------
    >>> import numpy as np
    >>> from kronlearn.comparators import STARK
    >>> Y = np.random.default_rng(0).standard_normal((300, 4, 4))
    >>> model = STARK((6, 5), n_nonzero_coefs=3, max_iter=5, random_state=0).fit(Y)
    >>> model.dictionary_.n_atoms, model.transform(Y).shape
    ((30,), (300, 30))
    """

    penalty: float | None = number(None, "(0, inf)")
    gamma_ratio: float = number(20.0, "(0, inf)")
    n_steps: int = count(10)

    def _start(self, source: Source, n_atoms: tuple[int, ...]) -> Dictionary:
        D = super()._start(source, n_atoms).to_dense()
        tensor = rearranged(D, source.patch_shape, n_atoms)
        # The two unfoldings of a matrix are transposes of each other: one copy stands for both.
        n_copies = 1 if len(n_atoms) == 2 else len(n_atoms)
        copies, multipliers = (tensor,) * n_copies, (np.zeros_like(tensor),) * n_copies
        admm = Admm((source.patch_shape, n_atoms), copies, multipliers)
        return StatefulDictionary(KroneckerDictionary([D]), admm)

    def _update(self, dictionary: Dictionary, moments: Moments) -> Dictionary:
        """Continue ADMM; return its matrix with unit columns."""
        assert isinstance(dictionary, StatefulDictionary)
        D, admm = self._run_admm(dictionary.method_state, moments)
        # A column that has become zero stays as it was. Signs remain those of the copies.
        columns, scale = canonical(D, dictionary.coding_factors[0])
        return StatefulDictionary(KroneckerDictionary([columns * np.sign(scale)]), admm)

    def _run_admm(self, admm: Admm, moments: Moments) -> tuple[NDArray[np.float64], Admm]:
        """Take some steps of ADMM; return its D and its state."""
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
                copies[k] = _shrink_unfolding(tensor - multiplier, k, self.gamma_ratio)
                multipliers[k] = multiplier - (tensor - copies[k])
        return D, Admm(admm.modes, tuple(copies), tuple(multipliers))


@dataclass(frozen=True)
class Admm:
    """The state of ADMM between updates.

    ``modes`` are (m_1, …, m_d) and (n_1, …, n_d). ``copies`` are the low-rank W_k, ``multipliers``
    the A_k divided by γ: tensors of the shape of R(D).
    """

    modes: tuple[tuple[int, ...], tuple[int, ...]]
    copies: tuple[NDArray[np.float64], ...]
    multipliers: tuple[NDArray[np.float64], ...]


def _shrink_unfolding(
    tensor: NDArray[np.float64], mode: int, threshold: float
) -> NDArray[np.float64]:
    """Lower the singular values of one unfolding of a tensor by a threshold."""
    moved = np.moveaxis(tensor, mode, 0)
    unfolded = svt(moved.reshape(len(moved), -1), threshold)
    return np.moveaxis(unfolded.reshape(moved.shape), 0, mode)
