"""
Fill in missing pixels
======================

:func:`kronlearn.images.inpaint` fills in what a mask marks, and leaves known pixels as they are.
"""

import matplotlib.pyplot as plt
import numpy as np
from skimage.data import astronaut
from skimage.metrics import peak_signal_noise_ratio

import kronlearn as kl

clean = astronaut()[:256, 96:352]
rng = np.random.default_rng(0)


def show(damaged, filled):
    """Draw a damaged image, the result, and the original."""
    _, axes = plt.subplots(1, 3, figsize=(9, 3.4), layout="constrained")
    psnr = peak_signal_noise_ratio(clean, filled)
    titles = "damaged", f"filled in, {psnr:.1f} dB", "original"
    for ax, title, image in zip(axes, titles, (damaged, filled, clean), strict=True):
        ax.imshow(image)
        ax.set_title(title)
        ax.set_axis_off()


# %%
# Random pixels
# -------------
# Three out of four pixels are missing. The mask has the spatial shape of the image and marks a
# pixel in all channels.

missing = rng.random(clean.shape[:2]) < 0.75
damaged = np.where(missing[..., None], 0, clean)
filled = kl.images.inpaint(damaged, missing, channel_axis=-1, n_jobs=-1)
show(damaged, filled)

# %%
# Scratches
# ---------
# Only the surroundings of missing pixels are processed, so a few scratches take little time.

rows, columns = np.mgrid[:256, :256]
missing = np.zeros((256, 256), bool)
for slope, offset in zip(rng.uniform(-1, 1, 12), rng.uniform(0, 256, 12), strict=True):
    missing |= np.abs(rows - offset - slope * (columns - 128)) < 1.5
damaged = np.where(missing[..., None], 255, clean)
filled = kl.images.inpaint(damaged, missing, channel_axis=-1, n_jobs=-1)
show(damaged, filled)

# %%
# Holes that are larger than a patch (12 × 12 pixels) are filled smoothly from their surroundings;
# no texture is invented.
