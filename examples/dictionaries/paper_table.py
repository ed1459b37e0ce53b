"""
The paper's Table I in one picture
==================================

The paper compares its methods with others by their times and errors on patches of 8 × 8 pixels.
This is a small version that runs in seconds: fewer patches, other photographs, and fewer iterations
than the full one in :doc:`/measured`.
"""

import matplotlib.pyplot as plt
import numpy as np
from skimage.color import rgb2gray
from skimage.data import astronaut, camera, coffee

import kronlearn as kl
from kronlearn import comparators

images = [camera(), 255 * rgb2gray(astronaut()), 255 * rgb2gray(coffee())]
patches = [kl.images.extract_patches(image, 8, stride=8, remove_means=True)[0] for image in images]
patches = np.random.default_rng(0).permutation(np.concatenate(patches)).astype(np.float32)
training, held_out = patches[:4000], patches[4000:]

# %%
# All methods start from the same cosines, perturbed by the same noise, and run 20 iterations with
# six nonzeros per patch, on one thread. The separable dictionaries have 16 × 16 atoms, AK-SVD's has
# as many (256), and the orthonormal one has 8 × 8.

shared = {"n_nonzero_coefs": 6, "max_iter": 20, "random_state": 0}
learner = kl.KroneckerDictionaryLearning
learners = {
    "default": learner((16, 16), **shared),
    "two terms": learner((16, 16), n_terms=2, **shared),
    "four terms": learner((16, 16), n_terms=4, **shared),
    "orthonormal (paper)": learner((8, 8), structure="orthonormal", **shared),
    "general (paper)": learner((16, 16), method="omp", **shared),
    "PairAK-SVD": comparators.PairAKSVD((16, 16), **shared),
    "SuKro": comparators.SuKro((16, 16), alpha=550, **shared),
    "TeFDiL": comparators.TeFDiL((16, 16), **shared),
    "AK-SVD": comparators.AKSVD(256, **shared),
}

# %%
# Every dictionary is judged by the same coder, orthogonal least squares, on patches that no method
# has learned from.

errors, seconds = {}, {}
for name, method in learners.items():
    method.fit(training)
    samples = held_out.reshape(-1, *method.dictionary_.patch_shape)
    codes = kl.sparse_code(samples, method.dictionary_, n_nonzero_coefs=6, method="ols")
    approximation = method.dictionary_.reconstruct(codes)
    errors[name] = float(np.sqrt(np.mean((approximation - samples) ** 2)))
    seconds[name] = method.history_["seconds"][-1]
    print(f"{name:20s} RMSE {errors[name]:.2f} in {seconds[name]:.2f} s")

# %%
# Blue marks settings of this library's estimator, orange the methods in
# :mod:`kronlearn.comparators`. Further left is better in both panels.

figure, axes = plt.subplots(1, 2, figsize=(9, 3.8), sharey=True, layout="constrained")
colors = ["C0" if isinstance(method, learner) else "C1" for method in learners.values()]
for ax, values in zip(axes, (errors, seconds), strict=True):
    ax.scatter(values.values(), values.keys(), c=colors, s=60)
    ax.grid(axis="y", alpha=0.4)
axes[0].set(xlabel="RMSE of held-out patches")
axes[1].set(xlabel="learning, seconds", xscale="log")
axes[0].invert_yaxis()
