"""Denoising and inpainting take the memory of a few copies of an image, however large it is."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="peak memory is read from /proc"
)

SCRIPT = """
import numpy as np
import kronlearn as kl
from skimage.data import camera

def memory(field):
    status = open("/proc/self/status").read()
    return int(status.split(field)[1].split()[0]) / 1024

def make(size):
    rng = np.random.default_rng(0)
    image = np.empty((size, size), "{dtype}")
    for row in range(0, size, 64):  # little memory at a time: the peak so far must stay low
        rows = np.resize(camera()[:64], (64, size))
        image[row : row + 64] = rows + rng.normal(0, 20, rows.shape)
    return image, rng.random(image.shape, dtype=np.float32) < 0.5

def work(image, mask):
    {work}

work(*make(64))
image, mask = make({size})
before = memory("VmRSS:")
work(image, mask)
print((memory("VmHWM:") - before) / (4 * image.size / 2**20))
"""

DENOISE = "kl.images.denoise(image, 20, max_iter=2, n_jobs=2)"
ESTIMATE = 'kl.images.denoise(image, quality="dictionary", max_iter=2, n_jobs=2)'
FILL = "kl.images.inpaint(image, mask, stages=1, n_jobs=2)"
INPAINT = "kl.images.inpaint(image, mask, max_iter=2, n_jobs=2)"


def copies(work, size, dtype="f4"):
    """How much the peak of memory exceeds that before the call, in float32 images."""
    script = SCRIPT.format(work=work, size=size, dtype=dtype)
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=600
    )
    assert result.returncode == 0, result.stderr
    return float(result.stdout)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("work", "size", "dtype"),
    [
        (DENOISE, 4096, "f4"),
        (DENOISE, 4096, "f8"),
        (DENOISE, 4096, "u1"),
        (ESTIMATE, 4096, "f4"),
        (FILL, 4096, "f4"),
        (INPAINT, 2048, "f4"),
    ],
)
def test_a_large_image_takes_at_most_eight_times_its_memory(work, size, dtype):
    assert copies(work, size, dtype) <= 8
