"""The registry of likelihoods: one function a distribution and link, in stable closed form.

A registered likelihood says how it is recognised in a model (`read`), which data it can have
(`check`), and what its log density, slope and curvatures are (the decorated function). Nothing else in
the package needs to know it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.distribution import PartialObservedRV
from pytensor.graph.op import Op
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.errors import ConfigurationError, shown
from pymc_rmhmc.usage import called_as

__all__ = [
    "KINDS",
    "Curvature",
    "Likelihood",
    "LikelihoodTerms",
    "ParameterFault",
    "Reading",
    "check_parameters",
    "lookup",
    "places",
    "read_likelihood",
    "register_likelihood",
    "registered_likelihoods",
    "takes",
]

type Check = Callable[[np.ndarray, dict[str, np.ndarray]], str | ParameterFault | None]

KINDS = ("hessian", "fisher")
# PyMC turns counts that are not finite into the lowest integer there is.
LOWEST = float(np.iinfo(np.int64).min)


class Curvature(NamedTuple):
    """One kind of curvature of a log density, elementwise.

    Attributes
    ----------
    weight : TensorVariable
        w ≥ 0: ``-∂²ℓ/∂η²`` ("hessian") or its expectation over y ("fisher").
    log_slope : TensorVariable
        ``r = ∂ log w/∂η``, which stays finite where w underflows.
    """

    weight: TensorVariable
    log_slope: TensorVariable


class LikelihoodTerms(NamedTuple):
    """Return value of a likelihood's function, symbolic and elementwise in ``(η, parameters, y)``.

    Attributes
    ----------
    logp : TensorVariable
        Log density ``ℓ = log p(y given η)`` with all constants.
    gradient : TensorVariable
        Slope ``∂ℓ/∂η``.
    curvature : dict of str to Curvature
        Curvatures by kind. Give "hessian" only if ℓ is log-concave in η for every y.
    slope_weight : TensorVariable or None
        A positive weight that grows with the parameters as `gradient` does at a fixed η. The approximation is scaled
        by it when the parameters move. The default, the Fisher information, fits most likelihoods. Give a weight if
        the growth depends on y, as with outliers.
    """

    logp: TensorVariable
    gradient: TensorVariable
    curvature: dict[str, Curvature]
    slope_weight: TensorVariable | None = None


class Reading(NamedTuple):
    """Linear predictor and parameters of an observed variable.

    Attributes
    ----------
    eta : TensorVariable
        The expression inside the link, in the model's variables.
    parameters : dict of str to TensorVariable
        The other parameters, by the names given to `register_likelihood`.
    offset : TensorVariable or None
        Added to `eta`, such as the logarithm of an exposure. It may be -inf (an exposure of 0).
    """

    eta: TensorVariable
    parameters: dict[str, TensorVariable]
    offset: TensorVariable | None = None

    @property
    def others(self) -> list[TensorVariable]:
        """Everything but `eta`."""
        return [*self.parameters.values(), *([] if self.offset is None else [self.offset])]


class ParameterFault(NamedTuple):
    """What a `check` returns where a parameter is at fault, not the data: what goes after "the parameter NAME of y"."""

    name: str
    words: str


@dataclass(frozen=True)
class Likelihood:
    """A registered likelihood; made by `register_likelihood`, whose arguments it holds.

    `operation` is the class of the random variable's operation, and `terms` the decorated function.
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


@called_as('@register_likelihood(pm.Poisson, link="log", read=read)')
def register_likelihood(
    distribution: object,
    *,
    link: str,
    read: Callable[..., Reading | None],
    parameters: Sequence[str] = (),
    kinds: Sequence[str] = KINDS,
    check: Check | None = None,
    name: str | None = None,
) -> Callable[[Callable[..., LikelihoodTerms]], Callable[..., LikelihoodTerms]]:
    """Register a likelihood in closed form, as a decorator of the function that returns its terms.

    The decorated function takes ``(eta, parameters, y)`` and returns `LikelihoodTerms`.

    Parameters
    ----------
    distribution : PyMC distribution or operation class
        The distribution, such as `pymc.Poisson`. For a distribution without its own operation, give the class of the
        operation that it builds.
    link : str
        A name for the link between the linear predictor η and the distribution's parameter.
    read : callable
        Takes the distribution's symbolic parameters, in the order of its operation. Returns a `Reading`, or None if
        the parameters do not use this link. `undo_log`, `undo_logit`, `undo_probit` and `undo_cloglog` undo the usual
        links.
    parameters : sequence of str
        Names of the parameters other than η.
    kinds : sequence of {"hessian", "fisher"}
        The curvatures that the function returns.
    check : callable, optional
        ``check(y, parameters)`` returns a sentence that says what is wrong with the data ("must be positive"), a
        `ParameterFault` with the name and such a sentence where a parameter is at fault, or None.
    name : str, optional
        A unique name. By default the names of the distribution and the link, as in "poisson_log".

    Returns
    -------
    callable
        The decorator. It returns the function unchanged.

    Raises
    ------
    ConfigurationError
        At once if an argument has another type, the name is taken or a kind is unknown. When a model is read, if the
        function or `read` does not return what `kinds` and `parameters` name.

    Examples
    --------
    >>> import pymc as pm, pytensor.tensor as pt
    >>> from pymc_rmhmc import Curvature, LikelihoodTerms, Reading, register_likelihood
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
    kinds, parameters = _names("kinds", kinds), _names("parameters", parameters)
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown or not kinds:
        raise ConfigurationError(f"kinds={shown(list(kinds))} must name one or both of {', '.join(KINDS)}.")
    _check_words(link=link, name=name)
    _check_callables(read=read, check=check)
    operation = _operation(distribution)
    title = name or f"{getattr(distribution, '__name__', operation.__name__).lower()}_{link}"
    if title in _REGISTRY:
        raise ConfigurationError(f'A likelihood "{title}" is registered already. Give this one another name=.')

    def decorate(terms: Callable[..., LikelihoodTerms]) -> Callable[..., LikelihoodTerms]:
        _check_callables(**{"the registered likelihood": terms})
        _REGISTRY[title] = Likelihood(title, operation, link, parameters, kinds, read, check or anything, terms)
        return terms

    return decorate


def registered_likelihoods() -> Mapping[str, Likelihood]:
    """Return all registered likelihoods by name, as a view that shows later registrations too."""
    return MappingProxyType(_REGISTRY)


def lookup(name: str) -> Likelihood:
    """Return the likelihood of a name; a ConfigurationError if there is none."""
    if name not in _REGISTRY:
        raise ConfigurationError(
            f'No likelihood "{name}" is registered in this process, only {", ".join(_REGISTRY)}. Workers that are '
            'started by "spawn" or "forkserver" do not run a notebook\'s cells. Sample with pm.sample(cores=1), or put '
            "the registration into a module that the notebook imports."
        )
    return _REGISTRY[name]


def read_likelihood(variable: TensorVariable) -> tuple[Likelihood, Reading] | None:
    """Return the registered likelihood of a random variable and its reading, or None.

    The latest registration that can read the variable wins, so a user's registration takes precedence.
    """
    node = variable.owner
    if node is None or isinstance(node.op, PartialObservedRV) or not hasattr(node.op, "dist_params"):
        return None
    parameters = node.op.dist_params(node)
    for likelihood in reversed(_REGISTRY.values()):
        if not isinstance(node.op, likelihood.operation):
            continue
        reading = _read(likelihood, parameters)
        if reading is not None:
            _check_terms(likelihood)
            _check_reading(likelihood, reading)
            return likelihood, reading
    return None


def _read(likelihood: Likelihood, parameters: Sequence[TensorVariable]) -> Reading | None:
    """Call `read` with a distribution's parameters, and look at what it gives."""
    if not takes(likelihood.read, len(parameters)):
        raise ConfigurationError(
            f"{likelihood.name}: `read` must take {len(parameters)} parameters, as many as "
            f"{likelihood.operation.__name__} has. Give a function of so many."
        )
    reading = likelihood.read(*parameters)
    if reading is not None and not isinstance(reading, Reading):
        raise ConfigurationError(
            f"{likelihood.name}: `read` must return a Reading, or None for another link, not {shown(reading)}."
        )
    return reading


def takes(function: Callable[..., object], n_arguments: int) -> bool:
    """Check whether a function can be called with so many arguments; True for one that does not say so."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(*range(n_arguments))
    except TypeError:
        return False
    return True


@cache
def _check_terms(likelihood: Likelihood) -> None:
    """Check that the function gives its closed forms and every curvature that was named; once per registration."""
    vectors = {name: pt.dvector(name) for name in likelihood.parameters}
    try:
        found = likelihood.terms(pt.dvector("eta"), vectors, pt.dvector("y"))
    except KeyError as error:
        raise ConfigurationError(
            f"{likelihood.name}: the registered function reads the parameter {error}, which it is not given. Name it "
            "in parameters, and give it in the Reading."
        ) from None
    if not isinstance(found, LikelihoodTerms):
        raise ConfigurationError(
            f"{likelihood.name}: the registered function must return LikelihoodTerms, not {type(found).__name__}."
        )
    missing = [kind for kind in likelihood.kinds if kind not in found.curvature]
    if missing:
        raise ConfigurationError(
            f"{likelihood.name}: kinds names {', '.join(missing)}, but the function returns "
            f"{', '.join(found.curvature) or 'no curvature'}. Name in kinds= the curvatures that it returns."
        )
    summed = [name for name in ("logp", "gradient") if pt.as_tensor_variable(getattr(found, name)).ndim != 1]
    if summed:
        raise ConfigurationError(
            f"{likelihood.name}: {', '.join(summed)} must have one value for each observation, as eta has. Leave sums "
            "out, and add 0 * eta to what does not depend on it."
        )


def _check_reading(likelihood: Likelihood, reading: Reading) -> None:
    """Check that the reading has every parameter that was named."""
    missing = [name for name in likelihood.parameters if name not in reading.parameters]
    if missing:
        raise ConfigurationError(
            f"{likelihood.name}: parameters names {', '.join(missing)}, but `read` returns "
            f"{', '.join(reading.parameters) or 'none'}. Return each of them in the Reading."
        )


def _operation(distribution: object) -> type:
    """Return the class of a PyMC distribution's operation; an operation's class is returned as it is."""
    if isinstance(distribution, type) and issubclass(distribution, Op):
        return distribution
    # Distributions made of others name the class apart: their rv_op is a function.
    operation = getattr(distribution, "rv_type", None) or type(getattr(distribution, "rv_op", None))
    if not (isinstance(distribution, type) and issubclass(operation, Op)):
        raise ConfigurationError(
            f"distribution must be a distribution of PyMC, such as pm.Poisson, or the class of an operation, got "
            f"{shown(distribution)}. Models are searched for variables of it."
        )
    return operation


def _names(argument: str, given: object) -> tuple[str, ...]:
    """Check that an argument holds several names, not one string, and return them."""
    names = given if isinstance(given, list | tuple | set | frozenset) else [None]
    if not all(isinstance(name, str) for name in names):
        example = "fisher" if argument == "kinds" else "sigma"
        raise ConfigurationError(
            f'{argument} must be a list of names, such as {argument}=["{example}"], got {shown(given)}.'
        )
    return tuple(names)


def _check_words(*, link: object, name: object) -> None:
    for argument, given in (("link", link), ("name", name)):
        if not isinstance(given, str) and not (argument == "name" and given is None):
            raise ConfigurationError(f'{argument} must be a string, such as {argument}="log", got {shown(given)}.')


def _check_callables(**given: object) -> None:
    for argument, function in given.items():
        if not callable(function) and not (argument == "check" and function is None):
            raise ConfigurationError(
                f"{argument} must be a function, got {shown(function)}. See the example of register_likelihood."
            )


def places(bad: np.ndarray, values: np.ndarray) -> str:
    """Return how many values are bad, where the first is, and what it is."""
    first = int(np.argmax(np.ravel(bad)))
    value = np.ravel(values)[first]
    made = ", which PyMC makes of nan and inf" if value == LOWEST else ""
    return f"{np.count_nonzero(bad)} of {bad.size}, the first at position {first} ({value:.4g}{made})"


def check_parameters(
    *names: str, most: float = np.inf, words: str = "must be positive", data: Check | None = None
) -> Check:
    """Make a `check` that parameters are above 0, or in ``[0, most]`` where `most` is finite.

    The check of the data comes afterwards: who is to blame for both is the parameter.
    """

    def check(y: np.ndarray, parameters: dict[str, np.ndarray]) -> str | ParameterFault | None:
        for name in names:
            values = parameters[name]
            bad = ~((values >= 0.0) & (values <= most)) if np.isfinite(most) else ~(values > 0.0)
            if bad.any():
                return ParameterFault(name, f"{words}, and is not for {places(bad, values)}")
        return (data or anything)(y, parameters)

    return check


def anything(y: np.ndarray, parameters: dict[str, np.ndarray]) -> None:
    """Accept whatever there is."""
    return
