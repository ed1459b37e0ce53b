"""Inputs on a GPU: they are not copied, and results are returned in the same place."""

from __future__ import annotations

import sys
from contextlib import contextmanager, nullcontext
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

import kronlearn as kl
import reference
from emulated_gpu import ArrayGpu, OnEmulatedGpu
from kronlearn.core.coder import Coder
from kronlearn.core.engine import Task
from kronlearn.core.init import dct_factor
from kronlearn.cuda.arrays import DeviceSource, as_cupy, is_on_gpu, returned_as
from kronlearn.cuda.engine import Cuda
from test_cuda_images import picture

EMULATED = ArrayGpu


# Images


@pytest.mark.parametrize(
    ("shape", "axis"), [((20, 18, 3), -1), ((3, 20, 18), 0), ((6, 12, 11), None)]
)
def test_all_of_denoising_happens_on_the_gpu(on_gpu, rng, shape, axis):
    clean = picture(shape)
    noisy = clean + rng.normal(0, 15, shape)
    options = {"channel_axis": axis, "max_iter": 2, "quality": "fast"}
    given = on_gpu.upload(noisy)
    found = kl.images.denoise(given, **options, full=True)
    expected = kl.images.denoise(noisy, **options, full=True)
    np.testing.assert_allclose(found.sigma, expected.sigma, rtol=1e-6)
    assert type(found.image) is type(given)
    error, wanted = np.std(on_gpu.download(found.image) - clean), np.std(expected.image - clean)
    assert error == pytest.approx(wanted, rel=0.05)


def test_images_on_the_gpu_are_inpainted(on_gpu, rng):
    image = picture((30, 26))
    missing = rng.random(image.shape) < 0.3
    given = on_gpu.upload(image)
    found = kl.images.inpaint(given, on_gpu.upload(missing), max_iter=2)
    assert type(found) is type(given)
    filled = on_gpu.download(found)
    np.testing.assert_array_equal(filled[~missing], image[~missing])
    expected = kl.images.inpaint(image, missing, max_iter=2)
    assert np.std(filled - image) < 1.2 * np.std(expected - image) + 0.5


def test_cubes_on_the_gpu_are_denoised(on_gpu, rng):
    clean = np.add.outer(np.arange(20), np.arange(24))[..., None] * rng.random(6)
    noisy = clean + rng.normal(0, 2, clean.shape)
    given = on_gpu.upload(noisy)
    found = kl.hyperspectral.denoise(given)
    assert type(found) is type(given)
    expected = kl.hyperspectral.denoise(noisy)
    np.testing.assert_allclose(on_gpu.download(found), expected, atol=0.05)


@pytest.mark.parametrize("dtype", [">f4", ">u2", "f2", "g"])
def test_images_keep_dtypes_that_gpus_lack(on_gpu, rng, dtype):
    noisy = (picture((40, 36)) + rng.normal(0, 10, (40, 36))).clip(0, 255).astype(dtype)
    options = {"sigma": 10.0, "quality": "dictionary", "dictionary": [dct_factor(8, 16)] * 2}
    found = kl.images.denoise(noisy, **options, device="cuda")
    assert found.dtype == noisy.dtype
    np.testing.assert_allclose(
        found.astype(float), kl.images.denoise(noisy, **options).astype(float), atol=1.0
    )


def test_threads_do_not_run_on_a_gpu(on_gpu):
    samples = np.zeros((20, 4, 4))
    for given, device in ((samples, "cuda"), (on_gpu.upload(samples), "cpu")):
        model = kl.KroneckerDictionaryLearning(4, engine="threads", device=device)
        with pytest.raises(ValueError, match='engine="threads" does not run on a GPU'):
            model.fit(given)


def test_large_images_stay_in_memory(on_gpu, rng):
    noisy = picture((24, 22)) + rng.normal(0, 10, (24, 22))
    options = {"sigma": 10.0, "quality": "fast", "dictionary": [dct_factor(8, 16)] * 2}
    expected = kl.images.denoise(noisy, **options, device="cuda")
    with kl.cuda.memory_limit(1 << 15):
        found = kl.images.denoise(noisy, **options, device="cuda")
    # Means of planes are rounded differently.
    assert np.std(found - expected) < 0.05


# Samples


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_codes_and_samples_stay_on_the_gpu(on_gpu, rng, dtype, monkeypatch):
    # Reconstruct in blocks of a few rows.
    monkeypatch.setattr("kronlearn.core.mode_products._BLOCK_NUMBERS", 300)
    factors = reference.random_factors(rng, (5, 4), (6, 7))
    Y = rng.standard_normal((50, 5, 4)).astype(dtype)
    model = kl.KroneckerDictionaryLearning((6, 7), n_nonzero_coefs=3, init=factors, max_iter=1)
    model.fit(Y)
    expected, given = model.transform(Y), on_gpu.upload(Y)
    codes, before = model.transform(given), getattr(on_gpu, "left", 0)
    np.testing.assert_allclose(codes.get().toarray(), expected.toarray(), atol=1e-4)
    wanted = model.inverse_transform(expected)
    for found in (
        model.inverse_transform(codes),
        model.dictionary_.reconstruct(codes),
        model.dictionary_.reconstruct(codes.toarray()),
    ):
        assert type(found) is type(given)
        assert found.dtype == dtype
        assert getattr(on_gpu, "left", 0) == before
        np.testing.assert_allclose(on_gpu.download(found), wanted, atol=1e-4)
        before = getattr(on_gpu, "left", 0)
    found = model.dictionary_.correlate(given)
    assert type(found) is type(given)
    np.testing.assert_allclose(
        on_gpu.download(found), model.dictionary_.correlate(Y), rtol=1e-4, atol=1e-4
    )


def test_codes_on_the_gpu_with_columns_out_of_range_are_an_error(on_gpu):
    from cupyx.scipy.sparse import csr_matrix

    arrays = on_gpu.upload(np.ones(1)), on_gpu.upload(np.array([7])), on_gpu.upload([0, 1])
    with pytest.raises(ValueError, match="not in 0 to 5"):
        kl.KroneckerDictionary([np.eye(2), np.eye(3)]).reconstruct(csr_matrix(arrays, shape=(1, 6)))


def test_factors_targets_and_weights_may_be_on_the_gpu(on_gpu, rng):
    factors = reference.random_factors(rng, (5, 4), (6, 7))
    Y, weights, tol = rng.standard_normal((50, 5, 4)), rng.random((50, 5, 4)), rng.random(50)
    there = list(map(on_gpu.upload, factors))
    targets = {"tol": on_gpu.upload(tol), "weights": on_gpu.upload(weights)}
    expected = kl.sparse_code(Y, factors, tol=tol, weights=weights).toarray()
    found = kl.sparse_code(on_gpu.upload(Y), there, **targets)
    np.testing.assert_allclose(found.get().toarray(), expected, atol=1e-6)
    np.testing.assert_array_equal(kl.sparse_code(Y, there, **targets).toarray(), expected)
    settings = {"n_atoms": (6, 7), "n_nonzero_coefs": 3, "max_iter": 1}
    one, other = (
        kl.KroneckerDictionaryLearning(**settings, init=init).fit(Y) for init in (factors, there)
    )
    assert one.history_["rmse"] == other.history_["rmse"]


@pytest.mark.parametrize(
    ("method", "n", "width", "dtype"),
    [
        ("omp", 8, 4, np.float32),
        ("threshold", 8, 5, np.float32),
        ("omp", 16, 6, np.float32),
        ("ols", 7, 3, np.float32),
        ("ols", 7, 3, np.float64),
    ],
)
def test_all_of_a_code_is_written(on_gpu, rng, monkeypatch, method, n, width, dtype):
    empty = on_gpu.xp.empty

    def used_before(*given, **options):
        array = empty(*given, **options)
        array.fill(77)
        return array

    def asked():
        raise AssertionError("Small samples on the GPU must not ask for the free memory.")

    Y = rng.standard_normal((150, 8, 8)).astype(dtype)
    # Some are zero, tiny, or of one atom: these end early, or need double precision.
    factors = [np.linalg.qr(rng.standard_normal((8, 8)))[0][:, :n]] * 2
    if n == 16:
        factors = reference.random_factors(rng, (8, 8), (16, 16))
    Y[3], Y[5:9] = 0, Y[5:9] * dtype(1e-20)
    Y[11] = np.outer(factors[0][:, 1], factors[1][:, 2])
    given = on_gpu.upload(Y)
    monkeypatch.setattr(on_gpu.xp, "empty", used_before, raising=False)
    dictionary, coder = kl.KroneckerDictionary(factors), Coder(method, width, 1e-3)
    engine = Cuda(DeviceSource(given, (8, 8)), 64)
    codes = engine.run(Task(dictionary, coder, keeps_codes=True)).codes
    parts = codes.index, codes.nonzeros, codes.value, codes.residual2
    index, nonzeros, value, residual2 = map(on_gpu.download, parts)
    unused = np.arange(width) >= nonzeros[:, None]
    assert not index[unused].any()
    assert not value[unused].any()
    assert residual2.max() < np.square(Y).sum(axis=(1, 2)).max()
    monkeypatch.setattr(on_gpu, "free_memory", asked)
    found = kl.sparse_code(given, dictionary, width, 1e-3, method)
    expected = dictionary.reconstruct(kl.sparse_code(Y, dictionary, width, 1e-3, method))
    np.testing.assert_allclose(dictionary.reconstruct(found.get()), expected, atol=1e-4)


@pytest.mark.parametrize("offset", [1, 2])
def test_samples_on_the_gpu_may_begin_anywhere(on_gpu, rng, offset):
    dictionary = [dct_factor(8, 8)] * 2
    Y = rng.standard_normal((150, 8, 8)).astype(np.float32)
    room = on_gpu.upload(np.zeros(offset + Y.size, np.float32))
    room[offset:] = on_gpu.upload(Y.ravel())
    model = kl.KroneckerDictionaryLearning(
        8, n_nonzero_coefs=4, init=dictionary, max_iter=2, method="omp", device="cuda"
    )
    found = model.fit(room[offset:].reshape(150, 8, 8)).history_["rmse"]
    np.testing.assert_array_equal(found, model.fit(Y).history_["rmse"])


@pytest.mark.parametrize(
    ("shape", "message"),
    [((0, 4, 4), "0 sample"), ((5, 0), "0 feature"), ((16,), "an array of samples")],
)
def test_empty_samples_on_the_gpu_are_an_error(on_gpu, shape, message):
    with pytest.raises(ValueError, match=message):
        kl.sparse_code(on_gpu.upload(np.zeros(shape)), [np.eye(4)] * 2, 2, device="cuda")


def test_complex_numbers_on_the_gpu_are_refused(on_gpu):
    d, numbers = kl.KroneckerDictionary([np.eye(2)] * 2), on_gpu.upload(np.ones((3, 2, 2), complex))
    for use in (d.correlate, d.reconstruct):
        with pytest.raises(ValueError, match="has dtype complex128"):
            use(numbers)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_samples_on_the_gpu_are_learned_from(on_gpu, rng, dtype):
    Y = reference.sparse_samples(rng, reference.random_factors(rng, (5, 4), (6, 6)), 300, 2)
    settings = {"n_nonzero_coefs": 2, "max_iter": 4, "random_state": 0}
    given = on_gpu.upload(Y.astype(dtype))
    found = kl.KroneckerDictionaryLearning(6, **settings).fit(given)
    expected = kl.KroneckerDictionaryLearning(6, **settings).fit(Y.astype(dtype))
    np.testing.assert_allclose(found.history_["rmse"], expected.history_["rmse"], rtol=1e-3)
    assert -found.score(given) == pytest.approx(min(found.history_["rmse"]), rel=1e-6)


def test_tensors_of_pytorch_are_taken_and_given(on_gpu, rng):
    torch = pytest.importorskip("torch")
    if isinstance(on_gpu, ArrayGpu) or not torch.cuda.is_available():
        pytest.skip("PyTorch has no GPU")
    noisy = (picture((64, 60)) + rng.normal(0, 10, (64, 60))).astype(np.float32)
    options = {"sigma": 10.0, "dictionary": [dct_factor(8, 16)] * 2}
    given = torch.tensor(noisy, device="cuda", requires_grad=True)
    found = kl.images.denoise(given, **options, device="cuda")
    assert isinstance(found, torch.Tensor)
    assert found.is_cuda
    expected = kl.images.denoise(noisy, **options, device="cuda")
    np.testing.assert_array_equal(found.cpu().numpy(), expected)
    Y = torch.tensor(rng.standard_normal((40, 5, 4)), device="cuda")
    factors = reference.random_factors(rng, (5, 4), (6, 7))
    codes = kl.sparse_code(Y, factors, 3, device="cuda")
    wanted = kl.sparse_code(Y.cpu().numpy(), factors, 3)
    np.testing.assert_allclose(codes.get().toarray(), wanted.toarray(), atol=1e-9)


# How arrays change hands


class Tensor:
    """A stand-in for a tensor of PyTorch; ``streams`` are those that were told to wait for it."""

    def __init__(self, array=None, kind=2, requires_grad=False):
        self.array, self.kind, self.requires_grad = array, kind, requires_grad
        self.streams = []

    def __dlpack_device__(self):
        return self.kind, 0

    def __dlpack__(self, stream, **options):
        self.streams.append(stream)
        # An emulated array is its own capsule.
        emulated = isinstance(self.array, OnEmulatedGpu)
        return self.array if emulated else self.array.__dlpack__(stream=stream, **options)

    @property
    def __cuda_array_interface__(self):
        if self.kind != 2:
            raise AttributeError
        if self.requires_grad:
            raise RuntimeError("Can't get __cuda_array_interface__ on Variable that requires grad.")
        return dict(self.array.__cuda_array_interface__)

    def detach(self):
        tensor = Tensor(self.array)
        tensor.streams = self.streams
        return tensor


class NumbaArray:
    """An array on GPU 1, of a library without DLPack."""

    __cuda_array_interface__: ClassVar[dict[str, Any]] = {}


class TwoGpus:
    """A stand-in for CuPy with two GPUs, the first of which is current."""

    def __init__(self):
        self.current = 0
        self.cuda = SimpleNamespace(Device=self.device)
        self.ndarray = SimpleNamespace

    def asarray(self, array):
        return SimpleNamespace(device=SimpleNamespace(id=1), of=array)

    def device(self, number=None):
        if number is None:
            return SimpleNamespace(id=self.current)

        @contextmanager
        def used():
            before, self.current = self.current, number
            try:
                yield
            finally:
                self.current = before

        return used()


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.zeros(3), False),
        ([1.0], False),
        ("file.npy", False),
        (Tensor(kind=1), False),
        (Tensor(kind=13), True),
        (Tensor(requires_grad=True), True),
        (np.zeros(3).view(OnEmulatedGpu), True),
    ],
)
def test_arrays_on_a_gpu_are_recognised(array, expected):
    assert is_on_gpu(array) is expected


@pytest.mark.parametrize("requires_grad", [False, True])
def test_the_stream_that_reads_waits_for_the_one_that_writes(on_gpu, rng, requires_grad):
    Y = rng.standard_normal((40, 5, 4))
    tensor, stream = Tensor(on_gpu.upload(Y), requires_grad=requires_grad), nullcontext()
    if not isinstance(on_gpu, ArrayGpu):
        stream = on_gpu.xp.cuda.Stream(non_blocking=True)
        # The test's tensor only records which stream waits for it.
        on_gpu.finish()
    with stream:
        found = as_cupy(on_gpu.xp, tensor)
        np.testing.assert_array_equal(on_gpu.download(found), Y)
    assert tensor.streams == [getattr(stream, "ptr", 1)]


def test_samples_are_processed_by_the_gpu_that_holds_them(monkeypatch):
    gpus, seen, tensor = TwoGpus(), [], Tensor()
    monkeypatch.setattr("kronlearn.cuda.arrays.cupy", lambda: gpus)
    monkeypatch.setattr(tensor, "__dlpack_device__", lambda: (2, 1), raising=False)

    def opened(*_):
        seen.append(gpus.current)
        raise InterruptedError

    monkeypatch.setattr("kronlearn.coding.open_samples", opened)
    monkeypatch.setattr("kronlearn.estimators.open_samples", opened)
    model = kl.KroneckerDictionaryLearning(4)
    model.dictionary_, model.patch_shape_ = kl.KroneckerDictionary([np.eye(4)] * 2), (4, 4)
    calls = (model.fit, model.partial_fit, model.transform, model.score)
    for call in (*calls, partial(kl.sparse_code, dictionary=[np.eye(4)] * 2, n_nonzero_coefs=2)):
        for given in (tensor, NumbaArray(), np.zeros((3, 4, 4))):
            with pytest.raises(InterruptedError):
                call(given)
    assert seen == [1, 1, 0] * 5
    assert gpus.current == 0


def test_arrays_on_another_gpu_are_an_error():
    with pytest.raises(ValueError, match=r"on GPU 1, and the current one is 0"):
        as_cupy(TwoGpus(), NumbaArray())


def test_results_belong_to_the_library_of_the_input(monkeypatch):
    library = ModuleType("tensors")
    library.from_dlpack = lambda array: ("tensor", array)
    monkeypatch.setitem(sys.modules, "tensors", library)
    monkeypatch.setattr(Tensor, "__module__", "tensors.parts")
    result = np.zeros(2)
    assert returned_as(Tensor(), result) == ("tensor", result)
    assert returned_as(np.ones(3), result) is result
    monkeypatch.delattr(library, "from_dlpack")
    assert returned_as(Tensor(), result) is result
