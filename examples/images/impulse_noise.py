"""
Remove impulse noise
====================

Impulse noise replaces pixels. Those that a detector finds are treated as missing: convolutional
filters are learned from the remaining pixels, and fill in the others. Medians serve as the
detector and for comparison.
"""

import matplotlib.pyplot as plt
import numpy as np
from skimage.data import camera
from skimage.filters import median
from skimage.metrics import peak_signal_noise_ratio

from kronlearn.convolutional import SeparableConvolutionalLearning, lowpass

clean = camera()[100:292, 130:322] / 255
rng = np.random.default_rng(0)
hit = rng.random(clean.shape) < 0.3
salt_and_pepper = np.where(hit, rng.integers(0, 2, clean.shape), clean)


def filled_in(noisy, mask):
    """The noisy image with the pixels of the mask filled in by convolutional filters."""
    # The smooth part needs all pixels: medians in place of those that are missing will do.
    smooth = lowpass(np.where(mask, median(noisy, np.ones((5, 5))), noisy))
    model = SeparableConvolutionalLearning(
        n_atoms=(6, 6), filter_shape=(9, 9), penalty=0.02, max_iter=15, random_state=0, n_jobs=-1
    )
    maps = model.fit_transform(noisy - smooth, mask=mask)
    return np.where(mask, smooth + model.inverse_transform(maps), noisy)


def show(noisy, mask):
    """Draw a noisy image, the best medians, and what filters fill in, with the PSNR of each."""
    medians = {n: median(noisy, np.ones((n, n))) for n in (3, 5, 7)}
    at_detected = {n: np.where(mask, image, noisy) for n, image in medians.items()}

    def psnr(image):
        return peak_signal_noise_ratio(clean, image, data_range=1)

    pictures = {
        "noisy": noisy,
        "median": max(medians.values(), key=psnr),
        "median of detected pixels": max(at_detected.values(), key=psnr),
        "convolutional filters": filled_in(noisy, mask),
    }
    _, axes = plt.subplots(1, 4, figsize=(12, 3.8), layout="constrained")
    for ax, (name, image) in zip(axes, pictures.items(), strict=True):
        ax.imshow(image, cmap="gray", vmin=0, vmax=1)
        ax.set_title(f"{name}\n{psnr(image):.1f} dB")
        ax.set_axis_off()


# %%
# Salt and pepper
# ---------------
# 30 % of the pixels are black or white, and these are the ones to fill in. The best of the medians
# over 3 × 3, 5 × 5 and 7 × 7 pixels is shown.

show(salt_and_pepper, (salt_and_pepper == 0) | (salt_and_pepper == 1))

# %%
# Random values
# -------------
# 20 % of the pixels have random values. A pixel far from the median around it is taken for one of
# them; some are missed, and some true details are filled in needlessly.

hit = rng.random(clean.shape) < 0.2
random_values = np.where(hit, rng.random(clean.shape), clean)
show(random_values, np.abs(random_values - median(random_values, np.ones((3, 3)))) > 0.08)

# %%
# On photographs, :func:`kronlearn.images.inpaint` with the same mask is better still.
