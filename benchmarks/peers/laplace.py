"""The Laplace approximation in the whitened model's unconstrained values: a mass matrix, and a start."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import pymc as pm
from pymc.blocking import DictToArrayBijection, RaveledVars
from scipy.optimize import minimize

from benchmarks.outcome import CannotRunError
from benchmarks.problems import Problem

__all__ = ["Gaussian", "fixed_gaussian", "joint_gaussian"]

# A direction in which the density falls less than a normal of standard deviation 10, or rises, is taken for one
# that falls like that: the whitened latents have standard deviations of 1 at most, and log scales seldom more.
FLATTEST = 0.01
# The largest slope at what is called a mode. Values are of order one, log densities of hundreds.
SLOPE = 0.1
# Unconstrained values of these priors are of order one: beyond this the search has run off along a ridge.
FURTHEST = 30.0


@dataclass
class Gaussian:
    """What a fixed mass matrix needs.

    Attributes
    ----------
    covariance : (n, n) array
        Inverse Hessian at the mode, by the order of the model's values.
    start : dict
        The mode, by the names of the model's variables.
    seconds : float
        What it took, without compilation.
    lifted : int
        How many eigenvalues of the Hessian were lifted to make it positive definite.
    """

    covariance: np.ndarray
    start: dict[str, np.ndarray]
    seconds: float
    lifted: int = 0


def fixed_gaussian(problem: Problem) -> Gaussian:
    """``(I + LᵀWL)⁻¹`` at the mode of the latents, by Newton's method; from the prior mean, as nutpie."""
    from pymc_rmhmc.approximation import find_mode
    from pymc_rmhmc.latent.charts.site import FactorizedPrior
    from pymc_rmhmc.model import compile_model, read_structure

    model = problem.centred()
    block = compile_model(read_structure(model)).blocks[0]
    point = model.initial_point()
    likelihood = block.likelihood(point)
    started = time.perf_counter()
    prior = FactorizedPrior(block.prior(point))
    mode = find_mode(prior.predictor, likelihood, "hessian")
    factor = prior.predictor.matrix
    covariance = np.linalg.inv(np.eye(problem.n) + factor.T @ (mode.weight[:, None] * factor))
    return Gaussian(covariance, {"v": np.zeros(problem.n)}, time.perf_counter() - started)


def joint_gaussian(model: pm.Model) -> Gaussian:
    """The joint mode by L-BFGS, and the Hessian there by central differences of the gradient.

    Raises
    ------
    CannotRunError
        If no mode is found.
    """
    function = model.logp_dlogp_function(ravel_inputs=True)
    function.set_extra_values({})
    start = DictToArrayBijection.map(model.initial_point())
    names = [variable.name for variable in model.free_RVs]
    natural = model.compile_fn(
        model.replace_rvs_by_values(model.free_RVs), inputs=model.value_vars, on_unused_input="ignore"
    )
    function(start)

    def negative(values: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = function(RaveledVars(values, start.point_map_info))
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            return 1e100, np.zeros_like(values)
        return -float(value), -np.asarray(gradient)

    started = time.perf_counter()
    mode = _mode(negative, start.data)
    covariance, lifted = _inverse(_hessian(lambda values: negative(values)[1], mode))
    seconds = time.perf_counter() - started
    point = DictToArrayBijection.rmap(RaveledVars(mode, start.point_map_info))
    return Gaussian(covariance, dict(zip(names, natural(point), strict=True)), seconds, lifted)


def _mode(negative, start: np.ndarray) -> np.ndarray:
    """Where the density is highest."""
    options = {"maxiter": 5000, "maxfun": 10000, "maxcor": 30, "ftol": 1e-15, "gtol": 1e-4}
    found = minimize(negative, start, jac=True, method="L-BFGS-B", options=options)
    slope, furthest = float(np.abs(negative(found.x)[1]).max()), float(np.abs(found.x).max())
    if not (np.isfinite(found.fun) and slope < SLOPE and furthest < FURTHEST):
        raise CannotRunError(
            f"no joint mode was found: log density {-found.fun:.3g}, largest slope {slope:.2g}, largest value "
            f"{furthest:.2g} after {found.nfev} gradients"
        )
    return found.x


def _hessian(gradient, mode: np.ndarray, step: float = 1e-4) -> np.ndarray:
    """Of minus the log density, symmetric."""
    columns = []
    for i in range(mode.size):
        shift = np.zeros_like(mode)
        shift[i] = step
        columns.append((gradient(mode + shift) - gradient(mode - shift)) / (2 * step))
    hessian = np.array(columns)
    return 0.5 * (hessian + hessian.T)


def _inverse(hessian: np.ndarray) -> tuple[np.ndarray, int]:
    """The inverse with eigenvalues lifted to `FLATTEST`, and how many were."""
    values, vectors = np.linalg.eigh(hessian)
    if not np.isfinite(values).all():
        raise CannotRunError("the Hessian at the joint mode is not finite")
    return (vectors / np.maximum(values, FLATTEST)) @ vectors.T, int((values < FLATTEST).sum())
