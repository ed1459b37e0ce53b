"""Messages between a driver and its workers: what is packed comes out again, without copies."""

from __future__ import annotations

import numpy as np
import pytest
from kronlearn.engines.packing import packed, unpacked


@pytest.mark.parametrize("lengths", [(), (3,), (100_000,), (70_001, 5, 9_000, 8_193)])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int8])
def test_what_is_packed_comes_out_again(lengths, dtype):
    value = {"name": "sums", "arrays": [np.arange(n).astype(dtype) for n in lengths]}
    found = unpacked(bytearray(b"".join(packed(value))))
    assert found["name"] == "sums"
    for array, expected in zip(found["arrays"], value["arrays"], strict=True):
        assert array.dtype == dtype
        assert array.flags.aligned
        np.testing.assert_array_equal(array, expected)


def test_long_arrays_are_not_copied_on_their_way():
    array = np.arange(50_000.0).reshape(500, 100)
    head, sent, *_ = packed([array, np.arange(3)])
    assert len(head) < 1000
    assert np.shares_memory(np.frombuffer(sent), array)
    message = bytearray(b"".join(packed([array])))
    [received] = unpacked(message)
    assert np.shares_memory(received, np.frombuffer(message, np.uint8))
