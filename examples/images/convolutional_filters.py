"""
Learn convolutional filters
===========================

:class:`kronlearn.convolutional.SeparableConvolutionalLearning` represents an image as a sum of
shifted small filters. The filters are all products of a few short ones for each axis: 64 filters of
11 × 11 pixels have 176 parameters.
"""

import matplotlib.pyplot as plt
import numpy as np
from skimage.data import camera

import kronlearn as kl
from kronlearn.convolutional import SeparableConvolutionalLearning, lowpass

image = camera()[100:356, 130:386] / 255
smooth = lowpass(image)
details = image - smooth

# %%
# Filters
# -------
# The smooth part of the image was removed, because small filters represent it poorly.

model = SeparableConvolutionalLearning(
    n_atoms=(8, 8), filter_shape=(11, 11), penalty=0.02, max_iter=40, random_state=0, n_jobs=-1
)
model.fit(details)
kl.plots.FiltersDisplay.from_estimator(model)

# %%
# Maps
# ----
# The sum of the magnitudes of all maps shows where filters occur.

maps = model.transform(details)
strength = np.abs(maps.toarray()).sum(axis=0)[5:-5, 5:-5]
again = smooth + model.inverse_transform(maps)

_, axes = plt.subplots(1, 3, figsize=(9, 3.4), layout="constrained")
share = 100 * maps.nnz / maps.matrix.shape[0] / image.size
titles = "original", f"maps: {share:.1f} % nonzeros", f"from maps, RMSE {np.std(again - image):.3f}"
pictures = image, -np.minimum(strength, 0.5), again
for ax, title, picture in zip(axes, titles, pictures, strict=True):
    ax.imshow(picture, cmap="gray")
    ax.set_title(title)
    ax.set_axis_off()
