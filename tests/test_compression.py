"""Coded images: the quality asked for, the same bits everywhere, damaged files refused."""

import io
import math
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from skimage import data
from skimage.metrics import peak_signal_noise_ratio

import kronlearn as kl
import reference
from kronlearn.core.init import dct_factor
from kronlearn.images.coded_file import Header, pack
from kronlearn.images.compression import CodedImage, CodedImageError, code, decode
from kronlearn.images.entropy import (
    MAX_MAGNITUDE,
    Decoder,
    Encoder,
    StreamError,
    Tables,
    code_remainders,
    symbols_of,
)
from kronlearn.images.levels import code_levels, code_means
from kronlearn.images.stored_dictionary import StoredDictionary, stored_size
from kronlearn.images.transform import Layout
from kronlearn.images.value_range import ValueRange

INTEGERS = ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8")


@pytest.fixture(scope="module")
def camera():
    return data.camera()[128:320, 160:384]


@pytest.fixture(scope="module")
def coded(camera):
    return code(camera, 34)


def reached(image, again, peak):
    """The PSNR of a decoded image, computed in Python's integers where it has to be."""
    if image.dtype.kind in "iu":
        pairs = zip(again.ravel().tolist(), image.ravel().tolist(), strict=True)
        errors = [(a - b) / peak for a, b in pairs]
    else:
        errors = (again.astype(np.float64) - image) / peak
    error = float(np.mean(np.square(errors)))
    return -10 * math.log10(error) if error else math.inf


def resealed(content):
    """A changed file with the length and the checksum that belong to it."""
    body = content[:5] + struct.pack("<Q", len(content)) + content[13:-4]
    return body + struct.pack("<I", zlib.crc32(body))


@pytest.mark.parametrize("psnr", [28, 36, 43.5])
def test_a_photograph_decodes_with_the_quality_asked_for(camera, psnr):
    coded = code(camera, psnr)
    again = coded.decode()
    assert again.shape == camera.shape
    assert again.dtype == np.uint8
    assert psnr <= coded.psnr <= psnr + 0.05
    assert coded.psnr == pytest.approx(peak_signal_noise_ratio(camera, again), abs=1e-9)
    assert coded.n_bytes == len(coded.to_bytes())
    assert coded.bits_per_pixel == 8 * coded.n_bytes / camera.size
    assert f"n_bytes={coded.n_bytes}" in repr(coded)


def test_a_photograph_takes_a_quarter_less_than_with_jpeg(camera):
    buffer = io.BytesIO()
    Image.fromarray(camera).save(buffer, "jpeg", quality=75, optimize=True)
    psnr = peak_signal_noise_ratio(camera, np.asarray(Image.open(buffer)))
    assert code(camera, psnr).n_bytes < 0.75 * len(buffer.getvalue())


def test_colours_are_coded_together():
    image = data.astronaut()[100:196, 150:278]
    coded = code(image, 34, channel_axis=-1)
    assert 34 <= coded.psnr <= 34.05
    assert coded.bits_per_pixel == 8 * coded.n_bytes / (96 * 128)
    assert coded.nonzeros_per_patch > 0
    planes = [code(image[..., k], 34).n_bytes for k in range(3)]
    assert coded.n_bytes < 0.7 * sum(planes)
    first = code(np.moveaxis(image, -1, 0), 34, channel_axis=0)
    assert np.array_equal(np.moveaxis(first.decode(), 0, -1), coded.decode())
    assert (first.channel_axis, coded.channel_axis) == (0, 2)


@pytest.mark.parametrize("dtype", [*INTEGERS, "f2", "f4", "f8", ">f4", ">u2"])
def test_every_dtype_comes_back(dtype, rng):
    dtype = np.dtype(dtype)
    waves = np.sin(np.add.outer(np.arange(40) / 9, np.arange(50) / 5))
    if dtype.kind == "f":
        image = (waves * 1e4 - 5e3).astype(dtype)
        peak = float(image.max()) - float(image.min())
    else:
        limits = np.iinfo(dtype)
        image = np.full(waves.shape, limits.max // 2, object)
        image += ((waves * 0.4) * (limits.max // 2)).astype(np.int64)
        image = np.where(rng.random(waves.shape) < 0.01, limits.min, image).astype(dtype)
        image.flat[:2] = limits.min, limits.max
        peak = limits.max - limits.min
    coded = code(image, 50)
    again = decode(coded)
    assert again.dtype == coded.dtype == dtype.newbyteorder("=")
    assert 50 <= coded.psnr <= 50.05
    assert reached(image, again, peak) == pytest.approx(coded.psnr, abs=1e-6)


@st.composite
def images(draw):
    """Small images of any shape, dtype and content that can be coded."""
    shape = draw(st.lists(st.integers(1, 12), min_size=1, max_size=3))
    dtype = np.dtype(draw(st.sampled_from([*INTEGERS, "f4", "f8"])))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if dtype.kind == "f":
        image = rng.standard_normal(shape) * 10.0 ** draw(st.integers(-30, 30))
        image = image.astype(dtype)
    else:
        image = np.frombuffer(rng.bytes(8 * math.prod(shape)), "u8").astype(dtype).reshape(shape)
    image = image * (rng.random(shape) < draw(st.sampled_from([0, 0.1, 1]))).astype(dtype)
    channel_axis = draw(st.sampled_from([None, *range(len(shape))])) if len(shape) > 1 else None
    return image, channel_axis


@settings(max_examples=40)
@given(images(), st.sampled_from([1, 3, 8]), st.sampled_from([10, 25, 45, 80]))
def test_any_small_image_decodes_at_least_as_well_as_asked_for(case, patch_size, psnr):
    image, channel_axis = case
    coded = code(image, psnr, channel_axis=channel_axis, patch_size=patch_size)
    again = decode(coded.to_bytes())
    assert (again.shape, again.dtype) == (image.shape, image.dtype)
    assert coded.psnr >= psnr
    peak = float(image.max().item() - image.min().item())
    if image.dtype.itemsize == 1:
        peak = 255
    elif image.dtype.kind == "u" and image.dtype.itemsize <= 4:
        peak = 2 ** max(8, int(image.max()).bit_length()) - 1
    assert reached(image, again, peak or 1) == pytest.approx(coded.psnr, abs=1e-6)


@pytest.mark.parametrize(
    "image",
    [
        np.full((20, 30), 7, np.uint8),
        np.full((5,), 1e300),
        np.array([[-(2**63)]]),
        np.zeros((3, 1, 2, 4), np.float32),
    ],
    ids=["uint8", "large", "one pixel", "four axes"],
)
def test_an_image_of_one_value_is_kept_exactly_in_a_hundred_bytes(image):
    coded = code(image)
    assert coded.n_bytes <= 100
    assert coded.psnr == math.inf
    assert coded.nonzeros_per_patch == 0
    assert np.array_equal(decode(coded), image)


def test_integers_can_be_kept_exactly(camera):
    image = camera[:24, :24]
    coded = code(image, 90)
    assert coded.psnr == math.inf
    assert np.array_equal(coded.decode(), image)


def test_volumes_and_signals_are_coded_too():
    grid = np.stack(np.meshgrid(*[np.linspace(-1, 1, n) for n in (20, 24, 33)], indexing="ij"))
    ball = (np.square(grid).sum(axis=0) < 0.5).astype(np.float32) + grid[0].astype(np.float32)
    coded = code(ball, 40)
    assert coded.patch_shape == (8, 8, 8)
    assert 40 <= coded.psnr <= 40.05
    assert coded.n_bytes < ball.nbytes / 8
    signal = np.cumsum(np.random.default_rng(0).standard_normal(3000))
    assert code(signal, 40).n_bytes < 3000


def test_the_peak_can_be_given():
    image = np.random.default_rng(0).integers(100, 111, (32, 32)).astype(np.uint16)
    assert code(image, 40, data_range=10).n_bytes > 2 * code(image, 40).n_bytes


def test_data_of_few_bits_in_many_is_not_coded_to_nothing(camera):
    wide = camera.astype(np.uint16) * 16
    assert code(wide, 36).n_bytes == pytest.approx(code(camera, 36).n_bytes, rel=0.2)
    restored = decode(code(wide, 36))
    assert np.std(restored.astype(float) - wide) < 4095 / 10 ** (36 / 20)


def test_files_have_the_same_bits_for_any_number_of_threads(camera):
    for options in ({}, {"n_atoms": 12}):
        one, two = (code(camera, 32, n_jobs=n, **options).to_bytes() for n in (1, 2))
        assert one == two


def test_a_dictionary_is_learned_where_cosines_are_no_good():
    rng = np.random.default_rng(0)
    factors = reference.orthonormal_factors(rng, (8, 8), np.float64)
    codes = rng.standard_normal((24 * 24, 64)) * (rng.random((24 * 24, 64)) < 0.06)
    patches = kl.KroneckerDictionary(factors).reconstruct(codes)
    image = Layout(1, (192, 192), (8, 8)).join(patches)[0]
    coded = code(image, 30)
    assert coded.dictionary_kind == "orthonormal"
    cosines = code(image, 30, dictionary=[dct_factor(8, 8)] * 2)
    assert coded.n_bytes < 0.8 * cosines.n_bytes


def test_dictionaries_can_be_given_or_be_redundant(camera, rng):
    given = code(camera, 32, dictionary=reference.orthonormal_factors(rng, (4, 6), np.float64))
    assert (given.patch_shape, given.dictionary_kind) == ((4, 6), "orthonormal")
    redundant = code(camera, 32, patch_size=(8, 6), n_atoms=(16, 9))
    assert (redundant.n_atoms, redundant.dictionary_kind) == ((16, 9), "general")
    for coded in (given, redundant):
        assert 32 <= coded.psnr <= 32.05
        assert reached(camera, coded.decode(), 255) == pytest.approx(coded.psnr)


def test_a_sum_of_kronecker_products_is_refused_unless_it_is_one(rng):
    image = rng.integers(0, 256, (16, 16), dtype=np.uint8)
    terms = [reference.orthonormal_factors(rng, (4, 4)) for _ in range(2)]
    with pytest.raises(ValueError, match="a sum of 2 Kronecker products; files hold the factors"):
        code(image, dictionary=kl.KroneckerSumDictionary(terms))
    single = code(image, dictionary=kl.KroneckerSumDictionary(terms[:1]))
    assert single.to_bytes() == code(image, dictionary=terms[0]).to_bytes()


@pytest.mark.parametrize("kind", ["orthonormal", "general"])
def test_a_stored_dictionary_comes_back_as_near_as_eight_bits_allow(kind, rng):
    shapes = [(8, 8), (5, 5)] if kind == "orthonormal" else [(8, 12), (5, 3)]
    factors = [rng.standard_normal(shape) for shape in shapes]
    if kind == "orthonormal":
        factors = [np.linalg.qr(factor)[0] for factor in factors]
    dictionary = kl.KroneckerDictionary.normalized(factors)
    stored = StoredDictionary.of(dictionary)
    sizes = dictionary.patch_shape, dictionary.n_atoms
    assert stored.kind == kind
    assert len(stored.to_bytes()) == stored_size(kind, *sizes)
    again = StoredDictionary.from_bytes(stored.to_bytes(), kind, *sizes).dictionary
    assert again == stored.dictionary
    for ours, theirs in zip(again.factors, dictionary.factors, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=0.02)
        if kind == "orthonormal":
            np.testing.assert_allclose(ours.T @ ours, np.eye(len(ours)), atol=1e-12)


def test_of_cosines_only_the_order_is_stored():
    stored = StoredDictionary.cosines((8, 5)).in_order([np.arange(8)[::-1], np.arange(5)])
    assert len(stored.to_bytes()) == 13
    np.testing.assert_allclose(stored.dictionary.factors[0], dct_factor(8, 8)[:, ::-1], atol=1e-14)
    with pytest.raises(ValueError, match="every frequency once"):
        StoredDictionary.from_bytes(b"\0\0", "cosine", (2,), (2,)).dictionary  # noqa: B018


def test_progress_is_told_by_stage(camera):
    told = []
    code(camera, 36, progress=lambda stage, share: told.append((stage, share)))
    assert {stage for stage, _ in told} == {"search", "learn", "code"}
    assert all(0 <= share <= 1 for _, share in told)
    assert told[-1] == ("code", 1)


@given(
    st.integers(0, 2**32 - 1),
    st.integers(0, 400),
    st.sampled_from([1, 2, 8, 64]),
    st.binary(max_size=300),
)
def test_the_entropy_coder_gives_back_symbols_bits_and_payload(seed, n, lanes, payload):
    rng = np.random.default_rng(seed)
    parts = []
    for _ in range(3):
        contexts = rng.integers(0, 4, n)
        magnitudes = np.minimum(rng.geometric(0.5**contexts) - 1, MAX_MAGNITUDE)
        magnitudes[rng.random(n) < 0.02] = MAX_MAGNITUDE
        widths = rng.integers(0, 17, n)
        parts.append((contexts, magnitudes, rng.integers(0, 1 << widths), widths))

    def run(coder, decoding):
        tables = Tables(np.array([4, 16, 40, 99]))
        for contexts, magnitudes, numbers, widths in parts:
            symbols = symbols_of(magnitudes).astype(np.int64)
            found = coder.code(tables, contexts, 0 * symbols if decoding else symbols)
            assert np.array_equal(found, symbols)
            assert np.array_equal(coder.bits(0 * numbers if decoding else numbers, widths), numbers)
            rest = code_remainders(
                coder, symbols.astype(np.int16), 0 * magnitudes if decoding else magnitudes
            )
            assert np.array_equal(rest, magnitudes)
            tables.fade(20)

    encoder = Encoder(lanes)
    run(encoder, decoding=False)
    stream = encoder.finish(payload)
    decoder = Decoder(stream, lanes)
    run(decoder, decoding=True)
    again = decoder.finish()
    assert again[: len(payload)] == payload
    assert not any(again[len(payload) :])
    with pytest.raises(StreamError):
        run(Decoder(stream[: 4 * lanes - 1], lanes), decoding=True)


def test_the_entropy_coder_comes_near_the_entropy(rng):
    symbols = np.minimum(rng.geometric(0.4, 200_000) - 1, 15)
    encoder, tables = Encoder(32), Tables(np.array([16]))
    for part in symbols.reshape(-1, 1000):
        encoder.code(tables, np.zeros(1000, np.int64), part)
    shares = np.bincount(symbols) / len(symbols)
    entropy = -np.sum(shares[shares > 0] * np.log2(shares[shares > 0])) * len(symbols) / 8
    assert len(encoder.finish(b"")) < 1.005 * entropy + 128


@settings(max_examples=40)
@given(
    st.lists(st.integers(1, 7), min_size=1, max_size=3),
    st.integers(1, 3),
    st.sampled_from([0, 0.05, 0.9]),
    st.integers(0, 2**32 - 1),
)
def test_means_and_levels_come_back_for_any_grid(grid, n_channels, density, seed):
    rng = np.random.default_rng(seed)
    n_atoms = tuple(rng.integers(1, 5, len(grid)))
    means = rng.integers(-1000, 1000, (n_channels, *grid))
    shape = (n_channels, math.prod(n_atoms), *grid)
    levels = (rng.geometric(0.1, shape) - 1) * (rng.random(shape) < density)
    encoder = Encoder(4)
    code_means(encoder, means)
    code_levels(encoder, levels, n_atoms)
    decoder = Decoder(encoder.finish(b""), 4)
    assert np.array_equal(code_means(decoder, np.zeros_like(means)), means)
    assert np.array_equal(code_levels(decoder, np.zeros_like(levels), n_atoms), levels)


def test_a_file_is_saved_loaded_and_decoded(coded, tmp_path):
    path = tmp_path / "camera.kron"
    coded.save(path)
    assert CodedImage.load(path).psnr == coded.psnr
    assert np.array_equal(decode(path), coded.decode())
    assert np.array_equal(decode(str(path)), coded.decode())
    assert np.array_equal(decode(bytearray(path.read_bytes())), coded.decode())
    with pytest.raises(FileExistsError, match=r"camera\.kron exists already; .*overwrite=True"):
        coded.save(path)
    coded.save(path, overwrite=True)
    assert [entry.name for entry in tmp_path.iterdir()] == ["camera.kron"]
    with pytest.raises(FileNotFoundError, match="does not exist"):
        coded.save(tmp_path / "nowhere" / "camera.kron")
    with pytest.raises(FileNotFoundError):
        decode(tmp_path / "other.kron")


def test_a_file_cut_off_anywhere_or_with_a_changed_byte_is_refused(coded, tmp_path):
    content = coded.to_bytes()
    for end in (*range(100), *range(100, len(content), 37)):
        with pytest.raises(CodedImageError, match=r"cut off|is not a coded image"):
            decode(content[:end])
    for place in (*range(100), *range(100, len(content), 37)):
        changed = bytearray(content)
        changed[place] ^= 0x10
        with pytest.raises(CodedImageError, match=r"damaged|version|cut off|not a coded image"):
            decode(bytes(changed))
    with pytest.raises(CodedImageError, match="has file version 2; this kronlearn reads version 1"):
        decode(content[:4] + b"\x02" + content[5:])
    path = tmp_path / "cut.kron"
    path.write_bytes(content[:500])
    with pytest.raises(ValueError, match=rf"cut\.kron has 500 bytes .* announces {len(content)}"):
        decode(path)
    path.write_text("something else")
    with pytest.raises(ValueError, match=r"cut\.kron is not a coded image of kronlearn\."):
        decode(path)


def test_files_made_up_by_chance_decode_or_are_refused(camera):
    rng = np.random.default_rng(0)
    image = camera[:40, :48]
    files = [
        code(image, 34),
        code(image, 30, n_atoms=10),
        code(np.stack([image] * 3), 28, channel_axis=0),
        code(image, 30, dictionary=[np.eye(8)] * 2),
        code(np.arange(60.0)),
        code(np.zeros((9, 9))),
    ]
    refused = 0
    for trial in range(150):
        content = bytearray(files[trial % len(files)].to_bytes())
        for _ in range(rng.integers(1, 4)):
            place = rng.integers(13, min(90, len(content)) if trial % 3 else len(content))
            content[place] = rng.integers(256)
        if trial % 5 == 0:
            content = content[: rng.integers(20, len(content))]
        try:
            decode(resealed(bytes(content)), max_values=100_000)
        except CodedImageError:
            refused += 1
    assert refused > 50


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shape": (2**32 - 1, 2**32 - 1)}, r"announces an image of shape \(4294967295, 42949"),
        ({"shape": (100_000, 10_000)}, "more than max_values=134217728"),
        ({"shape": (0, 5)}, "impossible"),
        ({"shape": (5, 5, 2000), "channel_axis": 2}, "impossible"),
        ({"n_atoms": (255, 255)}, "impossible"),
        ({"patch_shape": (65, 8), "n_atoms": (65, 8)}, "impossible"),
        ({"n_atoms": (8, 9)}, "impossible"),
        ({"step": math.nan}, "impossible"),
        ({"step": 1e300}, "impossible"),
        ({"shape": (9000, 9000), "lanes": 1}, "impossible"),
        ({"nonzeros": 2**63}, "its stream does not decode"),
        ({"values": ValueRange(np.dtype("f8"), 0.0, math.nan)}, "impossible"),
        ({"values": ValueRange(np.dtype("f8"), 3.0, 1.0)}, "impossible"),
        ({"values": ValueRange(np.dtype("f8"), -1.7e308, 1.7e308)}, "impossible"),
    ],
)
def test_headers_that_no_encoder_writes_are_refused_before_anything_is_allocated(changes, message):
    fields = {
        "shape": (16, 16),
        "channel_axis": None,
        "values": ValueRange(np.dtype("u1"), 0, 255),
        "patch_shape": (8, 8),
        "n_atoms": (8, 8),
        "lanes": 4096,
    }
    with pytest.raises(CodedImageError, match=message):
        decode(pack(Header(**(fields | changes)), bytes(4 * 4096 + 100)))


def test_a_larger_image_is_decoded_if_asked_for():
    content = code(np.full((1000, 1000), 3, np.uint8)).to_bytes()
    with pytest.raises(CodedImageError, match="more than max_values=1000; pass a larger number"):
        decode(content, max_values=1000)
    assert decode(content).shape == (1000, 1000)


@pytest.mark.parametrize(
    ("image", "options", "error", "message"),
    [
        (np.array([[1, np.nan]]), {}, ValueError, "image holds NaN"),
        (np.array([[1, np.inf]]), {}, ValueError, "image holds infinity"),
        (np.zeros((0, 4)), {}, ValueError, r"image has shape \(0, 4\)"),
        (np.array([[-1.7e308, 1.7e308]]), {}, ValueError, "scale it down"),
        (np.eye(9, dtype=bool), {}, ValueError, "image has dtype bool"),
        (np.eye(9) * 1j, {}, ValueError, "image has dtype complex128"),
        (np.eye(9, dtype=np.longdouble), {}, ValueError, "up to 64 bits"),
        (np.ones((2,) * 9), {}, ValueError, "up to 8 axes"),
        (np.eye(9), {"channel_axis": 2}, ValueError, "channel_axis=2 does not exist"),
        (np.ones((2, 1025)), {"channel_axis": 1}, ValueError, "1025 channels; files hold"),
        (np.eye(9), {"psnr": "high"}, TypeError, "psnr='high' is not a number"),
        (np.eye(9), {"psnr": -3}, ValueError, "psnr=-3 is not a quality"),
        (np.eye(9), {"psnr": math.nan}, ValueError, "psnr=nan"),
        (np.eye(9), {"psnr": 300}, ValueError, r"psnr=300 is out of reach: .* at most; ask for"),
        (np.eye(9), {"data_range": 0}, ValueError, "data_range=0 is not a range"),
        (np.eye(9), {"patch_size": 0}, ValueError, "patch_size=0"),
        (np.eye(9), {"patch_size": 100}, ValueError, "at most 64 pixels along an axis"),
        (np.eye(9), {"n_atoms": 256}, ValueError, r"\(256, 256\) atoms are too many"),
        (np.eye(9), {"n_atoms": 60}, ValueError, "16 times as many"),
        (np.eye(9), {"dictionary": [np.eye(8)]}, ValueError, r"patches of shape \(8,\)"),
        (np.eye(9), {"dictionary": [np.eye(3)] * 2, "n_atoms": 4}, ValueError, "pass one of them"),
        (np.ones((9, 9)), {"psnr": 0}, ValueError, "psnr=0 is not a quality"),
        (np.eye(9), {"n_jobs": 0}, ValueError, "n_jobs=0"),
        (np.eye(9), {"progress": 3}, TypeError, "progress=3"),
    ],
)
def test_what_cannot_be_coded_is_refused(image, options, error, message):
    with pytest.raises(error, match=message):
        code(image, **options)


def test_a_dictionary_that_cannot_reach_the_quality_is_refused(camera):
    with pytest.raises(ValueError, match="psnr=60 is out of reach"):
        code(camera[:64, :64], 60, n_atoms=2)
