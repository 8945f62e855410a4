"""Where a distribution lies and how wide it is, as functions of its parameters, on the scale of its value variable.

A chart is made of these two, so that a variable whose location and scale other variables move becomes one that they
hardly move. Nothing needs to be right here but the speed: any location and scale give an exact sampler.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import pymc as pm
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.errors import ConfigurationError, counted, shown
from pymc_rmhmc.model.likelihoods.registry import takes
from pymc_rmhmc.model.observed.observation import distribution_of
from pymc_rmhmc.usage import called_as

__all__ = ["Family", "LocationScale", "family_of", "register_family", "registered_families"]

type Symbol = TensorVariable
type LocationScale = Callable[..., tuple[Symbol, Symbol]]

# Of log x for a standard half normal, half Cauchy, exponential variable x.
LOG_HALF_NORMAL = (-0.635, 1.11)
LOG_HALF_CAUCHY = (0.0, 1.571)
LOG_EXPONENTIAL = (-0.577, 1.283)


@dataclass(frozen=True, slots=True)
class Family:
    """How one distribution is placed."""

    name: str  # as PyMC calls the distribution
    transform: str  # the class of the transform that PyMC gives its value variable by default; "" for none
    # From the distribution's parameters, in PyMC's order, to the location and the scale of the value variable.
    moments: LocationScale
    # From the parameters to the distribution of ``(value - location) / scale`` as a PyMC variable, if the family is
    # exactly one of location and scale. The log density is then computed without the difference, which loses all digits
    # where the scale is small.
    standard: Callable[..., Symbol] | None = None

    def moments_at(self, parameters: Sequence[Symbol], variable: str) -> tuple[Symbol, Symbol]:
        """Return location and scale for a variable's parameters; raise if the function does not fit them."""
        if not takes(self.moments, len(parameters)):
            raise ConfigurationError(f"{variable}: {self._wrong_arity(len(parameters))}")
        found = self.moments(*parameters)
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise ConfigurationError(
                f"{variable}: the function registered for {self.name} must return a pair (location, scale), and "
                f"returned {type(found).__name__}. Mend it in register_family."
            )
        return found[0], found[1]

    def _wrong_arity(self, n_parameters: int) -> str:
        """Say that the function does not take the distribution's parameters, and what to register instead."""
        names = _parameter_names(self.name, n_parameters)
        has = counted(n_parameters, "parameter") + (f" ({', '.join(names)})" if names else "")
        function = f"lambda {', '.join(names)}: (location, scale)" if names else f"a function of {n_parameters}"
        transform = f', transform="{self.transform}"' if self.transform else ""
        return (
            f"{self.name} has {has}, and the function registered for it takes {inspect.signature(self.moments)}. RMHMC "
            f'calls it with all of them. Give register_family("{self.name}", {function}{transform}).'
        )


_families: dict[tuple[str, str], Family] = {}


@called_as('register_family("Gumbel", lambda mu, beta: (mu, beta))')
def register_family(name: str, moments: LocationScale, *, transform: str = "") -> None:
    """Tell RMHMC where a distribution lies and how wide it is, so that hierarchies of it are sampled well.

    RMHMC moves a variable relative to the location and the scale that other variables give it, as if the model had been
    written in its non-centred form. What is registered changes the speed only: the draws are exact with any location
    and scale. It replaces what was known of that class and transform before, RMHMC's own knowledge too.

    Parameters
    ----------
    name : str
        The distribution's class in PyMC, such as "Gumbel".
    moments : callable
        From the distribution's parameters (symbolic, in the order of PyMC's ``dist_params``) to the location and the
        scale of the value variable, that is, after PyMC's transform. Both must broadcast to the variable's shape.
    transform : str, optional
        The class of the transform, such as "LogTransform", if the value variable has one.

    Raises
    ------
    ConfigurationError
        If an argument is not of these types. Later, when RMHMC reads a model, if the function takes another number of
        parameters, or what it returns is no pair of tensors or has another shape than the variable.

    Notes
    -----
    An element of the family is ``x = (μ + σ²b)/(1 + wσ²) + σ z/√(1 + wσ²)`` with constants w and b fitted in tuning.

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> from pymc_rmhmc import register_family
    >>> register_family("Moyal", lambda mu, sigma: (mu + 1.27 * sigma, 2.22 * sigma))
    """
    for argument, value in (("name", name), ("transform", transform)):
        if not isinstance(value, str) or (argument == "name" and not value):
            raise ConfigurationError(
                f"register_family: {argument} must be the name of a class, such as "
                f'{"Gumbel" if argument == "name" else "LogTransform"!r}, got {shown(value)}.'
            )
    if not callable(moments):
        raise ConfigurationError(
            "register_family: moments must be a function from the distribution's parameters to (location, scale), got "
            f'{shown(moments)}. Give register_family("Gumbel", lambda mu, beta: (mu, 1.28 * beta)).'
        )
    _families[name, transform] = Family(name, transform, moments)


def registered_families() -> Mapping[tuple[str, str], Family]:
    """Return all rows, by the names of distribution and transform."""
    return MappingProxyType(_families)


def family_of(model: pm.Model, variable: TensorVariable) -> Family | None:
    """Return the row of a free variable; None if there is none for its distribution and transform."""
    transform = model.rvs_to_transforms[variable]
    return _families.get((distribution_of(variable), "" if transform is None else type(transform).__name__))


def _parameter_names(name: str, n_parameters: int) -> list[str]:
    """Return the names of a distribution's parameters in PyMC's log density; none if their number differs."""
    log_density = getattr(getattr(pm, name, None), "logp", None)
    names = list(inspect.signature(log_density).parameters)[1:] if inspect.isfunction(log_density) else []
    return names if len(names) == n_parameters else []


def _row(name: str, transform: str, moments: LocationScale, standard: Callable[..., Symbol] | None = None) -> None:
    _families[name, transform] = Family(name, transform, moments, standard)


def _log_spread(scale: Symbol, law: tuple[float, float]) -> tuple[Symbol, Symbol]:
    """Return mean and standard deviation of ``log(scale · x)``, for an x whose logarithm has known ones."""
    mean, deviation = law
    return pt.log(scale) + mean, pt.full_like(scale, deviation, dtype="float64")


def _log_gamma(shape: Symbol) -> tuple[Symbol, Symbol]:
    """Return mean and standard deviation of the logarithm of a Gamma(shape, 1), within a few percent.

    Digamma and trigamma themselves have derivatives that are not compiled.
    """
    return pt.log(shape + 0.56) - 1.0 / shape, pt.sqrt(1.0 / shape**2 + 1.0 / (shape + 0.6))


def _log_gamma_of_scale(shape: Symbol, scale: Symbol) -> tuple[Symbol, Symbol]:
    mean, deviation = _log_gamma(shape)
    return mean + pt.log(scale), deviation


def _log_inverse_gamma(shape: Symbol, scale: Symbol) -> tuple[Symbol, Symbol]:
    mean, deviation = _log_gamma(shape)
    return pt.log(scale) - mean, deviation


def _odds(first: Symbol, second: Symbol) -> tuple[Symbol, Symbol]:
    """Return mean and deviation of the log-odds of a Beta variable, the difference of two log Gamma variables."""
    (mean, deviation), (other_mean, other) = _log_gamma(first), _log_gamma(second)
    return mean - other_mean, pt.sqrt(deviation**2 + other**2)


# Families of a location and a scale.
_row("Normal", "", lambda mu, sigma: (mu, sigma), lambda mu, sigma: pm.Normal.dist(0.0, 1.0))
_row("StudentT", "", lambda nu, mu, sigma: (mu, sigma), lambda nu, mu, sigma: pm.StudentT.dist(
    nu=nu, mu=0.0, sigma=1.0))  # fmt: skip
_row("Laplace", "", lambda mu, b: (mu, b), lambda mu, b: pm.Laplace.dist(0.0, 1.0))
_row("Logistic", "", lambda mu, s: (mu, s), lambda mu, s: pm.Logistic.dist(0.0, 1.0))
_row("Cauchy", "", lambda alpha, beta: (alpha, beta), lambda alpha, beta: pm.Cauchy.dist(0.0, 1.0))
_row("Gumbel", "", lambda mu, beta: (mu, beta), lambda mu, beta: pm.Gumbel.dist(0.0, 1.0))
_row("LogNormal", "LogTransform", lambda mu, sigma: (mu, sigma), lambda mu, sigma: pm.Normal.dist(0.0, 1.0))
_row("LogitNormal", "LogOddsTransform", lambda mu, sigma: (mu, sigma), lambda mu, sigma: pm.Normal.dist(0.0, 1.0))
_row("SkewNormal", "", lambda mu, sigma, alpha: (mu, sigma), lambda mu, sigma, alpha: pm.SkewNormal.dist(
    mu=0.0, sigma=1.0, alpha=alpha))  # fmt: skip
_row("Moyal", "", lambda mu, sigma: (mu, sigma), lambda mu, sigma: pm.Moyal.dist(0.0, 1.0))
_row("AsymmetricLaplace", "", lambda b, kappa, mu: (mu, 1.0 / b))
_row("SkewStudentT", "", lambda a, b, mu, sigma: (mu, sigma))
_row("ExGaussian", "", lambda mu, sigma, nu: (mu + nu, pt.sqrt(sigma**2 + nu**2)))
_row("ZeroSumNormal", "ZeroSumTransform", lambda sigma, support: (pt.zeros_like(sigma), sigma))

# Positive families, whose value variable is the logarithm.
_row("HalfNormal", "LogTransform", lambda loc, sigma: _log_spread(sigma, LOG_HALF_NORMAL))
_row("HalfCauchy", "LogTransform", lambda beta: _log_spread(beta, LOG_HALF_CAUCHY))
_row("HalfStudentT", "LogTransform", lambda nu, sigma: _log_spread(sigma, LOG_HALF_CAUCHY))
_row("Exponential", "LogTransform", lambda scale: _log_spread(scale, LOG_EXPONENTIAL))
_row("Gamma", "LogTransform", _log_gamma_of_scale)
_row("InverseGamma", "LogTransform", _log_inverse_gamma)
_row("Weibull", "LogTransform", lambda alpha, beta: (pt.log(beta) - 0.577 / alpha, 1.283 / alpha))
_row("Wald", "LogTransform", lambda mu, lam, alpha: (
    pt.log(mu) - 0.5 * pt.log1p(mu / lam), pt.sqrt(pt.log1p(mu / lam))))  # fmt: skip
_row("Rice", "LogTransform", lambda b, sigma: (pt.log(sigma) + 0.5 * pt.log1p(b**2), 1.0 / (1.0 + b)))

# Families between 0 and 1, whose value variable is the log-odds.
_row("Beta", "LogOddsTransform", _odds)
_row("Kumaraswamy", "LogOddsTransform", _odds)

