"""
Deblur with a denoiser as the prior
===================================

A plug-and-play method alternates between a step that fits the data and one that denoises.
:func:`kronlearn.images.denoise` can be that denoiser. Here an image was blurred by a known kernel
and has some noise; half-quadratic splitting restores it.
"""

import matplotlib.pyplot as plt
import numpy as np
from skimage.data import camera
from skimage.metrics import peak_signal_noise_ratio

import kronlearn as kl

clean = camera()[100:228, 180:308].astype(np.float32)
sigma = 2.0
distance = np.fft.fftfreq(128) * 128
kernel = np.exp(-np.add.outer(distance**2, distance**2) / (2 * 1.6**2))
blur = np.fft.fft2(kernel / kernel.sum())
rng = np.random.default_rng(0)
blurred = np.fft.ifft2(blur * np.fft.fft2(clean)).real + rng.normal(0, sigma, clean.shape)

# %%
# Each step solves for the image in the Fourier domain, close to the last estimate, and denoises the
# solution. The noise level falls from 40 to that of the data.


def psnr(image):
    """How close an image is to the original, in dB."""
    return peak_signal_noise_ratio(clean, image, data_range=255)


data, estimate = np.fft.fft2(blurred), blurred
levels, course = np.geomspace(40, sigma, 8), []
for level in levels:
    weight = 0.23 * (sigma / level) ** 2
    solution = np.conj(blur) * data + weight * np.fft.fft2(estimate)
    solution = np.fft.ifft2(solution / (np.abs(blur) ** 2 + weight)).real
    estimate = kl.images.denoise(solution, level, quality="fast")
    course.append((psnr(solution), psnr(estimate)))

# %%
# For comparison: the Wiener filter with the constant that suits this image best, which one could
# not know without the original.


def wiener(constant):
    """Restore the image by dividing by the blur, regularised by a constant."""
    return np.fft.ifft2(np.conj(blur) * data / (np.abs(blur) ** 2 + constant)).real


best = max((wiener(constant) for constant in np.geomspace(1e-5, 1, 50)), key=psnr)

images = {"blurred": blurred, "best Wiener filter": best, "plug-and-play": estimate}
figure, axes = plt.subplots(2, 2, figsize=(7, 7.2), layout="constrained")
for ax, (name, image) in zip(axes.flat, images.items(), strict=False):
    ax.imshow(image, cmap="gray", vmin=0, vmax=255)
    ax.set_title(f"{name}, {psnr(image):.1f} dB")
    ax.set_axis_off()
ax = axes[1, 1]
ax.plot(range(1, 9), course, marker="o", label=["fitted to the data", "denoised"])
ax.set(xlabel="step", ylabel="PSNR, dB", title="plug-and-play, step by step")
ax.legend()

# %%
# :doc:`/plug-and-play` says how to use the denoiser in other packages.
