"""The C++ core without the Python module, built by every compiler that is installed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parents[1] / "native" / "tests" / "run"
# The other programs that each compiler needs.
COMPILERS = {
    "g++": [],
    "clang++": [],
    "aarch64-linux-gnu-g++": ["qemu-aarch64-static"],
}


@pytest.mark.slow
@pytest.mark.parametrize("compiler", COMPILERS)
def test_the_core_equals_the_reference_and_compiles_without_warnings(compiler, tmp_path):
    for program in ["bash", "cmake", compiler, *COMPILERS[compiler]]:
        if not shutil.which(program):
            pytest.skip(f"{program} is not installed")
    run = subprocess.run(
        ["bash", RUN, tmp_path, compiler],
        env=os.environ | {"PYTHON": sys.executable},
        capture_output=True,
        text=True,
    )
    output = run.stdout + run.stderr
    assert run.returncode == 0, output
    assert "warning:" not in output
