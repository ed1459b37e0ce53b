"""The definition of one iteration of each comparator, in dense float64 NumPy.

Samples ``Y`` are ``(N, m_1, …, m_d)``, codes ``X`` are dense ``(N, n_1·…·n_d)`` in C order. Every
``…_update(Y, dictionary, X)`` returns the new dictionary and the codes that belong to it; nothing
is changed in place. Unstructured methods take one matrix ``D`` ``(m, n)`` and flatten the samples.
Methods that learn sums of Kronecker products are in ``reference_comparators_sums``.

Common rules, which any implementation must follow to get the same numbers:

- atoms are visited in the order 0, 1, 2, … of the first mode, then of the second, …;
- a new atom is canonical: unit norm, its entry of largest magnitude (the first of equals) positive;
  its codes are flipped or rescaled along with it. Where a formula gives the zero vector, the atom
  stays as it was;
- the support is that of ``X`` on entry, even if a coefficient becomes zero on the way;
- an atom that no code uses stays as it is (atoms are replaced in a separate step, not done here);
- least squares change undetermined directions as little as possible: singular values below 1e-5 of
  the largest (eigenvalues of a Gram matrix below 1e-10) count as zero.
"""

from typing import NamedTuple

import numpy as np
import pytest

import reference
from kronlearn.coding import sparse_code

SHAPES = [
    pytest.param((8,), (12,), id="one mode"),
    pytest.param((5, 4), (7, 6), id="two modes"),
    pytest.param((3, 4, 3), (4, 4, 3), id="three modes"),
]

_RANK_TOLERANCE = 1e-5


def learn(update, Y, start, n_nonzero_coefs, n_iterations, dictionary=list):
    """Return the state after some iterations, and the RMSE of the start and of every iteration.

    Every dictionary is judged by coding all samples afresh. ``update(Y, state, X)`` returns the
    next state and the codes that belong to it. ``dictionary(state)`` returns the factors with unit
    columns to code with: the state itself if it is a list of factors, ``[D]`` for a matrix.
    """
    state, rmse = start, []
    while True:
        D = reference.dense(dictionary(state))
        X = code(Y, [D], n_nonzero_coefs)
        rmse.append(np.sqrt(np.mean(reference.residuals(Y, [D], X) ** 2)))
        if len(rmse) > n_iterations:
            return state, rmse
        state, _ = update(Y, state, X)


def code(Y, factors, n_nonzero_coefs):
    """Code by the library's orthogonal matching pursuit, tested elsewhere; return dense codes."""
    return sparse_code(flat(Y), [reference.dense(factors)], n_nonzero_coefs).toarray()


def last_dictionary(model, Y):
    """Fit; return the dictionary of the last iteration, which need not be the best."""
    seen = []
    model.set_params(callback=lambda progress: seen.append(progress.dictionary)).fit(Y)
    return seen[-1]


def nearby(rng, factors, amount):
    """Add Gaussian noise of a relative amount to every column; scale columns to norm 1."""
    moved = [f + amount * rng.standard_normal(f.shape) / np.sqrt(len(f)) for f in factors]
    return [factor / np.linalg.norm(factor, axis=0) for factor in moved]


def recovered(atoms, truth):
    """Return the fraction of true atoms that are within 8 degrees of an atom; atoms are columns."""
    return np.mean(np.abs(atoms.T @ truth).max(axis=0) > 0.99)


def canonical(column, fallback):
    """Scale a column to norm 1, largest entry positive; return the fallback for a zero column."""
    norm = np.linalg.norm(column)
    if norm == 0:
        return fallback
    return column / (norm if column[np.argmax(np.abs(column))] > 0 else -norm)


def least_squares(design, target, start):
    """Return the minimiser of ``‖design·Z − target‖²`` that is nearest to ``start``."""
    change = np.linalg.lstsq(design, target - design @ start, rcond=_RANK_TOLERANCE)[0]
    return start + change


def flat(Y):
    """Return samples as rows ``(N, m_1·…·m_d)``."""
    return np.asarray(Y, dtype=np.float64).reshape(len(Y), -1)


def unfold(T, mode):
    """Unfold samples or codes ``(N, …)`` to ``(N, size of the mode, product of the others)``."""
    moved = np.moveaxis(T, 1 + mode, 1)
    return moved.reshape(*moved.shape[:2], -1)


def fold(U, mode, sizes):
    """Invert :func:`unfold`, for modes of these sizes."""
    others = [size for i, size in enumerate(sizes) if i != mode]
    return np.moveaxis(U.reshape(len(U), sizes[mode], *others), 1, 1 + mode)


def dense_others(factors, mode):
    """Return the Kronecker product of the factors of all other modes, in order."""
    return reference.dense([*factors[:mode], *factors[mode + 1 :], np.ones((1, 1))])


# Unstructured dictionaries


def mod_update(Y, D, X):
    """MOD: ``D = YXᵀ(XXᵀ)⁻¹`` with normalised columns; codes are multiplied by the norms."""
    solution = least_squares(X, flat(Y), D.T).T
    new, codes = np.array(D), np.array(X)
    for j in np.flatnonzero(X.any(axis=0)):
        new[:, j] = canonical(solution[:, j], D[:, j])
        codes[:, j] *= new[:, j] @ solution[:, j]
    return new, codes


def ksvd_update(Y, D, X):
    """K-SVD: each atom and its codes become the leading singular pair of its residual."""

    def leading(E, x):
        return np.linalg.svd(E, full_matrices=False)[2][0] * np.linalg.norm(E)

    return _atom_by_atom(Y, D, X, leading)


def aksvd_update(Y, D, X):
    """AK-SVD: K-SVD with one power iteration: the atom is ``Eᵀx`` normalised, then ``x = Ed``.

    ``E = Y_I − X_I Dᵀ + x dᵀ`` has a row for each sample that uses the atom, and ``x`` holds the
    atom's codes of these samples.
    """
    return _atom_by_atom(Y, D, X, lambda E, x: E.T @ x)


def _atom_by_atom(Y, D, X, direction):
    D, X = np.array(D, dtype=np.float64), np.array(X, dtype=np.float64)
    support = X != 0
    for j in range(D.shape[1]):
        users = support[:, j]
        if not users.any():
            continue
        E = flat(Y)[users] - X[users] @ D.T + np.outer(X[users, j], D[:, j])
        D[:, j] = canonical(direction(E, X[users, j]), D[:, j])
        X[users, j] = E @ D[:, j]
    return D, X


# Separable dictionaries, atom by atom


def pair_aksvd_update(Y, factors, X):
    """PairAK-SVD: the best atom, then its best codes on their support, for each atom of each mode.

    For atom i of a mode, ``x_k`` are the codes of sample k with index i in that mode, and ``E_k``
    is the sample, unfolded along the mode, minus all other atoms. With the Kronecker product ``B``
    of the other factors, the atom is ``F = Σ_k E_k B x_k`` normalised, and ``x_k`` becomes the
    least-squares solution of ``B x_k = E_kᵀ d`` on its support.
    """
    factors = [np.array(factor, dtype=np.float64) for factor in factors]
    n_atoms = [factor.shape[1] for factor in factors]
    X = np.array(X, dtype=np.float64).reshape(-1, *n_atoms)
    support = X != 0
    for mode, D in enumerate(factors):
        B = dense_others(factors, mode)
        samples = unfold(np.asarray(Y, dtype=np.float64), mode)
        codes, used = unfold(X, mode), unfold(support, mode)
        for i in range(n_atoms[mode]):
            users = np.flatnonzero(used[:, i].any(axis=1))
            if len(users) == 0:
                continue
            without = codes.copy()
            without[:, i] = 0
            E = samples - D @ without @ B.T
            D[:, i] = canonical(sum(E[k] @ B @ codes[k, i] for k in users), D[:, i])
            for k in users:
                chosen = used[k, i]
                codes[k, i, chosen] = least_squares(
                    B[:, chosen], E[k].T @ D[:, i], codes[k, i, chosen]
                )
        X = fold(codes, mode, n_atoms)
    return factors, X.reshape(len(X), -1)


def tksvd_update(Y, factors, X, n_sweeps=10):
    """TKSVD: each used tuple of atoms and its codes by a rank-1 fit of the residual without it.

    Tuples ``(i, j, …)`` come in C order. For each, the residual of its samples without it, computed
    afresh from the current factors and codes, is a tensor ``(users, m_1, …)``. Its rank-1 fit
    starts from the current atoms and codes and takes exactly ``n_sweeps`` alternating sweeps: the
    atom of each mode in turn, then the codes. The new atoms also belong to other tuples, whose
    codes stay, so the error can rise. Signs are left as the fit gives them until all tuples are
    done; then all codes of an atom are flipped along with it.
    """
    factors = [np.array(factor, dtype=np.float64) for factor in factors]
    n_atoms = [factor.shape[1] for factor in factors]
    X = np.array(X, dtype=np.float64)
    support = X != 0
    for column, place in enumerate(np.ndindex(*n_atoms)):
        users = support[:, column]
        if not users.any():
            continue
        without = X[users].copy()
        without[:, column] = 0
        E = reference.residuals(Y[users], factors, without).reshape(-1, *np.shape(Y)[1:])
        atoms = [factor[:, i].copy() for factor, i in zip(factors, place, strict=True)]
        x = X[users, column]
        for _ in range(n_sweeps):
            for mode in range(len(atoms)):
                others = dense_others([atom[:, None] for atom in atoms], mode)[:, 0]
                u = x @ (unfold(E, mode) @ others)
                if u.any():
                    atoms[mode] = u / np.linalg.norm(u)
            x = flat(E) @ reference.dense([atom[:, None] for atom in atoms])[:, 0]
        for factor, i, atom in zip(factors, place, atoms, strict=True):
            factor[:, i] = atom
        X[users, column] = x
    flips = []
    for mode, D in enumerate(factors):
        used = unfold(support.reshape(-1, *n_atoms), mode).any(axis=(0, 2))
        largest = D[np.abs(D).argmax(axis=0), np.arange(D.shape[1])]
        flips.append(np.where(used & (largest < 0), -1.0, 1.0))
        factors[mode] = D * flips[mode]
    return factors, X * reference.dense([flip[None] for flip in flips])


# OSubDil: online


class OSubDilState(NamedTuple):
    """Factors and, for each mode, the sums ``alpha`` ``(n_i, n_i)`` and ``beta`` ``(m_i, n_i)``."""

    factors: list
    alpha: list
    beta: list


def osubdil_start(factors):
    """Return a state with these factors and sums of zero."""
    factors = [np.array(factor, dtype=np.float64) for factor in factors]
    alpha = [np.zeros((factor.shape[1],) * 2) for factor in factors]
    return OSubDilState(factors, alpha, [np.zeros_like(factor) for factor in factors])


def osubdil_step(state, Y_batch, n_nonzero_coefs, n_passes=5):
    """OSubDil: the state after a batch of one or more samples.

    All samples of the batch are coded with the current factors. Then, for each mode in turn, with
    ``B`` the Kronecker product of the other factors, of which the earlier ones are already updated,

        alpha += Σ_k X_k BᵀB X_kᵀ,  beta += Σ_k Y_k B X_kᵀ        (unfolded along the mode)

    and ``n_passes`` times every atom c becomes ``beta_c − D alpha_c + alpha_cc d_c`` normalised,
    the minimum of ``tr(D alpha Dᵀ) − 2 tr(Dᵀ beta)`` on the sphere. Signs are not made canonical,
    since the sums contain codes of the old atoms; an atom that has never been used stays.
    """
    factors, alpha, beta = (list(part) for part in state)
    Y_batch = np.asarray(Y_batch, dtype=np.float64)
    X = code(Y_batch, factors, n_nonzero_coefs)
    X = X.reshape(-1, *[factor.shape[1] for factor in factors])
    for mode in range(len(factors)):
        design = unfold(X, mode) @ dense_others(factors, mode).T
        alpha[mode] = alpha[mode] + sum(U @ U.T for U in design)
        samples = unfold(Y_batch, mode)
        beta[mode] = beta[mode] + sum(y @ U.T for y, U in zip(samples, design, strict=True))
        factors[mode] = coordinate_passes(factors[mode], alpha[mode], beta[mode], n_passes)
    return OSubDilState(factors, alpha, beta)


def coordinate_passes(D, alpha, beta, n_passes):
    """Move each atom of a factor to its minimum, one after the other, ``n_passes`` times."""
    D = D.copy()
    for _ in range(n_passes):
        for c in range(D.shape[1]):
            F = beta[:, c] - D @ alpha[:, c] + alpha[c, c] * D[:, c]
            if alpha[c, c] > 0 and F.any():
                D[:, c] = F / np.linalg.norm(F)
    return D


# SeDiL: conjugate gradients on spheres


class SeDiLWeights(NamedTuple):
    """``sparsity`` is λ, ``coherence`` is κ and ``sharpness`` is μ in ``ln(1 + μ|x|)``."""

    sparsity: float = 0.0135
    coherence: float = 0.0129
    sharpness: float = 100.0


class SeDiLState(NamedTuple):
    """A point, its gradient, the search direction, and the state of the line search.

    ``point``, ``gradient`` and ``direction`` are lists ``[D_1, …, D_d, X]`` of arrays with the
    shapes of the factors and of the dense codes ``(N, n_1·…·n_d)``.
    """

    point: list
    gradient: list
    direction: list
    step: float  # the first step to try
    level: float  # a weighted mean of past values of the objective, which new values must be below
    mass: float  # the total weight of that mean


def sedil_objective(Y, point, weights):
    """``(1/N) Σ‖Y_k − Dx_k‖² + λ' Σ ln(1 + μ|x|) − Σ_i κ_i Σ_{a≠b} ln(1 − (d_aᵀd_b)²)``.

    ``λ' = (λ/N)·m/n`` for samples of m numbers and codes of n; ``κ_i = 2κ/(n_i² − n_i)``, 0 for a
    mode of one atom. The last sum is over ordered pairs: every pair of atoms counts twice.
    """
    *factors, X = point
    value = np.sum(reference.residuals(Y, factors, X) ** 2) / len(X)
    value += _sparsity_weight(Y, X, weights) * np.sum(np.log1p(weights.sharpness * np.abs(X)))
    for D in factors:
        G = D.T @ D
        np.fill_diagonal(G, 0)
        value -= _coherence_weight(D, weights) * np.sum(np.log1p(-(G**2)))
    return value


def sedil_gradient(Y, point, weights):
    """Return the Riemannian gradient ``[g_1, …, g_d, g_X]``; ``|x|`` has slope 0 at 0.

    ``g_i`` is the Euclidean gradient minus, from each column, its part along the atom.
    """
    *factors, X = point
    n_atoms = [factor.shape[1] for factor in factors]
    R = -reference.residuals(Y, factors, X)
    gradient = []
    for mode, D in enumerate(factors):
        design = unfold(X.reshape(-1, *n_atoms), mode) @ dense_others(factors, mode).T
        error = unfold(R.reshape(np.shape(Y)), mode)
        g = 2 / len(X) * sum(r @ U.T for r, U in zip(error, design, strict=True))
        G = D.T @ D
        np.fill_diagonal(G, 0)
        g = g + 4 * _coherence_weight(D, weights) * D @ (G / (1 - G**2))
        gradient.append(g - D * np.sum(D * g, axis=0))
    mu = weights.sharpness
    slope = _sparsity_weight(Y, X, weights) * mu * np.sign(X) / (1 + mu * np.abs(X))
    return [*gradient, 2 / len(X) * R @ reference.dense(factors) + slope]


def _sparsity_weight(Y, X, weights):
    return weights.sparsity / len(X) * np.size(Y) / np.size(X)


def _coherence_weight(D, weights):
    n = D.shape[1]
    return 2 * weights.coherence / (n**2 - n) if n > 1 else 0.0


def geodesic(D, H, t):
    """Move every column d along the great circle with velocity h ⊥ d to time t.

    The result is scaled to norm 1, and :func:`transport` projects on the tangent space, to keep
    rounding from growing from step to step.
    """
    speed = np.linalg.norm(H, axis=0)
    end = D * np.cos(t * speed) + _directions(H) * np.sin(t * speed)
    return end / np.linalg.norm(end, axis=0)


def transport(D, H, t, V):
    """Transport tangent vectors V at D along :func:`geodesic` to time t."""
    speed, u = np.linalg.norm(H, axis=0), _directions(H)
    turned = D * np.sin(t * speed) + u * (1 - np.cos(t * speed))
    moved = V - turned * np.sum(u * V, axis=0)
    end = geodesic(D, H, t)
    return moved - end * np.sum(end * moved, axis=0)


def _directions(H):
    speed = np.linalg.norm(H, axis=0)
    return H / np.where(speed > 0, speed, 1.0)


def sedil_start(Y, factors, weights):
    """Start with dense codes ``X = YD``, steepest descent and the step ``1/‖direction‖``."""
    factors = [np.array(factor, dtype=np.float64) for factor in factors]
    point = [*factors, flat(Y) @ reference.dense(factors)]
    gradient = sedil_gradient(Y, point, weights)
    direction = [-g for g in gradient]
    step = 1 / np.sqrt(inner(direction, direction))
    return SeDiLState(point, gradient, direction, step, sedil_objective(Y, point, weights), 1.0)


def sedil_iteration(Y, state, weights, max_trials=200):
    """SeDiL: the state after one step of conjugate gradients.

    The step t is multiplied by 0.9 until ``f ≤ level + 0.01·t·⟨gradient, direction⟩``; the next
    iteration first tries ``t/0.9²``. Then ``level`` becomes the mean of itself, with weight
    ``0.8·mass``, and the new value, with weight 1. Gradient and direction are transported to the
    new point (codes: unchanged), and with ``y = g − g_old`` the new direction is ``−g + β·old``,
    ``β = max(0, min(⟨g, y⟩, ⟨g, g⟩) / ⟨old, y⟩)``, or ``−g`` where that is not positive or would
    go uphill. Inner products are sums over all factors and the codes. If ``max_trials`` steps fail,
    the point stays and the direction becomes steepest descent.

    The kinks of ``|x|`` amplify rounding: with the default weights, a difference of 1e-14 at the
    start grows to 1e-12 in ten iterations and to 1e-7 in twenty.
    """
    point, gradient, direction, t, level, mass = state
    slope = inner(gradient, direction)
    for _ in range(max_trials):
        moved = move(point, direction, t)
        value = sedil_objective(Y, moved, weights)
        if value <= level + 1e-2 * t * slope:
            break
        t *= 0.9
    else:
        return state._replace(direction=[-g for g in gradient], step=t)
    level = (0.8 * mass * level + value) / (0.8 * mass + 1)
    old = transport_all(point, direction, t, direction)
    change = transport_all(point, direction, t, gradient)
    gradient = sedil_gradient(Y, moved, weights)
    change = [g - before for g, before in zip(gradient, change, strict=True)]
    curvature = inner(old, change)
    beta = 0.0
    if curvature > 0:
        best = min(inner(gradient, change), inner(gradient, gradient))
        beta = max(0.0, best / curvature)
    direction = [beta * h - g for g, h in zip(gradient, old, strict=True)]
    if inner(direction, gradient) >= 0:
        direction = [-g for g in gradient]
    return SeDiLState(moved, gradient, direction, t / 0.9**2, level, 0.8 * mass + 1)


def inner(a, b):
    """Return the sum of the inner products of all parts."""
    return sum(np.sum(p * q) for p, q in zip(a, b, strict=True))


def move(point, direction, t):
    """Move factors along great circles and codes along a line."""
    *factors, X = point
    moved = [geodesic(D, H, t) for D, H in zip(factors, direction[:-1], strict=True)]
    return [*moved, X + t * direction[-1]]


def transport_all(point, direction, t, vectors):
    """Transport vectors like a gradient from a point along a direction to time t."""
    moved = [
        transport(D, H, t, V)
        for D, H, V in zip(point[:-1], direction[:-1], vectors[:-1], strict=True)
    ]
    return [*moved, vectors[-1]]
