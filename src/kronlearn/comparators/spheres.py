"""Geometry of matrices with unit columns, each of which moves on a great circle of its sphere."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["geodesic", "tangent", "transport"]

Matrix = NDArray[np.float64]


def tangent(D: Matrix, V: Matrix) -> Matrix:
    """Project V on the tangent space at D: remove from each column its part along that of D."""
    return V - D * np.sum(D * V, axis=0)


def geodesic(D: Matrix, H: Matrix, t: float) -> Matrix:
    """Return the columns at time t that start at D with velocities H, tangent there.

    ``d cos(t‖h‖) + h sin(t‖h‖)/‖h‖``, scaled to norm 1, since rounding would change the norm over
    many steps.

    Examples
    --------
    >>> import numpy as np
    >>> from kronlearn.comparators.spheres import geodesic
    >>> geodesic(np.array([[1.0], [0.0]]), np.array([[0.0], [np.pi]]), 0.5).round(9).tolist()
    [[0.0], [1.0]]
    """
    speed, direction = _split(H)
    end = D * np.cos(t * speed) + direction * np.sin(t * speed)
    return end / np.linalg.norm(end, axis=0)


def transport(D: Matrix, H: Matrix, t: float, V: Matrix, end: Matrix) -> Matrix:
    """Transport tangents V at D along the great circles to ``end = geodesic(D, H, t)``.

    ``v − (d sin(t‖h‖) + h/‖h‖ (1 − cos(t‖h‖)))·⟨h, v⟩/‖h‖``, which preserves lengths and angles.
    """
    speed, direction = _split(H)
    turned = D * np.sin(t * speed) + direction * (1.0 - np.cos(t * speed))
    return tangent(end, V - turned * np.sum(direction * V, axis=0))


def _split(H: Matrix) -> tuple[Matrix, Matrix]:
    """Return the norms of the columns, and the columns scaled to norm 1; zero columns stay."""
    speed = np.linalg.norm(H, axis=0)
    return speed, H / np.where(speed > 0, speed, 1.0)
