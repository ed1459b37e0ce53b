"""Comparison of GPU and processor on random shapes, dtypes, targets, weights and sizes.

Every sample must have the same residual up to 1e-5 (float32) or 1e-10 (float64) of its norm, or up
to rounding if the selected atoms are nearly dependent. If two atoms are equally good up to
rounding, GPU and processor may select different ones: such a code must be one that the method could
have found, step by step. For passes, the RMSE of all samples is compared.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

import kronlearn as kl
from emulated_gpu import EmulatedGpu

# Tolerances of residuals, relative to the samples; of the scores of tied atoms; and of residuals
# that meet an error target.
SAME = {"float32": 1e-5, "float64": 1e-10}
TIED = {"float32": 1e-3, "float64": 1e-7}
MET = {"float32": 1e-4, "float64": 1e-9}
# Tolerance of errors after learning, with ties and with sums of codes that have 11 bits.
LEARNED = 1e-3
# Shapes (m, n) of both modes that have specialised kernels, and numbers of nonzeros.
SPECIALISED = ((8, 8), (8, 8), (8, 16), (8, 16), (16, 16), (32, 32), (8, 32), (16, 32), (32, 16))
WIDTHS = (1, 2, 3, 5, 8, 12, 16)
# The largest sizes of a mode, by the number of modes.
LARGEST = {1: (40, 60), 2: (12, 18), 3: (5, 7)}


@dataclass(frozen=True)
class Problem:
    """A problem that is drawn from a seed."""

    seed: int
    what: str
    method: str
    dtype: str
    patch_shape: tuple[int, ...]
    n_atoms: tuple[int, ...]
    n_terms: int
    n_samples: int
    s: int | None
    target: str
    weighted: bool

    @classmethod
    def drawn(cls, seed):
        """Draw the problem of a seed."""
        rng = np.random.default_rng(seed)
        method = str(rng.choice(["omp", "ols", "threshold"], p=[0.45, 0.45, 0.1]))
        what = str(rng.choice(["codes", "learning"], p=[0.7, 0.3]))
        if rng.random() < 0.4:
            m, n = SPECIALISED[0 if method == "threshold" else rng.integers(len(SPECIALISED))]
            patch_shape, n_atoms, s = (m, m), (n, n), int(rng.choice(WIDTHS))
        else:
            modes = int(rng.integers(1, 4))
            patch_shape, n_atoms = (
                tuple(rng.integers(1, most + 1, modes).tolist()) for most in LARGEST[modes]
            )
            if method == "threshold":
                n_atoms = tuple(map(min, patch_shape, n_atoms))
            s = int(rng.integers(1, 17))
        n_features, n_codes = int(np.prod(patch_shape)), int(np.prod(n_atoms))
        s = min(s, n_codes, n_features)
        target = str(rng.choice(["none", "one", "each"], p=[0.6, 0.25, 0.15]))
        learns, plain = what == "learning", method != "threshold"
        return cls(
            seed,
            what,
            method,
            str(rng.choice(["float32", "float64"], p=[0.6, 0.4])),
            patch_shape,
            n_atoms,
            2 if plain and rng.random() < 0.1 else 1,
            int(np.exp(rng.uniform(0, np.log(4000 if n_codes < 500 else 1000)))),
            None if n_features <= 64 and target != "none" and rng.random() < 0.3 else s,
            "one" if learns and target == "each" else target,
            plain and not learns and rng.random() < 0.2,
        )


def dictionary_of(problem, rng):
    """Random factors, orthonormal ones for thresholds, or a sum of two products."""

    def factors():
        sizes = zip(problem.patch_shape, problem.n_atoms, strict=True)
        return [rng.standard_normal(size) for size in sizes]

    if problem.method == "threshold":
        return kl.KroneckerDictionary([np.linalg.qr(factor)[0] for factor in factors()])
    if problem.n_terms > 1:
        return kl.KroneckerSumDictionary([factors() for _ in range(problem.n_terms)])
    return kl.KroneckerDictionary.normalized(factors())


def samples_of(problem, dictionary, rng):
    """Samples from sparse to noise, large and small; one may be zero."""
    n, count = dictionary.n_codes, problem.n_samples
    X = rng.standard_normal((count, n)) * (rng.random((count, n)) < 4 / n)
    Y = X @ dictionary.to_dense().T
    Y += rng.choice([1e-3, 0.1, 1.0], (count, 1)) * rng.standard_normal(Y.shape)
    Y *= 10 ** rng.uniform(-2, 2, (count, 1))
    Y[rng.integers(count)] *= count < 3
    return Y.reshape(count, *problem.patch_shape).astype(problem.dtype)


def settings_of(problem, Y, rng):
    """The error target and the weights."""
    settings = {"n_nonzero_coefs": problem.s, "method": problem.method}
    norms = np.linalg.norm(Y.reshape(len(Y), -1), axis=1)
    if problem.target == "one":
        settings["tol"] = float(np.median(norms) * 10 ** rng.uniform(-2, 0))
    elif problem.target == "each":
        settings["tol"] = norms * 10 ** rng.uniform(-3, 0, len(Y))
    if problem.weighted:
        weights = rng.random(Y.shape) * (rng.random(Y.shape) < 0.8)
        settings["weights"] = weights.astype(Y.dtype)
    return settings


@dataclass(frozen=True)
class Replay:
    """Whether the method could have selected the atoms of a code, in any order."""

    problem: Problem
    energy: float
    tol: float
    width: int

    def fault(self, left, rest, taken):
        """What is wrong with the remaining atoms of the code, or an empty string.

        ``left`` (features, atoms) and ``rest`` are the atoms and the sample after orthogonalisation
        against the earlier atoms.
        """
        ols, single = self.problem.method == "ols", self.problem.dtype == "float32"
        norm, size = np.linalg.norm(rest), np.sqrt(self.energy)
        met = MET[self.problem.dtype] * size
        norms2 = (left**2).sum(axis=0)
        # The directions of these atoms are accurate enough.
        clear = norms2 > (1e-2 if single else 1e-6)
        scores = np.abs(left.T @ rest) / np.sqrt(np.where(ols & clear, norms2, 1))
        best = scores[clear].max(initial=0)
        if not taken:
            more = norm > max(self.tol, 0) + met and best > 1e-4 * size
            return "nonzeros are missing" if more and self.width > 0 else ""
        if norm < self.tol - met:
            return f"{len(taken)} more nonzeros than the target needs"
        enough = best * (1 - TIED[self.problem.dtype]) - 10 * SAME[self.problem.dtype] * size
        tied = [atom for atom in taken if scores[atom] >= enough or not clear[atom]]
        faults = [f"a score of {max(scores[taken]):.6g} where the best is {best:.6g}"]
        for atom in sorted(tied, key=lambda atom: -scores[atom]):
            direction = left[:, atom] / np.sqrt(max(norms2[atom], 1e-30))
            others = [other for other in taken if other != atom]
            further = replace(self, width=self.width - 1)
            after = left - np.outer(direction, direction @ left)
            why = further.fault(after, rest - direction * (direction @ rest), others)
            if not why:
                return ""
            faults.append(why)
        return faults[-1]


def check_codes(problem):
    """Faults of samples whose residual differs, except for ties."""
    rng = np.random.default_rng([problem.seed, 1])
    dictionary = dictionary_of(problem, rng)
    Y = samples_of(problem, dictionary, rng)
    settings = settings_of(problem, Y, rng)
    found, expected = (
        kl.sparse_code(Y, dictionary, **settings, device=device).tocsr()
        for device in ("cuda", "cpu")
    )
    D, rows = dictionary.to_dense().astype(float), Y.reshape(len(Y), -1).astype(float)
    roots = np.ones_like(rows)
    if problem.weighted:
        roots = np.sqrt(settings["weights"].reshape(rows.shape).astype(float))
    norms = np.linalg.norm(roots * rows, axis=1)
    residuals = [np.linalg.norm(roots * (rows - X @ D.T), axis=1) for X in (found, expected)]
    width = problem.s or min(D.shape)
    tols = np.broadcast_to(settings.get("tol", -1.0), len(rows))
    differ = np.abs(residuals[0] - residuals[1]) > SAME[problem.dtype] * norms
    faults = []
    for k in np.flatnonzero(differ):
        support = found.indices[found.indptr[k] : found.indptr[k + 1]]
        weighted = roots[k][:, None] * D
        lengths = np.linalg.norm(weighted, axis=0)
        replay = Replay(problem, norms[k] ** 2, tols[k], width)
        unit = weighted / np.where(lengths > 0, lengths, 1)
        why = replay.fault(unit, roots[k] * rows[k], support.tolist())
        if not why and len(support):
            best = np.linalg.lstsq(weighted[:, support], roots[k] * rows[k])[0]
            least = np.linalg.norm(roots[k] * rows[k] - weighted[:, support] @ best) / norms[k]
            rounding = np.finfo(problem.dtype).eps * np.linalg.cond(weighted[:, support]) ** 2
            if residuals[0][k] / norms[k] - least > max(SAME[problem.dtype], rounding):
                why = f"these atoms can leave {least:.6g}, rounding is {rounding:.1g}"
        others = [r[k] / norms[k] for r in residuals]
        if why:
            faults.append(f"sample {k}: {why}; residuals {others[0]:.8g} {others[1]:.8g}")
    return faults


def check_learning(problem):
    """Compare one iteration on both, and the scores of the learned dictionaries."""
    rng = np.random.default_rng([problem.seed, 1])
    Y = samples_of(problem, dictionary_of(problem, rng), rng)
    settings = settings_of(problem, Y, rng)
    structure = "general"
    if problem.method == "threshold":
        structure, settings["method"] = "orthonormal", "ols"
    models = [
        kl.KroneckerDictionaryLearning(
            problem.n_atoms,
            problem.patch_shape,
            structure=structure,
            n_terms=problem.n_terms,
            max_iter=1,
            random_state=problem.seed,
            device=device,
            **settings,
        ).fit(Y)
        for device in ("cuda", "cpu")
    ]
    size = np.sqrt((Y.astype(float) ** 2).mean())
    same = SAME[problem.dtype]
    first = [model.history_["rmse"][0] for model in models]
    faults = []
    if abs(first[0] - first[1]) > same * size:
        faults.append(f"first RMSE {first[0] / size:.8g} {first[1] / size:.8g}")
    scores = [-models[1].set_params(device=device).score(Y) for device in ("cuda", "cpu")]
    # Few samples lead to atoms that are nearly dependent.
    enough = len(Y) > 5 * np.prod(problem.n_atoms)
    if abs(scores[0] - scores[1]) > (same if enough else LEARNED) * size:
        faults.append(f"RMSE of one dictionary {scores[0] / size:.8g} {scores[1] / size:.8g}")
    learned = -models[0].set_params(device="cpu").score(Y)
    # Sums of products begin with dependent atoms, so that ties decide what is learned.
    if enough and problem.n_terms == 1 and learned - scores[1] > LEARNED * size:
        faults.append(f"RMSE of what is learned {learned / size:.8g} {scores[1] / size:.8g}")
    return faults


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 1000, 100))
def test_random_problems_have_the_same_answers(on_gpu, first):
    # Kernels are compiled for every problem, which takes seconds if they are emulated.
    emulated = isinstance(on_gpu, EmulatedGpu)
    faults = {}
    for seed in range(first, first + (1 if emulated else 100)):
        problem = Problem.drawn(seed)
        check = check_codes if problem.what == "codes" else check_learning
        faults[problem] = check(problem)
    assert not any(faults.values()), "\n".join(f"{p}: {f[:3]}" for p, f in faults.items() if f)
