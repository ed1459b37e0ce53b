"""The command line on a GPU, tested emulated and, if there is one, on a real one."""

import logging
from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pytest
from skimage import io
from skimage.data import camera

from command_line import fails, record_of, run, succeeds
from emulated_gpu import EmulatedGpu
from kronlearn.experiments import gpu
from kronlearn.experiments.data import perturbed_dct
from kronlearn.experiments.store import Store

COMMANDS = [
    ["learn", "patches.npy", "--patch", "4x6"],
    ["denoise", "photo.png", "out.png", "--add-noise", "20"],
    ["inpaint", "photo.png", "out.png", "--drop", "0.3"],
    ["cube", "learn", "scene.npy"],
    ["cube", "denoise", "scene.npy", "out.npy"],
]


def command_name(command):
    return " ".join(word for word in command if word.isalpha())


@pytest.fixture(autouse=True)
def inputs(tmp_path, monkeypatch, rng):
    """Small files for all commands, in a folder of their own."""
    monkeypatch.chdir(tmp_path)
    np.save("patches.npy", rng.standard_normal((200, 4, 6)).astype(np.float32).cumsum(axis=1))
    io.imsave("photo.png", camera()[100:132, 200:232], check_contrast=False)
    scene = rng.normal(100, 5, (16, 16, 6)) + 50 * np.arange(6)
    np.save("scene.npy", scene.astype(np.float32))


def found_by(*arguments):
    return record_of(*arguments, "--overwrite")


@pytest.mark.parametrize("command", COMMANDS, ids=command_name)
def test_a_command_without_a_gpu_says_what_to_do(command, monkeypatch):
    def no_gpu():
        raise RuntimeError('device="cuda" found no GPU; pass device="cpu".')

    monkeypatch.setattr("kronlearn.cuda.device._current", no_gpu)
    line = fails(*command, "--device", "cuda")
    assert line == "Error: --device cuda found no GPU; leave the option out."


def test_a_command_without_cupy_says_what_to_install(monkeypatch):
    def no_cupy():
        raise ImportError("device=\"cuda\" needs CuPy: pip install '.[cuda13]' in a checkout.")

    monkeypatch.setattr("kronlearn.cuda.device._current", no_cupy)
    line = fails("bench", "gpu")
    assert line == "Error: bench gpu needs CuPy: pip install '.[cuda13]' in a checkout."


def test_learning_on_a_gpu_reaches_the_error_of_the_processor(on_gpu):
    command = ["learn", "patches.npy", "--patch", "4x6", "--max-iter", "5", "--seed", "0"]
    expected = found_by(*command)
    found = found_by(*command, "--device", "cuda")
    np.testing.assert_allclose(found["rmse"], expected["rmse"], rtol=1e-2)


@pytest.mark.parametrize("command", COMMANDS[1:3], ids=command_name)
def test_images_are_restored_on_a_gpu_as_on_the_processor(on_gpu, command):
    expected = found_by(*command, "--patch", "4x4")["scores"]["after"]["psnr"]
    found = found_by(*command, "--patch", "4x4", "--device", "cuda")["scores"]["after"]["psnr"]
    # In such a small image, a single patch with another atom matters.
    assert abs(found - expected) < 0.5


def test_cubes_are_processed_by_a_gpu_as_by_the_processor(on_gpu):
    learn = [*COMMANDS[3], "--patch", "4x4", "--max-iter", "3", "--seed", "0"]
    expected = found_by(*learn)["rmse"]
    np.testing.assert_allclose(found_by(*learn, "--device", "cuda")["rmse"], expected, rtol=1e-2)
    found_by(*COMMANDS[4])
    expected = np.load("out.npy")
    found_by(*COMMANDS[4], "--device", "cuda")
    np.testing.assert_allclose(np.load("out.npy"), expected, rtol=0, atol=0.5)


def test_preparing_kernels_is_reported_once(monkeypatch):
    def noisy_gpu():
        logging.getLogger("kronlearn.cuda.device").info("Compiling.")

    monkeypatch.setattr("kronlearn.cuda.device._current", noisy_gpu)
    for options, told in (([], 1), (["--quiet"], 0), (["--json"], 0)):
        for _ in range(2):
            # The command fails in the end, because the GPU is None.
            result = run("learn", "patches.npy", "--device", "cuda", *options)
            assert result.stderr.count("Preparing kernels") == told


def test_the_benchmark_of_a_gpu_measures_learning_and_coding(on_gpu, monkeypatch, tmp_path):
    if isinstance(on_gpu, EmulatedGpu):
        # Emulated, whole iterations take minutes; this shape has no kernels for them.
        monkeypatch.setattr(gpu, "CASES", {"D": gpu.Case(9216, 4, 6, 3)})
        monkeypatch.setattr(gpu, "_gpu_name", lambda: "this GPU")
    monkeypatch.setattr(gpu, "find_spec", lambda name: None)
    table = tmp_path / "gpu.csv"
    rows = record_of("bench", "gpu", "--quick", "--case", "d", "--csv", table)["rows"]
    assert [(row["settings"], row["unit"]) for row in rows] == [
        *(("plain", "ms"), ("defaults", "ms"), ("coding", "ms")),
    ]
    assert all(row["what"] == "D" and row["value"] > 0 for row in rows)
    assert [asdict(row) for row in Store(table, gpu.Row).rows] == rows
    shown = succeeds("bench", "gpu", "--quick", "--case", "D").stdout
    assert gpu._gpu_name() in shown
    assert "batched-omp is not installed" in shown


def test_an_unknown_case_of_the_gpu_benchmark_is_an_error():
    assert "--case: 'Z' is not a case; give one of A to I." in fails("bench", "gpu", "--case", "Z")


@pytest.mark.parametrize("problem", [ImportError("no triton"), OSError("no libcudart")])
def test_a_competitor_that_cannot_be_imported_is_left_out(monkeypatch, problem):
    def fails(name):
        raise problem

    monkeypatch.setattr(gpu, "find_spec", lambda name: name == "batched_omp" or None)
    monkeypatch.setattr(gpu, "import_module", fails)
    assert gpu.competitor() == (None, f"cannot be imported ({problem})")


def test_coding_is_compared_with_batched_omp_if_it_is_installed(monkeypatch):
    coded = []

    def run_omp(atoms, samples, n_nonzero_coefs, **options):
        coded.append((atoms.shape, samples.shape, n_nonzero_coefs))

    torch = SimpleNamespace(
        from_dlpack=np.asarray,
        as_tensor=lambda array, device: array,
        cuda=SimpleNamespace(synchronize=lambda: None),
    )
    modules = {"torch": torch, "batched_omp": SimpleNamespace(run_omp=run_omp)}
    monkeypatch.setattr(gpu, "import_module", modules.__getitem__)
    monkeypatch.setattr(gpu, "find_spec", modules.get)
    assert gpu.competitor() == ((torch, run_omp), "")
    monkeypatch.setattr(gpu, "_NUMBERS_AT_A_TIME", 200 * 3 * 36)
    case = gpu.Case(300, 4, 6, 3)
    dictionary = perturbed_dct((4, 4), (6, 6))
    gpu._batched_omp(dictionary, case, gpu.image_like(300, 4))
    assert coded == [((16, 36), (200, 16), 3), ((16, 36), (100, 16), 3)]
