"""Memory is needed for blocks and codes only: neither coding nor learning copies the samples."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="peak memory is read from /proc"
)

SETUP = """
import numpy as np
import kronlearn as kl

def peak():
    status = open("/proc/self/status").read()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024

def work(Y):
    {work}

rng = np.random.default_rng(0)
work(rng.standard_normal((3000, 8, 8), dtype=np.float32))
Y = rng.standard_normal(({n_samples}, 8, 8), dtype=np.float32)
before = peak()
work(Y)
print(peak() - before, Y.nbytes / 2**20)
"""

CODE = 'kl.sparse_code(Y, [np.eye(8, dtype="f4")] * 2, 6, method="{method}", n_jobs=2)'
LEARN = (
    "kl.KroneckerDictionaryLearning((8, 8), n_nonzero_coefs=6, structure='{structure}',"
    " max_iter=1, n_jobs=2).fit(Y)"
)


def growth(work, n_samples):
    """Mebibytes by which the peak of memory grows beyond the samples."""
    script = textwrap.dedent(SETUP).format(work=work, n_samples=n_samples)
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr
    grown, samples = map(float, result.stdout.split())
    assert samples > 40
    return grown


def codes_size(n_samples, n_nonzero_coefs=6):
    """Mebibytes of float32 codes with 32-bit indices."""
    return n_samples * (n_nonzero_coefs * 8 + 4) / 2**20


def test_coding_needs_little_more_memory_than_the_codes():
    work = "; ".join(CODE.format(method=method) for method in ("ols", "threshold"))
    assert growth(work, 200_000) < 2.5 * codes_size(200_000) + 8


def test_learning_needs_no_memory_per_sample():
    work = "; ".join(LEARN.format(structure=name) for name in ("general", "orthonormal"))
    assert growth(work, 200_000) < 12


FAULTS = """
import resource
import numpy as np
import kronlearn as kl

seen = []

def watch(progress):
    if progress.iteration in (2, 6):
        seen.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)

Y = np.random.default_rng(0).standard_normal((3000, 32, 32), dtype=np.float32)
model = kl.KroneckerDictionaryLearning(
    32, n_nonzero_coefs=8, max_iter=7, n_jobs=2, callback=watch, random_state=0
)
model.fit(Y)
print((seen[1] - seen[0]) / 4)
"""


def test_passes_reuse_their_memory():
    # The setting of Dask workers, with which freed memory goes back to the system at once.
    environment = os.environ | {"MALLOC_TRIM_THRESHOLD_": "65536"}
    result = subprocess.run(
        [sys.executable, "-c", FAULTS], capture_output=True, text=True, env=environment, timeout=300
    )
    assert result.returncode == 0, result.stderr
    # New pages per iteration; each of the two threads needs a hundred pages.
    assert float(result.stdout) < 90
