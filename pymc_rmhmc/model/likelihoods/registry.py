"""The registry of likelihoods: one function a distribution and link, in stable closed form.

A registered likelihood says how it is recognised in a model (`read`), which data it can have
(`check`), and what its log density, slope and curvatures are (the decorated function). Nothing else in
the package needs to know it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.distribution import PartialObservedRV
from pytensor.graph.op import Op
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.errors import ConfigurationError

__all__ = [
    "KINDS",
    "Curvature",
    "Likelihood",
    "LikelihoodTerms",
    "Reading",
    "lookup",
    "positive_parameters",
    "read_likelihood",
    "register_likelihood",
    "registered_likelihoods",
]

type Check = Callable[[np.ndarray, dict[str, np.ndarray]], str | None]

KINDS = ("hessian", "fisher")


class Curvature(NamedTuple):
    """One kind of curvature, elementwise.

    Attributes
    ----------
    weight : TensorVariable
        w ≥ 0: ``-∂²ℓ/∂η²`` ("hessian") or its expectation over y ("fisher").
    log_slope : TensorVariable
        ``r = ∂ log w/∂η``: it stays finite where w underflows.
    """

    weight: TensorVariable
    log_slope: TensorVariable


class LikelihoodTerms(NamedTuple):
    """What a likelihood's function returns: symbolic and elementwise in ``(η, parameters, y)``.

    Attributes
    ----------
    logp : TensorVariable
        ``ℓ = log p(y given η)``, every constant included.
    gradient : TensorVariable
        ``∂ℓ/∂η``.
    curvature : dict of str to Curvature
        By kind. "hessian" only where ℓ is log-concave in η for every y.
    slope_weight : TensorVariable or None
        Positive: as the parameters move, `gradient` at a held η moves nearly in proportion to it. Sites that were
        fitted at other parameters are raised to the power by which it has grown. By default the Fisher information,
        which is that of most; give it where the data say which observations it holds for, as outliers do.
    """

    logp: TensorVariable
    gradient: TensorVariable
    curvature: dict[str, Curvature]
    slope_weight: TensorVariable | None = None


class Reading(NamedTuple):
    """How an observed variable was understood.

    Attributes
    ----------
    eta : TensorVariable
        The expression inside the link, still symbolic in the model's variables.
    parameters : dict of str to TensorVariable
        The other parameters, by the names that the likelihood declares.
    offset : TensorVariable or None
        To be added to `eta`, such as the logarithm of an exposure. It may be -inf (an exposure of 0).
    """

    eta: TensorVariable
    parameters: dict[str, TensorVariable]
    offset: TensorVariable | None = None

    @property
    def others(self) -> list[TensorVariable]:
        """Everything but `eta`."""
        return [*self.parameters.values(), *([] if self.offset is None else [self.offset])]


@dataclass(frozen=True)
class Likelihood:
    """A registered likelihood; made by `register_likelihood`.

    Attributes
    ----------
    name : str
        Of the distribution and the link, such as "poisson_log".
    operation : type
        The class of the random variable's operation.
    link : str
        The name of the link, for people.
    parameters : tuple of str
        The names of the other parameters, in the kernel's order.
    kinds : tuple of str
        The curvatures that `terms` gives.
    read : callable
        From the distribution's parameters (as its operation lists them) to a `Reading`, or None if they
        are not of this link.
    check : callable
        From observed values to a sentence that says what is wrong with them, or None.
    terms : callable
        ``(eta, parameters, y) -> LikelihoodTerms``.
    """

    name: str
    operation: type
    link: str
    parameters: tuple[str, ...]
    kinds: tuple[str, ...]
    read: Callable[..., Reading | None]
    check: Check
    terms: Callable[[TensorVariable, dict[str, TensorVariable], TensorVariable], LikelihoodTerms]


_REGISTRY: dict[str, Likelihood] = {}


def register_likelihood(
    distribution: Any,
    *,
    link: str,
    read: Callable[..., Reading | None],
    parameters: Sequence[str] = (),
    kinds: Sequence[str] = KINDS,
    check: Check | None = None,
    name: str | None = None,
) -> Callable[[Callable[..., LikelihoodTerms]], Callable[..., LikelihoodTerms]]:
    """Register a likelihood: a decorator for the function of its closed forms.

    Parameters
    ----------
    distribution : PyMC distribution or operation class
        Such as `pymc.Poisson`; for distributions without an operation of their own, the class of the
        operation that they build.
    link : str
        A name for the link between the linear predictor η and the distribution's parameter.
    read : callable
        Takes the distribution's symbolic parameters, in the order of its operation, and returns a
        `Reading`, or None where the parameters are not of this link. The helpers of
        `pymc_rmhmc.model.likelihoods.links` undo the usual links.
    parameters : sequence of str
        Names of the parameters beside η that the reading gives.
    kinds : sequence of {"hessian", "fisher"}
        The curvatures that the function gives.
    check : callable, optional
        ``check(y, parameters)`` returns a sentence that says what is wrong with the data, or None.
    name : str, optional
        By default the distribution's name and the link's.

    Returns
    -------
    callable
        The decorator; it returns the function as it was.

    Raises
    ------
    ConfigurationError
        If the name is taken, or a kind is unknown; and, where a model with the likelihood is read, if the function or
        `read` does not give what was said.

    Examples
    --------
    >>> import pymc as pm, pytensor.tensor as pt
    >>> from pymc_rmhmc import register_likelihood
    >>> from pymc_rmhmc.model.likelihoods import Curvature, LikelihoodTerms, Reading
    >>> @register_likelihood(
    ...     pm.Laplace, link="identity", kinds=["fisher"], parameters=["b"],
    ...     read=lambda mu, b: Reading(mu, {"b": b}), name="laplace_identity_example",
    ... )
    ... def laplace_identity(eta, parameters, y):
    ...     b = parameters["b"]
    ...     logp = -pt.abs(y - eta) / b - pt.log(2 * b)
    ...     weight, log_slope = 1 / b**2 + 0 * eta, 0 * eta
    ...     return LikelihoodTerms(logp, pt.sign(y - eta) / b, {"fisher": Curvature(weight, log_slope)})
    """
    unknown = set(kinds) - set(KINDS)
    if unknown or not kinds:
        raise ConfigurationError(f"kinds must name at least one of {', '.join(KINDS)}; got {list(kinds)}.")
    operation = _operation(distribution)
    title = name or f"{getattr(distribution, '__name__', operation.__name__).lower()}_{link}"
    if title in _REGISTRY:
        raise ConfigurationError(f'A likelihood "{title}" is registered already: give another name=.')

    def decorate(terms: Callable[..., LikelihoodTerms]) -> Callable[..., LikelihoodTerms]:
        _REGISTRY[title] = Likelihood(
            title, operation, link, tuple(parameters), tuple(kinds), read, check or _anything, terms
        )
        return terms

    return decorate


def registered_likelihoods() -> Mapping[str, Likelihood]:
    """All registered likelihoods by name; a view that follows later registrations."""
    return MappingProxyType(_REGISTRY)


def lookup(name: str) -> Likelihood:
    """The likelihood of a name.

    Raises
    ------
    ConfigurationError
        If there is none.
    """
    if name not in _REGISTRY:
        raise ConfigurationError(
            f'No likelihood "{name}" is registered; there are {", ".join(_REGISTRY)}. A worker that was started by '
            '"spawn" or "forkserver" does not have what a notebook registered: put the registration into a module that '
            "is imported, or sample with cores=1."
        )
    return _REGISTRY[name]


def read_likelihood(variable: TensorVariable) -> tuple[Likelihood, Reading] | None:
    """The registered likelihood of a random variable and its reading, or None if there is none.

    Parameters
    ----------
    variable : TensorVariable
        A random variable of a PyMC model.

    Notes
    -----
    The latest registration that can read the variable wins, so that a user's own takes precedence.
    """
    node = variable.owner
    if node is None or isinstance(node.op, PartialObservedRV) or not hasattr(node.op, "dist_params"):
        return None
    parameters = node.op.dist_params(node)
    for likelihood in reversed(_REGISTRY.values()):
        if not isinstance(node.op, likelihood.operation):
            continue
        reading = likelihood.read(*parameters)
        if reading is not None:
            _check_terms(likelihood)
            _check_reading(likelihood, reading)
            return likelihood, reading
    return None


@cache
def _check_terms(likelihood: Likelihood) -> None:
    """That the function gives its closed forms, with every curvature that was said; once for each registration."""
    vectors = {name: pt.dvector(name) for name in likelihood.parameters}
    found = likelihood.terms(pt.dvector("eta"), vectors, pt.dvector("y"))
    if not isinstance(found, LikelihoodTerms):
        raise ConfigurationError(
            f"{likelihood.name}: the registered function must return LikelihoodTerms, not {type(found).__name__}."
        )
    missing = [kind for kind in likelihood.kinds if kind not in found.curvature]
    if missing:
        raise ConfigurationError(
            f"{likelihood.name}: kinds names {', '.join(missing)}, but the function gives "
            f"{', '.join(found.curvature) or 'no curvature'}. Name in kinds what it gives."
        )


def _check_reading(likelihood: Likelihood, reading: Reading) -> None:
    """That the reading has every parameter that was said."""
    missing = [name for name in likelihood.parameters if name not in reading.parameters]
    if missing:
        raise ConfigurationError(
            f"{likelihood.name}: parameters names {', '.join(missing)}, but `read` gives "
            f"{', '.join(reading.parameters) or 'none'}. Give each of them in the Reading."
        )


def positive_parameters(*names: str, data: Check | None = None) -> Check:
    """A `check` of parameters that must be above 0, and then, by a check of their own, of the data."""

    def check(y: np.ndarray, parameters: dict[str, np.ndarray]) -> str | None:
        for name in names:
            lowest = parameters[name].min(initial=np.inf)
            if lowest <= 0.0:
                return f"cannot be used: {name} must be positive, but goes down to {lowest:.4g}"
        return (data or _anything)(y, parameters)

    return check


def _operation(distribution: Any) -> type:
    """The class of a PyMC distribution's operation; an operation's class stands for itself."""
    if isinstance(distribution, type) and issubclass(distribution, Op):
        return distribution
    # Distributions made of others name the class apart: their rv_op is a function.
    return getattr(distribution, "rv_type", None) or type(distribution.rv_op)


def _anything(y: np.ndarray, parameters: dict[str, np.ndarray]) -> str | None:
    return None
