"""Sparse coding: samples and a dictionary in, sparse codes out."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from kronlearn import _native
from kronlearn.core.dictionary import Dictionary, KroneckerDictionary
from kronlearn.core.engine import Coder, Codes, Task
from kronlearn.core.source import Source
from kronlearn.cuda.engine import Cuda
from kronlearn.cuda.samples import CardSource
from kronlearn.engines.selection import check_device, engine_of_device
from kronlearn.engines.threads import Threads, default_block_size
from kronlearn.io.samples import open_samples, source_of

__all__ = ["METHODS", "sparse_code"]

METHODS = ("omp", "ols", "threshold")


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
    """Sparse codes X with ``Y_k ≈ X_k ×_1 D_1 … ×_d D_d``, one row per sample.

    Parameters
    ----------
    Y : array of shape (N, m_1, …, m_d) or (N, m_1·…·m_d)
        Samples: an array, a lazy array (Zarr, h5py, Dask, xarray) or the path of a file with one.
        With ``device="cuda"`` also an array on the graphics card, of CuPy, PyTorch or anything
        else that speaks DLPack, which is not copied. float32 is coded in float32, everything else
        in float64.
    dictionary : KroneckerDictionary, KroneckerSumDictionary or list of factors
        Factors of shape (m_i, n_i) with unit-norm columns.
    n_nonzero_coefs : int, optional
        The most nonzeros a sample may have. At least one of this and ``tol`` is needed.
    tol : float or array of shape (N,), optional
        The ℓ2 norm a residual may have, for all samples or one each: coding of a sample stops as
        soon as its residual is no larger.
    method : {"omp", "ols", "threshold"}
        "omp" takes the atom most correlated with the residual (orthogonal matching pursuit);
        "ols" the one that lowers the residual most (orthogonal least squares), better for
        overcomplete dictionaries and about 1.5 times the cost; "threshold" keeps the largest
        correlations, exact for orthonormal factors and refused for others.
    weights : array that broadcasts to Y's shape, optional
        Nonnegative (or boolean) weights: ``Σ w (y − Dx)²`` is minimised, zero where an entry is
        missing; what has no weight may be NaN. ``tol`` then means the weighted residual. Costs a
        correlation with all atoms per nonzero: 3 to 8 times the unweighted cost.
    n_jobs : int or None
        Threads; -1 for all processors. The codes are the same bits for any number.
    block_size : int, optional
        Samples a thread takes at a time. Changes no result.
    device : {"cpu", "cuda"}
        "cuda" codes on an NVIDIA graphics card (``pip install 'kronlearn[cuda]'``).

    Returns
    -------
    csr_array of shape (N, n_1·…·n_d)
        Column indices ascending in each row, in C order over the modes. A ``csr_matrix`` of CuPy
        where Y is on the card, of whatever library.

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
        dictionary = KroneckerDictionary(dictionary)
    check_device(device)
    source = source_of(open_samples(Y), dictionary.patch_shape)
    width = check_targets(dictionary, n_nonzero_coefs, tol, len(source))
    check_method(method, dictionary)
    checked_weights = None if weights is None else check_weights(weights, source, method)
    target = None if tol is None else np.asarray(tol, dtype=np.float64)
    coder = Coder(method, width, target, checked_weights)
    block = check_block_size(block_size) or default_block_size(source)
    engine = engine_of_device(device, source, block, n_jobs)
    return code_source(source, dictionary, coder, engine)


def code_source(
    source: Source, dictionary: Dictionary, coder: Coder, engine: Threads | Cuda
) -> Any:
    """The codes ``(N, n_codes)`` of all samples of a source, where its samples are."""
    task, n = Task(dictionary, coder), len(source)
    if isinstance(source, CardSource):
        assert isinstance(engine, Cuda)
        return engine.coded_matrix(source, task)
    counts, indices, data = [], [], []
    for codes in engine.coded(source, task):
        assert codes.nonzeros is not None
        packed_index, packed_value = _pack(codes)
        counts.append(codes.nonzeros)
        indices.append(packed_index)
        data.append(packed_value)
    ends = np.zeros(n + 1, np.int64)
    np.cumsum(np.concatenate(counts), out=ends[1:])
    kind = np.int32 if ends[-1] < 2**31 else np.int64
    joined = indices[0] if len(indices) == 1 else np.concatenate(indices)
    values = data[0] if len(data) == 1 else np.concatenate(data)
    arrays = (values, joined.astype(kind, copy=False), ends.astype(kind, copy=False))
    X = sparse.csr_array(arrays, shape=(n, dictionary.n_codes))
    X.has_sorted_indices = True
    X.has_canonical_format = True
    return X


def _pack(codes: Codes) -> tuple[NDArray[np.int32], NDArray[Any]]:
    """Indices and values of the used entries, row after row."""
    assert codes.index is not None
    assert codes.value is not None
    assert codes.nonzeros is not None
    total = int(codes.nonzeros.sum())
    if total == codes.index.size:
        return codes.index.reshape(-1), codes.value.reshape(-1)
    indices = np.empty(total, np.int32)
    values = np.empty(total, codes.value.dtype)
    _native.compress(codes.index, codes.value, codes.nonzeros, indices, values)
    return indices, values


def check_targets(
    dictionary: Dictionary,
    n_nonzero_coefs: int | None,
    tol: float | ArrayLike | None,
    n_samples: int | None = None,
) -> int:
    """The most nonzeros a sample may get, once sparsity and error target make sense."""
    n = dictionary.n_codes
    if n_nonzero_coefs is None and tol is None:
        raise ValueError(
            "Neither n_nonzero_coefs nor tol is given; pass the most nonzeros a sample may have, "
            "the residual norm it may have, or both."
        )
    if tol is not None:
        _check_tol(tol, n_samples)
    if n_nonzero_coefs is None:
        return min(n, dictionary.n_features)
    if isinstance(n_nonzero_coefs, bool) or not isinstance(n_nonzero_coefs, numbers.Integral):
        raise TypeError(f"n_nonzero_coefs={n_nonzero_coefs!r} is not an integer.")
    if n_nonzero_coefs < 1:
        raise ValueError(f"n_nonzero_coefs={n_nonzero_coefs} is not positive; pass at least 1.")
    if n_nonzero_coefs > n:
        shape = " × ".join(map(str, dictionary.n_atoms))
        atoms = f"{n} atoms of this dictionary" + (
            f" ({shape})" if len(dictionary.n_atoms) > 1 else ""
        )
        raise ValueError(
            f"n_nonzero_coefs={n_nonzero_coefs} exceeds the {atoms}; pass at most {n}."
        )
    return min(int(n_nonzero_coefs), dictionary.n_features)


def _check_tol(tol: float | ArrayLike, n_samples: int | None) -> None:
    try:
        values = np.asarray(tol, dtype=np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"tol={tol!r} is not a number; pass a residual norm.") from None
    if values.ndim and (values.ndim > 1 or n_samples is None or len(values) != n_samples):
        wanted = (
            "a single number" if n_samples is None else f"a single number or shape ({n_samples},)"
        )
        raise ValueError(f"tol has shape {values.shape}; {wanted} is needed.")
    if not (np.isfinite(values).all() and (values >= 0).all()):
        bad = (
            float(values[~(np.isfinite(values) & (values >= 0))][0])
            if values.ndim
            else float(values)
        )
        raise ValueError(f"tol={bad:g} is not a residual norm; pass zero or a positive number.")


def check_method(method: str, dictionary: Dictionary) -> None:
    """Raise unless the method exists and suits the dictionary."""
    if method not in METHODS:
        raise ValueError(f"method={method!r} does not exist; choose one of {', '.join(METHODS)}.")
    if method == "threshold" and not dictionary.is_orthonormal:
        raise ValueError(
            'method="threshold" needs factors with orthonormal columns, and these are not; use '
            'method="omp" or "ols".'
        )


def check_weights(weights: ArrayLike, source: Source, method: str) -> NDArray[Any]:
    """Weights of the samples' shape, (N, m_1·…·m_d); a broadcast view where possible."""
    if method == "threshold":
        raise ValueError(
            'method="threshold" cannot use weights: they break the orthonormality it rests on. Use '
            'method="omp" or "ols".'
        )
    array = np.asarray(weights)
    if array.dtype.kind not in "fiub":
        raise ValueError(f"weights has dtype {array.dtype}; pass real numbers or booleans.")
    shape = (len(source), *source.patch_shape)
    if array.ndim == 2 and array.shape == (shape[0], source.n_features):
        array = array.reshape(shape)
    try:
        array = np.broadcast_to(array, shape)
    except ValueError:
        raise ValueError(
            f"weights has shape {array.shape}; it must broadcast to the samples' shape {shape}."
        ) from None
    step = max(1, (1 << 22) // source.n_features)
    for start in range(0, len(array), step):
        lowest = float(np.min(array[start : start + step]))
        highest = float(np.max(array[start : start + step]))
        if not (lowest >= 0 and math.isfinite(highest)):
            wrong = "NaN" if math.isnan(lowest) else f"{lowest if lowest < 0 else highest:g}"
            raise ValueError(f"weights holds {wrong}; weights must be finite and not negative.")
    return array


def check_block_size(block_size: int | None) -> int | None:
    """The block size, once it is known to be one."""
    if block_size is None:
        return None
    if isinstance(block_size, bool) or not isinstance(block_size, numbers.Integral):
        raise TypeError(f"block_size={block_size!r} is not an integer.")
    if block_size < 1:
        raise ValueError(f"block_size={block_size} is not positive; pass at least 1.")
    return int(block_size)
