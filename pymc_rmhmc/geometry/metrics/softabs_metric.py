"""The SoftAbs metric: the Hessian of the negative log density, with its eigenvalues softly made positive."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.errors import Failure
from pymc_rmhmc.geometry.general.matrix_density import MatrixDensity, MatrixPoint
from pymc_rmhmc.geometry.metrics.field import MetricFieldBase
from pymc_rmhmc.geometry.metrics.graph import matrix_density
from pymc_rmhmc.geometry.metrics.softabs import SoftAbsMatrix
from pymc_rmhmc.option_numbers import one_of, real_number

__all__ = ["SoftAbsField", "SoftAbsMetric"]

type Array = NDArray[np.float64]

STRUCTURES = ("auto", "dense", "blocks")


class SoftAbsMetric:
    """SoftAbs metric of any model: ``G = Q diag(λ coth αλ) Qᵀ`` of the Hessian ``Q diag(λ) Qᵀ`` of -log density.

    Where the curvature is large, G is the Hessian with its eigenvalues made positive. Directions with less curvature
    than about 1/α are given that curvature. RMHMC samples all continuous variables in it, with the values and bounds'
    transforms that PyMC uses.

    Parameters
    ----------
    alpha : float
        How sharp the absolute value is, from 1e-3 to 1e12, in units of the inverse curvature of the variables. It
        should be large: a small one floors the curvature of wide directions, and a chain then crosses them slowly or
        not at all.
    structure : {"auto", "dense", "blocks"}
        How the Hessian is factorised. "dense" takes all eigenvalues, in O(d³). "blocks" finds small blocks of values
        that are coupled by few others, as in a hierarchy, and costs O(d). "auto" takes the cheaper one.

    Raises
    ------
    ConfigurationError
        If `alpha` or `structure` is out of range. When RMHMC is built: if the dense matrix would be too large.
    UnsupportedModelError
        When RMHMC is built: if the log density cannot be differentiated three times.

    Notes
    -----
    A step costs the Hessian, its factor, and one more derivative of the graph. It is for models whose curvature
    changes much and that no flat chart can straighten: on the models measured ``RMHMC()`` is faster.

    References
    ----------
    Betancourt (2013), A general metric for Riemannian manifold Hamiltonian Monte Carlo, eq. 9 to 13.

    Examples
    --------
    >>> from pymc_rmhmc import SoftAbsMetric
    >>> SoftAbsMetric(alpha=1e4)
    SoftAbsMetric(alpha=10000.0, structure='auto')
    """

    name, chart, source = "softabs", "graph", "hessian"

    def __init__(self, alpha: float = 1e6, structure: str = "auto") -> None:
        self.alpha = real_number("alpha", alpha)
        self.structure = one_of("structure", structure, STRUCTURES, "Leave it out, and the cheaper one is taken.")

    def __repr__(self) -> str:
        return f"SoftAbsMetric(alpha={self.alpha}, structure={self.structure!r})"

    def bind(self, density: MatrixDensity) -> SoftAbsField:
        """Return the metric of a density.

        Raises
        ------
        ConfigurationError
            If the density has no Hessian.
        """
        return SoftAbsField(matrix_density(density, self.name), self.alpha)


class SoftAbsField(MetricFieldBase[MatrixPoint, Array]):
    """The metric of a dense Hessian; a bar is the derivative by the negative Hessian, (d, d).

    Parameters
    ----------
    density : MatrixDensity
        Of products of its Hessian.
    alpha : float
        How sharp the absolute value is.
    """

    def __init__(self, density: MatrixDensity, alpha: float) -> None:
        density = density.with_vectors(np.eye(density.size))
        super().__init__(density)
        self._matrices, self._alpha = density, alpha

    def at(self, point: MatrixPoint) -> SoftAbsMatrix | Failure:
        """Take the Hessian apart; a `Failure` if it is not finite."""
        return SoftAbsMatrix.soften(-point.matrix, self._alpha)

    def pullback(self, point: MatrixPoint, bar: Any) -> Array:
        """One call of the compiled derivative, (d,)."""
        return -self._matrices.pullback(point, bar)
