"""
Choose the number of nonzeros by cross-validation
=================================================

:class:`kronlearn.KroneckerDictionaryLearning` is a scikit-learn transformer: it can be a step of a
pipeline, and ``GridSearchCV`` can choose its parameters.
"""

import matplotlib.pyplot as plt
import numpy as np
from skimage.data import camera
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

import kronlearn as kl

# %%
# The samples are noisy patches, the targets the same patches without noise. More nonzeros represent
# a patch better, but beyond some number they also represent its noise.

patches, _ = kl.images.extract_patches(camera(), (8, 8), stride=8, remove_means=True)
targets = np.asarray(patches).reshape(-1, 64)
noisy = targets + np.random.default_rng(0).normal(0, 15, targets.shape)


def closeness(pipeline, X, y):
    """How close the approximations are to the targets: minus the RMSE."""
    return -np.sqrt(np.mean((pipeline.inverse_transform(pipeline.transform(X)) - y) ** 2))


# %%
# Both steps have an ``inverse_transform``, and so has the pipeline. Samples are rows, so the
# estimator must be told the shape of a patch.

pipeline = Pipeline(
    [
        ("center", StandardScaler(with_std=False)),
        (
            "dictionary",
            kl.KroneckerDictionaryLearning(
                (16, 16), patch_shape=(8, 8), max_iter=15, random_state=0
            ),
        ),
    ]
)
numbers = [1, 2, 3, 4, 5, 6, 8, 10, 12]
search = GridSearchCV(pipeline, {"dictionary__n_nonzero_coefs": numbers}, scoring=closeness, cv=3)
search.fit(noisy, targets)
print(search.best_params_, f"RMSE {-search.best_score_:.2f}")

# %%
# Compared with the noisy patches themselves, as in ``score``, more nonzeros would always be better:

own = GridSearchCV(pipeline, {"dictionary__n_nonzero_coefs": numbers}, cv=3).fit(noisy)

figure, ax = plt.subplots(figsize=(6.5, 4.2), layout="constrained")
for name, found in (("patches without noise", search), ("noisy patches", own)):
    errors = -found.cv_results_["mean_test_score"]
    ax.plot(numbers, errors, marker="o", label=f"against {name}")
best = search.best_params_["dictionary__n_nonzero_coefs"]
ax.axvline(best, color="0.7", zorder=0, label=f"chosen: {best}")
ax.axhline(15, color="0.7", ls=":", zorder=0, label="RMSE of the noisy patches")
ax.set(xlabel="n_nonzero_coefs", ylabel="RMSE of held-out patches", ylim=0)
ax.legend()

# %%
# Without targets, set ``tol`` to the norm of the noise instead: every patch then gets as many
# nonzeros as it needs (see :doc:`/guide`).
