"""The tests of the C++ core, which need no Python, built with every installed compiler."""

import shutil
import subprocess
from pathlib import Path

import pytest

RUN = Path(__file__).parents[1] / "native" / "tests" / "run"
# Programs that a compiler needs to run its tests.
COMPILERS = {
    "g++": [],
    "clang++": [],
    "aarch64-linux-gnu-g++": ["qemu-aarch64-static"],
}


@pytest.mark.slow
@pytest.mark.parametrize("compiler", COMPILERS)
def test_the_core_equals_plain_loops_and_compiles_without_warnings(compiler, tmp_path):
    for program in ["bash", "cmake", compiler, *COMPILERS[compiler]]:
        if not shutil.which(program):
            pytest.skip(f"{program} is not installed")
    run = subprocess.run(["bash", RUN, tmp_path, compiler], capture_output=True, text=True)
    output = run.stdout + run.stderr
    assert run.returncode == 0, output
    assert "warning:" not in output
