"""
Denoise a volume
================

Images may have any number of spatial axes. A volume is denoised with patches that extend along all
three, so that each slice benefits from those above and below.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.ndimage import gaussian_filter
from skimage.data import binary_blobs
from skimage.metrics import peak_signal_noise_ratio

import kronlearn as kl

# %%
# The volume resembles a tomogram of a porous material: two phases with slow changes of brightness
# and blurred edges.

solid = binary_blobs(48, blob_size_fraction=0.2, n_dim=3, volume_fraction=0.6, rng=0)
rng = np.random.default_rng(0)
shading = gaussian_filter(rng.standard_normal(solid.shape), 12)
clean = gaussian_filter(solid.astype(float), 0.7) + shading / np.abs(shading).max() / 4
noisy = clean + rng.normal(0, 0.4, clean.shape)

denoised = kl.images.denoise(noisy, n_jobs=-1)
slices = np.stack([kl.images.denoise(section, n_jobs=-1) for section in noisy])

# %%
# One section of the volume:

volumes = {"without noise": clean, "noisy": noisy, "by slices": slices, "as a volume": denoised}
figure, axes = plt.subplots(2, 2, figsize=(6.6, 7), layout="constrained")
for ax, (name, volume) in zip(axes.flat, volumes.items(), strict=True):
    ax.imshow(volume[24], cmap="gray", vmin=clean.min(), vmax=clean.max())
    if volume is not clean:
        psnr = peak_signal_noise_ratio(clean, volume, data_range=np.ptp(clean))
        name += f", {psnr:.1f} dB"
    ax.set_title(name)
    ax.set_axis_off()
