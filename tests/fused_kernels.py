"""Runs the fused kernels of GPUs on the processor, by emulation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from emulated_gpu import EmulatedGpu, aligned
from kronlearn.core.coder import Coder
from kronlearn.cuda.quick import TileKernels
from kronlearn.cuda.tables import Tables
from kronlearn.cuda.tasks import METHODS, new_task
from reference import dense

NO_BAD_SAMPLE = 1 << 62

GPU = EmulatedGpu()


def kernels(method: str, width: int) -> TileKernels:
    """The fused kernels of a method, compiled for so many nonzeros."""
    return TileKernels(GPU, [(8, 8)] * 2, Coder(method, width))  # type: ignore[arg-type]


@dataclass
class Result:
    """What a kernel made of samples; ``sure`` are those that it coded itself."""

    X: np.ndarray
    nonzeros: np.ndarray
    residual2: np.ndarray
    sure: np.ndarray
    first_bad: int
    xx: np.ndarray
    xy: np.ndarray
    counts: np.ndarray
    rounded: np.ndarray  # X as it is in the sums
    support: np.ndarray  # where X has entries, zero or not


def scale_of(Y):
    """A power of two: times it, no entry that is not far too large is above 1024."""
    largest = np.abs(Y[np.abs(Y) < 1e15], dtype=np.float64).max(initial=0.0)
    return 2.0 ** np.floor(np.log2(1024.0 / largest)) if largest else 1.0


def halves(X, scale):
    """Codes as the tensor cores are given them."""
    return (X * scale).astype(np.float32).astype(np.float16).astype(np.float64) / scale


class Outputs:
    """Where a kernel writes codes of N samples and what it says of them; nothing is there yet."""

    def __init__(self, N, width):
        self.index, self.value = (np.full((N, width), 99, kind) for kind in (np.int32, np.float32))
        self.nonzeros, self.residual2 = np.full(N, -1, np.int32), np.full(N, -1, np.float32)
        self.first_bad = np.array([NO_BAD_SAMPLE])
        self.doubtful, self.doubtful_count = np.zeros(N, np.int32), np.zeros(1, np.int32)

    def named(self, *names):
        return {name: getattr(self, name) for name in names}

    @property
    def sure(self):
        """The samples that were coded, and not left to double precision."""
        sure = np.ones(len(self.nonzeros), bool)
        sure[self.doubtful[: self.doubtful_count[0]]] = False
        return sure

    def dense(self):
        """Codes (N, 64), and where they have entries."""
        N = len(self.nonzeros)
        X, supports = np.zeros((N, 64)), np.zeros((N, 64), bool)
        for k in np.flatnonzero(self.sure & (self.nonzeros >= 0)):
            support = self.index[k, : self.nonzeros[k]]
            assert (np.diff(support) > 0).all()
            assert not self.index[k, self.nonzeros[k] :].any()
            supports[k, support] = True
            assert not self.value[k, self.nonzeros[k] :].any()
            X[k, support] = self.value[k, : self.nonzeros[k]]
        return X, supports


def run(
    Y,
    factors,
    width,
    method="omp",
    *,
    tol=None,
    grid=2,
    codes=True,
    sums=True,
    scale=None,
    stopped=None,
    lists_doubtful=True,
):
    """Codes samples with a fused kernel, in blocks that take turns."""
    N, scale = len(Y), scale_of(Y) if scale is None else scale
    tables, outputs = Tables.of(factors), Outputs(N, width)
    samples = aligned(np.asarray(Y, np.float32).reshape(N, 64))
    tols = np.asarray(tol, np.float32) if np.ndim(tol) else None
    given = {"samples": samples, "norms1": tables.norms[0], "norms2": tables.norms[1]}
    given |= outputs.named("first_bad", *(("doubtful", "doubtful_count") if lists_doubtful else ()))
    if codes:
        given |= outputs.named("index", "nonzeros", "residual2", "value")
    given |= {name: x for name, x in (("tols", tols), ("stopped", stopped)) if x is not None}
    task = new_task(
        shape=tables.shape,
        method=METHODS[method],
        width=width,
        count=N,
        tol=-1.0 if tol is None or tols is not None else tol,
        first=1000,
        scale=scale,
        **{name: array.ctypes.data for name, array in given.items()},
    )
    parts = 1 if method == "threshold" else 2
    partial = np.full((grid, parts, 64, 64), np.nan, np.float32) if sums else None
    partial_counts = np.full((grid, 4), np.nan) if sums else None
    made = kernels(method, width)
    arrays = task, tables.numbers.astype(np.float32), partial, partial_counts
    made.launch("code_and_sum", grid, made.threads, made.shared_bytes, *arrays)
    X, supports = outputs.dense()
    sure = outputs.sure
    if codes:
        assert (outputs.index[~sure] == 99).all()
        assert (outputs.nonzeros[~sure] == -1).all()
    found = outputs.nonzeros, outputs.residual2, sure, int(outputs.first_bad[0])
    totals = summed(partial, partial_counts, tables, scale)
    return Result(X, *found, *totals, halves(X, scale), supports)


def summed(partial, partial_counts, tables, scale):
    """The sums over all blocks, of atoms as they were: Σ x xᵀ, Σ x yᵀ and counts."""
    if partial is None:
        return np.zeros((64, 64)), np.zeros((64, 64)), np.zeros(4)
    norms = np.kron(*tables.norms)
    norms[norms == 0] = np.inf
    total = partial.astype(np.float64).sum(axis=0) / scale**2
    xx = total[0] / np.outer(norms, norms) if len(total) == 2 else np.zeros((64, 64))
    return xx, total[-1] / norms[:, None], partial_counts.sum(axis=0)


def general_factors(rng):
    """Two factors whose atoms are far from orthogonal."""
    factors = [np.eye(8) + 0.35 * rng.standard_normal((8, 8)) for _ in range(2)]
    return [(factor / np.linalg.norm(factor, axis=0)).astype(np.float32) for factor in factors]


def orthonormal_factors(rng):
    return [np.linalg.qr(rng.standard_normal((8, 8)))[0].astype(np.float32) for _ in range(2)]


def all_kinds(rng, factors, n=40):
    """Smooth, white, exactly sparse, constant, zero and tiny samples."""
    grid = np.linspace(0.0, 1.0, 8)
    a, b, c, d = rng.uniform(-2.0, 2.0, (4, n, 1, 1))
    smooth = 100.0 + 20.0 * np.sin(2.0 * a * grid[:, None] + 3.0 * b * grid + c) + d * grid**2
    smooth += 0.5 * rng.standard_normal(smooth.shape)
    white = rng.standard_normal((n, 8, 8))
    sparse = np.zeros((n, 64))
    for code in sparse:
        code[rng.choice(64, 3, replace=False)] = rng.uniform(1.0, 3.0, 3)
    sparse = (sparse @ dense(factors).T).reshape(n, 8, 8)
    constant = np.full((2, 8, 8), [[[7.0]], [[-0.1]]])
    zero, tiny = np.zeros((2, 8, 8)), 1e-20 * rng.standard_normal((3, 8, 8))
    parts = [smooth, white, sparse, constant, zero, tiny]
    return rng.permutation(np.concatenate(parts)).astype(np.float32)


def gaps(Y, factors, width, method="omp"):
    """How clearly pursuit's atoms win, relative to the sample: the least lead over the second."""
    D = dense(factors)
    least = np.full(len(Y), np.inf)
    for k, y in enumerate(Y.reshape(len(Y), 64).astype(np.float64)):
        size, residual, Q, norm2 = np.linalg.norm(y), y, np.zeros((64, 0)), np.ones(64)
        while Q.shape[1] < width and np.linalg.norm(residual) > 1e-7 * size:
            strength = np.abs(D.T @ residual)
            if method == "ols":
                strength /= np.sqrt(np.maximum(norm2, 1e-5))
            second, first = np.sort(strength)[-2:]
            least[k] = min(least[k], (first - second - 1e-5 * first) / size)
            new = D[:, np.argmax(strength)]
            for _ in range(2):
                new = new - Q @ (Q.T @ new)
            Q = np.column_stack([Q, new / max(np.linalg.norm(new), 1e-12)])
            residual = residual - Q[:, -1] * (Q[:, -1] @ residual)
            norm2 = norm2 - (D.T @ Q[:, -1]) ** 2
    return least


def residual_norms(Y, factors, X):
    flat = np.asarray(Y, np.float64).reshape(len(Y), 64)
    return np.linalg.norm(flat - X @ dense(factors).T, axis=1)


def same_supports(A, B):
    return ((A != 0) == (B != 0)).all(axis=1)


def check_sums(result, Y):
    """Sums in float64 over the rounded codes, of samples that were coded and are finite."""
    X = result.rounded
    used = result.sure & np.isfinite(Y).all(axis=(1, 2))
    X, Y = X[used], Y[used].astype(np.float64).reshape(-1, 64)
    xy, counted = X.T @ Y, result.X[used]
    assert np.abs(result.xy - xy).max() <= 2e-6 * np.abs(xy).max()
    if result.xx.any():
        xx = X.T @ X
        assert np.abs(result.xx - xx).max() <= 2e-6 * np.abs(xx).max()
        counted = X
    residual2 = result.residual2[used].astype(np.float64).sum()
    counts = np.sum(Y**2), residual2, np.sum(counted**2.0), result.support[used].sum()
    np.testing.assert_allclose(result.counts, counts, rtol=1e-6)
