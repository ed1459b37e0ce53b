"""
Denoise a photograph
====================

:func:`kronlearn.images.denoise` needs nothing but the noisy image: it estimates the noise, learns
a dictionary from patches of the image, and filters groups of similar patches.
"""

import matplotlib.pyplot as plt
import numpy as np
from skimage.data import astronaut, camera
from skimage.metrics import peak_signal_noise_ratio

import kronlearn as kl

clean = camera()
rng = np.random.default_rng(0)
noisy = np.clip(clean + rng.normal(0, 20, clean.shape), 0, 255).astype(np.uint8)

denoised = kl.images.denoise(noisy, n_jobs=-1)

names = [
    f"{name}, {peak_signal_noise_ratio(clean, image):.1f} dB"
    for name, image in (("noisy", noisy), ("denoised", denoised))
]
kl.plots.ComparisonDisplay(noisy, denoised, names=names).plot()

# %%
# The third panel shows what was removed. Edges of the photograph that are visible there would be
# lost detail; here it is nearly all noise.
#
# With ``full=True``, the result also contains the noise level found and the time of each stage:

result = kl.images.denoise(noisy, full=True, n_jobs=-1)
print(f"standard deviation of the noise: {result.sigma:.1f}, added: 20")
print({stage: f"{seconds:.2f} s" for stage, seconds in result.seconds.items()})

# %%
# Colour
# ------
# ``channel_axis`` says which axis holds the channels, as in scikit-image. They are denoised
# together, which gains one to two dB over denoising them one by one.

photograph = astronaut()[:200, 120:320]
noisy = np.clip(photograph + rng.normal(0, 30, photograph.shape), 0, 255).astype(np.uint8)

together = kl.images.denoise(noisy, channel_axis=-1, n_jobs=-1)
alone = np.stack([kl.images.denoise(noisy[..., c], n_jobs=-1) for c in range(3)], axis=-1)

figure, axes = plt.subplots(1, 3, figsize=(9, 3.4), layout="constrained")
images = {"noisy": noisy, "one by one": alone, "together": together}
for ax, (name, image) in zip(axes, images.items(), strict=True):
    ax.imshow(image)
    ax.set_title(f"{name}, {peak_signal_noise_ratio(photograph, image):.1f} dB")
    ax.set_axis_off()

# %%
# :doc:`/images` describes other kinds of noise, the quality settings, and how it works.
