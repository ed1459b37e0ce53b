"""
Denoise a hyperspectral cube
============================

Indian Pines has 145 × 145 pixels and 200 bands. White noise is added, more to some bands than to
others, and removed by :func:`kronlearn.hyperspectral.denoise`.
"""

import matplotlib.pyplot as plt
import numpy as np
from tensorly.datasets import load_indian_pines

import kronlearn as kl

scene = np.asarray(load_indian_pines().tensor, np.float32)
rng = np.random.default_rng(0)
sigma = rng.uniform(20, 300, scene.shape[2])
noisy = (scene + sigma * rng.standard_normal(scene.shape)).astype(np.float32)

denoised = kl.hyperspectral.denoise(noisy, n_jobs=-1)

print("before:", kl.hyperspectral.compare(scene, noisy))
print("after: ", kl.hyperspectral.compare(scene, denoised))

# %%
# The band with the most noise:

band = int(np.argmax(sigma))
figure, axes = plt.subplots(1, 3, figsize=(9.5, 3.4), layout="constrained")
cubes = {"without added noise": scene, "noisy": noisy, "denoised": denoised}
low, high = np.percentile(scene[..., band], (1, 99))
for ax, (name, cube) in zip(axes, cubes.items(), strict=True):
    ax.imshow(cube[..., band], cmap="gray", vmin=low, vmax=high)
    ax.set_title(name)
    ax.set_axis_off()
figure.suptitle(f"band {band}, noise of {sigma[band]:.0f}")

# %%
# The spectrum of one pixel:

figure, ax = plt.subplots(figsize=(9.5, 3.4), layout="constrained")
pixel = 60, 100
ax.plot(noisy[pixel], color="0.75", lw=1, label="noisy")
ax.plot(scene[pixel], color="C0", lw=4, alpha=0.4, label="without added noise")
ax.plot(denoised[pixel], color="C1", lw=1, label="denoised")
ax.set(xlabel="band", ylabel="radiance", title=f"spectrum of pixel {pixel}")
ax.legend()

# %%
# The noise of each band was estimated. The scene has noise of its own, which the estimate includes:

found = kl.hyperspectral.estimate_noise(noisy)
figure, ax = plt.subplots(figsize=(5, 4.2), layout="constrained")
ax.plot(sigma, found, ".")
ax.axline((0, 0), slope=1, color="0.7", zorder=0)
ax.set(xlabel="noise that was added", ylabel="estimate", title="noise of the bands")

# %%
# Cubes that are larger than memory are denoised from file to file, with their metadata:
# ``kl.hyperspectral.denoise("scene.hdr", out="clean.hdr")``. See :doc:`/hyperspectral`.
