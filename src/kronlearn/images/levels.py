"""What is expected of quantised means and coefficients: contexts for the entropy coder.

Functions here run the same way for encoding and decoding. They visit numbers in a fixed order, and
at each ask the coder for it, in a context made of numbers that were visited before. The encoder
returns what it is given, the decoder what it finds in its stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.images.entropy import Coder, Tables, code_remainders, symbols_of

__all__ = ["code_levels", "code_means", "neighbour_sums"]

Integers = NDArray[np.int64]
# Symbols, and sums of them with small weights, over whole channels.
Planes = NDArray[np.int16]

# Expectations, in sixteenths, from which contexts are made. Measured on photographs: more or finer
# contexts cost more to learn than they gain.
_EDGES = np.array([1, 3, 7, 11, 17, 25, 35, 49, 69, 99, 139, 199, 299, 499, 999], np.int16)
_LEVEL_MEANS = np.maximum(1, np.append(0, _EDGES.astype(np.int64)) * 3 // 8)
_SPREADS = np.array([1, 2, 3, 5, 8, 12, 18, 27, 40, 60, 90, 140, 220, 400])
_MEAN_MEANS = np.append(4, _SPREADS * 7)
# The memory of a table when the next kind of coefficient begins, in symbols.
_MEMORY = 48
# Means after whose coding the tables are brought up to date.
_MEANS_AT_A_TIME = 512


def code_means(coder: Coder, means: Integers) -> Integers:
    """Code integers (C, *grid), each from the mean of its neighbours on a coarser grid.

    Grids with every 2^k-th point are refined one axis at a time. New points along an axis lie
    half-way between known ones, whose mean is what is expected and whose difference is the context.
    """
    found = np.zeros_like(means)
    before = np.zeros(means.shape[1:], np.int64)
    for given, values in zip(means, found, strict=True):
        tables = Tables(_MEAN_MEANS)
        missed = np.zeros_like(before)
        for new, left, right in _refinements(values.shape):
            expected = (values[left] + values[right]) >> 1
            spread = np.abs(values[left] - values[right]) + before[new]
            residual = _code_signed(coder, tables, spread.ravel(), (given[new] - expected).ravel())
            values[new] = expected + residual.reshape(expected.shape)
            missed[new] = np.abs(residual).reshape(expected.shape)
        before = missed
    return found


def _refinements(shape: tuple[int, ...]) -> Iterator[tuple[tuple[Integers, ...], ...]]:
    """Indices of new points and of their two neighbours, until every point was new once."""
    origin = np.ix_(*[np.zeros(1, np.int64)] * len(shape))
    yield origin, origin, origin
    step = 1 << max(shape).bit_length()
    while step > 1:
        half = step // 2
        for axis, size in enumerate(shape):
            lines = [
                np.arange(0, n, half if other < axis else step) for other, n in enumerate(shape)
            ]
            new = np.arange(half, size, step)
            after = np.where(new + half < size, new + half, new - half)
            if len(new):
                yield tuple(
                    np.ix_(*lines[:axis], line, *lines[axis + 1 :])
                    for line in (new, new - half, after)
                )
        step = half


def _code_signed(coder: Coder, tables: Tables, spreads: Integers, residuals: Integers) -> Integers:
    """Code integers (n,) whose magnitudes are about as large as their spreads."""
    contexts = np.searchsorted(_SPREADS, spreads, side="right")
    symbols = symbols_of(np.abs(residuals))
    for start in range(0, len(symbols), _MEANS_AT_A_TIME):
        rows = slice(start, start + _MEANS_AT_A_TIME)
        symbols[rows] = coder.code(tables, contexts[rows], symbols[rows].astype(np.int64))
    signed = np.minimum(symbols, 1).astype(np.int64)
    negative = coder.bits((residuals < 0) * signed, signed)
    magnitudes = code_remainders(coder, symbols, np.abs(residuals)).astype(np.int64)
    return np.where(negative > 0, -magnitudes, magnitudes)


def code_levels(
    coder: Coder, magnitudes: NDArray[np.integer], n_atoms: tuple[int, ...]
) -> NDArray[np.int32]:
    """Code magnitudes (C, n_1·…·n_d, *grid) of the coefficients of patches on a grid.

    Atoms are visited by the sum of their indices, patches along the shortest axis of the grid, of
    those side by side first every other one and then the ones between. The context of a
    coefficient is what others that were visited say about its size: those of similar atoms in its
    patch, of its atom in the patches around, and of its atom in the previous channel.
    """
    found = np.empty(magnitudes.shape, np.int32)
    before: _Channel | None = None
    for given, values in zip(magnitudes, found, strict=True):
        symbols = symbols_of(_shortest_first(given))
        before = _Channel(symbols, n_atoms, before)
        before.code(coder)
        symbols = before.symbols[:-1]
        _shortest_first(values)[...] = code_remainders(coder, symbols, _shortest_first(given))
    return found


def _shortest_first(planes: NDArray[Any]) -> NDArray[Any]:
    """A view of planes (n, *grid) with the shortest axis of the grid first; at least two axes."""
    if planes.ndim == 2:
        return planes[:, None]
    return np.moveaxis(planes, 1 + int(np.argmin(planes.shape[1:])), 1)


class _Channel:
    """The coefficients of one channel as planes, one per atom, and one of zeros at the end."""

    def __init__(self, given: Planes, n_atoms: tuple[int, ...], before: _Channel | None) -> None:
        self.given = given
        self.n_atoms = n_atoms
        self.before = before
        grid = given.shape[1:]
        self.symbols = np.zeros((len(given) + 1, *grid), np.int16)
        self.around = np.zeros_like(self.symbols)
        self.nonzeros = np.zeros(grid, np.int32)
        self.indices = np.indices(n_atoms).reshape(len(n_atoms), -1)
        parity = np.indices(grid[1:]).sum(axis=0).ravel() % 2
        self.sites = [np.flatnonzero(parity == k) for k in (0, 1)]

    def code(self, coder: Coder) -> None:
        """Fill ``symbols`` from the coder."""
        tables = Tables(_LEVEL_MEANS)
        sums = self.indices.sum(axis=0)
        # Atoms from this sum of indices on are not used.
        used = 1 + sums[self.given.any(axis=tuple(range(1, self.given.ndim)))].max(initial=-1)
        used = coder.bits(np.array([used]), np.array([16]))[0]
        visited = 0
        for total in range(min(used, sums.max() + 1)):
            atoms = np.flatnonzero(sums == total)
            tables.fade(_MEMORY)
            planes = self.given[atoms]
            self._code_planes(coder, tables, planes, *self._expectations(atoms, visited))
            self.symbols[atoms] = planes
            self.around[atoms] = neighbour_sums(planes, range(1, planes.ndim))
            self.nonzeros += np.count_nonzero(planes, axis=0)
            visited += len(atoms)

    def _expectations(self, atoms: Integers, visited: int) -> tuple[Planes, Planes]:
        """What earlier planes say about atoms (k, *grid), for the first and the second patches."""
        axes = range(len(self.n_atoms))
        near = [self._before(atoms, axis) for axis in axes]
        far = [self._before(atoms, axis, axis) for axis in axes]
        diagonal = [self._before(atoms, *pair) for pair in combinations(axes, 2)]
        common = np.repeat(
            (32 * self.nonzeros // (visited + 1)).astype(np.int16)[None], len(atoms), axis=0
        )
        for plane in far:
            common += 4 * self.symbols[plane]
        for plane in diagonal:
            common += 2 * self.symbols[plane]
        first, second = common, common.copy()
        for plane in near:
            first += 8 * self.symbols[plane] + self.around[plane]
            second += 6 * self.symbols[plane]
        if self.before is not None:
            own, around = self.before.symbols[atoms], self.before.around[atoms]
            first += 6 * own + around
            second += 4 * own + around // 2
        return first, second

    def _before(self, atoms: Integers, *axes: int) -> Integers:
        """The planes of the atoms one step before along some axes; that of zeros for none."""
        moved = self.indices[:, atoms]
        for axis in axes:
            moved[axis] -= 1
        inside = (moved >= 0).all(axis=0)
        planes = np.ravel_multi_index(tuple(np.maximum(moved, 0)), self.n_atoms)
        return np.where(inside, planes, len(self.symbols) - 1)

    def _code_planes(
        self, coder: Coder, tables: Tables, planes: Planes, first: Planes, second: Planes
    ) -> None:
        """Code planes (k, *grid) in place, along the first axis of the grid."""
        previous = np.zeros_like(planes[:, 0])
        across = range(1, previous.ndim)
        for k in range(planes.shape[1]):
            given, current = planes[:, k], np.zeros_like(previous)
            aside = neighbour_sums(previous, across)
            expected = first[:, k] + 8 * previous + 4 * aside
            self._code_sites(coder, tables, 0, expected, given, current)
            if len(self.sites[1]):
                aside += 4 * neighbour_sums(current, across)
                expected = second[:, k] + 6 * previous + 2 * aside
                self._code_sites(coder, tables, 1, expected, given, current)
            planes[:, k] = previous = current

    def _code_sites(
        self,
        coder: Coder,
        tables: Tables,
        parity: int,
        expected: Planes,
        given: Planes,
        found: Planes,
    ) -> None:
        k, sites = len(given), self.sites[parity]
        contexts = np.searchsorted(_EDGES, expected.reshape(k, -1)[:, sites].ravel(), side="right")
        symbols = given.reshape(k, -1)[:, sites].ravel().astype(np.int64)
        found.reshape(k, -1)[:, sites] = coder.code(tables, contexts, symbols).reshape(k, -1)


def neighbour_sums(values: NDArray[Any], axes: range) -> NDArray[Any]:
    """At every point the sum of the values before and after it along each of the axes."""
    total = np.zeros_like(values)
    for axis in axes:
        lead = (slice(None),) * axis
        head, tail = (*lead, slice(None, -1)), (*lead, slice(1, None))
        total[tail] += values[head]
        total[head] += values[tail]
    return total
