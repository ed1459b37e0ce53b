"""The tree of sums: however blocks are divided among workers, the total has the same bits."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kronlearn import _native

SIZE = 3


def blocks_of_sums(n_blocks, seed=0):
    """Sums (n_blocks, SIZE) of very different sizes, so that rounding depends on the order."""
    rng = np.random.default_rng(seed)
    sizes = 10.0 ** rng.integers(-8, 9, (n_blocks, SIZE))
    return rng.standard_normal((n_blocks, SIZE)) * sizes


def pairwise(sums):
    """The definition of the tree: a recursive sum, split at the largest power of two that fits."""
    if len(sums) == 1:
        return sums[0]
    half = 1 << (len(sums) - 1).bit_length() - 1
    return pairwise(sums[:half]) + pairwise(sums[half:])


def tree_over(sums, blocks):
    tree = _native.SumTree(SIZE, len(sums))
    for block in blocks:
        tree.add(0, block, sums[block])
    return tree


def merged(trees, n_blocks):
    """One tree with the nodes of several."""
    whole = _native.SumTree(SIZE, n_blocks)
    for tree in trees:
        for level, index, sums in zip(*tree.nodes(), strict=True):
            whole.add(int(level), int(index), sums)
    return whole


@given(st.integers(1, 200))
def test_the_total_is_the_pairwise_sum_of_all_blocks(n_blocks):
    sums = blocks_of_sums(n_blocks)
    tree = tree_over(sums, list(range(n_blocks)))
    levels, indices, _ = tree.nodes()
    assert len(levels) == 1
    assert indices.tolist() == [0]
    assert tree.total().tobytes() == pairwise(sums).tobytes()


@given(st.integers(1, 120), st.integers(1, 6), st.integers(0, 1000), st.booleans())
def test_any_parts_in_any_order_give_the_same_bits(n_blocks, n_parts, seed, contiguous):
    rng = np.random.default_rng(seed)
    sums = blocks_of_sums(n_blocks, seed)
    owner = rng.integers(n_parts, size=n_blocks)
    if contiguous:
        owner.sort()
    trees = []
    for part in rng.permutation(n_parts).tolist():
        blocks = np.flatnonzero(owner == part)
        trees.append(tree_over(sums, rng.permutation(blocks).tolist()))
    assert merged(trees, n_blocks).total().tobytes() == pairwise(sums).tobytes()


@given(st.integers(1, 4000), st.integers(1, 64), st.data())
def test_a_contiguous_part_has_few_nodes(n_blocks, n_parts, data):
    first = data.draw(st.integers(0, n_blocks - 1))
    stop = min(n_blocks, first + -(-n_blocks // n_parts))
    tree = _native.SumTree(1, n_blocks)
    for block in range(first, stop):
        tree.add(0, block, np.ones(1))
    assert len(tree.nodes()[0]) <= 2 * math.ceil(math.log2(stop - first + 1))
    assert tree.total() == stop - first


def test_a_tree_without_blocks_sums_to_zero():
    tree = _native.SumTree(SIZE, 5)
    assert tree.total().tolist() == [0.0] * SIZE
    assert [part.shape for part in tree.nodes()] == [(0,), (0,), (0, SIZE)]


@pytest.mark.parametrize(
    ("level", "index", "size", "message"),
    [
        (0, 2, SIZE, "twice"),
        (1, 1, SIZE, "twice"),
        (3, 0, SIZE, "twice"),
        (0, 7, SIZE, "no such node"),
        (0, -1, SIZE, "no such node"),
        (-1, 0, SIZE, "no such node"),
        (60, 0, SIZE, "no such node"),
        (0, 0, SIZE + 1, "another size"),
    ],
)
def test_invalid_nodes_are_refused_and_change_nothing(level, index, size, message):
    tree = _native.SumTree(SIZE, 7)
    tree.add(0, 2, np.ones(SIZE))
    with pytest.raises(ValueError, match=message):
        tree.add(level, index, np.ones(size))
    assert tree.total().tolist() == [1.0] * SIZE


@pytest.mark.parametrize("blocks", [0, -1])
def test_a_sum_over_no_blocks_is_refused(blocks):
    with pytest.raises(ValueError, match="no blocks"):
        _native.SumTree(SIZE, blocks)
