"""Sparse coding of samples with a dictionary."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from kronlearn.core.coder import Coder, check_method, check_targets, check_weights
from kronlearn.core.dictionary import Dictionary, KroneckerDictionary
from kronlearn.cuda.arrays import gpu_of, in_memory
from kronlearn.engines.samples import open_samples, source_of
from kronlearn.engines.selection import check_device, local_engine
from kronlearn.parameters import check_count

__all__ = ["sparse_code"]


def sparse_code(
    Y: ArrayLike,
    dictionary: Dictionary | Iterable[ArrayLike],
    n_nonzero_coefs: int | None = None,
    tol: float | ArrayLike | None = None,
    method: str = "omp",
    *,
    weights: ArrayLike | None = None,
    n_jobs: int | None = 1,
    block_size: int | None = None,
    device: str = "cpu",
) -> sparse.csr_array:
    """Compute sparse codes X with ``Y_k ≈ X_k ×_1 D_1 … ×_d D_d``, one row per sample.

    Parameters
    ----------
    Y : array of shape (N, m_1, …, m_d) or (N, m_1·…·m_d)
        Samples: an array, a lazy array (Zarr, h5py, Dask, xarray) or the path of a file with one.
        Arrays on a GPU, from CuPy, PyTorch or any other library with DLPack, are coded there
        without a copy; ``tol``, ``weights`` and factors may be on a GPU, too. float32 samples are
        coded in float32, all others in float64.
    dictionary : KroneckerDictionary, KroneckerSumDictionary or list of factors
        Factors of shape (m_i, n_i) with unit-norm columns.
    n_nonzero_coefs : int, optional
        The most nonzeros a sample may have. Pass ``n_nonzero_coefs``, ``tol`` or both.
    tol : float or array of shape (N,), optional
        The ℓ2 norm a residual may have, for all samples or one each: the coding of a sample stops
        as soon as its residual is no larger.
    method : {"omp", "ols", "exchange", "threshold"}, default "omp"
        "omp", orthogonal matching pursuit, selects the atom most correlated with the residual.
        "ols", orthogonal least squares, selects the atom that lowers the residual most, which is
        better for overcomplete dictionaries and takes about 1.5 times as long. "exchange" starts
        from the atoms of "ols" and exchanges one for another while that lowers the residual or,
        once ``tol`` is met, saves a nonzero; this is better still and takes a few times as long.
        "threshold" keeps the largest correlations, which is exact for orthonormal factors and
        refused for others.
    weights : array that broadcasts to Y's shape, optional
        Nonnegative (or boolean) weights w: codes minimise ``Σ w (y − Dx)²``, and ``tol`` refers to
        the weighted residual. Entries with weight zero are missing and may be NaN: to code a masked
        array, pass ``Y.filled(0)`` with ``weights=~Y.mask``. Every nonzero takes a correlation with
        all atoms, so coding takes 3 to 8 times as long as without weights.
    n_jobs : int or None, default 1
        Threads; -1 uses all processors. The codes have the same bits for any number of threads.
    block_size : int, optional
        The number of samples a thread takes at a time. It does not change the result.
    device : {"cpu", "cuda"}, default "cpu"
        "cuda" codes on an NVIDIA GPU (needs the extra ``cuda13`` or ``cuda12``). Samples on a GPU
        are always coded there.

    Returns
    -------
    csr_array of shape (N, n_1·…·n_d)
        The codes; column indices ascend in each row, in C order over the modes. A CuPy
        ``csr_matrix`` if Y is on the GPU.

    Examples
    --------
    >>> import numpy as np
    >>> import kronlearn as kl
    >>> d = kl.KroneckerDictionary([np.eye(4), np.eye(3)])
    >>> Y = np.zeros((1, 4, 3))
    >>> Y[0, 2, 1] = 5.0
    >>> X = kl.sparse_code(Y, d, n_nonzero_coefs=2)
    >>> X.indices, X.data
    (array([7], dtype=int32), array([5.]))
    """
    if not isinstance(dictionary, Dictionary):
        dictionary = KroneckerDictionary(in_memory(dictionary))
    check_device(device)
    tol, weights = in_memory(tol), in_memory(weights)
    with gpu_of(Y):
        source = source_of(open_samples(Y), dictionary.patch_shape)
        width = check_targets(dictionary, n_nonzero_coefs, tol, len(source))
        check_method(method, dictionary)
        checked_weights = None if weights is None else check_weights(weights, source, method)
        target = None if tol is None else np.asarray(tol, dtype=np.float64)
        coder = Coder(method, width, target, checked_weights)
        if block_size is not None:
            check_count("block_size", block_size)
        engine = local_engine(source, n_jobs, device, block_size)
        return engine.codes(dictionary, coder)
