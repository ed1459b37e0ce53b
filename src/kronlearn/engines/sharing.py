"""Sharing blocks of samples out to workers, and again when workers come and go."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate, pairwise

__all__ = ["Span", "shared_out", "split", "uncovered"]

# Blocks ``first … stop − 1``.
Span = tuple[int, int]

# How much larger than its due a share may be, so that its sums are few nodes of the tree of sums.
_UNEVENNESS = 1 / 32


def shared_out(
    n_blocks: int,
    weights: Mapping[str, int],
    present: Mapping[str, list[Span]],
    cut: bool = True,
) -> dict[str, list[Span]]:
    """Which blocks each worker is to have, in proportion to the weights.

    What workers have at present they keep as far as it is not too much, in the same spans; lost
    blocks and what others have too much go to those that have too little, in spans of their own.
    Without ``cut`` they keep all that they have.
    """
    targets = _targets(n_blocks, weights)
    kept: dict[str, list[Span]] = {}
    for worker, most in targets.items():
        kept[worker] = _first_blocks(sorted(present.get(worker, [])), most if cut else n_blocks)
    free = uncovered(n_blocks, [span for spans in kept.values() for span in spans])
    for worker, wanted in targets.items():
        missing = wanted - sum(stop - first for first, stop in kept[worker])
        taken = _first_blocks(free, missing)
        free = uncovered(n_blocks, taken, free)
        kept[worker] = sorted(kept[worker] + taken)
    if free:
        least = min(kept, key=lambda worker: sum(stop - first for first, stop in kept[worker]))
        kept[least] = sorted(kept[least] + free)
    return {worker: spans for worker, spans in kept.items() if spans}


def uncovered(n_blocks: int, spans: list[Span], within: list[Span] | None = None) -> list[Span]:
    """The blocks, of all or of those given, that no span has."""
    rest: list[Span] = []
    taken = sorted(spans)
    for first, stop in within if within is not None else [(0, n_blocks)]:
        at = first
        for start, end in taken:
            if end <= at or start >= stop:
                continue
            if start > at:
                rest.append((at, start))
            at = max(at, end)
        if at < stop:
            rest.append((at, stop))
    return rest


def split(spans: list[Span], others: list[Span]) -> list[Span]:
    """Spans cut wherever others begin or end."""
    cuts = {end for span in others for end in span}
    pieces = []
    for first, stop in spans:
        ends = [first, *sorted(cut for cut in cuts if first < cut < stop), stop]
        pieces += list(pairwise(ends))
    return pieces


def _targets(n_blocks: int, weights: Mapping[str, int]) -> dict[str, int]:
    """How many blocks each worker gets; their sum is all of them."""
    workers = sorted(weights)
    due = [n_blocks * weights[worker] / sum(weights.values()) for worker in workers]
    ends = list(accumulate(due))
    grain = 1 << n_blocks.bit_length()
    while True:
        cuts = [round(end / grain) * grain for end in ends[:-1]]
        shares = [stop - first for first, stop in pairwise([0, *cuts, n_blocks])]
        fair = zip(shares, due, strict=True)
        if grain == 1 or all(0 <= share <= max(d * (1 + _UNEVENNESS), 1) for share, d in fair):
            return dict(zip(workers, shares, strict=True))
        grain //= 2


def _first_blocks(spans: list[Span], count: int) -> list[Span]:
    """The first so many blocks of some spans."""
    chosen = []
    for first, stop in spans:
        if count <= 0:
            break
        chosen.append((first, min(stop, first + count)))
        count -= stop - first
    return chosen
