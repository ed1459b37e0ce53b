"""Write the cases of core_tests: inputs, and the results that tests/reference.py gives for them.

Run as ``python3 native/tests/write_cases.py FILE``; it needs NumPy, but not kronlearn.

A case is a line "case KIND NAME" followed by its arrays; an array is a line "array NAME COUNT"
followed by COUNT doubles. The names of results begin with "expected"; any value equals NaN.
"""

import sys
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
import reference

METHODS = ["omp", "ols", "exchange", "threshold"]  # in the order of kronlearn::Method
# The compiled shapes, every tiling, one to three modes, unequal sizes, sizes that are no multiple
# of the lanes. Small factors are not wide: once m − 1 atoms that differ only in this mode are
# selected, all others that do lower the error equally, and rounding would choose between them.
SHAPES = [
    ((8, 8), (8, 8)),
    ((8, 8), (16, 16)),
    ((16, 16), (16, 16)),
    ((5, 7), (6, 8)),
    ((5, 6), (7, 10)),
    ((3, 7), (3, 15)),
    ((12,), (20,)),
    ((9, 1), (11, 1)),
    ((4, 5), (13, 14)),
    ((1, 9), (1, 17)),
    ((3, 2, 4), (3, 2, 5)),
]
SQUARES = [(8, 8), (4, 4), (6, 5), (3, 2, 4)]
N_SAMPLES = 37


def write(file, kind, name, arrays):
    """Write one case, without the arrays that are None."""
    file.write(f"case {kind} {name}\n".encode())
    for key, array in arrays.items():
        if array is not None:
            array = np.asarray(array, "<f8")
            file.write(f"array {key} {array.size}\n".encode() + array.tobytes())


def arrays_of(factors):
    """A dictionary as the arrays of a case."""
    return {
        "m": [factor.shape[0] for factor in factors],
        "n": [factor.shape[1] for factor in factors],
        "factors": np.concatenate([factor.ravel() for factor in factors]),
    }


def float32(array):
    """The array rounded to single precision, so that both precisions get the same input."""
    return np.float64(np.float32(array))


def expected_image(compute, image, rng):
    """``compute(image)``, but NaN at pixels that a tiny change of the image changes much."""
    expected = compute(image)
    limit = 1e-3 * np.nanmax(np.abs(expected))
    for _ in range(2):
        changed = compute(image + 1e-5 * np.std(image) * rng.standard_normal(image.shape))
        expected[np.abs(changed - expected) > limit] = np.nan
    assert np.mean(np.isnan(expected)) < 0.5
    return expected


def coding_case(rng, factors, method, width, tol=None, weighted=False):
    """Samples and their codes, whose supports do not change if the samples change a little.

    Where they do, rounding would decide.
    """
    Y = float32(rng.standard_normal((2 * N_SAMPLES, *(len(factor) for factor in factors))))
    W = float32(rng.random(Y.shape) * (rng.random(Y.shape) > 0.2)) if weighted else None
    options = {"method": method, "n_nonzero_coefs": width, "tol": tol, "weights": W}
    X = reference.code(Y, factors, **options)
    stable = np.full(len(Y), True)
    for _ in range(4):
        nearby = reference.code(Y + 1e-5 * rng.standard_normal(Y.shape), factors, **options)
        stable &= ((X != 0) == (nearby != 0)).all(axis=1)
    kept = np.flatnonzero(stable)[:N_SAMPLES]
    assert len(kept) == N_SAMPLES
    Y, X, W = Y[kept], X[kept], W[kept].reshape(N_SAMPLES, -1) if weighted else None
    root = np.sqrt(W) if weighted else 1.0
    return arrays_of(factors) | {
        "method": METHODS.index(method),
        "width": width,
        "tol": -1 if tol is None else tol,
        "samples": Y,
        "weights": W,
        "expected codes": X,
        "expected residual2": np.sum((root * reference.residuals(Y, factors, X)) ** 2),
    }


def moments_and_sweep(factors, arrays):
    """The sums over the codes of a case, and its atoms and codes after a sweep of AK-SVD."""
    Y, X = arrays["samples"], arrays["expected codes"]
    _, _, s_xx, s_xy = reference.moments(Y, X)
    sums = {"expected xx": s_xx[np.tril_indices(len(s_xx))], "expected xy": s_xy}
    for mode in range(len(factors)):
        p, c = reference.normal_equations(factors, s_xx, s_xy, mode)
        sums |= {f"expected p{mode}": p, f"expected c{mode}": c.T}
    D, X, support = reference.dense(factors), X.copy(), X != 0
    D /= np.linalg.norm(D, axis=0)
    sums["atoms"] = D.T.copy()
    for j in np.flatnonzero(support.any(axis=0)):
        users = support[:, j]
        others = X[users] * (np.arange(X.shape[1]) != j)
        errors = Y[users].reshape(len(others), -1) - others @ D.T
        atom = errors.T @ X[users, j]
        atom *= np.sign(atom[np.abs(atom).argmax()])
        D[:, j] = atom / np.linalg.norm(atom)
        X[users, j] = errors @ D[:, j]
    return sums | {"expected atoms": D.T, "expected swept": X}


def write_coding(file, rng):
    """Codes by every method; for the first method of each shape, sums and a sweep as well."""

    def write_case(factors, method, width, tol=None, weighted=False, with_sums=False):
        arrays = coding_case(rng, factors, method, width, tol, weighted)
        if with_sums:
            arrays |= moments_and_sweep(factors, arrays)
        sizes = " x ".join(f"{m}, {n}" for m, n in (factor.shape for factor in factors))
        write(file, "coding", f"{method} ({sizes}) tol={tol} weighted={weighted}", arrays)

    for m, n in SHAPES:
        factors = reference.random_factors(rng, m, n)
        longer = [factor * rng.uniform(0.5, 2, factor.shape[1]) for factor in factors]
        write_case(longer, "omp", 4, with_sums=True)
        write_case(factors, "ols", 3)
        write_case(factors, "ols", 5, tol=0.7 * np.sqrt(np.prod(m)))
        write_case(factors, "exchange", 3)
        for method, width in [("omp", 3), ("ols", 3), ("exchange", 2)]:
            write_case(factors, method, width, weighted=True)
    for m in SQUARES:
        factors = reference.orthonormal_factors(rng, m)
        write_case(factors, "threshold", 6, with_sums=True)
        write_case(factors, "threshold", 20, tol=3.0)


def random_image(rng, size):
    """A random walk with noise, so that patches are alike to different degrees."""
    walk = rng.standard_normal(np.prod(size)).cumsum().reshape(size)
    return float32(walk + rng.standard_normal(size))


def write_image_coding(file, rng):
    """Images whose patches become sparse approximations. Axes: (size, patch, stride)."""
    for axes, n in [
        ([(20, 8, 3), (19, 8, 2)], (8, 8)),
        ([(13, 5, 2), (25, 3, 3)], (7, 4)),
        ([(40, 7, 3)], (9,)),
        ([(7, 3, 2), (9, 4, 3), (7, 2, 2)], (4, 5, 2)),
    ]:
        size, patch, stride = zip(*axes, strict=True)
        tol = float(np.float32(0.8 * np.sqrt(np.prod(patch))))
        for method, masked in [("omp", 0), ("omp", 1), ("ols", 0), ("ols", 1), ("threshold", 0)]:
            factors = reference.random_factors(rng, patch, n)
            if method == "threshold":
                factors = reference.orthonormal_factors(rng, patch)
            image = random_image(rng, size)
            known = float32((0.1 + rng.random(size)) * (rng.random(size) > 0.2)) if masked else None
            options = {"stride": stride, "tol": tol, "width": 4, "method": method, "known": known}
            average = partial(reference.average_coded_patches, factors=factors, **options)
            arrays = arrays_of(factors) | {
                "axes": [(*axis, 0) for axis in axes],
                "method": METHODS.index(method),
                "width": 4,
                "tol": tol,
                "image": image,
                "known": known,
                "expected image": expected_image(average, image, rng),
            }
            write(file, "image", f"{method} {size} masked={masked}", arrays)


def write_groups(file, rng):
    """Images whose groups of similar patches are filtered. Axes: (size, patch, stride, window)."""
    for axes, planes, group in [
        ([(21, 8, 3, 5), (19, 8, 3, 5)], 1, 33),
        ([(11, 3, 2, 4), (30, 5, 3, 6)], 2, 16),
        ([(33, 8, 5, 100)], 2, 5),
        ([(6, 3, 2, 2), (9, 4, 3, 3), (7, 2, 2, 2)], 1, 12),
        ([(12, 3, 2, 1), (13, 3, 2, 1)], 1, 20),
    ]:
        size, patch, stride, window = zip(*axes, strict=True)
        matched = random_image(rng, (planes, *size))
        image = float32(matched + rng.standard_normal(matched.shape))
        taper = float32(rng.uniform(0.5, 1.5, patch))
        variance = rng.uniform(0.5, 1.5, matched.shape)
        noise = np.zeros(matched.shape)
        for place in np.ndindex(*(s - p + 1 for s, p in zip(size, patch, strict=True))):
            box = variance[(slice(None), *reference.box_at(place, patch))]
            noise[(slice(None), *place)] = box.reshape(planes, -1).sum(axis=1)
        if planes == 1:
            variance, noise = 0.8, 0.8 * np.prod(patch)
        for guide in (None, matched):
            filtered = partial(
                reference.filter_groups,
                *(image, guide),
                group=group,
                stride=stride,
                window=window,
                variance=variance,
                taper=taper,
            )
            arrays = {
                "axes": axes,
                "planes": planes,
                "group": group,
                "image": image,
                "guide": guide,
                "matched": matched,
                "noise": noise,
                "taper": taper,
                "expected image": expected_image(filtered, matched, rng),
            }
            write(file, "groups", f"of {group} {size} guided={guide is not None}", arrays)


def write_convolutions(file, rng):
    """Images as sums of filters, longer than a tile; the filters are products of short ones."""
    for size, lengths, n, separable, weighted in [
        ((300,), (20,), (5,), False, False),
        ((4, 140), (2, 5), (2, 3), True, False),
        ((70, 8), (2, 3), (2, 2), False, True),
        ((10, 5, 6), (2, 3, 4), (2, 2, 2), True, True),
    ]:
        factors = [float32(rng.standard_normal(shape)) for shape in zip(lengths, n, strict=True)]
        filters = float32(reference.dense(factors).T.reshape(-1, *lengths))
        image = float32(3 * rng.standard_normal(size))
        known = rng.random(size) > 0.3
        w = float32(rng.uniform(0.5, 1.5, size) * known) if weighted else np.ones(size)
        A = reference.convolution_matrix(filters, size)
        codes = float32(reference.convolutional_code(image.ravel(), w.ravel(), A, 8, 3000))
        synthesis = A @ codes
        positions = [s - length + 1 for s, length in zip(size, lengths, strict=True)]
        maps = codes.reshape(-1, *positions)
        sums = np.zeros(filters.shape)
        for place in np.ndindex(*positions):
            part = image[reference.box_at(place, lengths)]
            sums += np.multiply.outer(maps[(slice(None), *place)], part)
        arrays = arrays_of(factors) | {
            "size": size,
            "separable": separable,
            "filters": filters,
            "image": image,
            "weights": w if weighted else None,
            "penalty": 8,
            "expected codes": codes,
            "expected residual": w.ravel() * (image.ravel() - synthesis),
            "expected synthesis": synthesis,
            "expected sums": sums,
        }
        write(file, "convolution", f"{size} separable={separable} weighted={weighted}", arrays)


if __name__ == "__main__":
    rng = np.random.default_rng(7)
    with open(sys.argv[1], "wb") as file:
        for part in (write_coding, write_image_coding, write_groups, write_convolutions):
            part(file, rng)
