"""The principal components of a cube: its pixels as planes of coefficients, and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.hyperspectral.blocks import working_dtype
from kronlearn.hyperspectral.noise import signal_edge
from kronlearn.hyperspectral.statistics import Statistics

__all__ = ["Subspace"]

# Eigenvalues count as signal if they exceed the largest one of noise by this factor.
_MARGIN = 1.1
# At least this many planes are kept: rare spectra hardly add to the variance.
_FEWEST_PLANES = 3
# Noise that is weaker than the signal by this factor cannot be removed in single precision.
_CLEAN = 1e6


@dataclass(frozen=True)
class Subspace:
    """The principal components above the noise, of spectra in units of the noise of each band.

    Noise with the standard deviation ``sigma[b]`` in band b has standard deviation one in every
    plane and is independent from plane to plane.

    Attributes
    ----------
    bands : array of int, shape (B,)
        The bands that are represented.
    mean : array of shape (B,)
    sigma : array of shape (B,)
    basis : array of shape (B, n_planes)
        Orthonormal columns, the strongest first.
    """

    bands: NDArray[np.intp]
    mean: NDArray[np.float64]
    sigma: NDArray[np.float64]
    basis: NDArray[np.float64]

    @classmethod
    def of(
        cls, statistics: Statistics, used: NDArray[np.bool_], sigma: NDArray[np.float64]
    ) -> Subspace:
        """The subspace of a cube, from the statistics of the bands ``used`` and the noise of all.

        It leaves out bands with no noise, or too little to be removed in single precision.
        """
        noise = sigma[used]
        spread = np.sqrt(np.diag(statistics.scatter) / statistics.n_pixels)
        with np.errstate(invalid="ignore"):
            noisy = (noise > 0) & (spread < _CLEAN * noise)
        noise = noise[noisy]
        covariance = statistics.scatter[np.ix_(noisy, noisy)] / statistics.n_pixels
        values, vectors = np.linalg.eigh(covariance / np.multiply.outer(noise, noise))
        edge = _MARGIN * signal_edge(max(len(noise), 1), statistics.n_pixels)
        n_planes = max(int((values > edge).sum()), min(len(noise), _FEWEST_PLANES))
        basis = vectors[:, ::-1][:, :n_planes]
        return cls(np.flatnonzero(used)[noisy], statistics.mean[noisy], noise, basis)

    @property
    def n_planes(self) -> int:
        """The number of components."""
        return self.basis.shape[1]

    def split(
        self, values: NDArray[Any], valid: NDArray[np.bool_] | None
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Split values (rows, columns, all bands) into planes and a residual.

        Planes are (n_planes, rows, columns); the residual is (rows, columns, B), in units of the
        noise. Both are zero for pixels that are not ``valid`` (rows, columns).
        """
        rows, columns, n_bands = values.shape
        if len(self.bands) < n_bands:
            values = values[..., self.bands]
        dtype = working_dtype(values.dtype)
        spectra = values.reshape(rows * columns, len(self.bands)) - self.mean.astype(dtype)
        spectra *= (1 / self.sigma).astype(dtype)
        if valid is not None:
            spectra[~valid.reshape(-1)] = 0
        basis = self.basis.astype(dtype)
        planes = basis.T @ spectra.T
        spectra -= planes.T @ basis.T
        return (
            planes.reshape(self.n_planes, rows, columns).astype(np.float32, copy=False),
            spectra.reshape(rows, columns, -1).astype(np.float32, copy=False),
        )

    def values(self, planes: NDArray[np.float32], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Convert planes to values (rows, columns, B), as floats that hold a dtype exactly."""
        working = working_dtype(dtype)
        synthesis = (self.basis.T * self.sigma).astype(working)
        _, rows, columns = planes.shape
        flat = planes.reshape(self.n_planes, rows * columns).astype(working, copy=False)
        spectra = flat.T @ synthesis
        spectra += self.mean.astype(working)
        return spectra.reshape(rows, columns, len(self.bands))
