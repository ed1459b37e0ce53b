import numpy as np, kronlearn as kl
from kronlearn.images.aggregation import energies_of_patches

v = np.full((1, 1, 64), 1.0, np.float32)
v[0, 0, 10:20] = 1e17
print(energies_of_patches(v, (1, 8))[0, 0, 18:34])
v[0, 0, 10:20] = 1e8 * 1e6
print(energies_of_patches(v, (1, 8))[0, 0, 18:24])
rng = np.random.default_rng(0)
# progress/cancel in denoise(mask)
img = rng.normal(100, 5, (96, 96))
m = rng.random((96, 96)) < 0.2
p = []
kl.images.denoise(img, 5, mask=m, quality="fast", progress=lambda s, x: p.append((s, round(x, 2))))
print([x for x in p if x[0] == "inpainting"])
# tiny
from kronlearn.convolutional import *

d = ConvolutionalDictionary([np.hanning(7)[1:-1, None]] * 2)
im = np.zeros((32, 32))
im[10:15, 10:15] = d.filters[0]
print(convolutional_code(im * 1e-40, d, 1e-42).nnz, convolutional_code(im * 1e-30, d, 1e-32).nnz)
