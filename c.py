import numpy as np, dask, dask.array as da, warnings
from kronlearn.hyperspectral import lazy

rng = np.random.default_rng(0)
n = 640
c = (
    100
    + 20
    * np.sin(np.add.outer(np.arange(n) / 20, np.arange(n) / 15))[..., None]
    * np.linspace(1, 2, 6)
    + rng.normal(0, 3, (n, n, 6))
).astype(np.float32)
c[:, :40] = np.nan
with dask.config.set({"array.chunk-size": 40 * 40 * 6 * 4, "scheduler": "synchronous"}):
    a = da.from_array(c, chunks=(40, 40, 6))
    print(len(lazy._parts(a, 0)), len(lazy._parts(a, 1)))
    s = lazy.estimate_noise_lazily(a, float("nan")).compute()
    print(s)
    try:
        r = lazy.denoise_lazily(a, None, float("nan"), "fast")[100:140, 100:140].compute()
        print(np.isnan(r).sum(), np.std(r - c[100:140, 100:140]))
    except Exception as e:
        print(type(e).__name__, e)
