"""Gaussian approximations of latent Gaussian blocks given everything else: Laplace's method and EP."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import arviz as az
import numpy as np
import pymc as pm
import xarray as xr
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import block_diag

from pymc_rmhmc.approximation import fit_ep, laplace_sites, second_order_correction
from pymc_rmhmc.approximation.coupled_laplace import CoupledLaplace, coupled_laplace
from pymc_rmhmc.approximation.ep import MAX_ITER, TOLERANCE
from pymc_rmhmc.approximation.tilted import PointwiseLikelihood
from pymc_rmhmc.chains.judgement import in_words
from pymc_rmhmc.errors import (
    ApproximationError,
    CovarianceError,
    DataError,
    Failure,
    PriorFailure,
    UnsupportedModelError,
)
from pymc_rmhmc.evidence.evidence_references import mode_of, no_mode
from pymc_rmhmc.latent.charts import GaussianSites, MarginalChart, SiteChart
from pymc_rmhmc.latent.charts.site import FactorizedPrior
from pymc_rmhmc.latent.field.field_target import FieldTarget
from pymc_rmhmc.model import CompiledBlock, ModelStructure, model_in_context, with_predictors_or_without
from pymc_rmhmc.model.conditioning import (
    LatentDraws,
    check_can_be_given,
    check_is_observed,
    compile_widest,
    given_values,
    log_density_of_data,
    observed_elsewhere,
    point_of,
)
from pymc_rmhmc.model.field.field_model import ReadField
from pymc_rmhmc.model.field.field_or_other import read_of_several
from pymc_rmhmc.model.predictions import predicted_variables, without
from pymc_rmhmc.model.words.bad_inputs import InputChecks
from pymc_rmhmc.model.words.density_terms import DensityTerms
from pymc_rmhmc.sampled.checks import likelihood_error
from pymc_rmhmc.steps.options import seeded
from pymc_rmhmc.usage import called_as, count, real_number, whole_number

__all__ = ["ApproximatedBlock", "GaussianApproximation", "approximation_of", "ep", "laplace"]

type Point = dict[str, np.ndarray]
type Array = NDArray[np.float64]
# Of matrices that Laplace's method makes of several predictors: 200 MB each.
MOST_COUPLED = 5000
type Fit = Callable[[CompiledBlock, FactorizedPrior, PointwiseLikelihood], ApproximatedBlock]


@called_as('laplace(model), or laplace(model, point={"lengthscale": 0.5})')
def laplace(
    model: pm.Model | None = None, point: Mapping[str, ArrayLike] | None = None
) -> GaussianApproximation:
    r"""Approximate the posterior of latent Gaussian values by Laplace's method.

    The mean is the posterior's mode, and the precision is the prior's plus the likelihood's curvature there.

    Parameters
    ----------
    model : pymc.Model, optional
        A model with latent Gaussian blocks, as `RMHMC` reads them. Normal coefficients and intercepts in the same
        predictors count as latent values. By default the model in context.
    point : dict of str to array, optional
        Values of the other free variables, by their names or those of their value variables. By default they have
        their values in the model's initial point. Values of the latent variables have no effect.

    Returns
    -------
    GaussianApproximation
        Given the other variables' values.

    Raises
    ------
    ApproximationError
        If the mode is not found.
    UnsupportedModelError, UnsupportedLikelihoodError
        If the model has no latent Gaussian block, or has discrete free variables.
    ConfigurationError
        If `point` has unknown names, wrong shapes or values that are not finite.
    DataError, CovarianceError
        If data or a covariance cannot be used.

    Notes
    -----
    With the mode :math:`\hat\eta = \eta_0 + \Phi\hat\nu` and the curvature W there,

    .. math:: \log p(y) \approx \sum_i \ell_i(\hat\eta_i) - \tfrac12 |\hat\nu|^2 - \tfrac12 \log |I + \Phi^T W \Phi|.

    W is the negative second derivative of a log-concave likelihood, and the Fisher information otherwise, or SoftAbs of
    the second derivative for one that is not registered. Where an observation reads several predictors, such as the
    logits of its classes, or a mean and a spread, W is the negative second derivative with a block for each.

    References
    ----------
    Rasmussen and Williams (2006), Gaussian Processes for Machine Learning, section 3.4, equation 3.32.

    Examples
    --------
    >>> import numpy as np, pymc as pm
    >>> from pymc_rmhmc import laplace
    >>> with pm.Model() as model:
    ...     f = pm.MvNormal("f", np.zeros(3), cov=np.eye(3))
    ...     y = pm.Poisson("y", mu=pm.math.exp(f), observed=[1, 0, 2])
    >>> approximation = laplace(model)
    >>> print(approximation)
    GaussianApproximation(laplace of f (3,); log evidence -4.2313)
    >>> approximation.sample(draws=500, random_seed=1).posterior["f"].shape
    (1, 500, 3)
    """
    return _approximated("laplace", model, point, _fit_laplace, of_several=True)


@called_as('ep(model), or ep(model, point={"lengthscale": 0.5}, damping=0.5)')
def ep(
    model: pm.Model | None = None,
    point: Mapping[str, ArrayLike] | None = None,
    *,
    damping: float = 1.0,
    tolerance: float = TOLERANCE,
    max_iter: int = MAX_ITER,
) -> GaussianApproximation:
    r"""Approximate the posterior of latent Gaussian values by expectation propagation.

    Means, variances and the evidence are closer to the exact ones than Laplace's, above all for binary data. It takes
    some ten times as long.

    Parameters
    ----------
    model : pymc.Model, optional
        A model with latent Gaussian blocks, as `RMHMC` reads them. Normal coefficients and intercepts in the same
        predictors count as latent values. By default the model in context.
    point : dict of str to array, optional
        Values of the other free variables, by their names or those of their value variables. By default they have
        their values in the model's initial point. Values of the latent variables have no effect.
    damping : float
        The fraction of each update of the sites that is made, from above 0 to 1.
    tolerance : float
        EP has converged when no mean changes by more than this fraction of a standard deviation, and no variance by
        more than this fraction of itself.
    max_iter : int
        The most updates of all sites.

    Returns
    -------
    GaussianApproximation
        Given the other variables' values. Its `second_order` corrects the evidence.

    Raises
    ------
    ApproximationError
        If EP does not converge, as can happen if a likelihood is far from log-concave.
    UnsupportedModelError, UnsupportedLikelihoodError
        If the model has no latent Gaussian block, or has discrete free variables, or if an observation reads several
        predictors of one block: `laplace` takes these.
    ConfigurationError
        If `point` has unknown names, wrong shapes or values that are not finite, or an option is out of range.
    DataError, CovarianceError
        If data or a covariance cannot be used.

    Notes
    -----
    Each likelihood term is replaced by a site :math:`\exp(b_i\eta_i - \tfrac12 \bar w_i\eta_i^2)`. With
    :math:`q_{-i}` the marginal of :math:`\eta_i` without its own site, the sites are such that

    .. math:: q_{-i}(\eta_i)\, e^{\ell_i(\eta_i)} / Z_i

    has the mean and variance of :math:`q(\eta_i)`. All sites are updated at once; if that does not converge, one by
    one. Sites of a likelihood that is not log-concave may have :math:`\bar w_i < 0`.

    References
    ----------
    Minka (2001), Expectation propagation for approximate Bayesian inference. Rasmussen and Williams (2006), section
    3.6. Opper, Paquet and Winther (2013), Perturbative corrections for approximate inference in Gaussian latent
    variable models.

    Examples
    --------
    >>> import numpy as np, pymc as pm
    >>> from pymc_rmhmc import ep
    >>> with pm.Model() as model:
    ...     f = pm.MvNormal("f", np.zeros(3), cov=np.eye(3))
    ...     y = pm.Poisson("y", mu=pm.math.exp(f), observed=[1, 0, 2])
    >>> approximation = ep(model)
    >>> print(approximation)
    GaussianApproximation(ep of f (3,); log evidence -4.2464 (second order +0.0000))
    >>> approximation.mean["f"].round(2)
    array([-0.12, -0.68,  0.33])
    """
    step, least = real_number("damping", damping), real_number("tolerance", tolerance)
    most = whole_number("max_iter", max_iter)

    return _approximated("ep", model, point, partial(_fit_ep, damping=step, tolerance=least, max_iter=most))


def _approximated(
    method: str, model: pm.Model | None, given: Mapping[str, ArrayLike] | None, fit: Fit, *, of_several: bool = False
) -> GaussianApproximation:
    """Read the model, fit its blocks one by one, and join them."""
    model = model_in_context(model, method)
    model = without(model, predicted_variables(model))
    check_can_be_given(model)
    point = point_of(model, given)
    InputChecks(model).check(point)
    field = read_of_several(model, point) if of_several else None
    if field is not None:
        return approximation_of_field(field, point)
    structure, compiled = with_predictors_or_without(model, lambda read: compile_widest(read, point))
    elsewhere = observed_elsewhere(structure, point)
    held = given_values(structure.model, structure.variables, point)
    fitted = []
    for block in compiled.blocks:
        prior, likelihood = _prior(block, point, held), block.likelihood(point)
        total, slope = likelihood.gradient(prior.predictor.offset)
        terms = DensityTerms(model)
        lost = likelihood_error(block.name, total, slope, in_words(held), lambda: terms.in_words(point))  # noqa: B023
        if lost is not None:
            raise lost
        fitted.append(fit(block, prior, likelihood))
    return approximation_of(method, fitted, structure, point, elsewhere)


def _prior(block: CompiledBlock, point: Point, held: Point) -> FactorizedPrior:
    """Return a block's prior at the point, or raise the error that says why it cannot be used."""
    if block.n_latent == 0 or block.n_sites == 0:
        raise DataError(f"{block.name} has no latent values or no observations: its inputs or data are empty.")
    block.check_inputs(point)
    try:
        return FactorizedPrior(block.prior(point))
    except PriorFailure as failure:
        raise _prior_error(block.name, failure, held) from None


def _prior_error(name: str, failure: PriorFailure, held: Point) -> DataError | CovarianceError:
    """Return the error that says why a block's prior cannot be used."""
    where = f" where {in_words(held)}" if held else ""
    if failure.failure is Failure.NON_FINITE:
        return DataError(
            f"{name}: the prior's mean or covariance is not finite{where}. Look for a lengthscale of 0, and for NaN "
            "among its inputs."
        )
    return CovarianceError(
        f"{name}: the prior covariance is not positive definite{where}. Add jitter with gp.prior(..., jitter=1e-6), "
        "remove duplicated inputs, or give another point=."
    )


def _fit_laplace(block: CompiledBlock, prior: FactorizedPrior, likelihood: PointwiseLikelihood) -> ApproximatedBlock:
    mode = mode_of(block.name, prior, likelihood)
    sites = laplace_sites(mode)
    chart = SiteChart(prior, sites)
    # What the sites have too much or too little of the likelihood at the mode.
    residual = likelihood.gradient(mode.eta)[0] - sites.log_density(mode.eta)
    return ApproximatedBlock(block, chart, chart.log_evidence + residual, None, mode.n_iter)


def _fit_ep(
    block: CompiledBlock, prior: FactorizedPrior, likelihood: PointwiseLikelihood, damping: float, tolerance: float,
    max_iter: int,
) -> ApproximatedBlock:  # fmt: skip
    fit = fit_ep(prior, likelihood, damping=damping, tolerance=tolerance, max_iter=max_iter)
    if not fit.converged:
        raise ApproximationError(
            f"{block.name}: expectation propagation did not converge in {fit.n_iter} updates: {fit.problem}. Its "
            "approximation would be wrong. Try ep(damping=0.5, max_iter=1000); if the likelihood is far from "
            "log-concave, use laplace(), which takes the Fisher information."
        )
    correction = second_order_correction(fit, likelihood)
    return ApproximatedBlock(block, fit.chart, fit.log_evidence, correction, fit.n_iter)


@dataclass(frozen=True, slots=True)
class ApproximatedBlock:
    """One block, a chart in which its approximation is standard normal, its evidence and that one's correction."""

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
    sites : GaussianSites or None
        Gaussian factors ``exp(b η - ½ w̄ η²)`` that stand for the likelihood, for the same n values. None where an
        observation reads several predictors: what stands for it is no product.
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
    sites: GaussianSites | None
    log_evidence: float
    second_order: float | None
    converged: bool
    n_iter: int
    given: dict[str, Array]
    _charts: tuple[SiteChart | CoupledLaplace, ...] = field(repr=False)
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

    def sample(self, draws: int = 1000, random_seed: int | np.random.Generator | None = None) -> xr.DataTree:
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
        found: xr.DataTree = az.from_dict({"posterior": self._draws(held)}, coords=coords, dims=dims)
        return found


def approximation_of(
    method: str, blocks: Sequence[ApproximatedBlock], structure: ModelStructure, point: Point, elsewhere: float
) -> GaussianApproximation:
    """Join the approximations of independent blocks, and the log density `elsewhere` of observed terms beyond them."""
    names = {str(structure.model.rvs_to_values[v].name): str(v.name) for v in structure.variables}
    parts: dict[str, list[Array]] = {}
    for each in blocks:
        values = each.chart.to_model(np.zeros(each.block.n_latent))
        start = 0
        for name, where in each.block.slices:
            size = where.stop - where.start
            parts.setdefault(name, []).append(values[start : start + size])
            start += size
    mean = {names[name]: np.concatenate(held).reshape(point[name].shape) for name, held in parts.items()}
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
        given=given_values(structure.model, structure.variables, point),
        _charts=charts,
        _draws=LatentDraws(structure.model, structure.variables, point),
        _value_names=tuple(parts),
    )


def approximation_of_field(read: ReadField, point: Point) -> GaussianApproximation:
    """Approximate a Gaussian field whose observations read several predictors, by Laplace's method."""
    plan, joint = read.plan, read.build()
    model, latents, (block,) = plan.model, plan.choice.latents, joint.blocks
    check_is_observed(model, [o.variable for o in plan.choice.observations])
    n_noise = block.n_residuals + block.n_sites
    if n_noise > MOST_COUPLED:
        raise UnsupportedModelError(
            f"{block.name}: laplace() of several predictors makes matrices of {n_noise} rows here, and takes up to "
            f"{MOST_COUPLED}. Sample with RMHMC(), or approximate fewer observations."
        )
    second = read.second_derivative()
    for function in (*joint.functions, second):
        function.bind(point)
    theta = plan.theta.pack(point)
    sites, chart = GaussianSites(*np.ones((2, block.n_sites))), MarginalChart.linear(theta, np.eye(theta.size))
    target = FieldTarget(joint, [sites], chart)
    held = given_values(model, latents, point)
    try:
        found = coupled_laplace(target, theta, lambda eta, along: second(theta, eta, along)[0])
    except PriorFailure as failure:
        raise _prior_error(block.name, failure, held) from None
    if found is None:
        raise no_mode(block.name)
    names = {str(model.rvs_to_values[v].name): str(v.name) for v in latents}
    parts = np.split(found.latents, np.cumsum(block.sizes)[:-1])
    mean = {names[v]: part.reshape(point[v].shape) for v, part in zip(block.value_names, parts, strict=True)}
    return GaussianApproximation(
        method="laplace", mean=mean, eta_mean=found.eta, eta_variance=found.variance, sites=None,
        log_evidence=found.log_evidence + log_density_of_data(model, read.outside(), point), second_order=None,
        converged=True, n_iter=found.n_iter, given=held, _charts=(found,), _draws=LatentDraws(model, latents, point),
        _value_names=block.value_names,
    )  # fmt: skip
