"""
Diffraction patterns with HyperSpy
==================================

HyperSpy's ``decomposition`` accepts :class:`kronlearn.KroneckerDictionaryLearning` like any of
scikit-learn's estimators, and ``map`` accepts :func:`kronlearn.images.denoise`.
"""

import hyperspy.api as hs
import matplotlib.pyplot as plt
import numpy as np

import kronlearn as kl

# %%
# A scan across three grains
# --------------------------
# At each of 40 × 40 positions of the beam, a pattern of 32 × 32 counts: the discs of a lattice that
# is turned differently in every grain.

rng = np.random.default_rng(0)
ky, kx = np.mgrid[:32, :32] - 15.5


def pattern(angle):
    """The expected counts of a lattice at an angle, in degrees."""
    turn = np.exp(1j * np.deg2rad(angle))
    spots = [9 * turn * (h + 1j * k) for h in range(-2, 3) for k in range(-2, 3)]
    strength = [3 * np.exp(-((abs(spot) / 12) ** 2)) for spot in spots]
    discs = [np.hypot(kx - spot.real, ky - spot.imag) < 2.5 for spot in spots]
    return 0.05 + np.tensordot(strength, discs, 1)


rows, columns = np.mgrid[:40, :40]
grains = np.where(rows + 0.5 * columns < 28, 0, np.where(columns > 22, 1, 2))
expected = np.stack([pattern(angle) for angle in (0, 17, 38)])[grains]
signal = hs.signals.Signal2D(rng.poisson(expected).astype(np.float32))
print(signal)

# %%
# Decompose
# ---------
# Every pattern is one sample, coded with a few atoms. ``patch_shape`` is the shape of a pattern;
# HyperSpy needs dense loadings, and can scale counts so that their noise is uniform.

model = kl.KroneckerDictionaryLearning(
    n_atoms=(32, 32),
    patch_shape=(32, 32),
    n_nonzero_coefs=8,
    max_iter=15,
    random_state=0,
    sparse_output=False,
)
signal.decomposition(True, algorithm=model, print_info=False)
loadings = signal.get_decomposition_loadings()
factors = signal.get_decomposition_factors()
print(loadings, factors, sep="\n")

# %%
# The four atoms that are used most, and where:

energy = np.square(loadings.data).sum(axis=(1, 2))
fig, axes = plt.subplots(2, 4, figsize=(9, 4.6), layout="constrained")
for (above, below), k in zip(axes.T, np.argsort(energy)[::-1][:4], strict=True):
    for ax, image in ((above, factors.data[k]), (below, loadings.data[k])):
        limit = np.abs(image).max()
        ax.imshow(image, cmap="RdBu_r", vmin=-limit, vmax=limit)
    above.set_title(f"factor {k}")
    below.set_title(f"loading {k}")
for ax in axes.flat:
    ax.set_axis_off()

# %%
# The model is the scan without most of its noise:

rebuilt = signal.get_decomposition_model()
fig, axes = plt.subplots(1, 3, figsize=(9, 3.2), layout="constrained")
shown = {"counts": signal.data, "model": rebuilt.data, "expected": expected}
for ax, (title, data) in zip(axes, shown.items(), strict=True):
    ax.imshow(data[30, 30], vmin=0, vmax=4)
    error = np.sqrt(np.mean(np.square(data - expected)))
    ax.set(title=f"{title}: error {error:.2f}", xticks=[], yticks=[])

# %%
# Denoise images one by one
# -------------------------
# ``map`` applies a function to the image at every position. Here the images are the counts of three
# detectors, each on one disc of a grain's pattern, with Poisson noise.

discs = [9 * np.exp(1j * np.deg2rad(angle)) for angle in (0, 17, 38)]
detectors = [np.hypot(kx - disc.real, ky - disc.imag) < 2.5 for disc in discs]
images = hs.signals.Signal2D(np.stack([signal.data[..., d].sum(axis=-1) for d in detectors]))
denoised = images.map(
    kl.images.denoise, noise="poisson", noise_gain=1.0, inplace=False, show_progressbar=False
)

fig, axes = plt.subplots(2, 3, figsize=(7, 4.8), layout="constrained")
for k, (above, below) in enumerate(axes.T):
    above.imshow(images.data[k], vmin=0, vmax=50)
    above.set_title(f"grain {k + 1}")
    below.imshow(denoised.data[k], vmin=0, vmax=50)
for ax in axes.flat:
    ax.set_axis_off()
plt.show()
