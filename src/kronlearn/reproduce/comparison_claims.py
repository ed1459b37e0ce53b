"""What the compared runs show: averages over draws, and claims that hold or do not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kronlearn.reproduce.comparison import Result, Setting
from kronlearn.reproduce.methods import METHODS
from kronlearn.reproduce.published import AKSVD_RMSE, TABLE1, TABLE1_SETTINGS

__all__ = [
    "RATIO_FACTOR",
    "TOOLBOX_MARGIN",
    "Claim",
    "Means",
    "Outcome",
    "Ratio",
    "Summary",
    "Sums",
    "Target",
    "Toolbox",
    "error_claims",
    "in_order",
    "means",
    "ratios",
    "sums",
    "targets",
    "time_claims",
    "toolbox",
]

#: By how much a ratio of two times may differ from the paper's to count as the same.
RATIO_FACTOR = 2.0
#: How far AK-SVD's RMSE may be from the toolbox's, as a fraction.
TOOLBOX_MARGIN = 0.02

# The most RMSE of held-out samples, coded by the method's own coder, by method and n, for 8 × 8
# patches of the paper's images and s = 6.
_TARGETS = {
    ("default", 8): 5.50,
    ("default", 16): 4.50,
    ("exchange", 8): 5.38,
    ("exchange", 16): 4.42,
}
_LOWEST_MARGIN = 0.003
_EQUAL_MARGIN = 0.015
_PAIR_RATIO = 5.0
_EARLY, _EARLY_MARGIN = 20, 0.01


@dataclass(frozen=True)
class Summary:
    """A method at a setting over its draws: means, and standard deviations (``_sd``).

    The errors are those of a :class:`~kronlearn.reproduce.comparison.Result`. ``curve`` and
    ``curve_sd`` have one for the start and one per iteration.
    """

    atoms: str
    draws: int
    seconds: float
    seconds_sd: float
    seconds_per_iteration: float
    train_rmse: float
    train_rmse_sd: float
    held_out_rmse: float
    held_out_rmse_sd: float
    own_train_rmse: float
    own_held_out_rmse: float
    curve: NDArray[np.float64]
    curve_sd: NDArray[np.float64]


Means = dict[tuple[Setting, str], Summary]


@dataclass(frozen=True)
class Outcome:
    """Whether a claim holds at a setting, and the number that says so."""

    holds: bool
    found: str


@dataclass(frozen=True)
class Claim:
    """A sentence, and what came out at each setting that has the methods it speaks of."""

    text: str
    outcomes: dict[Setting, Outcome]

    @property
    def held(self) -> int:
        """At how many settings it holds."""
        return sum(outcome.holds for outcome in self.outcomes.values())


@dataclass(frozen=True)
class Ratio:
    """Seconds of a method over those of "general", the paper's and ours."""

    method: str
    setting: Setting
    paper: float
    ours: float

    @property
    def holds(self) -> bool:
        """Whether the two are within a factor of each other."""
        return 1 / RATIO_FACTOR <= self.ours / self.paper <= RATIO_FACTOR


@dataclass(frozen=True)
class Sums:
    """RMSE of held-out samples with 1, 2 and 4 terms and without structure.

    The times are those of 2 and 4 terms over one term's.
    """

    setting: Setting
    rmse: tuple[float, float, float, float]
    times: tuple[float, float]

    @property
    def closed(self) -> tuple[float, float]:
        """The fraction of the gap between one term and no structure that 2 and 4 terms close."""
        one, two, four, free = self.rmse
        gap = one - free
        return ((one - two) / gap, (one - four) / gap) if gap > 0 else (np.nan, np.nan)


@dataclass(frozen=True)
class Toolbox:
    """AK-SVD with a number of atoms, by the authors' toolbox and ours, and our seconds.

    The RMSE is that of the samples learned from, by the method's own coder.
    """

    atoms: int
    theirs: float
    ours: float
    seconds: float

    @property
    def holds(self) -> bool:
        """Whether the two are within a margin of each other."""
        return abs(self.ours / self.theirs - 1) <= TOOLBOX_MARGIN


@dataclass(frozen=True)
class Target:
    """The RMSE that a method should reach on held-out samples, coded by its own coder."""

    method: str
    setting: Setting
    most: float
    found: float

    @property
    def holds(self) -> bool:
        """Whether it does."""
        return self.found <= self.most


def means(results: Iterable[Result]) -> Means:
    """Averages over the draws, for every setting and method."""
    groups: dict[tuple[Setting, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.run.setting, result.run.method), []).append(result)
    return {key: _summary(group, key[0].iterations) for key, group in groups.items()}


def _summary(group: list[Result], iterations: int) -> Summary:
    def of(name: str) -> tuple[float, float]:
        values = [getattr(result, name) for result in group]
        return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0

    curves = np.array([_extended(result.curve, iterations + 1) for result in group])
    spread = curves.std(axis=0, ddof=1) if len(group) > 1 else np.zeros(iterations + 1)
    return Summary(
        group[0].atoms,
        len(group),
        *of("seconds"),
        of("seconds_per_iteration")[0],
        *of("train_rmse"),
        *of("held_out_rmse"),
        of("own_train_rmse")[0],
        of("own_held_out_rmse")[0],
        curves.mean(axis=0),
        spread,
    )


def _extended(curve: tuple[float, ...], length: int) -> list[float]:
    """A run that stopped early stays where it is."""
    return [*curve[:length], *[curve[-1]] * (length - len(curve))]


def in_order(found: Means, setting: Setting) -> list[str]:
    """The methods at a setting, lowest RMSE of held-out samples first."""
    methods = [method for at, method in found if at == setting]
    return sorted(methods, key=lambda method: found[setting, method].held_out_rmse)


def ratios(found: Means) -> list[Ratio]:
    """All entries of Table I that were run, as ratios."""
    entries = []
    for method, seconds in TABLE1.items():
        for setting in _settings(found, method, "general"):
            if method == "general" or setting.m != 8 or (setting.n, setting.s) not in _COLUMNS:
                continue
            column = _COLUMNS[setting.n, setting.s]
            ours = found[setting, method].seconds / found[setting, "general"].seconds
            entries.append(
                Ratio(method, setting, seconds[column] / TABLE1["general"][column], ours)
            )
    return entries


_COLUMNS = {setting: column for column, setting in enumerate(TABLE1_SETTINGS)}


def time_claims(found: Means) -> list[Claim]:
    """What is claimed of the times."""
    return _made(
        [
            ("The default is faster than every method that is not of this library", _fastest),
            (
                "An iteration of PairAK-SVD takes at least 5 times one of general "
                "(the paper: about 7)",
                _pair_ratio,
            ),
        ],
        found,
    )


def error_claims(found: Means) -> list[Claim]:
    """What is claimed of the RMSE, of held-out samples unless said otherwise."""
    return _made(
        [
            (
                "The default has the lowest RMSE of all methods with one Kronecker term "
                "(exchange apart), or is within 0.3 % of it",
                lambda found, setting: _lowest(found, setting, "held_out_rmse"),
            ),
            (
                "The same for the samples that were learned from",
                lambda found, setting: _lowest(found, setting, "train_rmse"),
            ),
            ("Learned and coded with exchange it is lower", _exchange),
            (
                "General and PairAK-SVD are within 1.5 % (the paper: general equals PairAK-SVD)",
                _equal,
            ),
            (
                "TeFDiL is above general (the paper: on average slightly worse)",
                _above("TeFDiL", "general"),
            ),
            (
                "Orthonormal is above general (the paper: performs worse)",
                _above("orthonormal", "general"),
            ),
            (
                "Orthonormal is within 1 % of its last RMSE after 20 iterations "
                "(the paper: converges mostly before 20)",
                _early,
            ),
            ("Two terms are below one", _above("default", "sum2")),
            ("Four terms are below one", _above("default", "sum4")),
            ("Four terms are below AK-SVD with as many atoms", _above("AK-SVD n²", "sum4")),
        ],
        found,
    )


Test = Callable[[Means, Setting], Outcome | None]


def _made(claims: list[tuple[str, Test]], found: Means) -> list[Claim]:
    """The claims with their outcomes, without those that nothing can be said about."""
    chosen = list(dict.fromkeys(setting for setting, _ in found))
    made = []
    for text, test in claims:
        outcomes = {setting: test(found, setting) for setting in chosen}
        made.append(Claim(text, {at: outcome for at, outcome in outcomes.items() if outcome}))
    return [claim for claim in made if claim.outcomes]


def _settings(found: Means, *methods: str) -> list[Setting]:
    """The settings at which all of these methods were run."""
    chosen = dict.fromkeys(setting for setting, _ in found)
    return [at for at in chosen if all((at, method) in found for method in methods)]


def _fastest(found: Means, setting: Setting) -> Outcome | None:
    others = {
        method: summary.seconds
        for (at, method), summary in found.items()
        if at == setting and not METHODS[method].ours
    }
    if not others or (setting, "default") not in found:
        return None
    rival = min(others, key=lambda method: others[method])
    ratio = others[rival] / found[setting, "default"].seconds
    return Outcome(ratio > 1, f"{rival} {ratio:.2f}×")


def _pair_ratio(found: Means, setting: Setting) -> Outcome | None:
    if setting not in _settings(found, "PairAK-SVD", "general"):
        return None
    pair, general = (found[setting, method] for method in ("PairAK-SVD", "general"))
    ratio = pair.seconds_per_iteration / general.seconds_per_iteration
    return Outcome(ratio >= _PAIR_RATIO, f"{ratio:.1f}×")


def _lowest(found: Means, setting: Setting, error: str) -> Outcome | None:
    rivals = {
        method: getattr(summary, error)
        for (at, method), summary in found.items()
        if at == setting
        and METHODS[method].kind == "one term"
        and method not in ("default", "exchange")
    }
    if not rivals or (setting, "default") not in found:
        return None
    rival = min(rivals, key=lambda method: rivals[method])
    difference = rivals[rival] / getattr(found[setting, "default"], error) - 1
    return Outcome(difference >= -_LOWEST_MARGIN, f"{rival} {difference:+.1%}")


def _exchange(found: Means, setting: Setting) -> Outcome | None:
    if setting not in _settings(found, "exchange", "default"):
        return None
    default, own = found[setting, "default"], found[setting, "exchange"].own_held_out_rmse
    difference = own / default.held_out_rmse - 1
    return Outcome(difference < 0, f"{difference:+.1%}")


def _equal(found: Means, setting: Setting) -> Outcome | None:
    if setting not in _settings(found, "PairAK-SVD", "general"):
        return None
    pair, general = (found[setting, method] for method in ("PairAK-SVD", "general"))
    difference = pair.held_out_rmse / general.held_out_rmse - 1
    return Outcome(abs(difference) <= _EQUAL_MARGIN, f"{difference:+.1%}")


def _above(first: str, second: str) -> Test:
    def test(found: Means, setting: Setting) -> Outcome | None:
        if setting not in _settings(found, first, second):
            return None
        high, low = (found[setting, method].held_out_rmse for method in (first, second))
        difference = high / low - 1
        return Outcome(difference > 0, f"{difference:+.1%}")

    return test


def _early(found: Means, setting: Setting) -> Outcome | None:
    if (setting, "orthonormal") not in found or setting.iterations <= _EARLY:
        return None
    curve = found[setting, "orthonormal"].curve
    difference = float(curve[_EARLY] / curve[-1] - 1)
    return Outcome(difference <= _EARLY_MARGIN, f"{difference:+.2%}")


def sums(found: Means) -> list[Sums]:
    """One for every setting that has 1, 2 and 4 terms and AK-SVD with as many atoms."""
    names = ("default", "sum2", "sum4", "AK-SVD n²")
    records = []
    for setting in _settings(found, *names):
        one, two, four, free = (found[setting, name] for name in names)
        errors = (one.held_out_rmse, two.held_out_rmse, four.held_out_rmse, free.held_out_rmse)
        times = (two.seconds / one.seconds, four.seconds / one.seconds)
        records.append(Sums(setting, errors, times))
    return records


def toolbox(found: Means) -> list[Toolbox]:
    """AK-SVD beside the authors' toolbox, for the numbers of atoms that were run with s = 6."""
    records = {}
    for (setting, method), summary in found.items():
        if METHODS[method].estimator != METHODS["AK-SVD"].estimator:
            continue
        atoms = int(summary.atoms)
        if (setting.m, setting.s) == (8, 6) and atoms in AKSVD_RMSE:
            ours = summary.own_train_rmse
            records[atoms] = Toolbox(atoms, AKSVD_RMSE[atoms], ours, summary.seconds)
    return [records[atoms] for atoms in sorted(records)]


def targets(found: Means) -> list[Target]:
    """The errors aimed at, where they were measured."""
    return [
        Target(method, setting, _TARGETS[method, setting.n], summary.own_held_out_rmse)
        for (setting, method), summary in found.items()
        if (setting.m, setting.s) == (8, 6) and (method, setting.n) in _TARGETS
    ]
