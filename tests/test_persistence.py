"""Model files: exact round trips, atomic writes, and errors for bad files."""

import contextlib
import json
import os
import stat
from unittest import mock

import numpy as np
import pytest
import safetensors.numpy

from kronlearn.core.dictionary import KroneckerDictionary
from kronlearn.io.model_files import (
    ModelFileError,
    load_dictionary,
    read_file,
    save_dictionary,
    write_file,
)

TENSOR = np.eye(2, dtype=np.float32)


def envelope(**changes):
    content = {"format": "kronlearn model", "version": 1, "kind": "dictionary", "info": {}}
    return json.dumps(content | changes)


def write_raw(path, tensors=None, metadata=None):
    """A safetensors file with this metadata, valid or not as a model."""
    tensors = {"factors.0": TENSOR} if tensors is None else tensors
    path.write_bytes(safetensors.numpy.save(tensors, metadata=metadata))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


@pytest.fixture
def saved(path):
    KroneckerDictionary([np.eye(2, dtype=np.float32), np.eye(1, dtype=np.float32)]).save(path)
    return path


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shapes", [[(4, 6)], [(3, 4), (5, 2)], [(2, 1)] * 12])
def test_a_dictionary_comes_back_bit_for_bit(path, rng, shapes, dtype):
    factors = [rng.standard_normal(shape).astype(dtype) for shape in shapes]
    d = KroneckerDictionary.normalized(factors)
    d.save(path)
    assert load_dictionary(path) == d
    assert load_dictionary(str(path)) == d


def test_the_info_comes_back_with_numpy_scalars_as_numbers(path):
    d = KroneckerDictionary([np.eye(2)])
    save_dictionary(d, path, info={"rmse": np.float32(0.5), "n": np.int64(3), "text": "π ≈ 3"})
    assert read_file(path, "dictionary")[1] == {"rmse": 0.5, "n": 3, "text": "π ≈ 3"}


def test_the_same_dictionary_gives_the_same_bytes(saved, tmp_path):
    other = tmp_path / "other.safetensors"
    load_dictionary(saved).save(other)
    assert other.read_bytes() == saved.read_bytes()


def test_other_programs_see_an_ordinary_safetensors_file(saved):
    tensors = safetensors.numpy.load_file(saved)
    assert sorted(tensors) == ["factors.0", "factors.1"]
    with safetensors.safe_open(saved, framework="np") as file:
        assert json.loads(file.metadata()["kronlearn"])["kind"] == "dictionary"


@pytest.mark.parametrize(
    "array",
    [
        np.array(3.5),
        np.empty((0, 4)),
        np.arange(6, dtype=np.int64).reshape(2, 3).T,
        np.array([True, False]),
        np.arange(4, dtype=">f8"),
        np.array([2**64 - 1], np.uint64),
    ],
    ids=["scalar", "empty", "transposed", "bool", "big-endian", "uint64"],
)
def test_a_checkpoint_keeps_arrays_and_header(path, array):
    write_file(path, "checkpoint", {"state": array}, {"seed": 2**127, "list": [1, 2.5, None]})
    tensors, header = read_file(path, "checkpoint")
    assert np.array_equal(tensors["state"], array)
    assert tensors["state"].shape == array.shape
    assert tensors["state"].dtype == array.dtype.newbyteorder("=")
    tensors["state"][...] = 0
    assert header == {"seed": 2**127, "list": [1, 2.5, None]}


def test_a_file_is_replaced_in_one_step_and_leaves_nothing_beside_it(saved):
    new = KroneckerDictionary([np.eye(3)])
    new.save(saved)
    assert load_dictionary(saved) == new
    assert [entry.name for entry in saved.parent.iterdir()] == [saved.name]


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (OSError("No space left on device"), "could not be written: the disk is full"),
        (KeyboardInterrupt(), None),
    ],
)
def test_a_write_that_fails_or_is_interrupted_keeps_the_old_file(saved, problem, words):
    before = saved.read_bytes()
    with (
        mock.patch.object(os, "fsync", side_effect=problem),
        pytest.raises(type(problem), match=words),
    ):
        KroneckerDictionary([np.eye(3)]).save(saved)
    assert saved.read_bytes() == before
    assert [entry.name for entry in saved.parent.iterdir()] == [saved.name]


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX permissions and links")
def test_a_new_file_has_ordinary_permissions_and_links_stay_links(saved, tmp_path):
    plain = tmp_path / "plain"
    plain.touch()
    assert stat.S_IMODE(saved.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)
    link = tmp_path / "link.safetensors"
    link.symlink_to(saved)
    new = KroneckerDictionary([np.eye(3)])
    new.save(link)
    assert link.is_symlink()
    assert load_dictionary(saved) == new


def test_invalid_content_and_targets_are_refused(path, tmp_path):
    with pytest.raises(ValueError, match="must be JSON: Out of range float"):
        write_file(path, "checkpoint", {}, {"rmse": float("nan")})
    with pytest.raises(ValueError, match="must be JSON: set values cannot be stored"):
        write_file(path, "checkpoint", {}, {"a": {1, 2}})
    with pytest.raises(IsADirectoryError, match="is a folder; give the name of a file"):
        write_file(tmp_path, "checkpoint", {}, {})
    with pytest.raises(FileNotFoundError, match="nowhere does not exist; create it first"):
        write_file(tmp_path / "nowhere" / "model", "checkpoint", {}, {})
    assert list(tmp_path.iterdir()) == []


def test_a_missing_file_is_both_a_value_error_and_a_file_not_found_error(tmp_path):
    for missing in (tmp_path / "nothing", tmp_path / "no" / "where"):
        with pytest.raises(ModelFileError, match="does not exist") as caught:
            load_dictionary(missing)
        assert isinstance(caught.value, FileNotFoundError)
    (tmp_path / "file").touch()
    with pytest.raises(ModelFileError, match="does not exist"):
        load_dictionary(tmp_path / "file" / "below")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_folders_and_pipes_are_refused_without_waiting_for_them(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(ModelFileError, match="is not a regular file; give the name of"):
            load_dictionary(path)


def test_a_file_truncated_anywhere_is_refused(saved):
    content = saved.read_bytes()
    for length in range(0, len(content), 3):
        saved.write_bytes(content[:length])
        with pytest.raises(ModelFileError, match="is not a safetensors file, or is damaged"):
            load_dictionary(saved)


def test_any_changed_byte_gives_a_dictionary_or_a_model_file_error(saved):
    content = saved.read_bytes()
    for position in range(len(content)):
        for change in (0x01, 0xFF)[position % 2 :]:
            changed = bytearray(content)
            changed[position] ^= change
            saved.write_bytes(changed)
            with contextlib.suppress(ModelFileError):
                assert isinstance(load_dictionary(saved), KroneckerDictionary)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (envelope(format="recipe"), "not a kronlearn model"),
        (envelope(version=2), "file version 2, written by a newer kronlearn.*upgrade kronlearn"),
        (envelope(version=10**4000), "file version 1000"),
        (envelope(version="1"), "lacks a version, a kind or info"),
        (envelope(version=True), "lacks a version, a kind or info"),
        (envelope(kind="recipe"), "a kind or info"),
        (envelope(kind=["dictionary"]), "a kind or info"),
        (envelope(kind="checkpoint"), "is a checkpoint, not a dictionary"),
        (envelope(info=[]), "lacks a version, a kind or info"),
        (envelope(info=None), "lacks a version, a kind or info"),
        ("[]", "not a kronlearn model"),
        ("{", "its kronlearn header cannot be read"),
        ("[" * 100_000, "its kronlearn header cannot be read"),
        ('{"a": ' + "1" * 100_000 + "}", "its kronlearn header cannot be read"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_foreign_and_damaged_headers_are_refused(path, text, message):
    write_raw(path, metadata={"kronlearn": text})
    with pytest.raises(ModelFileError, match=message):
        load_dictionary(path)


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
def test_the_files_of_other_programs_are_refused(path, metadata):
    write_raw(path, metadata=metadata)
    with pytest.raises(ModelFileError, match="is a safetensors file, but not a kronlearn model"):
        load_dictionary(path)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({}, "has none"),
        ({"factors.1": TENSOR}, "has factors.1"),
        ({"factors.0": TENSOR, "extra": TENSOR}, "no others; it has extra, factors.0"),
        ({"factors.00": TENSOR}, "has factors.00"),
        ({"factors.0": TENSOR.astype(np.int64)}, "all be float32 or all float64; they are int64"),
        (
            {"factors.0": TENSOR, "factors.1": TENSOR.astype(np.float64)},
            "all be float32 or all float64; they are float32, float64",
        ),
        ({"factors.0": 2 * TENSOR}, r"valid dictionary: Column 0 of factors\[0\] has norm 2"),
        ({"factors.0": np.array([[np.nan]])}, r"factors\[0\] holds nan"),
        ({"factors.0": np.ones(3)}, r"factors\[0\] has 1 dimension"),
        ({"factors.0": np.ones((0, 3))}, "at least one row and one column"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_tensors_that_do_not_form_a_dictionary_are_refused(path, tensors, message):
    write_raw(path, tensors, {"kronlearn": envelope()})
    with pytest.raises(ModelFileError, match=message):
        load_dictionary(path)
