"""The definition of every coder, moment and update, in float64 NumPy with the dense dictionary.

This code is plain, not fast. Samples ``Y`` are ``(N, m_1, …, m_d)``, factors ``D_i`` are
``(m_i, n_i)``, codes ``X`` are dense ``(N, n_1·…·n_d)``, with any number of modes. Further sections
make test data and define passes over images, arrays with any number of axes, and convolutional
coding.
"""

from functools import reduce
from itertools import product

import numpy as np


def dense(factors):
    """The dictionary matrix ``D_1 ⊗ D_2 ⊗ …``, shape ``(m_1·…·m_d, n_1·…·n_d)``."""
    return reduce(np.kron, [np.asarray(factor, dtype=np.float64) for factor in factors])


# Sparse coding of one sample


def omp(y, factors, n_nonzero_coefs=None, tol=None, weights=None):
    """Support in order of selection, coefficients and residual of orthogonal matching pursuit.

    Each step selects the atom whose direction has the largest inner product with the residual.
    """
    return _pursue(y, factors, n_nonzero_coefs, tol, weights, look_ahead=False)


def ols(y, factors, n_nonzero_coefs=None, tol=None, weights=None):
    """Support in order of selection, coefficients and residual of orthogonal least squares.

    Each step selects the atom with the smallest residual after refitting all coefficients.
    """
    return _pursue(y, factors, n_nonzero_coefs, tol, weights, look_ahead=True)


def _pursue(y, factors, n_nonzero_coefs, tol, weights, look_ahead):
    atoms, target = _weighted(y, factors, weights)
    cap = atoms.shape[1] if n_nonzero_coefs is None else n_nonzero_coefs
    length = (atoms**2).sum(axis=0)
    left = atoms.copy()  # the atoms, orthogonalised against the selected ones
    residual = target.copy()
    support = []
    while len(support) < cap and residual @ residual > (tol or 0.0) ** 2:
        remaining = (left**2).sum(axis=0)
        free = remaining > 1e-8 * length
        scale = np.where(free, remaining if look_ahead else length, 1.0)
        gain = np.where(free, (left.T @ residual) ** 2 / scale, 0.0)
        best = int(np.argmax(gain))  # the lowest index wins ties
        if gain[best] <= 1e-24 * (target @ target):
            break
        support.append(best)
        direction = left[:, best] / np.sqrt(remaining[best])
        residual -= direction * (direction @ residual)
        left -= np.outer(direction, direction @ left)
    return (support, *refit(y, factors, support, weights))


def exchange(y, factors, n_nonzero_coefs=None, tol=None, weights=None):
    """Support, coefficients and residual of ``ols``, improved by exchanges of single atoms.

    The best exchange is made first, and the last one when no exchange lowers the error. With
    ``tol``, exchanges end as soon as the residual is no larger; then the atom whose removal costs
    least is removed and the smaller support is improved in the same way, until one misses ``tol``.
    The last support that met ``tol`` is the result.
    """
    atoms, target = _weighted(y, factors, weights)
    support, accepted = ols(y, factors, n_nonzero_coefs, tol, weights)[0], None
    while support:
        error = _error(atoms, target, support)
        if tol is not None and error <= tol**2:
            accepted = support
            support = _without_the_cheapest(atoms, target, support)
        else:
            exchanged = _after_the_best_exchange(atoms, target, support, error)
            # Gains that are rounding errors could repeat forever.
            if exchanged is None or _error(atoms, target, exchanged) >= error:
                break
            support = exchanged
    support = support if accepted is None else accepted
    return (support, *refit(y, factors, support, weights))


def _after_the_best_exchange(atoms, target, support, error):
    """The support with one atom exchanged, or None if that does not lower the error.

    Among equally good exchanges, the one with the lowest new atom wins, then the one with the
    lowest old atom.
    """
    support = sorted(support)
    gained = np.zeros((atoms.shape[1], len(support)))
    for i in range(len(support)):
        others = support[:i] + support[i + 1 :]
        basis = np.linalg.qr(atoms[:, others])[0]
        left = atoms - basis @ (basis.T @ atoms)
        residual = target - basis @ (basis.T @ target)
        remaining = np.sum(left**2, axis=0)
        free = remaining > 1e-8
        gain = np.where(free, (left.T @ residual) ** 2 / np.where(free, remaining, 1.0), 0.0)
        gained[:, i] = gain - (residual @ residual - error) * (1 + 1e-12)
    energy = target @ target
    if gained.max() <= 1e-26 * energy:
        return None
    new, i = np.argwhere(gained >= gained.max() - 1e-13 * energy)[0]
    return [*support[:i], *support[i + 1 :], int(new)]


def _without_the_cheapest(atoms, target, support):
    """The support without the atom whose removal costs least; the lowest index wins ties."""
    support = sorted(support)
    smaller = [support[:i] + support[i + 1 :] for i in range(len(support))]
    return min(smaller, key=lambda others: _error(atoms, target, others))


def _error(atoms, target, support):
    support = sorted(support)
    coefficients = np.linalg.lstsq(atoms[:, support], target, rcond=None)[0]
    return np.sum((target - atoms[:, support] @ coefficients) ** 2)


def threshold(y, factors, n_nonzero_coefs=None, tol=None):
    """Support, coefficients and residual if the largest inner products are kept, largest first."""
    atoms, target = _weighted(y, factors, None)
    correlations = atoms.T @ target
    cap = len(correlations) if n_nonzero_coefs is None else n_nonzero_coefs
    energy = target @ target
    support = []
    for index in np.argsort(-np.abs(correlations), kind="stable")[:cap]:
        remaining = energy - np.sum(correlations[support] ** 2)
        if remaining <= (tol or 0.0) ** 2 or correlations[index] ** 2 <= 1e-24 * energy:
            break
        support.append(int(index))
    coefficients = correlations[support]
    return support, coefficients, target - atoms[:, support] @ coefficients


def refit(y, factors, support, weights=None):
    """Least-squares coefficients on ``support`` and their (weighted) residual."""
    atoms, target = _weighted(y, factors, weights)
    coefficients = np.linalg.lstsq(atoms[:, support], target, rcond=None)[0]
    return coefficients, target - atoms[:, support] @ coefficients


def _weighted(y, factors, weights):
    """Dictionary and sample with rows times ``√w``, which makes weighted least squares ordinary."""
    root = 1.0 if weights is None else np.sqrt(np.asarray(weights, dtype=np.float64).ravel())
    return (dense(factors).T * root).T, np.asarray(y, dtype=np.float64).ravel() * root


# Sparse coding of many samples


def code(Y, factors, method, n_nonzero_coefs=None, tol=None, weights=None):
    """Codes ``(N, n_1·…·n_d)``; ``tol`` is one number or one per sample."""
    tols = [tol] * len(Y) if tol is None or np.ndim(tol) == 0 else tol
    X = np.zeros((len(Y), dense(factors).shape[1]))
    for k, y in enumerate(Y):
        extra = {} if weights is None else {"weights": weights[k]}
        coder = {"omp": omp, "ols": ols, "exchange": exchange, "threshold": threshold}[method]
        support, coefficients, _ = coder(y, factors, n_nonzero_coefs, tols[k], **extra)
        X[k, support] = coefficients
    return X


def residuals(Y, factors, X):
    """``Y_k − D x_k`` flattened, shape ``(N, m_1·…·m_d)``."""
    return np.asarray(Y, dtype=np.float64).reshape(len(Y), -1) - X @ dense(factors).T


# Learning


def moments(Y, X):
    """``N``, ``Σ‖Y‖²``, ``S_xx = Σ x xᵀ`` and ``S_xy = Σ x yᵀ``."""
    flat = np.asarray(Y, dtype=np.float64).reshape(len(Y), -1)
    return len(flat), np.sum(flat**2), X.T @ X, X.T @ flat


def squared_error(factors, energy, s_xx, s_xy):
    """``Σ‖Y_k − D x_k‖²`` from the moments."""
    D = dense(factors)
    return energy - 2.0 * np.sum(D.T * s_xy) + np.sum((D @ s_xx) * D)


def normal_equations(factors, s_xx, s_xy, mode):
    """``P`` ``(n_i, n_i)`` and ``C`` ``(m_i, n_i)``: the best ``D_i`` solves ``D_i P = C``."""
    m = [factor.shape[0] for factor in factors]
    n = [factor.shape[1] for factor in factors]
    others = dense([*factors[:mode], *factors[mode + 1 :], np.ones((1, 1))])
    d = len(factors)
    xx = np.moveaxis(s_xx.reshape(n + n), (mode, d + mode), (0, d))
    xx = xx.reshape(n[mode], others.shape[1], n[mode], others.shape[1])
    xy = np.moveaxis(s_xy.reshape(n + m), (mode, d + mode), (0, d))
    xy = xy.reshape(n[mode], others.shape[1], m[mode], others.shape[0])
    P = np.einsum("arbs,rs->ab", xx, others.T @ others)
    C = np.einsum("arut,tr->ua", xy, others)
    return P, C


def least_squares_sweep(factors, s_xx, s_xy):
    """Factors after one update of every mode, and the moments of the codes rescaled to fit them."""
    factors = [np.array(factor, dtype=np.float64) for factor in factors]
    for mode in range(len(factors)):
        P, C = normal_equations(factors, s_xx, s_xy, mode)
        D = factors[mode]
        D = D + (C - D @ P) @ np.linalg.pinv(P, rcond=1e-10, hermitian=True)
        largest = D[np.abs(D).argmax(axis=0), np.arange(D.shape[1])]
        scale = np.linalg.norm(D, axis=0) * np.where(largest < 0, -1.0, 1.0)
        factors[mode] = D / scale
        ones = [np.ones(factor.shape[1]) for factor in factors]
        on_codes = reduce(np.kron, [*ones[:mode], scale, *ones[mode + 1 :]])
        s_xx = on_codes[:, None] * s_xx * on_codes
        s_xy = on_codes[:, None] * s_xy
    return factors, s_xx, s_xy


def procrustes_sweep(factors, s_xx, s_xy):
    """Orthonormal factors after one update of every mode, and the unchanged moments."""
    factors = [np.array(factor, dtype=np.float64) for factor in factors]
    for mode in range(len(factors)):
        C = normal_equations(factors, s_xx, s_xy, mode)[1]
        U, _, Vt = np.linalg.svd(C, full_matrices=False)
        factors[mode] = U @ Vt
    return factors, s_xx, s_xy


def learn(Y, factors, n_nonzero_coefs, method="ols", n_iter=5, structure="general"):
    """The factors after 0, 1, …, n_iter iterations, and the RMSE of each.

    Unused atoms are not replaced.
    """
    orthonormal = structure == "orthonormal"
    coder = "threshold" if orthonormal else method
    sweep = procrustes_sweep if orthonormal else least_squares_sweep
    dictionaries, rmse = [], []
    for _ in range(n_iter + 1):
        X = code(Y, factors, coder, n_nonzero_coefs)
        dictionaries.append(factors)
        rmse.append(np.sqrt(np.mean(residuals(Y, factors, X) ** 2)))
        _, _, s_xx, s_xy = moments(Y, X)
        factors, _, _ = sweep(factors, s_xx, s_xy)
    return dictionaries, rmse


# Test data


def random_factors(rng, patch_shape, n_atoms, dtype=np.float64):
    """Gaussian factors with unit columns."""
    factors = [rng.standard_normal((m, n)) for m, n in zip(patch_shape, n_atoms, strict=True)]
    return [(factor / np.linalg.norm(factor, axis=0)).astype(dtype) for factor in factors]


def dct_factors(patch_shape, n_atoms, dtype=np.float64):
    """Overcomplete cosine factors, whose neighbouring columns are similar."""
    factors = []
    for m, n in zip(patch_shape, n_atoms, strict=True):
        factor = np.cos(np.pi * np.outer(np.arange(m) + 0.5, np.arange(n)) / n)
        factor[:, 1:] -= factor[:, 1:].mean(axis=0)
        factors.append((factor / np.linalg.norm(factor, axis=0)).astype(dtype))
    return factors


def orthonormal_factors(rng, patch_shape, dtype=np.float64):
    """Random square orthonormal factors."""
    return [np.linalg.qr(rng.standard_normal((m, m)))[0].astype(dtype) for m in patch_shape]


def sparse_samples(rng, factors, n_samples, n_nonzero_coefs, noise=0.0):
    """Samples made of ``n_nonzero_coefs`` random atoms each, plus Gaussian noise."""
    D = dense(factors)
    X = np.zeros((n_samples, D.shape[1]))
    for row in X:
        support = rng.choice(D.shape[1], n_nonzero_coefs, replace=False)
        row[support] = rng.uniform(1.0, 2.0, n_nonzero_coefs) * rng.choice([-1, 1], n_nonzero_coefs)
    Y = X @ D.T + noise * rng.standard_normal((n_samples, D.shape[0]))
    return Y.reshape(n_samples, *[factor.shape[0] for factor in factors])


# Images: overlapping patches are extracted, changed and averaged


def boxes(shape, patch, stride):
    """The slices of all patches in C order; the last patch along an axis ends where it ends."""
    starts = [
        [*range(0, size - m, step), size - m]
        for size, m, step in zip(shape, patch, stride, strict=True)
    ]
    return [box_at(place, patch) for place in product(*starts)]


def box_at(place, patch):
    """The slices of the patch that begins at a pixel."""
    return tuple(slice(start, start + m) for start, m in zip(place, patch, strict=True))


def average_coded_patches(
    image, factors, stride, tol, width, method, known=None, favour_sparse=True
):
    """The image whose pixels are means over the sparse approximations of its patches.

    A patch is coded without its mean, which is added again. Its weight in the means is
    ``1 / (1 + nonzeros)`` or, without ``favour_sparse``, one. If ``known`` holds weights of the
    pixels, mean and code are weighted too, the target is ``tol √(share of pixels with a weight)``,
    and the patch's weight is multiplied by the mean of ``known``. A pixel is NaN if no patch with a
    known pixel contains it.
    """
    image = np.asarray(image, dtype=np.float64)
    patch = [len(factor) for factor in factors]
    sums, counts = np.zeros(image.shape), np.zeros(image.shape)
    for box in boxes(image.shape, patch, stride):
        weights = np.ones(patch) if known is None else np.asarray(known[box], dtype=np.float64)
        share = weights.mean()
        if share == 0:
            continue
        y = np.where(weights > 0, image[box], 0.0)
        mean = np.sum(weights * y) / np.sum(weights)
        target = None if tol is None else tol * np.sqrt(np.mean(weights > 0))
        options = {} if known is None else {"weights": [weights]}
        x = code([y - mean], factors, method, width, target, **options)[0]
        importance = share / (1 + np.count_nonzero(x)) if favour_sparse else share
        sums[box] += importance * (mean + (dense(factors) @ x).reshape(patch))
        counts[box] += importance
    return np.divide(sums, counts, out=np.full(image.shape, np.nan), where=counts > 0)


def similar_boxes(planes, box, group, window):
    """A patch and the ``group - 1`` nearest ones within ``window`` pixels of it on every axis.

    Distances are sums over all planes ``(C, *spatial)``; the first patch in C order wins ties. If
    there are fewer than ``group`` patches, all of them are repeated in C order.
    """
    place = [along.start for along in box]
    patch = [along.stop - along.start for along in box]
    candidates = []
    for shift in product(*(range(-reach, reach + 1) for reach in window)):
        other = [start + step for start, step in zip(place, shift, strict=True)]
        inside = all(
            0 <= start <= size - m
            for start, size, m in zip(other, planes.shape[1:], patch, strict=True)
        )
        if inside:
            candidates.append(box_at(other, patch))
    if len(candidates) <= group:
        return [candidates[k % len(candidates)] for k in range(group)]

    def distance(other):
        if other == box:
            return -1.0
        return np.sum((planes[(slice(None), *other)] - planes[(slice(None), *box)]) ** 2)

    return sorted(candidates, key=distance)[:group]  # sorting keeps the order of ties


def filter_groups(
    planes, guide, matched, group, stride, window, variance, taper, over_pixels=False
):
    """Filter groups of patches of planes ``(C, *spatial)`` that are similar on ``matched``.

    The pixels of the result are means, weighted by the weights of :func:`filter_group` times
    ``taper``, which has the shape of a patch. ``variance`` is the variance of the noise, one number
    or one for each pixel. With ``over_pixels``, patches are averaged with those of
    :func:`filter_pixels`.
    """
    variance = np.broadcast_to(np.asarray(variance, np.float64), planes.shape)
    planes, matched = np.asarray(planes, np.float64), np.asarray(matched, np.float64)
    sums, counts = np.zeros(planes.shape), np.zeros(planes.shape)
    for box in boxes(planes.shape[1:], taper.shape, stride):
        places = similar_boxes(matched, box, group, window)
        for k in range(len(planes)):
            Y = np.stack([planes[k][place].ravel() for place in places])
            G = None
            if guide is not None:
                G = np.stack([guide[k][place].ravel() for place in places]).astype(np.float64)
            noise = np.array([variance[k][place].sum() for place in places])
            patches, weights = filter_group(Y, G, noise)
            if over_pixels:
                patches = (patches + filter_pixels(Y, G, noise.sum() / Y.shape[1])) / 2
            for place, patch, weight in zip(places, patches, weights, strict=True):
                sums[k][place] += weight * taper * patch.reshape(taper.shape)
                counts[k][place] += weight * taper
    return sums / counts


def filter_group(Y, G, noise):
    """Filtered patches ``Θ Y``, (group, features), and their weights.

    ``Θ = I − D (G Gᵀ + D)⁻¹``, where the diagonal matrix D holds the energy of the noise in each
    patch, and G is the guide. Without a guide, ``Y Yᵀ`` replaces ``G Gᵀ + D``, and no patch loses
    more than twice the part that the others do not explain. The weight of a patch is
    ``1 / ‖row of Θ‖²``, at most that of the mean of the group.
    """
    like = Y if G is None else G
    mean = like.mean()
    Y, like = Y - mean, like - mean
    gram = like @ like.T
    regularized = gram + np.diag((0.01 if G is None else 1.0) * noise)
    regularized += 3e-7 * np.trace(gram) * np.eye(len(Y))
    inverse = np.linalg.inv(regularized)
    if G is None:
        noise = np.minimum(noise, 2 / np.diag(inverse))
    theta = np.eye(len(Y)) - noise[:, None] * inverse
    weights = 1 / np.maximum(np.sum(theta**2, axis=1), 1 / len(Y))
    return theta @ Y + mean, weights


def filter_pixels(Y, G, noise):
    """Patches ``Y S``, (group, features), with ``S = I − (Gᵀ G + noise I)⁻¹ noise``.

    ``noise`` is the mean energy of the noise at a pixel, summed over the group. The mean patch of
    the guide G is subtracted first and added again.
    """
    mean = G.mean(axis=0)
    Y, G = Y - mean, G - mean
    gram, identity = G.T @ G, np.eye(Y.shape[1])
    inverse = np.linalg.inv(gram + (noise + 3e-7 * np.trace(gram)) * identity)
    return Y @ (identity - noise * inverse) + mean


# Convolutional coding


def convolution_matrix(filters, size):
    """The matrix that multiplies maps (M, *positions) to give an image: ``Σ_m d_m ∗ x_m``."""
    shape = filters.shape[1:]
    positions = [length - p + 1 for length, p in zip(size, shape, strict=True)]
    columns = []
    for d in filters:
        for start in np.ndindex(*positions):
            image = np.zeros(size)
            image[tuple(slice(s, s + p) for s, p in zip(start, shape, strict=True))] = d
            columns.append(image.ravel())
    return np.stack(columns, axis=1)


def convolutional_objective(y, w, A, x, penalty):
    """``½ Σ w (y − A x)² + penalty · Σ |x|``."""
    return np.sum(w * (y - A @ x) ** 2) / 2 + penalty * np.abs(x).sum()


def convolutional_code(y, w, A, penalty, n_iterations):
    """The minimiser of the objective, by accelerated proximal gradient with restarts (FISTA)."""
    step = 1 / np.linalg.norm(A * np.sqrt(w)[:, None], 2) ** 2
    x = ahead = np.zeros(A.shape[1])
    speed = 1.0
    for _ in range(n_iterations):
        moved = ahead + step * (A.T @ (w * (y - A @ ahead)))
        new = np.sign(moved) * np.maximum(np.abs(moved) - step * penalty, 0)
        if (ahead - new) @ (new - x) > 0:
            speed = 1.0
        faster = (1 + np.sqrt(1 + 4 * speed**2)) / 2
        ahead = new + (speed - 1) / faster * (new - x)
        x, speed = new, faster
    return x
