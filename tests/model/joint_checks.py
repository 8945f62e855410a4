"""What a compiled joint model must be: its parts the model itself, their derivatives differences."""

from __future__ import annotations

import itertools
from dataclasses import fields, replace
from functools import cache, lru_cache, reduce

import numpy as np
import pymc as pm
import pytest
from scipy import sparse
from scipy.stats import multivariate_normal, norm

from pymc_rmhmc.approximation.joint_mode import moving_sites
from pymc_rmhmc.interfaces.stated import StatedCoefficients, StatedKronecker, StatedPrior
from pymc_rmhmc.latent.charts import GaussianSites, MarginalChart
from pymc_rmhmc.latent.joint_target import JointTarget
from pymc_rmhmc.model import JointModel, read_together
from tests.model.conftest import (
    exact_log_density,
)
from tests.model.joint_forms import build


def random_point(model: pm.Model, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        name: value + 0.5 * rng.standard_normal(value.shape) if value.dtype.kind == "f" else value
        for name, value in model.initial_point().items()
    }


def joint_of(model: pm.Model, vars=None) -> JointModel:  # noqa: A002
    _, joint = read_together(model, vars, model.initial_point())
    assert isinstance(joint, JointModel), joint
    return joint


def stated_density(stated: StatedPrior, i: int, values: np.ndarray) -> tuple[float, np.ndarray]:
    """The log density of a vector's variable, and how far from its mean what is read of it is."""
    vector = stated.vectors[i]
    if isinstance(vector, StatedCoefficients):
        moved = vector.spread * (values - vector.location) / vector.deviation
        return norm.logpdf(values, vector.location, vector.deviation).sum(), moved
    if isinstance(vector, StatedKronecker):
        factor = reduce(np.kron, [np.linalg.cholesky(k) for k in vector.covariances])
        return norm.logpdf(values).sum(), factor @ (np.sign(vector.sign) * values)
    if not vector.is_variable:
        return norm.logpdf(values).sum(), np.linalg.cholesky(vector.covariance) @ (np.sign(vector.multiplier) * values)
    moved = vector.multiplier * (values - vector.location)
    volume = np.log(np.abs(np.broadcast_to(vector.multiplier, values.shape))).sum()
    return multivariate_normal.logpdf(moved, np.zeros(values.size), vector.covariance) + volume, moved


def log_density_of_a_block(block, theta: np.ndarray, x: np.ndarray) -> float:
    """Priors and likelihood."""
    stated = block.prior(theta)
    total, eta, ends = 0.0, stated.mean.copy(), np.cumsum([0, *block.sizes])
    if not block.is_sum:  # coefficients of several variables are one vector
        ends = [0, x.size]
    if block.rows is not None:
        for i, (where, values) in enumerate(zip(block.rows, x.reshape(block.rows.shape), strict=True)):
            vector = stated.vectors[0 if len(stated.vectors) == 1 else i]
            located = replace(vector, location=(stated.mean - stated.shift)[where])
            density, moved = stated_density(replace(stated, vectors=(located,)), 0, values)
            total, eta[where] = total + density, eta[where] + moved
        return total + block.likelihood(theta, eta)[0]
    designs = stated.design
    if block.design_shape is not None:
        designs = [designs[:, a:b] for a, b in itertools.pairwise(ends)]
    for i in range(len(stated.vectors)):
        density, moved = stated_density(stated, i, x[ends[i] : ends[i + 1]])
        total += density
        eta += moved if designs is None or designs[i] is None else designs[i] @ moved
    return total + block.likelihood(theta, eta)[0]


def log_density(joint: JointModel, point: dict[str, np.ndarray]) -> float:
    """Rest, likelihoods and dense priors."""
    theta = joint.theta.pack(point)
    values = [np.concatenate([np.ravel(point[name]) for name in block.value_names]) for block in joint.blocks]
    held = zip(joint.blocks, joint.from_model(theta, values), strict=True)
    return joint.rest(theta)[0] + sum(log_density_of_a_block(block, theta, x) for block, x in held)


def differences(function, at: np.ndarray, h: float = 1e-5) -> np.ndarray:
    return np.array([(function(at + h * e) - function(at - h * e)) / (2 * h) for e in np.eye(at.size)])


def assert_is_the_model(joint: JointModel, model: pm.Model, seeds=(1, 2)) -> None:
    exact = exact_of(model)
    for seed in seeds:
        point = random_point(model, seed)
        joint.bind(point)
        assert log_density(joint, point) == pytest.approx(float(exact(point)), rel=1e-8, abs=1e-7)


def differentiated(block, theta: np.ndarray):
    """The mean, what every vector states, and a list with the matrices that move: all that has a derivative."""
    stated = block.prior(theta)
    seconds = [
        vector.spread if isinstance(vector, StatedCoefficients)
        else list(vector.covariances) if isinstance(vector, StatedKronecker)
        else vector.covariance
        for vector in stated.vectors
    ]  # fmt: skip
    if not block.has_moving_design:
        return stated.mean, [seconds, []]
    if block.design_shape is not None:
        return stated.mean, [seconds, [stated.design.data if sparse.issparse(stated.design) else stated.design]]
    return stated.mean, [seconds, [d.toarray() if sparse.issparse(d) else d for d in stated.design]]


def pulled_back(block, theta: np.ndarray, mean_bar: np.ndarray, bars) -> np.ndarray:
    """The derivative by θ, from that by the mean and those by what `differentiated` gives besides."""
    vectors, designs = bars
    design = None if not designs else designs[0] if block.design_shape is not None else designs
    return block.prior_pullback(theta, mean_bar, vectors, design)


def parts_of(stated) -> list:
    """The fields of what is stated, and those of each vector."""
    found = [getattr(stated, field.name) for field in fields(stated)]
    return [[parts_of(each) for each in part] if part is getattr(stated, "vectors", ()) else part for part in found]


def bars_of(second, rng: np.random.Generator):
    """An array of the same shape for every array of what a prior states besides its mean."""
    if isinstance(second, np.ndarray):
        return rng.standard_normal(second.shape)
    return [bars_of(one, rng) for one in second]


def ordered(bars, order: str):
    return np.asarray(bars, order=order) if isinstance(bars, np.ndarray) else [ordered(bar, order) for bar in bars]


def contracted(second, bars) -> float:
    if isinstance(second, np.ndarray):
        return float((second * bars).sum())
    return sum(contracted(one, bar) for one, bar in zip(second, bars, strict=True))


exact_of = lru_cache(maxsize=100)(exact_log_density)


@cache
def made(name: str) -> tuple[pm.Model, JointModel]:
    """A form's model and what is compiled of it, once for all tests of it."""
    model = build(name)
    return model, joint_of(model)


def made_by_values(name: str) -> tuple[pm.Model, JointModel]:
    """The same with the matrices of sums in the size of the latent values, however few the observations are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pymc_rmhmc.model.forms.linear_blocks.MORE_OBSERVATIONS", 0.0)
        return made.__wrapped__(name)


def assert_parts_are_the_model(model: pm.Model, joint: JointModel) -> None:
    assert_is_the_model(joint, model)
    rng = np.random.default_rng(3)
    theta = joint.theta.pack(random_point(model, 4))
    joint.bind(random_point(model, 4))
    near = {"rtol": 1e-5, "atol": 1e-5}
    np.testing.assert_allclose(joint.rest(theta)[1], differences(lambda at: joint.rest(at)[0], theta), **near)
    for block in joint.blocks:
        # Not symmetric: a triangle that stands for both must do.
        mean_bar, second_bars = rng.standard_normal(block.n_sites), bars_of(differentiated(block, theta)[1], rng)

        def along(at, block=block, mean_bar=mean_bar, second_bars=second_bars):
            mean, second = differentiated(block, at)
            return mean @ mean_bar + contracted(second, second_bars)

        for order in ("C", "F"):
            pulled = pulled_back(block, theta, mean_bar, ordered(second_bars, order))
            np.testing.assert_allclose(pulled, differences(along, theta), **near)
        eta = rng.standard_normal(block.n_sites)
        if block.has_moving_sites:
            pair = rng.standard_normal((2, block.n_sites))
            bar = rng.standard_normal(block.information(theta, pair).size)
            exact = differences(lambda at, block=block, pair=pair, bar=bar: block.information(at, pair) @ bar, theta)
            np.testing.assert_allclose(block.information_pullback(theta, pair, bar), exact, **near)
            assert (block.information(theta, pair) >= 0.0).all()
        _, slope, by_theta = block.likelihood(theta, eta)
        by_eta = differences(lambda at, block=block: block.likelihood(theta, at)[0], eta)
        np.testing.assert_allclose(slope, by_eta, **near)
        exact = differences(lambda at, block=block, eta=eta: block.likelihood(at, eta)[0], theta)
        np.testing.assert_allclose(by_theta, exact, **near)


def assert_gradient_is_a_difference_and_values_are_found_again(model: pm.Model, joint: JointModel) -> None:
    rng = np.random.default_rng(5)
    joint.bind({})
    block, d = joint.blocks[0], joint.theta.size
    fitted = GaussianSites(rng.standard_normal(block.n_sites), rng.exponential(1.0, block.n_sites))
    sites = moving_sites(block, np.full(d, -0.3), fitted, *rng.exponential(0.5, (2, block.n_sites)))
    target = JointTarget(joint, [sites], MarginalChart.linear(np.full(d, -0.3), 0.3 * np.eye(d)))
    position = rng.standard_normal(target.size)
    exact = differences(lambda at: target.at(at).log_density, position)
    np.testing.assert_allclose(target.at(position).gradient, exact, rtol=1e-6, atol=1e-6)
    theta, values = 0.3 * rng.standard_normal(d), rng.standard_normal(block.size)
    initial, parts = model.initial_point(), np.split(values, np.cumsum(block.sizes)[:-1])
    named = {n: v.reshape(initial[n].shape) for n, v in zip(block.value_names, parts, strict=True)}
    exact_density = exact_of(model)
    for there in (theta, -theta):  # a number that multiplies a process has either sign
        point = target.at(target.enter(there, [values], rng))
        np.testing.assert_allclose(point.theta, there, atol=1e-9)
        np.testing.assert_allclose(target.latents(point)[0], values, atol=1e-7)
        exact = float(exact_density(initial | joint.theta.unpack(there) | named))
        assert target.model_log_density(point) == pytest.approx(exact, abs=1e-6)
