"""The Gaussian approximation of latent values, as users have it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import arviz as az
import numpy as np
from numpy.typing import NDArray
from scipy.linalg import block_diag

from pymc_rmhmc.latent.charts import GaussianSites, SiteChart
from pymc_rmhmc.model import CompiledBlock
from pymc_rmhmc.model.conditioning import LatentDraws
from pymc_rmhmc.option_numbers import count
from pymc_rmhmc.steps.arguments import seeded

__all__ = ["ApproximatedBlock", "GaussianApproximation", "approximation_of"]

type Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ApproximatedBlock:
    """One block and its approximation.

    Attributes
    ----------
    block : CompiledBlock
        Which values it has.
    chart : SiteChart
        Coordinates in which the approximation is standard normal.
    log_evidence : float
        Of the block.
    second_order : float or None
        Its correction.
    n_iter : int
        Iterations.
    """

    block: CompiledBlock
    chart: SiteChart
    log_evidence: float
    second_order: float | None
    n_iter: int


@dataclass(frozen=True)
class GaussianApproximation:
    """Gaussian approximation of the posterior of a model's latent values; returned by `laplace` and `ep`.

    Attributes
    ----------
    method : str
        "laplace" or "ep".
    mean : dict of str to array
        Mean of each latent variable, in its shape. For Laplace's method this is the mode.
    eta_mean, eta_variance : (n,) array
        Mean and variance of the values η that the likelihood reads, of all blocks in order.
    sites : GaussianSites
        Gaussian factors ``exp(b η - ½ w̄ η²)`` that stand for the likelihood, for the same n values.
    log_evidence : float
        Approximation of ``log p(y | given)``, with all constants. Without other free variables it approximates
        ``log p(y)``. The priors of the variables in `given` are not part of it. Potentials are. The latent prior counts
        as a normal density with its constants, which PyMC's own densities of `CAR` and `ICAR` leave out.
    second_order : float or None
        For EP, what the second-order correction adds: ``log_evidence + second_order`` is the corrected value.
        None for Laplace's method.
    converged : bool
        Always True: without convergence there is an error instead.
    n_iter : int
        Newton steps, or updates of all sites, of the block that took most.
    given : dict of str to array
        The other free variables, and the values at which they were held.
    """

    method: str
    mean: dict[str, Array]
    eta_mean: Array
    eta_variance: Array
    sites: GaussianSites
    log_evidence: float
    second_order: float | None
    converged: bool
    n_iter: int
    given: dict[str, Array]
    _charts: tuple[SiteChart, ...] = field(repr=False)
    _draws: LatentDraws = field(repr=False)
    _value_names: tuple[str, ...] = field(repr=False)

    def __repr__(self) -> str:
        """Name the method, the latent variables and the evidence."""
        names = ", ".join(f"{name} {value.shape}" for name, value in self.mean.items())
        corrected = "" if self.second_order is None else f" (second order {self.second_order:+.4f})"
        given = f", given {', '.join(self.given)}" if self.given else ""
        evidence = f"log evidence {self.log_evidence:.4f}{corrected}"
        return f"GaussianApproximation({self.method} of {names}{given}; {evidence})"

    @cached_property
    def covariance_factor(self) -> Array:
        """Lower triangular factor L of the covariance ``L Lᵀ`` of all latent values, (k, k).

        The values are those of `mean`, raveled one variable after the other.
        """
        factors = [chart.model_factor for chart in self._charts]
        return factors[0] if len(factors) == 1 else block_diag(*factors)

    def sample(self, draws: int = 1000, random_seed: Any = None) -> Any:
        """Draw from the approximation.

        Parameters
        ----------
        draws : int
            Number of independent draws.
        random_seed : int or numpy.random.Generator, optional
            Seed.

        Returns
        -------
        xarray.DataTree
            Its posterior group has one chain of the latent variables, the variables in `given` at their values and
            the deterministics. `pymc.sample_posterior_predictive` takes it.

        Raises
        ------
        ConfigurationError
            If `draws` is not a positive whole number, or `random_seed` no seed.
        """
        draws, rng = count("draws", draws, 1000), seeded(random_seed)
        flat = np.concatenate([value.ravel() for value in self.mean.values()])
        values = flat + rng.standard_normal((draws, flat.size)) @ self.covariance_factor.T
        cuts = np.cumsum([value.size for value in self.mean.values()])[:-1]
        parts = np.split(values, cuts, axis=1)
        shapes = [value.shape for value in self.mean.values()]
        held = {
            name: np.ascontiguousarray(part.reshape(-1, *shape))
            for name, part, shape in zip(self._value_names, parts, shapes, strict=True)
        }
        coords, dims = self._draws.labels()
        return az.from_dict({"posterior": self._draws(held)}, coords=coords, dims=dims)


def approximation_of(
    method: str, blocks: Sequence[ApproximatedBlock], draws: LatentDraws, given: dict[str, Array],
    shapes: dict[str, tuple[str, tuple[int, ...]]], elsewhere: float,
) -> GaussianApproximation:  # fmt: skip
    """Join the approximations of independent blocks.

    Parameters
    ----------
    method : str
        "laplace" or "ep".
    blocks : sequence of ApproximatedBlock
        In the model's order.
    draws : LatentDraws
        Makes draws of the other variables.
    given : dict
        The variables that are held, and their values.
    shapes : dict
        From a latent value variable's name to the variable's name and shape.
    elsewhere : float
        The log density of observed terms outside of the blocks.
    """
    parts: dict[str, list[Array]] = {}
    for each in blocks:
        values = each.chart.to_model(np.zeros(each.block.n_latent))
        start = 0
        for name, where in each.block.slices:
            size = where.stop - where.start
            parts.setdefault(name, []).append(values[start : start + size])
            start += size
    mean = {shapes[name][0]: np.concatenate(held).reshape(shapes[name][1]) for name, held in parts.items()}
    charts = tuple(each.chart for each in blocks)
    sites = [chart.sites for chart in charts if chart.sites is not None]
    corrections = [each.second_order for each in blocks if each.second_order is not None]
    return GaussianApproximation(
        method=method,
        mean=mean,
        eta_mean=np.concatenate([chart.predictor.offset for chart in charts]),
        eta_variance=np.concatenate([chart.predictor.variance for chart in charts]),
        sites=GaussianSites(
            np.concatenate([each.linear for each in sites]), np.concatenate([each.precision for each in sites])
        ),
        log_evidence=elsewhere + sum(each.log_evidence for each in blocks),
        second_order=sum(corrections) if corrections else None,
        converged=True,
        n_iter=max(each.n_iter for each in blocks),
        given=given,
        _charts=charts,
        _draws=draws,
        _value_names=tuple(parts),
    )
