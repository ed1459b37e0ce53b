"""What the runs of Tables II and IV come to: medians, speedups, and what was aimed at."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from kronlearn.reproduce.measurement import ENGINES, Found
from kronlearn.reproduce.published import TABLE2, TABLE4
from kronlearn.reproduce.scaling import Machine, Result, Setting

__all__ = ["Claim", "Outcome", "Point", "by_machine", "claims", "paper_speedups", "points"]

# The paper's largest number of samples, and the share of the threads' speed that Dask workers
# should reach there, by method.
_MOST_SAMPLES = 3_913_140
_DASK_SHARES = {"general": 0.85, "orthonormal": 0.6}
# With fewer samples, the paper's fewest, no speedup is expected.
_FEWEST = 8000
# Speedups that threads should reach, by p. Where a machine does not give 16 full cores, a share of
# the ceiling will do.
_SPEEDUPS, _CEILING_SHARE = {2: 1.9, 16: 14.0}, {16: 0.95}
# For 3,913,140 patches: seconds per iteration on two cores, by method, and bytes.
_SECONDS, _MEMORY = {"general": 2.5, "orthonormal": 0.6}, 400e6


@dataclass(frozen=True)
class Point:
    """A setting with p processors, medians over the rounds, by engine.

    ``speedup`` is over one thread, for independent processes over one of them. ``dask_share`` is
    the speed of Dask workers as a share of the threads', ``ceiling_share`` that of the threads as
    one of the ceiling's: of as many independent processes that learn on their own, which is what
    these cores give where nothing is shared. Ratios are taken within a round.
    """

    setting: Setting
    processors: int
    rounds: int
    found: Mapping[str, Found]
    speedup: Mapping[str, float] = field(default_factory=dict)
    dask_share: float | None = None
    ceiling_share: float | None = None

    def __str__(self) -> str:
        return f"{self.setting.method}, m = {self.setting.m}, p = {self.processors}"


@dataclass(frozen=True)
class Outcome:
    """Whether a claim held at a point, and the number that says so."""

    at: str
    value: str
    held: bool


@dataclass(frozen=True)
class Claim:
    """What was aimed at, and where it held."""

    text: str
    outcomes: Sequence[Outcome]

    @property
    def held(self) -> bool:
        """Whether it held everywhere."""
        return all(outcome.held for outcome in self.outcomes)


def by_machine(results: Iterable[Result]) -> dict[tuple[Machine, str], list[Result]]:
    """The results on each machine and data, the machine with the most cores first."""
    groups: dict[tuple[Machine, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.machine, result.data), []).append(result)
    return dict(sorted(groups.items(), key=lambda item: -item[0][0].cores))


def points(results: Iterable[Result]) -> list[Point]:
    """The results on one machine and data, summed up by setting and number of processors."""
    cells: dict[tuple[Setting, int], dict[tuple[str, int], Found]] = {}
    for result in results:
        at = result.run
        setting = Setting(*(getattr(at, part.name) for part in fields(Setting)))
        cells.setdefault((setting, at.processors), {})[at.engine, at.round] = result.found
    ordered = sorted(cells, key=lambda key: (key[0].method, key[0].m, key[0].samples, key[1]))
    return [
        _point(setting, p, cells[setting, p], cells.get((setting, 1), {})) for setting, p in ordered
    ]


def _point(
    setting: Setting,
    processors: int,
    cell: Mapping[tuple[str, int], Found],
    alone: Mapping[tuple[str, int], Found],
) -> Point:
    def ratios(slow: Mapping[tuple[str, int], Found], of: str, fast: str) -> list[float]:
        rounds = [number for engine, number in cell if engine == fast and (of, number) in slow]
        return [
            slow[of, r].seconds_per_iteration / cell[fast, r].seconds_per_iteration for r in rounds
        ]

    bases = {"threads": "threads", "dask": "threads", "processes": "processes"}
    found = {engine: [f for (name, _), f in cell.items() if name == engine] for engine in ENGINES}
    speedups = {engine: _median(ratios(alone, bases[engine], engine)) for engine in ENGINES}
    speedup = {engine: value for engine, value in speedups.items() if value is not None}
    return Point(
        setting,
        processors,
        1 + max(number for _, number in cell),
        {engine: _middle(several) for engine, several in found.items() if several},
        speedup,
        _median(ratios(cell, "threads", "dask")),
        _median(ratios(cell, "processes", "threads")),
    )


def _middle(several: Sequence[Found]) -> Found:
    """The medians of what was found."""
    names = [part.name for part in fields(Found)]
    medians: dict[str, Any] = {n: _median(getattr(one, n) for one in several) for n in names}
    return Found(**medians)


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def paper_speedups(experiment: str, setting: Setting) -> dict[int, float]:
    """The paper's speedups for a method and size, by p; 1 with one process."""
    if experiment == "table2":
        row = TABLE2.get((setting.method, setting.m), {})
    else:
        row = TABLE4.get(setting.method, {})
    return {1: 1.0, **row}


def claims(experiment: str, found: Sequence[Point]) -> list[Claim]:
    """What was aimed at, for as much of it as these points can tell."""
    found = [point for point in found if point.setting.samples >= _FEWEST]
    several = [*_speedup_claims(found), *_dask_claims(found), _above_paper(experiment, found)]
    if experiment == "table4":
        several += [*_time_claims(found), _memory_claim(found)]
    return [claim for claim in several if claim.outcomes]


def _speedup_claims(found: Sequence[Point]) -> Iterable[Claim]:
    for p, least in _SPEEDUPS.items():
        text = f"{p} threads are at least {least:g} times as fast as one"
        if p in _CEILING_SHARE:
            text += f", or reach {_CEILING_SHARE[p]:.0%} of what independent processes do"
        outcomes = []
        for point in found:
            if point.processors == p and "threads" in point.speedup:
                reached, share = point.speedup["threads"], point.ceiling_share
                value = f"{reached:.2f}" + (f", {share:.0%} of the ceiling" if share else "")
                near = (share or 0.0) >= _CEILING_SHARE.get(p, math.inf)
                outcomes.append(Outcome(str(point), value, reached >= least or near))
        yield Claim(text, outcomes)


def _dask_claims(found: Sequence[Point]) -> Iterable[Claim]:
    for method, share in _DASK_SHARES.items():
        yield Claim(
            f"For N = {_MOST_SAMPLES:,} Dask workers reach {share:.0%} of the threads' speed "
            f"({method})",
            [
                Outcome(str(point), f"{point.dask_share:.0%}", point.dask_share >= share)
                for point in found
                if point.dask_share is not None
                and (point.setting.method, point.setting.samples) == (method, _MOST_SAMPLES)
            ],
        )


def _above_paper(experiment: str, found: Sequence[Point]) -> Claim:
    outcomes = []
    for point in found:
        published = paper_speedups(experiment, point.setting).get(point.processors)
        reached = point.speedup.get("threads")
        if published is not None and reached is not None and point.processors > 1:
            value = f"{reached:.2f} against {published:g}"
            outcomes.append(Outcome(str(point), value, reached >= published))
    return Claim("The threads' speedup is at least the paper's", outcomes)


def _of_the_papers_size(found: Sequence[Point]) -> list[Point]:
    return [p for p in found if p.setting.samples == _MOST_SAMPLES and "threads" in p.found]


def _time_claims(found: Sequence[Point]) -> Iterable[Claim]:
    for method, most in _SECONDS.items():
        yield Claim(
            f"An iteration over {_MOST_SAMPLES:,} patches on two cores takes at most "
            f"{most:g} s ({method})",
            [
                Outcome(str(point), f"{seconds:.2f} s", seconds <= most)
                for point in _of_the_papers_size(found)
                if point.processors == 2 and point.setting.method == method
                for seconds in [point.found["threads"].seconds_per_iteration]
            ],
        )


def _memory_claim(found: Sequence[Point]) -> Claim:
    return Claim(
        f"Learning from {_MOST_SAMPLES:,} patches takes at most {_MEMORY / 1e6:.0f} MB",
        [
            Outcome(str(point), f"{peak / 1e6:.0f} MB", peak <= _MEMORY)
            for point in _of_the_papers_size(found)
            for peak in [point.found["threads"].peak_bytes]
            if peak is not None
        ],
    )
