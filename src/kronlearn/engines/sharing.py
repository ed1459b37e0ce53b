"""Sharing blocks of samples out to workers, and again when workers come and go."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

__all__ = ["Span", "shared_out", "split", "uncovered"]

# Blocks ``first … stop − 1``.
Span = tuple[int, int]

# Shares are cut where blocks are multiples of the largest power of two below this part of them: so
# the sums of a share are few nodes of the tree of sums.
_EVENNESS = 32


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
    whole = sum(weights.values())
    share = n_blocks // (_EVENNESS * max(len(weights), 1))
    grain = 1 << max(share.bit_length() - 1, 0)
    targets, before, weight = {}, 0, 0
    for worker in sorted(weights):
        weight += weights[worker]
        cut = n_blocks * weight // whole
        if weight < whole:
            cut = min(round(cut / grain) * grain, n_blocks)
        targets[worker] = max(cut - before, 0)
        before = max(cut, before)
    return targets


def _first_blocks(spans: list[Span], count: int) -> list[Span]:
    """The first so many blocks of some spans."""
    chosen = []
    for first, stop in spans:
        if count <= 0:
            break
        chosen.append((first, min(stop, first + count)))
        count -= stop - first
    return chosen
