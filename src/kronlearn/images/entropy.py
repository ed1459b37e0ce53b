"""Entropy coding: adaptive tables, and range asymmetric numeral systems in vector lanes.

A symbol s whose table gives it the frequency f of 2^16 costs ``log2(2^16 / f)`` bits. The coder's
state is one 32-bit number per lane; a step codes one symbol in every lane, as NumPy operations over
the lanes. Everything is integer arithmetic, so that every machine decodes the same symbols.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "MAX_MAGNITUDE",
    "Coder",
    "Decoder",
    "Encoder",
    "StreamError",
    "Tables",
    "code_remainders",
    "symbols_of",
]

# Symbols 0 … 15 are magnitudes; 16 + k stands for 2^(4+k) … 2^(5+k) − 1, told apart by raw bits.
_DIRECT = 16
_ALPHABET = 32

#: The largest magnitude that symbols can stand for.
MAX_MAGNITUDE = (1 << 20) - 1


_BITS = 16
_SCALE = 1 << _BITS
_MASK = np.uint64(_SCALE - 1)
_SHIFT = np.uint64(_BITS)
# What one symbol adds to its count, so that counts can be scaled down and stay integers.
_UNIT = 64

Integers = NDArray[np.int64]


class StreamError(ValueError):
    """A stream that no encoder writes."""


class Tables:
    """Adaptive frequencies of the symbols, one table per context.

    A table starts from a geometric distribution with a given mean and counts what it sees.

    Parameters
    ----------
    means : integer array of shape (K,)
        The expected magnitude in each context, in sixteenths, at least 1.
    """

    def __init__(self, means: NDArray[np.int64]) -> None:
        # Twenty symbols of a geometric distribution and a little of everything.
        remaining = np.full(len(means), 20 * _UNIT, np.int64)
        self.counts = np.full((len(means), _ALPHABET), 2, np.int64)
        for symbol in range(_DIRECT + 1):
            share = remaining * 16 // (16 + means)
            self.counts[:, symbol] += share
            remaining -= share
        self._refresh()

    def update(self, contexts: Integers, symbols: Integers) -> None:
        """Count symbols that were coded in these contexts."""
        seen = np.bincount(contexts * _ALPHABET + symbols, minlength=self.counts.size)
        self.counts += _UNIT * seen.reshape(self.counts.shape)
        self._refresh()

    def fade(self, weight: int) -> None:
        """Let what was counted so far weigh no more than this many symbols in each context."""
        totals = self.counts.sum(axis=1, keepdims=True)
        faded = self.counts * (weight * _UNIT) // totals
        self.counts = np.where(totals > weight * _UNIT, np.maximum(faded, 1), self.counts)
        self._refresh()

    def _refresh(self) -> None:
        totals = self.counts.sum(axis=1, keepdims=True)
        frequencies = 1 + self.counts * (_SCALE - _ALPHABET) // totals
        frequencies[:, 0] += _SCALE - frequencies.sum(axis=1)
        self.frequencies = frequencies.astype(np.uint64)
        self.ends = frequencies.cumsum(axis=1).astype(np.uint64)


class Encoder:
    """Collects symbols with the frequencies of their tables; :meth:`finish` codes them.

    Parameters
    ----------
    lanes : int
        Symbols that are coded side by side.
    """

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self._steps: list[tuple[NDArray[np.uint64], NDArray[np.uint64]]] = []

    def code(self, tables: Tables, contexts: Integers, symbols: Integers) -> Integers:
        """Take symbols of shape (n,) in and return them; the tables learn from them."""
        frequencies = tables.frequencies[contexts, symbols]
        self._add(frequencies, tables.ends[contexts, symbols] - frequencies)
        tables.update(contexts, symbols)
        return symbols

    def bits(self, values: Integers, widths: Integers) -> Integers:
        """Take in numbers of so many bits each (at most 16), as they are, and return them."""
        rest = (_BITS - widths).astype(np.uint64)
        self._add(np.uint64(1) << rest, values.astype(np.uint64) << rest)
        return values

    def finish(self, payload: bytes) -> bytes:
        """The stream of all that came, with a payload of which ``2 · lanes`` bytes cost nothing."""
        hidden, rest = payload[: 2 * self.lanes], payload[2 * self.lanes :]
        hidden += bytes(2 * self.lanes - len(hidden))
        # Coding may start from any state in this range: the states carry two bytes each.
        states = _SCALE + np.frombuffer(hidden, "<u2").astype(np.uint64)
        words = [np.zeros(0, np.uint64)]
        for frequencies, starts in reversed(self._steps):
            x = states[: len(frequencies)]
            full = x >= frequencies << _SHIFT
            words.append(x[full] & _MASK)
            x = np.where(full, x >> _SHIFT, x)
            quotients = x // frequencies
            states[: len(x)] = (quotients << _SHIFT) + (x - quotients * frequencies) + starts
        stream = np.concatenate(words[::-1])
        return states.astype("<u4").tobytes() + stream.astype("<u2").tobytes() + rest

    def _add(self, frequencies: NDArray[np.uint64], starts: NDArray[np.uint64]) -> None:
        for k in range(0, len(frequencies), self.lanes):
            self._steps.append((frequencies[k : k + self.lanes], starts[k : k + self.lanes]))


class Decoder:
    """Takes a stream of :class:`Encoder` apart, by the same calls in the same order.

    Parameters
    ----------
    stream : bytes
    lanes : int
        As the stream was made.
    """

    def __init__(self, stream: bytes, lanes: int) -> None:
        if len(stream) < 4 * lanes:
            raise StreamError
        self._states = np.frombuffer(stream, "<u4", lanes).astype(np.uint64)
        self._body = stream[4 * lanes :]
        self._words = np.frombuffer(self._body, "<u2", len(self._body) // 2).astype(np.uint64)
        self._used = 0

    def code(self, tables: Tables, contexts: Integers, symbols: Integers) -> Integers:
        """The next ``len(contexts)`` symbols; the ones given are not looked at."""
        found = np.empty(len(contexts), np.int64)
        lanes = len(self._states)
        for k in range(0, len(found), lanes):
            rows = contexts[k : k + lanes]
            slots = self._states[: len(rows)] & _MASK
            symbols = (tables.ends.take(rows, axis=0) > slots[:, None]).argmax(axis=1)
            frequencies = tables.frequencies[rows, symbols]
            self._advance(frequencies, slots + frequencies - tables.ends[rows, symbols])
            found[k : k + lanes] = symbols
        tables.update(contexts, found)
        return found

    def bits(self, values: Integers, widths: Integers) -> Integers:
        """The next ``len(widths)`` numbers; the ones given are not looked at."""
        found = np.empty(len(widths), np.int64)
        lanes = len(self._states)
        for k in range(0, len(found), lanes):
            rest = (_BITS - widths[k : k + lanes]).astype(np.uint64)
            slots = self._states[: len(rest)] & _MASK
            numbers = slots >> rest
            self._advance(np.uint64(1) << rest, slots - (numbers << rest))
            found[k : k + lanes] = numbers
        return found

    def finish(self) -> bytes:
        """The payload, once all else is decoded; zeros may follow it."""
        hidden = self._states - np.uint64(_SCALE)
        if (hidden >= _SCALE).any():
            raise StreamError
        return hidden.astype("<u2").tobytes() + self._body[2 * self._used :]

    def _advance(self, frequencies: NDArray[np.uint64], within: NDArray[np.uint64]) -> None:
        """Remove a symbol from the state of each lane, and refill what became too small."""
        x = frequencies * (self._states[: len(within)] >> _SHIFT) + within
        empty = np.flatnonzero(x < _SCALE)
        end = self._used + len(empty)
        if end > len(self._words):
            raise StreamError
        x[empty] = (x[empty] << _SHIFT) | self._words[self._used : end]
        self._used = end
        self._states[: len(x)] = x


def symbols_of(magnitudes: NDArray[np.integer]) -> NDArray[np.int16]:
    """The symbols of integers from 0 to 2^20 − 1."""
    symbols = np.minimum(magnitudes, _DIRECT).astype(np.int16)
    wide = symbols == _DIRECT
    symbols[wide] = np.frexp(magnitudes[wide].astype(np.float64))[1] + (_DIRECT - 5)
    return symbols


def code_remainders(
    coder: Coder, symbols: NDArray[np.int16], magnitudes: NDArray[np.integer]
) -> NDArray[np.int32]:
    """The magnitudes of symbols, of which the encoder is given all and the decoder none."""
    wide = symbols >= _DIRECT
    widths = symbols[wide].astype(np.int64) - (_DIRECT - 4)
    low: Integers = np.minimum(widths, 10)
    rest: Integers = magnitudes[wide].astype(np.int64) - (1 << widths)
    lowest = coder.bits(rest % (1 << low), low)
    remainders = lowest + (coder.bits(rest >> low, widths - low) << low)
    found = symbols.astype(np.int32)
    found[wide] = remainders + (1 << widths)
    return found


Coder = Encoder | Decoder
