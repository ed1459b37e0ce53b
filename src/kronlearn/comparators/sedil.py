"""SeDiL: factors and dense codes together, by conjugate gradients on spheres."""

from __future__ import annotations

import math
from dataclasses import dataclass

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
from kronlearn.engines.threads import resolve_n_jobs
from kronlearn.parameters import count, number, random_numbers

__all__ = ["SeDiL"]

# Of the line search: how much of the slope must be gained, by how much a step is shortened, how
# slowly earlier values are forgotten, and after how many steps that were too long it gives up.
_GAIN, _SHORTER, _MEMORY, _TRIALS = 1e-2, 0.9, 0.8, 200


@dataclass(eq=False, repr=False)
class SeDiL(Comparator):
    """Separable dictionary learning (Hawe, Seibert and Kleinsteuber, 2013).

    Minimises over factors with unit columns and over dense codes x of N samples at once

        (1/N) Σ‖y − D x‖² + (λ/N)(m/n) Σ ln(1 + μ|x|) − Σ_i κ_i Σ_{a≠b} ln(1 − (d_aᵀ d_b)²)

    for samples of m numbers and codes of n, with ``κ_i = 2κ/(n_i² − n_i)``: the last term keeps the
    atoms of a mode apart. The method is conjugate gradients on the product of the spheres of the
    atoms and the space of codes, with a line search that lets the objective rise a little.

    The derivative by a code is of the order 1/N, so as published the atoms move far before the
    codes follow; ``balance`` makes both move alike. With 9216 image patches of 8 × 8 and 16 × 16
    atoms the RMSE after 100, 300 and 1500 iterations was 10.2, 7.4 and 6.0 as published and 6.0,
    5.6 and 5.4 balanced; in the end the objective was lower, too.

    The samples are scaled to norm 1, as the weights are for such; those that are zero are left out.
    Their means are not removed: do that before, as for any other learner. It is the only learner
    here that needs dense codes: three arrays of ``N·n`` numbers in the samples' dtype (codes,
    gradient, direction), hence ``max_samples``.

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
            resolve_n_jobs(self.n_jobs),
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
    """Conjugate gradients: a point, its gradient and the direction to go, of factors and codes.

    ``values`` and ``steps`` are those of the start and of all iterations, 0 if a search failed.
    The line search accepts a step t once ``f ≤ level + 0.01·t·slope``, where the level is a mean of
    the values so far that forgets them slowly (Zhang and Hager, 2004).
    """

    def __init__(self, objective: Objective, factors: list[NDArray[np.float64]]) -> None:
        objective.check_distinct(factors)
        self.objective, self.factors = objective, factors
        self.codes = objective.correlations(factors)
        self.gradient = self.direction = [np.zeros_like(factor) for factor in factors]
        self.code_gradient = np.zeros_like(self.codes)
        self.code_direction = np.zeros_like(self.codes)
        self.level = objective.value(factors, self.codes, self.code_direction, 0.0)
        self.values, self.steps = [self.level], [0.0]
        self.mass, self.step = 1.0, 0.0
        self._turn(factors)
        self.step = self._first_step()

    def advance(self) -> bool:
        """One iteration; returns whether another one may lower the objective."""
        if self.squared_norm == 0.0:
            return False
        for _ in range(_TRIALS):
            pairs = zip(self.factors, self.direction, strict=True)
            ends = [geodesic(factor, way, self.step) for factor, way in pairs]
            value = self.objective.value(ends, self.codes, self.code_direction, self.step)
            if value <= self.level + _GAIN * self.step * self.slope:
                break
            self.step *= _SHORTER
        else:
            steepest = self.slope == -self.squared_norm
            self._head(0.0, self.direction, 0.0)
            self.step = self._first_step()
            self._remember(self.values[-1], 0.0)
            return not steepest
        self.mass = _MEMORY * self.mass + 1.0
        self.level += (value - self.level) / self.mass
        for codes, way in zip(self.codes, self.code_direction, strict=True):
            codes += codes.dtype.type(self.step) * way
        self._turn(ends)
        self._remember(value, self.step)
        self.step /= _SHORTER**2
        return True

    def _remember(self, value: float, step: float) -> None:
        self.values.append(value)
        self.steps.append(step)

    def _turn(self, ends: list[NDArray[np.float64]]) -> None:
        """The gradient where the step has led to, and the direction conjugate to the last one.

        Of two formulas for how much of the last direction is kept, those of Hestenes and Stiefel
        and of Dai and Yuan, the smaller is taken, and none if it is negative.
        """
        old, way = self._carried(self.gradient, ends), self._carried(self.direction, ends)
        new, of_codes = self.objective.renew_gradient(
            ends, self.codes, self.code_direction, self.code_gradient
        )
        pairs = ((new, new), (new, old), (new, way), (old, way))
        of_factors = np.array([sum(map(np.vdot, a, b)) for a, b in pairs])
        new_new, new_old, new_way, old_way = (of_codes + of_factors).tolist()
        self.factors, self.gradient, self.squared_norm = ends, new, new_new
        curvature = new_way - old_way
        beta = max(0.0, min(new_new - new_old, new_new) / curvature) if curvature > 0 else 0.0
        self._head(beta if beta * new_way < new_new else 0.0, way, new_way)

    def _head(self, beta: float, way: list[NDArray[np.float64]], slope_of_way: float) -> None:
        """Set the direction to steepest descent and beta times the last one, carried here."""
        self.direction = [beta * w - g for w, g in zip(way, self.gradient, strict=True)]
        self.code_direction *= beta
        self.code_direction -= self.code_gradient
        self.slope = beta * slope_of_way - self.squared_norm

    def _carried(
        self, vectors: list[NDArray[np.float64]], ends: list[NDArray[np.float64]]
    ) -> list[NDArray[np.float64]]:
        """Tangents at the factors, moved with the step to its ends."""
        parts = zip(self.factors, self.direction, vectors, ends, strict=True)
        return [transport(factor, way, self.step, v, end) for factor, way, v, end in parts]

    def _first_step(self) -> float:
        return 1.0 / math.sqrt(self.squared_norm) if self.squared_norm > 0 else 0.0
