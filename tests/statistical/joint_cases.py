"""Small models with hyperparameters under any registered likelihood and some that are not, simulated without PyMC."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pymc_rmhmc.latent.charts import GaussianSites
from pymc_rmhmc.model import JointModel, read_together
from tests.statistical.test_geweke import SIMULATORS

TRIALS = SIMULATORS["binomial_logit"][1][0]
X = np.linspace(0.0, 1.0, 5)[:, None]
GROUP = np.array([0, 0, 1, 1, 2, 2])
DESIGN = np.random.default_rng(0).standard_normal((6, 2))
WIDE_DESIGN = 0.6 * np.random.default_rng(1).standard_normal((4, 7))
CORRELATION = np.exp(-3.0 * np.abs(X - X.T))


@dataclass(frozen=True)
class Likelihood:
    """How PyMC writes it, and the priors of its parameters: normal on the scale of a link, "log" or "logit"."""

    observe: Callable
    parameters: tuple[tuple[str, str, float, float], ...] = ()
    continuous: bool = False


def bernoulli(**written) -> Likelihood:
    return Likelihood(lambda e, y: pm.Bernoulli("y", observed=y, **{k: f(e) for k, f in written.items()}))


def binomial(**written) -> Likelihood:
    return Likelihood(lambda e, y: pm.Binomial("y", TRIALS, observed=y, **{k: f(e) for k, f in written.items()}))


def itself(eta):
    return eta


def cloglog(eta):
    return -pt.expm1(-pt.exp(eta))


ALPHA = ("alpha", "log", 0.5, 0.4)
SIGMA = ("sigma", "log", -0.3, 0.4)
LIKELIHOODS = {
    "bernoulli_logit": bernoulli(logit_p=itself),
    "bernoulli_probit": bernoulli(p=pm.math.invprobit),
    "bernoulli_cloglog": bernoulli(p=cloglog),
    "binomial_logit": binomial(logit_p=itself),
    "binomial_probit": binomial(p=pm.math.invprobit),
    "binomial_cloglog": binomial(p=cloglog),
    "poisson_log": Likelihood(lambda e, y: pm.Poisson("y", pt.exp(e), observed=y)),
    "zeroinflatedpoisson_log": Likelihood(
        lambda e, y, psi: pm.ZeroInflatedPoisson("y", psi=psi, mu=pt.exp(e), observed=y), (("psi", "logit", 0.5, 0.7),)
    ),
    "negativebinomial_log": Likelihood(
        lambda e, y, alpha: pm.NegativeBinomial("y", mu=pt.exp(e), alpha=alpha, observed=y), (ALPHA,)
    ),
    "normal_identity": Likelihood(lambda e, y, sigma: pm.Normal("y", e, sigma, observed=y), (SIGMA,), True),
    "studentt_identity": Likelihood(
        lambda e, y, nu, sigma: pm.StudentT("y", nu=nu, mu=e, sigma=sigma, observed=y),
        (("nu", "log", 1.2, 0.4), SIGMA),
        True,
    ),
    "exponential_log": Likelihood(lambda e, y: pm.Exponential("y", scale=pt.exp(e), observed=y), (), True),
    "gamma_log": Likelihood(
        lambda e, y, alpha: pm.Gamma("y", alpha=alpha, beta=alpha / pt.exp(e), observed=y), (ALPHA,), True
    ),
    "weibull_log": Likelihood(
        lambda e, y, alpha: pm.Weibull("y", alpha=alpha, beta=pt.exp(e), observed=y), (ALPHA,), True
    ),
}

# Some that nobody has registered: PyTensor differentiates what PyMC says of them.
LOGISTIC, ORDERED, BACKGROUND = "logistic, not registered", "ordered, not registered", "background, not registered"


def ordered_logistic(eta, y, first, width):
    cutpoints = pt.stack([first - 1.0, first - 1.0 + width])
    pm.OrderedLogistic("y", eta=eta, cutpoints=cutpoints, observed=y, compute_p=False)


def ordered_categories(eta, rng, first, width):
    return np.digitize(eta + rng.logistic(size=eta.size), [first[0] - 1.0, first[0] - 1.0 + width[0]])


RATE = ("rate", "log", 0.3, 0.4)
BY_DERIVATIVES = {
    LOGISTIC: Likelihood(lambda e, y, s: pm.Logistic("y", e, s, observed=y), (("s", "log", -0.3, 0.4),), True),
    ORDERED: Likelihood(ordered_logistic, (("first", "log", -0.5, 0.5), ("width", "log", 0.2, 0.4))),
    BACKGROUND: Likelihood(lambda e, y, rate: pm.Poisson("y", rate * pt.exp(e) + 0.5, observed=y), (RATE,)),
}
# A registered one, with a number that multiplies its mean.
RATED = "poisson_log times a rate"
WITH_A_RATE = {RATED: Likelihood(lambda e, y, rate: pm.Poisson("y", rate * pt.exp(e), observed=y), (RATE,))}
EVERY_LIKELIHOOD = LIKELIHOODS | BY_DERIVATIVES | WITH_A_RATE
EVERY_SIMULATOR = SIMULATORS | {
    LOGISTIC: (lambda eta, rng, s: rng.logistic(eta, s), ()),
    ORDERED: (ordered_categories, ()),
    BACKGROUND: (lambda eta, rng, rate: rng.poisson(rate * np.exp(eta) + 0.5), ()),
    RATED: (lambda eta, rng, rate: rng.poisson(rate * np.exp(eta)), ()),
}


class Latents:
    """Latent variables with hyperparameters.

    Attributes
    ----------
    priors : tuple of (name, link, mean, sd)
        Of the hyperparameters; the link of an untransformed one is "".
    n : int
        The number of sites.
    """

    priors: tuple[tuple[str, str, float, float], ...]
    n: int

    def build(self, held: dict) -> pt.TensorVariable:
        """The predictor, as PyMC has it."""
        raise NotImplementedError

    def draw(self, held: dict, rng: np.random.Generator) -> tuple[dict, np.ndarray]:
        """The latent variables by name, and the predictor."""
        raise NotImplementedError

    def noise(self, held: dict, drawn: dict) -> np.ndarray:
        """What is standard normal a priori, whatever the hyperparameters are."""
        raise NotImplementedError


def matern_root(inputs: np.ndarray, lengthscale: float, variance: float = 1.0) -> np.ndarray:
    """The lower factor of PyMC's Matern32 with the jitter that the models here have."""
    scaled = np.sqrt(3.0) * np.abs(inputs - inputs.T) / lengthscale
    return np.linalg.cholesky(variance * (1.0 + scaled) * np.exp(-scaled) + 1e-4 * np.eye(len(inputs)))


class Process(Latents):
    """A Gaussian process; "centred" has the level as its mean function, "whitened" beside it, "fixed" no scale."""

    n = len(X)

    def __init__(self, form: str = "centred", amplitude: float = -0.3, level: float = 0.3) -> None:
        self.form = form
        self.priors = (("level", "", level, 0.5),)
        if form != "fixed":
            self.priors = (("lengthscale", "log", -1.0, 0.5), ("amplitude", "log", amplitude, 0.4), *self.priors)

    def build(self, held):
        if self.form == "fixed":
            return held["level"] + pm.MvNormal("f", np.zeros(self.n), cov=CORRELATION)
        covariance = held["amplitude"] ** 2 * pm.gp.cov.Matern32(1, ls=held["lengthscale"])
        if self.form == "whitened":
            return held["level"] + pm.gp.Latent(cov_func=covariance).prior("f", X, jitter=1e-4)
        mean = pm.gp.mean.Constant(held["level"])
        return pm.gp.Latent(mean_func=mean, cov_func=covariance).prior("f", X, reparameterize=False, jitter=1e-4)

    def _root(self, held):
        if self.form == "fixed":
            return np.linalg.cholesky(CORRELATION)
        return matern_root(X, held["lengthscale"], held["amplitude"] ** 2)

    def draw(self, held, rng):
        noise = rng.standard_normal(self.n)
        eta = held["level"] + self._root(held) @ noise
        if self.form == "whitened":
            return {"f_rotated_": noise}, eta
        return {"f": eta if self.form == "centred" else eta - held["level"]}, eta

    def noise(self, held, drawn):
        if self.form == "whitened":
            return drawn["f_rotated_"]
        centre = held["level"] if self.form == "centred" else 0.0
        return np.linalg.solve(self._root(held), drawn["f"] - centre)


class Amplified(Latents):
    """A whitened process that the predictor reads times a number, beside a level."""

    n = len(X)
    priors = (("lengthscale", "log", -1.0, 0.5), ("amplitude", "log", -0.3, 0.4), ("level", "", 0.3, 0.5))

    def build(self, held):
        kernel = pm.gp.cov.Matern32(1, ls=held["lengthscale"])
        return held["level"] + held["amplitude"] * pm.gp.Latent(cov_func=kernel).prior("f", X, jitter=1e-4)

    def draw(self, held, rng):
        noise = rng.standard_normal(self.n)
        return {"f_rotated_": noise}, held["level"] + held["amplitude"] * matern_root(X, held["lengthscale"]) @ noise

    def noise(self, held, drawn):
        return drawn["f_rotated_"]


class Mixed(Latents):
    """Coefficients and groups with a free scale; "centred" groups have a free mean too."""

    n = len(GROUP)

    def __init__(self, form: str) -> None:
        self.form = form
        self.priors = (("tau", "log", -0.5, 0.5), *([("level", "", 0.3, 0.5)] if form == "centred" else []))

    def build(self, held):
        slopes = pm.Normal("slopes", 0.2, 0.7, shape=2)
        if self.form == "centred":
            groups = pm.Normal("groups", held["level"], held["tau"], shape=3)
        else:
            groups = held["tau"] * pm.Normal("groups", shape=3)
        return DESIGN @ slopes + groups[GROUP]

    def draw(self, held, rng):
        slopes, noise = rng.normal(0.2, 0.7, 2), rng.standard_normal(3)
        groups = held.get("level", 0.0) + held["tau"] * noise
        drawn = {"slopes": slopes, "groups": groups if self.form == "centred" else noise}
        return drawn, DESIGN @ slopes + groups[GROUP]

    def noise(self, held, drawn):
        groups = drawn["groups"]
        if self.form == "centred":
            groups = (groups - held["level"]) / held["tau"]
        return np.concatenate(((drawn["slopes"] - 0.2) / 0.7, groups))


class Each(Latents):
    """An effect for every observation, beside coefficients."""

    n = len(GROUP)
    priors = (("tau", "log", -0.5, 0.5),)

    def build(self, held):
        return DESIGN @ pm.Normal("slopes", 0.2, 0.7, shape=2) + pm.Normal("each", 0.0, held["tau"], shape=self.n)

    def draw(self, held, rng):
        slopes, each = rng.normal(0.2, 0.7, 2), held["tau"] * rng.standard_normal(self.n)
        return {"slopes": slopes, "each": each}, DESIGN @ slopes + each

    def noise(self, held, drawn):
        return np.concatenate(((drawn["slopes"] - 0.2) / 0.7, drawn["each"] / held["tau"]))


class Shrunk(Latents):
    """More coefficients than data, of one free scale."""

    n = len(WIDE_DESIGN)
    priors = (("tau", "log", -0.5, 0.5),)

    def build(self, held):
        return 0.3 + WIDE_DESIGN @ pm.Normal("slopes", 0.0, held["tau"], shape=7)

    def draw(self, held, rng):
        slopes = held["tau"] * rng.standard_normal(7)
        return {"slopes": slopes}, 0.3 + WIDE_DESIGN @ slopes

    def noise(self, held, drawn):
        return drawn["slopes"] / held["tau"]


HALF = np.arange(len(X)) // 2


class Sum(Latents):
    """A process, and a vector behind a gather; what is free of the second is its scale."""

    n = len(X)

    def __init__(self) -> None:
        self._process = Process("whitened")
        self._factor = np.linalg.cholesky(np.eye(3) + 0.4)
        self.priors = (*self._process.priors, ("scale", "log", -0.7, 0.4))

    def build(self, held):
        covariance = held["scale"] ** 2 * pt.as_tensor(self._factor @ self._factor.T)
        return self._process.build(held) + pm.MvNormal("g", np.full(3, 0.2), cov=covariance)[HALF]

    def draw(self, held, rng):
        drawn, eta = self._process.draw(held, rng)
        g = 0.2 + held["scale"] * self._factor @ rng.standard_normal(3)
        return drawn | {"g": g}, eta + g[HALF]

    def noise(self, held, drawn):
        second = np.linalg.solve(self._factor, drawn["g"] - 0.2) / held["scale"]
        return np.concatenate((self._process.noise(held, drawn), second))


class About(Sum):
    """Vectors that are not read, of which a shorter process's mean is the second and a longer one's are both."""

    def build(self, held):
        covariance = held["scale"] ** 2 * pt.as_tensor(self._factor @ self._factor.T)
        g = pm.MvNormal("g", np.full(3, 0.2), cov=covariance)
        k = pm.MvNormal("k", g, cov=0.2 * np.eye(3))
        return pm.MvNormal("h", self._process.build(held) + held["scale"] * k[HALF], cov=0.3 * CORRELATION)

    def draw(self, held, rng):
        drawn, eta = self._process.draw(held, rng)
        g = 0.2 + held["scale"] * self._factor @ rng.standard_normal(3)
        k = g + np.sqrt(0.2) * rng.standard_normal(3)
        h = eta + held["scale"] * k[HALF] + np.linalg.cholesky(0.3 * CORRELATION) @ rng.standard_normal(self.n)
        return drawn | {"g": g, "k": k, "h": h}, h


class Scaled(Latents):
    """A centred and a whitened process, which the predictor reads times numbers: one may have either sign."""

    n = len(X)
    priors = (("lengthscale", "log", -1.0, 0.5), ("weight", "", -0.5, 0.6), ("tau", "", 0.6, 0.5))

    def build(self, held):
        kernel, other = pm.gp.cov.Matern32(1, ls=held["lengthscale"]), 0.5 * pm.gp.cov.Matern32(1, ls=0.3)
        gp = pm.gp.Latent(mean_func=pm.gp.mean.Constant(0.4), cov_func=kernel)
        f = gp.prior("f", X, reparameterize=False, jitter=1e-4)
        return held["weight"] * f + held["tau"] * pm.gp.Latent(cov_func=other).prior("g", X, jitter=1e-4)

    def draw(self, held, rng):
        f = 0.4 + matern_root(X, held["lengthscale"]) @ rng.standard_normal(self.n)
        noise = rng.standard_normal(self.n)
        return {"f": f, "g_rotated_": noise}, held["weight"] * f + held["tau"] * matern_root(X, 0.3, 0.5) @ noise

    def noise(self, held, drawn):
        first = np.linalg.solve(matern_root(X, held["lengthscale"]), drawn["f"] - 0.4)
        return np.concatenate((first, drawn["g_rotated_"]))


class Warped(Latents):
    """Coefficients of inputs that a hyperparameter warps, and of groups that one multiplies, row by row."""

    n = len(GROUP)
    powers = np.array([1.0, 0.5, 1.0, 1.0, 1.0, 0.0])
    priors = (("warp", "", 0.2, 0.4), ("load", "log", -0.3, 0.5), ("tau", "log", -0.3, 0.4), ("level", "", 0.3, 0.5))

    def build(self, held):
        slopes = pm.Normal("slopes", 0.2, 0.3, shape=2)
        groups = pm.Normal("groups", held["level"], held["tau"], shape=3)
        return 0.1 + pt.exp(held["warp"] * DESIGN) @ slopes + held["load"] ** self.powers * groups[GROUP]

    def draw(self, held, rng):
        slopes, groups = rng.normal(0.2, 0.3, 2), held["level"] + held["tau"] * rng.standard_normal(3)
        eta = 0.1 + np.exp(held["warp"] * DESIGN) @ slopes + held["load"] ** self.powers * groups[GROUP]
        return {"slopes": slopes, "groups": groups}, eta

    def noise(self, held, drawn):
        return np.concatenate(((drawn["slopes"] - 0.2) / 0.3, (drawn["groups"] - held["level"]) / held["tau"]))


class Loaded(Latents):
    """A process that most sites read times what may be nothing, and a whitened one times a power of the input."""

    n = len(X)
    priors = (("lengthscale", "log", -1.0, 0.5), ("weight", "", 0.4, 0.8), ("warp", "", 0.2, 0.5))

    def build(self, held):
        kernel = pm.gp.cov.Matern32(1, ls=held["lengthscale"])
        gp = pm.gp.Latent(mean_func=pm.gp.mean.Constant(0.4), cov_func=kernel)
        f = gp.prior("f", X, reparameterize=False, jitter=1e-4)
        loads = pt.concatenate([np.ones(1), pt.maximum(held["weight"], 0.0) * np.ones(4)])
        g = pm.gp.Latent(cov_func=0.5 * pm.gp.cov.Matern32(1, ls=0.3)).prior("g", X, jitter=1e-4)
        return loads * f + X[:, 0] ** pt.exp(held["warp"]) * g

    def draw(self, held, rng):
        f = 0.4 + matern_root(X, held["lengthscale"]) @ rng.standard_normal(self.n)
        noise = rng.standard_normal(self.n)
        loads = np.where(np.arange(self.n) < 1, 1.0, max(held["weight"], 0.0))
        eta = loads * f + X[:, 0] ** np.exp(held["warp"]) * (matern_root(X, 0.3, 0.5) @ noise)
        return {"f": f, "g_rotated_": noise}, eta

    def noise(self, held, drawn):
        first = np.linalg.solve(matern_root(X, held["lengthscale"]), drawn["f"] - 0.4)
        return np.concatenate((first, drawn["g_rotated_"]))


class Beside(Latents):
    """A process at three places and slopes of one scale, which more observations read than they have values."""

    where = np.arange(8) % 3
    inputs = X[[0, 2, 4]]
    design = 0.6 * np.random.default_rng(2).standard_normal((8, 2))
    n = len(where)
    priors = (("lengthscale", "log", -1.0, 0.5), ("tau", "log", -0.5, 0.5))

    def _design(self, held):
        return self.design

    def build(self, held):
        kernel = 0.7 * pm.gp.cov.Matern32(1, ls=held["lengthscale"])
        f = pm.gp.Latent(cov_func=kernel).prior("f", self.inputs, jitter=1e-4)
        slopes = pm.Normal("slopes", 0.2, held["tau"], shape=2)
        return 0.1 + f[self.where] + pt.dot(self._design(held), slopes)

    def draw(self, held, rng):
        noise, slopes = rng.standard_normal(3), 0.2 + held["tau"] * rng.standard_normal(2)
        f = matern_root(self.inputs, held["lengthscale"], 0.7) @ noise
        return {"f_rotated_": noise, "slopes": slopes}, 0.1 + f[self.where] + self._design(held) @ slopes

    def noise(self, held, drawn):
        return np.concatenate((drawn["f_rotated_"], (drawn["slopes"] - 0.2) / held["tau"]))


class BesideWarped(Beside):
    """The same with slopes of inputs that a hyperparameter warps."""

    priors = (*Beside.priors, ("warp", "", 0.2, 0.4))

    def _design(self, held):
        exponential = np.exp if isinstance(held["warp"], float) else pt.exp
        return self.design * exponential(held["warp"] * self.design)


class Grid(Latents):
    """A process on a grid of two by three, with a lengthscale along each axis."""

    n = 6
    inputs = (np.array([[0.0], [0.5]]), np.array([[0.0], [0.3], [1.0]]))
    priors = (("first", "log", -1.0, 0.5), ("second", "log", -0.7, 0.5), ("level", "", 0.3, 0.5))

    def build(self, held):
        kernels = [0.6 * pm.gp.cov.Matern32(1, ls=held["first"]), pm.gp.cov.Matern32(1, ls=held["second"])]
        gp = pm.gp.LatentKron(mean_func=pm.gp.mean.Constant(held["level"]), cov_funcs=kernels)
        return gp.prior("f", Xs=list(self.inputs), jitter=1e-4)

    def _root(self, held):
        first, second = self.inputs
        return np.kron(matern_root(first, held["first"], 0.6), matern_root(second, held["second"]))

    def draw(self, held, rng):
        noise = rng.standard_normal(self.n)
        return {"f_rotated_": noise}, held["level"] + self._root(held) @ noise

    def noise(self, held, drawn):
        return drawn["f_rotated_"]


class Rows(Latents):
    """Two processes at three places with one covariance."""

    n = 6
    inputs = np.array([[0.0], [0.3], [1.0]])
    priors = (("ls", "log", -0.7, 0.5), ("amplitude", "log", 0.0, 0.5), ("level", "", 0.3, 0.5))

    def build(self, held):
        kernel = held["amplitude"] ** 2 * pm.gp.cov.Matern32(1, ls=held["ls"])
        gp = pm.gp.Latent(mean_func=pm.gp.mean.Constant(held["level"]), cov_func=kernel)
        return gp.prior("f", X=self.inputs, n_outputs=2, jitter=1e-4, reparameterize=False).ravel()

    def _root(self, held):
        return matern_root(self.inputs, held["ls"], held["amplitude"] ** 2)

    def draw(self, held, rng):
        f = held["level"] + (rng.standard_normal((2, 3)) @ self._root(held).T).ravel()
        return {"f": f}, f

    def noise(self, held, drawn):
        return np.linalg.solve(self._root(held), (drawn["f"] - held["level"]).reshape(2, 3).T).T.ravel()


class OwnRows(Rows):
    """Two processes with a covariance each."""

    def build(self, held):
        same = [pm.gp.cov.Matern32(1, ls=held["ls"])(self.inputs) * share for share in (1.0, 0.4)]
        covariances = [held["amplitude"] ** 2 * k + 1e-4 * np.eye(3) for k in same]
        return pm.MvNormal("f", held["level"] * np.ones(3), cov=pt.stack(covariances)).ravel()

    def _roots(self, held):
        return [matern_root(self.inputs, held["ls"], held["amplitude"] ** 2 * share) for share in (1.0, 0.4)]

    def draw(self, held, rng):
        f = held["level"] + np.concatenate([root @ rng.standard_normal(3) for root in self._roots(held)])
        return {"f": f}, f

    def noise(self, held, drawn):
        rows = zip(self._roots(held), np.split(drawn["f"] - held["level"], 2), strict=True)
        return np.concatenate([np.linalg.solve(root, row) for root, row in rows])


VARIABLES = {
    "": lambda name, mean, sd: pm.Normal(name, mean, sd),
    "log": lambda name, mean, sd: pm.LogNormal(name, mean, sd),
    "logit": lambda name, mean, sd: pm.math.invlogit(pm.Normal(name, mean, sd)),
}
VALUE_NAMES = {"": "{}", "log": "{}_log__", "logit": "{}"}
INVERSES = {"": itself, "log": np.exp, "logit": lambda value: 1.0 / (1.0 + np.exp(-value))}


@dataclass(frozen=True, eq=False)
class Problem:
    """Latents under a likelihood. Every hyperparameter is normal on its unconstrained scale."""

    latents: Latents
    likelihood: str
    simulations: int = 200

    @property
    def priors(self) -> tuple[tuple[str, str, float, float], ...]:
        return self.latents.priors + EVERY_LIKELIHOOD[self.likelihood].parameters

    @cached_property
    def model(self) -> pm.Model:
        likelihood = EVERY_LIKELIHOOD[self.likelihood]
        with pm.Model() as model:
            data = pm.Data("data", np.ones(self.latents.n, dtype=float if likelihood.continuous else int))
            held = {name: VARIABLES[link](name, mean, sd) for name, link, mean, sd in self.priors}
            eta = self.latents.build(held)
            likelihood.observe(eta, data, **{name: held[name] for name, *_ in likelihood.parameters})
        return model

    @cached_property
    def joint(self) -> JointModel:
        _, joint = read_together(self.model, None, self.start)
        assert isinstance(joint, JointModel), joint
        assert len(joint.theta.names) == len(self.priors)
        return joint

    def values(self, standard: np.ndarray) -> tuple[dict, dict]:
        """Hyperparameters of standard normals: by name, and their value variables."""
        value = {name: mean + sd * s for (name, _, mean, sd), s in zip(self.priors, standard, strict=True)}
        held = {name: INVERSES[link](value[name]) for name, link, *_ in self.priors}
        return held, {VALUE_NAMES[link].format(name): value[name] for name, link, *_ in self.priors}

    def observations(self, held: dict, eta: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        draw, constants = EVERY_SIMULATOR[self.likelihood]
        named = [held[name] for name, *_ in EVERY_LIKELIHOOD[self.likelihood].parameters]
        y = draw(eta, rng, *(np.full(eta.size, c) for c in named or constants))
        return np.maximum(y, 1e-300) if self.likelihood in ("gamma_log", "weibull_log") else y

    def simulate(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """θ on the unconstrained scale, the block's variables and y."""
        held, values = self.values(rng.standard_normal(len(self.priors)))
        drawn, eta = self.latents.draw(held, rng)
        (block,) = self.joint.blocks
        packed = np.concatenate([drawn[name] for name in block.value_names])
        return self.joint.theta.pack(values), packed, self.observations(held, eta, rng)

    def standardised(self, theta: np.ndarray, packed: np.ndarray) -> np.ndarray:
        """What is standard normal and independent a priori, of a draw."""
        (block,) = self.joint.blocks
        point, ends = self.joint.theta.unpack(theta), np.cumsum(block.sizes)[:-1]
        drawn = dict(zip(block.value_names, np.split(packed, ends), strict=True))
        values = [float(point[VALUE_NAMES[link].format(name)]) for name, link, *_ in self.priors]
        scaled = [(value - mean) / sd for value, (_, _, mean, sd) in zip(values, self.priors, strict=True)]
        return np.concatenate((scaled, self.latents.noise(self.held(theta), drawn)))

    def held(self, theta: np.ndarray) -> dict:
        """The hyperparameters of a θ, by name."""
        point = self.joint.theta.unpack(theta)
        return {name: INVERSES[link](float(point[VALUE_NAMES[link].format(name)])) for name, link, *_ in self.priors}

    @cached_property
    def start(self) -> dict[str, np.ndarray]:
        """PyMC's initial point, which takes longer to make than a trajectory."""
        return self.model.initial_point()

    def observe(self, y: np.ndarray) -> None:
        """Bind the blocks to data."""
        data = self.model["data"]  # `pm.set_data` takes longer than all the rest
        data.set_value(y.astype(data.dtype))
        self.joint.bind(self.start)


def absurd_sites(n: int) -> GaussianSites:
    """Sites that pull neighbours apart, some of them hard, whatever the data are."""
    return GaussianSites(1.5 * np.cos(np.pi * np.arange(n)), np.geomspace(0.05, 3.0, n))
