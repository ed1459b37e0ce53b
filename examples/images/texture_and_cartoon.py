"""
Separate texture from cartoon
=============================

An image is a cartoon, smooth but for its edges, plus a texture. Total variation is small for the
cartoon, and a few convolutional filters learned from a sample of the texture represent it with few
coefficients. Each part is fitted in turn to what the other leaves over.
"""

import matplotlib.pyplot as plt
import numpy as np
from skimage.data import camera
from skimage.metrics import peak_signal_noise_ratio
from skimage.restoration import denoise_tv_chambolle

import kronlearn as kl
from kronlearn.convolutional import (
    SeparableConvolutionalLearning,
    convolutional_code,
    lowpass,
    reconstruct,
)

rows, columns = np.mgrid[:192, :192]
cartoon = denoise_tv_chambolle(camera()[60:252, 150:342] / 255, 0.15)
weave = np.sin(2 * np.pi * (rows + 2 * columns) / 9) + np.sin(2 * np.pi * (rows - columns) / 7)
texture = 0.08 * weave * ((rows - 120) ** 2 + (columns - 80) ** 2 < 70**2)
image = cartoon + texture

# %%
# Filters of the texture
# ----------------------
# They are learned from a square of 60 × 60 pixels; the mask hides the rest. The smooth part of
# the image is removed first.

elsewhere = np.ones(image.shape, bool)
elsewhere[90:150, 50:110] = False
model = SeparableConvolutionalLearning(
    n_atoms=(4, 4), filter_shape=(13, 13), penalty=0.05, max_iter=15, random_state=0, n_jobs=-1
)
model.fit(image - lowpass(image), mask=elsewhere)
kl.plots.FiltersDisplay.from_estimator(model)

# %%
# Separation
# ----------
# For comparison, the cartoon that total variation alone finds with the best of three weights.


def psnr(found):
    """How close to the true cartoon."""
    return peak_signal_noise_ratio(cartoon, found, data_range=1)


alone = max((denoise_tv_chambolle(image, weight) for weight in (0.05, 0.1, 0.2)), key=psnr)

found = denoise_tv_chambolle(image, 0.1)
for _ in range(10):
    maps = convolutional_code(image - found, model.dictionary_, penalty=0.2, n_jobs=-1)
    of_filters = reconstruct(maps, model.dictionary_)
    found = denoise_tv_chambolle(image - of_filters, 0.05)

_, axes = plt.subplots(1, 4, figsize=(12, 3.4), layout="constrained")
pictures = {
    "image": image,
    f"cartoon, {psnr(found):.1f} dB": found,
    "texture": of_filters + 0.5,
    f"total variation alone, {psnr(alone):.1f} dB": alone,
}
for ax, (title, picture) in zip(axes, pictures.items(), strict=True):
    ax.imshow(picture, cmap="gray", vmin=0, vmax=1)
    ax.set_title(title)
    ax.set_axis_off()
