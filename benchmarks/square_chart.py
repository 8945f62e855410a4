"""The site chart with one z for a latent value, ``h = L R⁻ᵀ (c + z)``, beside the one with two that is used.

With ``E = I + LᵀW̄L = R Rᵀ`` and ``c = R⁻¹Lᵀb`` its value is ``Σ ℓ(m + h) - bᵀh + ½ hᵀW̄h + ½ cᵀc - Σ log Rᵢᵢ``, and its
gradient has the adjoints of both factors by hand. Triangles are used wherever there are some: two Choleskys, one
triangular product for E and one for its adjoint, two Cholesky adjoints, 10n³/3 flops in all. The chart that is used
takes two Choleskys, one inverse and one adjoint, 2n³. Kernel, its derivative and likelihood are the same compiled
functions.
Run with ``python -m benchmarks.square_chart``.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from scipy.linalg import blas

from benchmarks.gradient_cost import SIZES, median_seconds
from benchmarks.joint_target import build
from pymc_rmhmc.latent.charts import GaussianSites
from pymc_rmhmc.linalg.cholesky import cholesky, cholesky_adjoint, cogram_lower, multiply_lower, solve_lower
from pymc_rmhmc.model import JointModel

__all__ = ["SquareChart"]


class SquareChart:
    """The log density of (θ, z), with z (n,), and its gradient.

    Parameters
    ----------
    model : JointModel
        With one process, which observations read as it is.
    sites : GaussianSites
        Its sites.
    """

    def __init__(self, model: JointModel, sites: GaussianSites) -> None:
        self._model, (self._block,) = model, model.blocks
        self._linear, self._precision = sites.linear, sites.precision

    def at(self, theta: np.ndarray, z: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """The value, up to a constant, and its gradients by θ and by z."""
        stated = self._block.prior(theta)
        mean, covariance = stated.mean, stated.vectors[0].covariance
        factor = cholesky(covariance)
        inner = cogram_lower(np.asfortranarray(np.sqrt(self._precision)[:, None] * factor))
        inner[np.diag_indices_from(inner)] += 1.0
        root = cholesky(inner, overwrite=True)
        centre = solve_lower(root, multiply_lower(factor, self._linear, transpose=True))
        whitened = solve_lower(root, centre + z, transpose=True)
        h = multiply_lower(factor, whitened)
        log_likelihood, slope, by_parameters = self._block.likelihood(theta, mean + h)
        rest, by_rest = self._model.rest(theta)
        at_sites = self._linear @ h - 0.5 * self._precision @ h**2
        evidence = 0.5 * centre @ centre - np.log(root.diagonal()).sum()
        value = log_likelihood - at_sites + evidence + rest

        residual = slope - self._linear + self._precision * h
        z_bar = solve_lower(root, multiply_lower(factor, residual, transpose=True))
        linear_bar = solve_lower(root, z_bar + centre, transpose=True)
        root_bar = np.asfortranarray(-np.outer(whitened, z_bar) - np.outer(linear_bar, centre))
        root_bar[np.diag_indices_from(root_bar)] -= 1.0 / root.diagonal()
        inner_bar = np.tril(cholesky_adjoint(root, root_bar))
        product = blas.dtrmm(1.0, factor, np.asfortranarray(inner_bar + inner_bar.T), lower=1, overwrite_b=1)
        product *= self._precision[:, None]
        product += np.outer(residual, whitened) + np.outer(self._linear, linear_bar)
        covariance_bar = np.tril(cholesky_adjoint(factor, product))
        theta_bar = by_rest + by_parameters + self._block.prior_pullback(theta, slope, [covariance_bar], None)
        return float(value), theta_bar, z_bar


def main() -> None:
    """Print one line for each size."""
    print("| n | one z, ms | two z, ms | ratio |\n| --- | --- | --- | --- |")
    for n in SIZES:
        built = build(n)
        chart, rng = SquareChart(built.model, built.target.sites[0]), np.random.default_rng(0)
        z, position = rng.standard_normal(n), rng.standard_normal(built.target.size)
        square, used = [], []
        for _ in range(3):  # in turn: the machine is not as fast all the time
            square.append(median_seconds(lambda c=chart, t=built.theta, z=z: c.at(t, z)))
            used.append(median_seconds(lambda t=built.target, p=position: t.at(p)))
        one, two = float(np.median(square)), float(np.median(used))
        print(f"| {n} | {1e3 * one:.3g} | {1e3 * two:.3g} | {one / two:.2f} |", flush=True)


if __name__ == "__main__":
    main()
