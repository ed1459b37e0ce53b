"""
Learn a dictionary and look at it
=================================

A separable dictionary has one small factor per axis of a patch. Its atoms are the outer products of
their columns: here 16 × 16 atoms from two factors of 8 × 16 numbers.
"""

import matplotlib.pyplot as plt
import numpy as np
from skimage.data import camera

import kronlearn as kl

patches, means = kl.images.extract_patches(camera(), (8, 8), stride=4, remove_means=True)

model = kl.KroneckerDictionaryLearning(
    n_atoms=(16, 16), n_nonzero_coefs=6, max_iter=30, random_state=0, n_jobs=-1
)
model.fit(patches)
kl.plots.DictionaryDisplay.from_estimator(model)

# %%
# The columns of ``D_1`` are on the left, those of ``D_2`` on top, and each tile is the atom of its
# row and column.

D1, D2 = model.factors_
atom = np.outer(D1[:, 3], D2[:, 5])
assert np.allclose(atom.ravel(), model.components_[3 * 16 + 5])

# %%
# The error recorded for each iteration is the one that ``score`` reports for its dictionary:

kl.plots.ConvergenceDisplay.from_estimator(model)
print(f"RMSE {-model.score(patches):.3f}, the lowest of {min(model.history_['rmse']):.3f}")

# %%
# Every patch is represented by a weighted sum of six atoms:

codes = model.transform(patches)  # a sparse array with a row of 256 coefficients per patch
approximation = model.inverse_transform(codes)
number = 7241
values, used = codes[[number]].data, codes[[number]].indices

figure, axes = plt.subplots(1, 8, figsize=(11, 1.9), layout="constrained")
tiles = [patches[number], approximation[number], *model.components_[used].reshape(-1, 8, 8)]
titles = ["patch", "its sum", *(f"{value:+.0f} ×" for value in values)]
for ax, tile, title in zip(axes, tiles, titles, strict=True):
    ax.imshow(tile, cmap="gray")
    ax.set_title(title)
    ax.set_axis_off()

# %%
# Sums of Kronecker products
# --------------------------
# The edges of an outer product run along the axes, never diagonally. ``n_terms=2`` learns a sum of
# two products, whose atoms can be oblique and represent patches better:

two = kl.KroneckerDictionaryLearning(
    (16, 16), n_terms=2, n_nonzero_coefs=6, max_iter=30, random_state=0, n_jobs=-1
)
two.fit(patches)
kl.plots.DictionaryDisplay.from_estimator(two)
print(f"RMSE {-two.score(patches):.3f} with two terms, {-model.score(patches):.3f} with one")
