import numpy as np, traceback
from kronlearn.convolutional import *

d = ConvolutionalDictionary(
    [np.eye(3)[:, :1], np.hanning(7)[1:-1, None], np.hanning(7)[1:-1, None]], has_channels=True
)
rng = np.random.default_rng(0)
im = rng.normal(size=(3, 20, 20))


def t(f):
    try:
        print("ok", f())
    except Exception as e:
        print(type(e).__name__, e)


m = np.zeros((1, 20), bool)
m[0, 3] = True
t(lambda: convolutional_code(im, d, 0.1, mask=m, channel_axis=0).nnz)
t(lambda: lowpass(im, channel_axis=7).shape)
t(lambda: lowpass(np.float64(3), channel_axis=0))
t(lambda: lowpass(np.arange(5.0), channel_axis=0))
t(lambda: convolutional_code(im, d, 0.1, channel_axis=9))
t(lambda: convolutional_code(im, "x", 0.1))
t(lambda: convolutional_code(im, d, np.array(0.1), channel_axis=0).nnz)
m = SeparableConvolutionalLearning(2, (5, 5), max_iter=2, random_state=0)
m.fit(im, channel_axis=0)
t(lambda: m.partial_fit(im[0]))
t(lambda: m.partial_fit(im[:2], channel_axis=0))
t(lambda: m.fit(im[0], channel_axis=5))
t(lambda: m.fit(im, channel_axis=5))
t(lambda: m.fit(np.zeros((20, 20))).history_)
t(lambda: SeparableConvolutionalLearning((2, 2), (5, 5), callback=3).fit(im[0]))
t(
    lambda: (
        SeparableConvolutionalLearning((2, 2), (5, 5), verbose="a", max_iter=1).fit(im[0]).n_iter_
    )
)
t(
    lambda: (
        SeparableConvolutionalLearning(
            (2, 2), (5, 5), structure="separable", max_iter=1, penalty=1e9
        )
        .fit(im[0])
        .history_
    )
)
t(
    lambda: (
        SeparableConvolutionalLearning((2, 2), (5, 5), max_iter=1)
        .fit(rng.normal(size=(40, 40)) * 1e-50)
        .history_
    )
)


class K(Exception):
    pass


import kronlearn.convolutional.learning as L

o = L.updated


def boom(*a):
    raise KeyboardInterrupt


mm = SeparableConvolutionalLearning((2, 2), (5, 5), max_iter=3)
L.updated = boom
try:
    mm.fit(im[0])
except KeyboardInterrupt:
    print({k: len(v) for k, v in mm.history_.items()}, mm.n_iter_)
L.updated = o
# progress
p = []
convolutional_code(
    im[0], ConvolutionalDictionary([np.hanning(7)[1:-1, None]] * 2), 0.1, progress=p.append
)
print(p[-5:])
from kronlearn.images.precision import *
