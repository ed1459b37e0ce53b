"""Numbers that others published, with their sources."""

from __future__ import annotations

__all__ = ["IMAGES", "SIGMAS", "TABLE1", "TABLE1_SETTINGS", "TABLE2", "TABLE3", "TABLE4"]

IMAGES = ("lena", "barbara", "boat", "peppers", "house")
SIGMAS = (5, 10, 20, 30, 50)

# Noise level, method, then PSNR and SSIM of every image; "-" where none was published.
_TABLE3 = """
 5 general      37.724 0.9358  33.045 0.9376  34.017 0.9031  36.372 0.9059  37.384 0.9277
 5 orthonormal  38.381 0.9407  37.895 0.9611  36.977 0.9352  37.354 0.9194  38.904 0.9459
 5 PairAK-SVD   37.912 0.9367  37.118 0.9588  35.987 0.9210  36.420 0.9066  38.038 0.9380
10 general      35.132 0.9041  31.126 0.9044  32.276 0.8622  34.367 0.8705  34.912 0.8898
10 orthonormal  35.237 0.9048  33.949 0.9280  33.334 0.8738  34.553 0.8730  35.316 0.8944
10 PairAK-SVD   35.185 0.9046  33.720 0.9260  33.183 0.8724  34.408 0.8708  35.116 0.8927
10 K-SVD         35.47      -   34.42      -   33.64      -       -      -   35.98      -
10 BM3D          35.89      -   34.85      -   33.94      -   35.01      -   36.65      -
20 general      31.988 0.8557  28.387 0.8400  29.723 0.7858  31.915 0.8323  32.275 0.8532
20 orthonormal  31.911 0.8548  29.833 0.8599  29.832 0.7857  31.836 0.8313  32.096 0.8507
20 PairAK-SVD   32.006 0.8563  30.027 0.8634  29.980 0.7906  31.930 0.8323  32.308 0.8535
20 K-SVD         32.38      -   30.83      -   30.36      -       -      -   33.20      -
20 BM3D          33.05      -   31.73      -   30.92      -   32.76      -   33.74      -
30 general      29.877 0.8174  26.921 0.7823  27.886 0.7252  30.116 0.8031  30.159 0.8211
30 orthonormal  29.848 0.8165  27.396 0.7909  27.834 0.7230  30.055 0.8021  30.012 0.8186
30 PairAK-SVD   29.937 0.8182  27.637 0.7973  27.989 0.7281  30.093 0.8024  30.250 0.8220
50 general      27.358 0.7552  24.211 0.6695  25.486 0.6410  27.570 0.7531  27.296 0.7609
50 orthonormal  27.358 0.7550  24.449 0.6780  25.459 0.6397  27.513 0.7520  27.230 0.7592
50 PairAK-SVD   27.375 0.7557  24.604 0.6842  25.518 0.6421  27.559 0.7527  27.302 0.7614
50 K-SVD         27.79      -   25.47      -   25.95      -       -      -   27.95      -
50 BM3D          28.92      -   27.04      -   26.81      -   29.04      -   29.49      -
"""


def _table3() -> dict[tuple[int, str, str], tuple[float, float | None]]:
    scores: dict[tuple[int, str, str], tuple[float, float | None]] = {}
    for line in _TABLE3.strip().splitlines():
        sigma, method, *numbers = line.split()
        for image, psnr, ssim in zip(IMAGES, numbers[::2], numbers[1::2], strict=True):
            if psnr != "-":
                known_ssim = None if ssim == "-" else float(ssim)
                scores[int(sigma), image, method] = float(psnr), known_ssim
    return scores


#: PSNR and SSIM by noise level, image and method: Table III of C. Rusu and P. Irofti, "Efficient
#: and Parallel Separable Dictionary Learning", 2020 (arXiv 2007.03800); "K-SVD" of M. Elad and M.
#: Aharon, "Image Denoising Via Sparse and Redundant Representations Over Learned Dictionaries",
#: IEEE TIP 15(12), 2006, as listed in the demonstration of the SuKro toolbox; "BM3D" (the package
#: "bm3d" of PyPI with its default profile), measured on these images.
TABLE3 = _table3()

#: The columns of Table I of the same paper: (n, s), for 8 × 8 patches.
TABLE1_SETTINGS = ((8, 6), (8, 8), (16, 6), (16, 8))

#: Table I of the same paper: seconds for 100 iterations, mean of 5 draws, in the order of
#: TABLE1_SETTINGS. The runs differ: the published script gives TeFDiL all 12288 patches and 50
#: iterations, SuKro 200 iterations and AK-SVD n·m atoms.
TABLE1: dict[str, tuple[int, ...]] = {
    "general": (21, 22, 33, 38),
    "orthonormal": (18, 20, 18, 22),
    "PairAK-SVD": (140, 171, 205, 266),
    "SuKro": (23, 27, 47, 56),
    "TeFDiL": (8, 10, 19, 24),
    "AK-SVD": (10, 14, 16, 21),
}

#: Table II of the same paper: the speedup of p processes over one, by p, for patches of m × m.
#: Key: (method, m); n = m, s = m for the orthonormal method and 8 for the general one.
TABLE2: dict[tuple[str, int], dict[int, float]] = {
    ("orthonormal", 8): {2: 2.0, 4: 4.3, 6: 5.6, 8: 8.0, 12: 10.3},
    ("orthonormal", 16): {2: 2.0, 4: 3.9, 6: 5.4, 8: 7.8, 12: 10.8},
    ("orthonormal", 32): {2: 2.0, 4: 3.8, 6: 5.1, 8: 7.1, 12: 10.6},
    ("general", 8): {2: 0.6, 4: 1.1, 6: 1.4, 8: 2.0, 12: 2.6},
    ("general", 16): {2: 1.5, 4: 3.1, 6: 3.8, 8: 5.1, 12: 5.4},
    ("general", 32): {2: 2.0, 4: 3.4, 6: 4.0, 8: 4.6, 12: 5.0},
}

#: Table IV of the same paper: the same for 3,913,140 patches of 8 × 8 of a hyperspectral image,
#: n = 8, s = 16.
TABLE4: dict[tuple[str, int], dict[int, float]] = {
    ("orthonormal", 8): {4: 3.8, 8: 7.6, 10: 9.4, 12: 10.8, 16: 12.4},
    ("general", 8): {4: 2.1, 8: 5.5, 10: 8.0, 12: 9.1, 16: 10.5},
}
