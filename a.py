import numpy as np, math

for r, c in [(16, 16), (8, 8), (12, 8), (20, 10), (32, 32)]:
    t = [(i, j) for i in range(r) for j in range(c)]
    ch = t[:: math.ceil(len(t) / 16)]
    print(r, c, sorted({j for _, j in ch}))
from kronlearn.images.precision import levelled, to_learn_from, precision_of

rng = np.random.default_rng(0)
for big in (1e3, 1e6, 1e8, 1e10):
    sig = np.full((1, 96, 96), 5.0)
    sig[:, 30:60, 30:60] = big
    sig *= rng.uniform(0.9, 1.1, sig.shape)
    p, _ = precision_of(sig, False)
    p = p.astype(np.float32)
    x = rng.normal(size=p.shape).astype(np.float32)
    l, v = levelled(x, p, np.zeros_like(x))
    t = to_learn_from(x, p)
    print(
        big, np.isnan(l).sum(), v.min(), v.max(), np.isnan(t).sum(), np.abs(t[np.isfinite(t)]).max()
    )
import kronlearn as kl

clean = 100 + 50 * np.sin(np.add.outer(np.arange(96) / 9, np.arange(96) / 7))
for big in (1e3, 1e8, 1e10, 1e20):
    sig = np.full((96, 96), 5.0)
    sig[30:60, 30:60] = big
    y = rng.normal(clean, np.minimum(sig, 100))
    try:
        r = kl.images.denoise(y, sig, quality="fast")
        print(big, np.isnan(r).sum(), np.sqrt(np.nanmean((r - clean) ** 2)))
    except Exception as e:
        print(big, type(e), e)
