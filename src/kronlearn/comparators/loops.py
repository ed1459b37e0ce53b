"""The loop of comparators in memory: those that need codes, or have iterations of their own."""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from kronlearn.blas import single_threaded_blas
from kronlearn.comparators.learners import Comparator
from kronlearn.core.coder import Coder
from kronlearn.core.dictionary import Dictionary
from kronlearn.core.engine import Engine, worst_first
from kronlearn.core.loop import Entry, Plan, State
from kronlearn.core.replacement import MOST_REPLACED, replace_unused, unused_by_mode
from kronlearn.core.source import Source
from kronlearn.progress import progress_bar

__all__ = ["CodesComparator", "Judged", "LoopComparator", "by_atom", "errors"]

# Errors are computed for about this many numbers at a time.
_BLOCK_NUMBERS = 1 << 20


@dataclass(frozen=True)
class Judged:
    """A dictionary, and how well all samples, coded afresh with it, are represented.

    ``residual`` is ``Σ‖y − ŷ‖²``; ``atoms_replaced`` atoms are new in the dictionary; ``columns``
    are further entries of the history.
    """

    dictionary: Dictionary
    residual: float
    nonzeros: int
    atoms_replaced: int = 0
    columns: Mapping[str, float] = field(default_factory=dict)


class LoopComparator(Comparator):
    """A method with iterations of its own, which begins, records and ends as all learners do."""

    @abstractmethod
    def _dictionaries(self, engine: Engine, start: Dictionary, coder: Coder) -> Iterator[Judged]:
        """The start and the dictionary of each iteration, each judged before the next is made.

        Endless, or until nothing is left to gain.
        """

    def _learn(
        self,
        engine: Engine,
        state: State,
        plan: Plan,
        save: Callable[[State], None] | None = None,
    ) -> State:
        """Learn with a progress bar; whatever ends it, the best dictionary so far is adopted."""
        begin = time.perf_counter()
        dictionaries = self._dictionaries(engine, state.dictionary, plan.coder)
        columns: dict[str, list[float]] = {}
        reason, stop_reason = "interrupted", None
        try:
            with single_threaded_blas(), progress_bar(self.verbose, plan.max_iter) as advance:
                for judged in dictionaries:
                    seconds = time.perf_counter() - begin
                    state = _with_entry(state, judged, plan, engine.source, seconds)
                    for name, value in judged.columns.items():
                        columns.setdefault(name, []).append(value)
                    if state.n_iterations:
                        advance(state.history[-1].rmse)
                    stop_reason = self._stop_reason(state, plan, engine.source)
                    if stop_reason is not None:
                        break
            # Without a reason to stop the method has found nothing more to gain.
            reason = stop_reason or "converged"
        finally:
            if state.history:
                self._adopt(plan.handed_out(state.best), engine.source)
                self._record(state.history)
                self.history_ |= columns
                self.n_iter_, self.stop_reason_ = state.n_iterations, reason
                self._best = state.best
        return state

    def _stop_reason(self, state: State, plan: Plan, source: Source) -> str | None:
        entry = state.history[-1]
        if self._stops(state, plan, source):
            return "callback"
        if entry.rmse == 0.0:
            return "converged"
        if plan.time_budget is not None and entry.seconds >= plan.time_budget:
            return "time_budget"
        return "max_iter" if state.n_iterations == plan.max_iter else None


def _with_entry(state: State, judged: Judged, plan: Plan, source: Source, seconds: float) -> State:
    """The state after a dictionary was judged."""
    entry = Entry(
        math.sqrt(judged.residual / (len(source) * source.n_features)),
        seconds,
        judged.atoms_replaced,
        judged.nonzeros / len(source),
    )
    goal = "rmse" if plan.coder.tol is None else "mean_nonzeros"
    lowest = min((getattr(before, goal) for before in state.history), default=math.inf)
    return replace(
        state,
        dictionary=judged.dictionary,
        best=judged.dictionary if getattr(entry, goal) <= lowest else state.best,
        passed=judged.dictionary,
        history=(*state.history, entry),
    )


class CodesComparator(LoopComparator):
    """A method whose update needs the codes of all samples, a CSR array in memory."""

    @abstractmethod
    def _update(
        self, source: Source, dictionary: Dictionary, codes: sparse.csr_array
    ) -> Dictionary:
        """A better dictionary; the values of the codes, not their places, are changed with it."""

    def _dictionaries(self, engine: Engine, start: Dictionary, coder: Coder) -> Iterator[Judged]:
        source, dictionary, replaced = engine.source, start, 0
        while True:
            codes = engine.codes(dictionary, coder)
            residuals = _squared_errors(source, dictionary, codes)
            yield Judged(dictionary, float(residuals.sum()), codes.nnz, replaced)
            used = np.bincount(codes.indices, minlength=codes.shape[1]) > 0
            unused = unused_by_mode(used.reshape(dictionary.n_atoms))
            updated = self._update(source, dictionary, codes)
            worst = np.flatnonzero(residuals)
            count = min(sum(map(len, unused)), MOST_REPLACED)
            if count > 0:
                _, worst = worst_first(residuals[worst], worst, count)
            dictionary, replaced = replace_unused(updated, unused, worst, source, coder)


def errors(
    source: Source, dictionary: Dictionary, codes: sparse.csr_array
) -> Iterator[tuple[slice, NDArray[np.float64]]]:
    """Blocks of samples minus what their codes represent, ``(rows, (n, m_1·…·m_d))``."""
    atoms = dictionary.to_dense().T.astype(np.float64)
    step = max(1, _BLOCK_NUMBERS // source.n_features)
    for start in range(0, len(source), step):
        rows = slice(start, min(start + step, len(source)))
        yield rows, source.read(rows.start, rows.stop) - codes[rows] @ atoms


def _squared_errors(
    source: Source, dictionary: Dictionary, codes: sparse.csr_array
) -> NDArray[np.float64]:
    """``‖y − ŷ‖²`` of every sample."""
    parts = [np.einsum("ij,ij->i", left, left) for _, left in errors(source, dictionary, codes)]
    return np.concatenate(parts)


def by_atom(codes: sparse.csr_array) -> sparse.csc_array:
    """Where the coefficients of each atom are: an array like the codes, of places in their data.

    Examples
    --------
    >>> import numpy as np
    >>> from scipy import sparse
    >>> from kronlearn.comparators.loops import by_atom
    >>> codes = sparse.csr_array(np.array([[0.0, 5.0, 6.0], [0.0, 0.0, 7.0]]))
    >>> places = by_atom(codes)
    >>> mine = slice(*places.indptr[2:4])
    >>> codes.data[places.data[mine]].tolist(), places.indices[mine].tolist()
    ([6.0, 7.0], [0, 1])
    """
    places = np.arange(codes.nnz)
    return sparse.csr_array((places, codes.indices, codes.indptr), shape=codes.shape).tocsc()
