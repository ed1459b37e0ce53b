"""Packages are imported only when they are used."""

import subprocess
import sys

import kronlearn as kl

CODE = """
import sys
import numpy

before = set(sys.modules)


def added(*packages):
    return sorted({name.split(".")[0] for name in set(sys.modules) - before} & set(packages))


import kronlearn as kl

assert not added("scipy", "sklearn"), added("scipy", "sklearn")

codes = kl.sparse_code(numpy.ones((2, 8, 8)), [numpy.eye(8)] * 2, 1)
assert not added("sklearn", "joblib", "pandas", "safetensors")

model = kl.KroneckerDictionaryLearning((8, 8), max_iter=1).fit(numpy.eye(64).reshape(64, 8, 8))
model.dictionary_.save(sys.argv[1])
assert not {"kronlearn.cuda.device", "kronlearn.images"} & set(sys.modules)
kl.images.denoise(numpy.ones((16, 16)), sigma=1.0)
assert kl.convolutional and kl.plots
heavy = ["PIL", "cupy", "dask", "distributed", "h5py", "matplotlib", "rich", "skimage", "tifffile"]
heavy += ["typer", "xarray", "zarr"]
assert not added(*heavy), added(*heavy)
"""


def run_python(*arguments):
    command = [sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_packages_are_imported_only_when_they_are_used(tmp_path):
    run_python("-c", CODE, str(tmp_path / "model.safetensors"))


def test_python_m_kronlearn_is_the_command():
    assert run_python("-m", "kronlearn", "--version") == f"kronlearn {kl.__version__}\n"
