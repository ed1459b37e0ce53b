"""
A large Zarr array, with threads and with Dask
==============================================

Samples can stay in files larger than memory. This one has 256,036 patches; it is written and read
a part at a time, as one of a terabyte would be.
"""

import tempfile
from pathlib import Path
from time import perf_counter

import dask.array as da
import matplotlib.pyplot as plt
import numpy as np
import zarr
from dask.distributed import Client
from skimage.color import rgb2gray
from skimage.data import astronaut, brick, camera, grass

import kronlearn as kl

# %%
# Patches of an image are cut out when they are asked for. Here, blocks of them go to a Zarr array.

folder = tempfile.TemporaryDirectory()
path = Path(folder.name, "patches.zarr")
images = [camera(), (255 * rgb2gray(astronaut())).astype("uint8"), brick(), grass()]
views = [kl.images.extract_patches(image, (8, 8), stride=2) for image in images]

shape = sum(len(view) for view in views), 8, 8
stored = zarr.create_array(path, shape=shape, chunks=(16384, 8, 8), dtype="float32")
start = 0
for view in views:
    for block in view.blocks(16384):
        stored[start : start + len(block)] = block - block.mean(axis=(1, 2), keepdims=True)
        start += len(block)
print(stored.info)

# %%
# With threads
# ------------
# ``fit`` takes the path. The next block is read while the current one is coded.

model = kl.KroneckerDictionaryLearning(
    (16, 16), n_nonzero_coefs=6, max_iter=8, random_state=0, n_jobs=-1
)
begin = perf_counter()
model.fit(path)
seconds = (perf_counter() - begin) / model.n_iter_
print(f"{seconds:.2f} s per iteration, {stored.nbytes / 2**20:.0f} MiB read in each")

# %%
# With Dask
# ---------
# On a cluster, workers read their own parts, and only sums travel. For this page, the cluster is
# one process; usually you pass ``Client`` the address of a scheduler. Results are bit-identical.

client = Client(processes=False, n_workers=2, threads_per_worker=1, dashboard_address=None)
with_dask = kl.KroneckerDictionaryLearning(
    (16, 16), n_nonzero_coefs=6, max_iter=8, random_state=0, engine="dask"
)
with_dask.fit(path)
assert all(map(np.array_equal, with_dask.factors_, model.factors_))

# %%
# ``transform`` of a Dask array is lazy: nothing is coded before it is needed.

lazy = da.from_zarr(path)
codes = with_dask.transform(lazy)
print(codes)

approximation = with_dask.inverse_transform(codes)
errors = da.sqrt(((lazy - approximation) ** 2).mean(axis=(1, 2))).compute()

# %%
# Every patch was coded and reconstructed by the workers; only the errors came back. Arranged as
# images, they show where six atoms are not enough.

figure, axes = plt.subplots(2, 4, figsize=(11, 5.6), layout="constrained")
ends = np.cumsum([len(view) for view in views])
for (top, below), image, view, part in zip(
    axes.T, images, views, np.split(errors, ends[:-1]), strict=True
):
    top.imshow(image, cmap="gray")
    picture = below.imshow(part.reshape(view.grid_shape), cmap="magma", vmin=0, vmax=25)
    top.set_axis_off()
    below.set_axis_off()
figure.colorbar(picture, ax=axes[1], label="RMSE of a patch")

client.close()
folder.cleanup()
