"""
Compare with scikit-learn
=========================

``MiniBatchDictionaryLearning`` and kronlearn learn 256 atoms from the same patches of photographs,
on one thread, and code other patches with six atoms each.
"""

import warnings
from time import process_time

import matplotlib.pyplot as plt
import numpy as np
from skimage.color import rgb2gray
from skimage.data import astronaut, camera, coffee
from sklearn.decomposition import MiniBatchDictionaryLearning
from threadpoolctl import threadpool_limits

import kronlearn as kl

images = [camera(), 255 * rgb2gray(astronaut()), 255 * rgb2gray(coffee())]
patches = [kl.images.extract_patches(image, 8, stride=8, remove_means=True)[0] for image in images]
patches = np.random.default_rng(0).permutation(np.concatenate(patches).reshape(-1, 64))
training, held_out = patches[:3000], patches[3000:]

# %%
# scikit-learn's dictionary has 256 × 64 parameters and is learned with an ℓ1 penalty, after which
# ``transform`` selects six atoms by orthogonal matching pursuit. Of the penalties 1, 3, 10, 30, 100
# and 300, 30 leads to the lowest error here.
#
# kronlearn's dictionary has 2 × 8 × 16 parameters, or two or four times as many.

models = {
    "scikit-learn": MiniBatchDictionaryLearning(
        256,
        alpha=30,
        batch_size=256,
        transform_algorithm="omp",
        transform_n_nonzero_coefs=6,
        random_state=0,
    )
}
for n_terms in (1, 2, 4):
    models[f"kronlearn, n_terms={n_terms}"] = kl.KroneckerDictionaryLearning(
        (16, 16), patch_shape=(8, 8), n_terms=n_terms, n_nonzero_coefs=6, random_state=0
    )

# %%
# Times are processor seconds. scikit-learn warns that some of its atoms are nearly equal.

warnings.filterwarnings("ignore", "Orthogonal matching pursuit ended prematurely")
results = {}
with threadpool_limits(1):
    for name, model in models.items():
        start = process_time()
        model.fit(training)
        fitted = process_time()
        codes = model.transform(held_out)
        coded = process_time()
        error = np.sqrt(np.mean((held_out - codes @ model.components_) ** 2))
        results[name] = error, fitted - start, coded - fitted
        print(f"{name:21s} RMSE {error:.2f}, learning {results[name][1]:6.2f} s, ", end="")
        print(f"coding {1e6 * results[name][2] / len(held_out):6.1f} µs a patch")

# %%
# Further left is better in all panels. kronlearn's ``transform`` selects atoms by orthogonal least
# squares, its default, which is slower than orthogonal matching pursuit and more accurate.

figure, axes = plt.subplots(1, 3, figsize=(10, 3), sharey=True, layout="constrained")
titles = "RMSE of held-out patches", "learning, seconds", "coding, seconds"
for ax, title, values in zip(axes, titles, zip(*results.values(), strict=True), strict=True):
    ax.scatter(values, list(results), c=["C1", "C0", "C0", "C0"], s=60)
    ax.set_xlabel(title)
    ax.grid(axis="y", alpha=0.4)
for ax in axes[1:]:
    ax.set(xscale="log")
    ax.margins(x=0.5)
axes[0].invert_yaxis()

# %%
# Learned by AK-SVD from more samples, an unstructured dictionary is more accurate than a separable
# one with as many atoms, but less accurate than a sum of four: :doc:`/measured` has the numbers.
