import numpy as np, kronlearn as kl, xarray as xr, kronlearn.xarray
from kronlearn.missing import noise_of_image
from skimage.data import camera

rng = np.random.default_rng(0)
clean = camera()[100:228, 180:308].astype(float)
for share in (0.05, 0.2, 0.3):
    g = rng.normal(clean, 5)
    m = rng.random(g.shape) < share
    h = np.where(m, np.nan, g)
    d = xr.DataArray(h, dims=("y", "x")).kron.denoise().values
    e = lambda a: round(float(np.sqrt(np.nanmean((a - clean)[~m] ** 2))), 2)
    out = [share, float(noise_of_image(h, None, None)), "xarray rmse", e(d)]
    try:
        out += ["mask= rmse", e(kl.images.denoise(h, mask=m))]
    except Exception as x:
        out += [str(x)]
    out += ["mask=,sigma=5", e(kl.images.denoise(h, 5, mask=m))]
    print(*out)
