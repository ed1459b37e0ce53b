"""
A labelled cube with xarray
===========================

``import kronlearn.xarray`` adds ``.kron`` to every DataArray. Dimensions are found by name, and the
result has the coordinates, attributes and missing values of the input.
"""

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from skimage.data import astronaut

import kronlearn.xarray  # noqa: F401

# %%
# A scene with labels
# -------------------
# Three materials with a spectrum each; their shares are the colours of a photograph. The noise
# grows with the wavelength, and one corner was not recorded.

rng = np.random.default_rng(0)
wavelength = np.linspace(450, 950, 40)
shares = astronaut()[20:180, 140:320] / 255
peaks = np.exp(-(((wavelength - np.array([[500], [650], [850]])) / 120) ** 2))
clean = 1000 * shares @ peaks
sigma = np.linspace(40, 160, wavelength.size)
noisy = rng.normal(clean, sigma).astype(np.float32)
noisy[np.add.outer(np.arange(160), np.arange(180)) < 60] = np.nan

scene = xr.DataArray(
    np.moveaxis(noisy, -1, 0),
    dims=("wavelength", "y", "x"),
    coords={
        "wavelength": ("wavelength", wavelength, {"units": "nm"}),
        "y": 5_300_000 - 10.0 * np.arange(160),
        "x": 690_000 + 10.0 * np.arange(180),
    },
    attrs={"units": "mW m-2 sr-1 nm-1", "long_name": "radiance"},
    name="scene",
)

# %%
# Estimate the noise
# ------------------
# The dimension named "wavelength" holds the bands; elsewhere, name it with ``band_dim``.

noise = scene.kron.estimate_noise()

fig, ax = plt.subplots(figsize=(6, 3), layout="constrained")
ax.plot(wavelength, sigma, color="0.6", linewidth=4, label="added")
noise.plot(ax=ax, label="estimated")
ax.legend()

# %%
# Denoise
# -------

result = scene.kron.denoise()
print(result.coords)

fig, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained", sharey=True)
for ax, array, title in zip(axes, (scene, result), ("noisy", "denoised"), strict=True):
    array.sel(wavelength=650, method="nearest").plot(ax=ax, vmin=0, vmax=1200, cmap="gray")
    ax.set(title=f"{title}, 650 nm", aspect="equal", facecolor="tab:blue")

# %%
# The spectrum of one pixel:

row, column = 60, 120
fig, ax = plt.subplots(figsize=(6, 3), layout="constrained")
scene[:, row, column].plot(ax=ax, color="0.7", label="noisy")
ax.plot(wavelength, clean[row, column], color="k", linestyle="--", label="clean")
result[:, row, column].plot(ax=ax, label="denoised")
ax.set_title("")
ax.legend()

# %%
# Larger than memory
# ------------------
# A chunked array stays lazy. Each task reads a tile with the pixels around it, so memory holds a
# few tiles at a time. Here only the part that is looked at is denoised.

lazy = scene.chunk(y=80, x=90).kron.denoise(noise)
print(lazy.data)
difference = (lazy[:, 80:120, 80:120] - result[:, 80:120, 80:120]).compute()
print("largest difference:", float(abs(difference).max()))

# %%
# Fill in what is missing
# -----------------------
# ``denoise`` leaves missing values missing; ``inpaint`` fills them in.

holes = result.sel(wavelength=650, method="nearest").where(rng.random((160, 180)) > 0.4)
filled = holes[60:].kron.inpaint()

fig, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained", sharey=True)
for ax, array, title in zip(axes, (holes[60:], filled), ("incomplete", "inpainted"), strict=True):
    array.plot(ax=ax, vmin=0, vmax=1200, cmap="gray", add_colorbar=False)
    ax.set(title=title, aspect="equal", facecolor="tab:blue")
    ax.locator_params(axis="x", nbins=4)
plt.show()
