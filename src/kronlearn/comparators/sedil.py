"""SeDiL: factors and dense codes together, by conjugate gradients on spheres."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.comparators.learners import Comparator, finite_samples
from kronlearn.comparators.memory import RememberingDictionary
from kronlearn.comparators.sedil_objective import Objective
from kronlearn.comparators.spheres import geodesic, transport
from kronlearn.core.dictionary import Dictionary, KroneckerDictionary
from kronlearn.core.engine import Engine, Task
from kronlearn.core.iteration import Iteration
from kronlearn.core.loop import Plan, State
from kronlearn.core.source import Source
from kronlearn.parameters import count, number, random_numbers

__all__ = ["SeDiL"]

# The line search: the share of the slope that must be gained, the factor that shortens a step, the
# weight of earlier values, and the number of trials before it gives up.
_GAIN, _SHORTER, _MEMORY, _TRIALS = 1e-2, 0.9, 0.8, 200


@dataclass(eq=False, repr=False)
class SeDiL(Comparator):
    """Separable dictionary learning (Hawe, Seibert and Kleinsteuber, 2013).

    Minimises over factors with unit columns and over dense codes x of N samples at once

        (1/N) Σ‖y − D x‖² + (λ/N)(m/n) Σ ln(1 + μ|x|) − Σ_i κ_i Σ_{a≠b} ln(1 − (d_aᵀ d_b)²)

    for samples of m numbers and codes of n, with ``κ_i = 2κ/(n_i² − n_i)``: the last term keeps the
    atoms of a mode apart. The method is conjugate gradients on the product of the spheres of the
    atoms and the space of codes, with a line search that lets the objective rise a little.

    The derivative with respect to a code is of the order 1/N, so as published the atoms move far
    before the codes follow; ``balance`` makes both move alike. With 9216 image patches of 8 × 8 and
    16 × 16 atoms the RMSE after 100, 300 and 1500 iterations was 10.2, 7.4 and 6.0 as published and
    6.0, 5.6 and 5.4 balanced; in the end the objective was lower, too.

    The samples are scaled to norm 1, as the weights are for such; those that are zero are left out.
    Their means are not removed: do that before, as for any other learner. It is the only learner
    here that needs dense codes: four arrays of ``N·n`` numbers in the samples' dtype (codes,
    direction, two gradients), hence ``max_samples``. The descent runs in one thread.

    Parameters
    ----------
    n_nonzero_coefs : int or None, default 6
        The most nonzeros per sample in ``transform`` and in the recorded RMSE; learning does not
        depend on it.
    tol : float, optional
        The ℓ2 norm a sample's residual may have there. At least one of the two is needed.
    method : {"omp", "ols", "exchange"}, default "omp"
        The coder used there.
    max_iter : int, default 300
        The most steps of conjugate gradients.
    sparsity : float, default 0.0135
        The weight λ of the sparsity of the codes.
    coherence : float, default 0.0129
        The weight κ of the term that keeps atoms apart.
    sharpness : float, default 100
        The factor μ inside the logarithm.
    balance : float or None, default 3
        The variables are the codes times ``balance/√N``: the same objective, another geometry.
        None leaves the codes as they are, as published.
    max_samples : int or None, default 20000
        Learn from at most this many samples, drawn at random; None means from all.

    Attributes
    ----------
    history_ : dict of lists
        "rmse", "seconds", "atoms_replaced" and "mean_nonzeros" of the start and of every
        iteration, the "objective", and "step", the length of the line search's step.
    stop_reason_ : str
        "max_iter", "time_budget", "callback", "interrupted", or "converged" if the line search
        finds nothing lower.

    Examples
    --------
    >>> import numpy as np
    >>> from kronlearn.comparators import SeDiL
    >>> Y = np.random.default_rng(0).standard_normal((300, 4, 4))
    >>> model = SeDiL((6, 5), n_nonzero_coefs=3, max_iter=5, random_state=0).fit(Y)
    >>> model.transform(Y).shape, model.history_["objective"][-1] < model.history_["objective"][0]
    ((300, 30), True)
    """

    sparsity: float = number(0.0135, "[0, inf)")
    coherence: float = number(0.0129, "[0, inf)")
    sharpness: float = number(100.0, "[0, inf)")
    balance: float | None = number(3.0, "(0, inf)")
    max_samples: int | None = count(20_000)
    max_iter: int = count(300)

    def _start(self, source: Source, n_atoms: tuple[int, ...]) -> Dictionary:
        start = super()._start(source, n_atoms)
        objective = Objective(
            self._chosen(source),
            source.patch_shape,
            n_atoms,
            float(self.sparsity),
            float(self.coherence),
            float(self.sharpness),
            None if self.balance is None else float(self.balance),
        )
        return RememberingDictionary(start, Descent(objective, list(start.coding_factors)))

    def _chosen(self, source: Source) -> NDArray[np.floating]:
        """The samples to learn from, with norm 1, in the samples' dtype."""
        samples = finite_samples(source)
        if self.max_samples is not None and len(samples) > self.max_samples:
            rng = random_numbers(self.random_state)
            rows = rng.choice(len(samples), int(self.max_samples), replace=False)
            samples = samples[np.sort(rows)]
        largest = np.abs(samples).max(axis=1, keepdims=True)
        if not largest.any():
            raise ValueError("All samples are zero; there is nothing to learn from.")
        # Divided by the largest entry first, squares neither over- nor underflow.
        samples = samples[largest[:, 0] > 0] / largest[largest > 0, None]
        samples /= np.linalg.norm(samples, axis=1, keepdims=True)
        return samples.astype(source.dtype)

    def _iterate(self, engine: Engine, dictionary: Dictionary, plan: Plan) -> Iteration:
        """A pass that judges the dictionary, then a step of the descent."""
        assert isinstance(dictionary, RememberingDictionary)
        found = engine.run(Task(dictionary, plan.coder))
        descent, updated = dictionary.memory, dictionary
        if descent.advance():
            updated = RememberingDictionary(KroneckerDictionary(descent.factors), descent)
        return Iteration(updated, found.residual, found.nonzeros)

    def _record(self, state: State, plan: Plan, source: Source) -> None:
        super()._record(state, plan, source)
        assert isinstance(state.best, RememberingDictionary)
        descent, n = state.best.memory, len(state.history)
        self.history_ |= {"objective": descent.values[:n], "step": descent.steps[:n]}


class Descent:
    """Conjugate gradients: a point, its gradient and the direction to go.

    The point is ``factors`` and ``codes``; a gradient or direction is a list of arrays like the
    factors, tangent to them, and then arrays like the blocks of codes. ``values`` and ``steps`` are
    those of the start and of all iterations, 0 if a search failed. The line search accepts a step t
    once ``f ≤ level + 0.01·t·slope``, where the level is a mean of the values so far that forgets
    them slowly (Zhang and Hager, 2004).
    """

    def __init__(self, objective: Objective, factors: list[NDArray[np.float64]]) -> None:
        objective.check_distinct(factors)
        self.objective, self.factors = objective, factors
        self.codes = objective.correlations(factors)
        self.level = objective.value(factors, self.codes)
        self.values, self.steps, self.mass = [self.level], [0.0], 1.0
        self.gradient = objective.gradient(factors, self.codes)
        self.squared_norm = _inner(self.gradient, self.gradient)
        self._restart()

    def advance(self) -> bool:
        """One iteration; returns whether another one may lower the objective."""
        if self.squared_norm == 0.0:
            return False
        ways = self.direction[: len(self.factors)]
        for _ in range(_TRIALS):
            ends = [geodesic(*pair, self.step) for pair in zip(self.factors, ways, strict=True)]
            value = self.objective.value(ends, self._moved_codes())
            if value <= self.level + _GAIN * self.step * self.slope:
                break
            self.step *= _SHORTER
        else:
            was_steepest = self.slope == -self.squared_norm
            self._restart()
            self._remember(self.values[-1], 0.0)
            return not was_steepest
        self.mass = _MEMORY * self.mass + 1.0
        self.level += (value - self.level) / self.mass
        self._turn(ends)
        self._remember(value, self.step)
        self.step /= _SHORTER**2
        return True

    def _remember(self, value: float, step: float) -> None:
        self.values.append(value)
        self.steps.append(step)

    def _restart(self) -> None:
        """Go downhill, by a first step of length 1."""
        self.direction = [-g for g in self.gradient]
        self.slope = -self.squared_norm
        self.step = 1.0 / math.sqrt(self.squared_norm) if self.squared_norm > 0 else 0.0

    def _moved_codes(self) -> Iterator[NDArray[Any]]:
        ways = self.direction[len(self.factors) :]
        return (x + self.step * way for x, way in zip(self.codes, ways, strict=True))

    def _turn(self, ends: list[NDArray[np.float64]]) -> None:
        """The gradient where the step has led to, and the direction conjugate to the last one.

        Of two formulas for how much of the last direction is kept, those of Hestenes and Stiefel
        and of Dai and Yuan, the smaller is taken, and none if it is negative.
        """
        old, way = self._carried(self.gradient, ends), self._carried(self.direction, ends)
        self.factors, self.codes = ends, list(self._moved_codes())
        new = self.gradient = self.objective.gradient(ends, self.codes)
        new_new, new_way = _inner(new, new), _inner(new, way)
        curvature = new_way - _inner(old, way)
        kept = min(new_new - _inner(new, old), new_new)
        beta = max(0.0, kept / curvature) if curvature > 0 else 0.0
        if beta * new_way >= new_new:
            beta = 0.0
        self.direction = [beta * w - g for w, g in zip(way, new, strict=True)]
        self.squared_norm, self.slope = new_new, beta * new_way - new_new

    def _carried(
        self, vectors: list[NDArray[Any]], ends: list[NDArray[np.float64]]
    ) -> list[NDArray[Any]]:
        """A gradient or direction, moved with the step to its ends; that of codes stays."""
        n_modes = len(ends)
        parts = zip(self.factors, self.direction[:n_modes], vectors[:n_modes], ends, strict=True)
        carried = [transport(factor, way, self.step, v, end) for factor, way, v, end in parts]
        return [*carried, *vectors[n_modes:]]


def _inner(left: list[NDArray[Any]], right: list[NDArray[Any]]) -> float:
    return sum(float(np.vdot(a, b)) for a, b in zip(left, right, strict=True))
