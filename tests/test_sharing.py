"""Who gets which blocks: all of them, once, in proportion, and what workers have they keep."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from kronlearn.engines.sharing import Span, shared_out, split, uncovered

worker_weights = st.dictionaries(
    st.sampled_from([f"tcp://10.0.0.{i}:4000" for i in range(9)]), st.integers(1, 64), min_size=1
)
n_blocks_any = st.integers(1, 3000)


def blocks(spans: list[Span]) -> list[int]:
    return [block for first, stop in spans for block in range(first, stop)]


def all_blocks(shares: dict[str, list[Span]]) -> list[int]:
    return sorted(block for spans in shares.values() for block in blocks(spans))


def most(n_blocks: int, weights: dict[str, int], worker: str) -> float:
    """How many blocks a worker may get: a 32nd more than its due, or what makes it whole."""
    due = n_blocks * weights[worker] / sum(weights.values())
    return max(due * 33 / 32, due + 1)


@given(n_blocks_any, worker_weights)
def test_every_block_is_shared_out_once(n_blocks: int, weights: dict[str, int]) -> None:
    shares = shared_out(n_blocks, weights, {})
    assert all_blocks(shares) == list(range(n_blocks))
    assert set(shares) <= set(weights)
    assert all(first < stop for spans in shares.values() for first, stop in spans)


@given(n_blocks_any, worker_weights)
def test_no_share_is_much_larger_than_its_due(n_blocks: int, weights: dict[str, int]) -> None:
    for worker, spans in shared_out(n_blocks, weights, {}).items():
        assert len(blocks(spans)) <= most(n_blocks, weights, worker)


@given(n_blocks_any, worker_weights)
def test_a_first_sharing_out_is_one_span_each(n_blocks: int, weights: dict[str, int]) -> None:
    assert all(len(spans) == 1 for spans in shared_out(n_blocks, weights, {}).values())


@given(n_blocks_any, worker_weights)
def test_nothing_moves_while_the_workers_are_the_same(
    n_blocks: int, weights: dict[str, int]
) -> None:
    shares = shared_out(n_blocks, weights, {})
    assert shared_out(n_blocks, weights, shares) == shares


@given(n_blocks_any, worker_weights, st.data())
def test_lost_blocks_go_to_the_others_who_keep_all_they_have(
    n_blocks: int, weights: dict[str, int], data: st.DataObject
) -> None:
    shares = shared_out(n_blocks, weights, {})
    gone = data.draw(st.sets(st.sampled_from(sorted(weights)), max_size=len(weights) - 1))
    left = {worker: weight for worker, weight in weights.items() if worker not in gone}
    kept = {worker: spans for worker, spans in shares.items() if worker in left}
    after = shared_out(n_blocks, left, kept, cut=False)
    assert all_blocks(after) == list(range(n_blocks))
    for worker, spans in kept.items():
        assert set(spans) <= set(after[worker])


@given(n_blocks_any, worker_weights, st.integers(1, 64))
def test_a_new_worker_gets_its_share_and_nothing_else_moves(
    n_blocks: int, weights: dict[str, int], weight: int
) -> None:
    before = shared_out(n_blocks, weights, {})
    more = weights | {"tcp://10.0.0.99:1": weight}
    after = shared_out(n_blocks, more, before)
    assert all_blocks(after) == list(range(n_blocks))
    for worker in more:
        had, has = set(blocks(before.get(worker, []))), set(blocks(after.get(worker, [])))
        assert len(has) <= most(n_blocks, more, worker)
        assert had <= has or has <= had


@given(n_blocks_any, st.lists(worker_weights, min_size=1, max_size=6))
def test_any_history_of_workers_covers_all_blocks(
    n_blocks: int, history: list[dict[str, int]]
) -> None:
    shares: dict[str, list[Span]] = {}
    for step, weights in enumerate(history):
        present = {worker: spans for worker, spans in shares.items() if worker in weights}
        shares = shared_out(n_blocks, weights, present, cut=step % 2 == 0)
        assert all_blocks(shares) == list(range(n_blocks))


span_lists = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=6).map(
    lambda pairs: [(first, first + length) for first, length in pairs]
)


@given(span_lists, st.integers(1, 80))
def test_uncovered_is_what_no_span_has(spans: list[Span], n_blocks: int) -> None:
    rest = uncovered(n_blocks, spans)
    assert blocks(rest) == sorted(set(range(n_blocks)) - set(blocks(spans)))


@given(span_lists, span_lists)
def test_uncovered_within_is_what_of_those_no_span_has(
    spans: list[Span], within: list[Span]
) -> None:
    for span in within:
        rest = uncovered(100, spans, [span])
        assert blocks(rest) == sorted(set(range(*span)) - set(blocks(spans)))


@given(span_lists, span_lists)
def test_split_spans_are_the_same_blocks_and_cross_no_end(
    spans: list[Span], others: list[Span]
) -> None:
    pieces = split(spans, others)
    assert blocks(pieces) == blocks(spans)
    ends = {end for span in others for end in span}
    assert not any(first < end < stop for first, stop in pieces for end in ends)
