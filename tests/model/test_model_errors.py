"""Each mistake that can be seen in a model is a typed error that says what was found and what to do."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

from pymc_rmhmc.errors import (
    ConfigurationError,
    DataError,
    UnsupportedLikelihoodError,
    UnsupportedModelError,
)
from pymc_rmhmc.model import compile_model, read_structure
from tests.model.conftest import COUNTS, MODELS, N, gp_prior


def compiled(model, names=None):
    return compile_model(read_structure(model, names))


def poisson(f, **kwargs):
    pm.Poisson("y", mu=pm.math.exp(f), observed=kwargs.pop("observed", COUNTS), **kwargs)


def test_a_discrete_variable():
    with pm.Model() as model:
        pm.Poisson("k", 3.0)
        poisson(gp_prior("f"))
    with pytest.raises(UnsupportedModelError, match="k is discrete.*leave it out of vars"):
        read_structure(model, ["k"])


def test_a_prior_that_is_not_gaussian():
    model = MODELS["other_parameter"]()
    with pytest.raises(UnsupportedModelError, match="alpha.*Exponential.*leave it out of vars"):
        read_structure(model, ["alpha"])


def test_an_unknown_name():
    with pytest.raises(UnsupportedModelError, match='no variable "g"'):
        read_structure(MODELS["centred"](), ["g"])


def test_an_observed_variable():
    with pytest.raises(UnsupportedModelError, match="y is not a free random variable"):
        read_structure(MODELS["centred"](), ["y"])


def test_a_model_without_latent_gaussian_variables():
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu"), pm.HalfNormal("sigma"), observed=COUNTS)
    with pytest.raises(UnsupportedModelError, match=r"no latent Gaussian block.*mu.*sigma"):
        read_structure(model)


def test_a_student_process():
    with pm.Model() as model:
        process = pm.gp.TP(scale_func=pm.gp.cov.ExpQuad(1, 0.3), nu=4)
        poisson(process.prior("f", np.linspace(0, 1, N)[:, None]))
    with pytest.raises(UnsupportedModelError, match="f_rotated_.*StudentT"):
        read_structure(model, ["f_rotated_"])


def test_a_potential():
    with pm.Model() as model:
        f = gp_prior("f", reparameterize=False)
        poisson(f)
        pm.Potential("smooth", -pt.sum(f**4))
    with pytest.raises(UnsupportedModelError, match="Potential smooth depends on f"):
        read_structure(model, ["f"])
    with pytest.raises(UnsupportedModelError, match="no latent Gaussian block.*smooth"):
        read_structure(model)


def test_a_predictor_that_is_not_affine():
    with pm.Model() as model:
        poisson(gp_prior("f", reparameterize=False) ** 2)
    with pytest.raises(UnsupportedModelError, match=r"y.*depends on f through a non-linear map `(sqr|pow)`"):
        compiled(model)


def test_a_product_of_two_latents():
    with pm.Model() as model:
        poisson(gp_prior("f", reparameterize=False) * gp_prior("g", reparameterize=False))
    with pytest.raises(UnsupportedModelError, match="y.*non-linear"):
        compiled(model)


def test_a_parameter_beside_the_predictor():
    with pm.Model() as model:
        f = gp_prior("f", reparameterize=False)
        pm.Normal("y", f, pm.math.exp(f), observed=COUNTS)
    with pytest.raises(UnsupportedLikelihoodError, match="parameter of y other than its linear predictor.*f"):
        read_structure(model, ["f"])


def test_a_likelihood_that_does_not_factorise():
    with pm.Model() as model:
        pm.MvNormal("y", gp_prior("f", reparameterize=False), np.eye(N), observed=COUNTS.astype(float))
    with pytest.raises(UnsupportedLikelihoodError, match="y does not factorise"):
        read_structure(model, ["f"])


def test_an_unregistered_likelihood_that_mixes_latent_values():
    with pm.Model() as model:
        f = gp_prior("f", reparameterize=False)
        pm.Logistic("y", mu=pt.exp(pt.cumsum(f)), s=1.0, observed=COUNTS.astype(float))
    with pytest.raises(UnsupportedLikelihoodError, match="y does not factorise over the latent values"):
        compiled(model)


def test_a_transformed_free_variable_as_likelihood():
    with pm.Model() as model:
        pm.Exponential("z", pm.math.exp(gp_prior("f", reparameterize=False)))
    with pytest.raises(UnsupportedLikelihoodError, match="z depends on f and is transformed"):
        read_structure(model, ["f"])


def test_single_precision():
    model = MODELS["centred"]()
    with (
        pytensor.config.change_flags(floatX="float32"),
        pytest.raises(ConfigurationError, match="float32.*floatX"),
    ):
        read_structure(model)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_offset_that_is_not_finite(bad):
    offset = np.where(np.arange(N) == 2, bad, 0.1)
    with pm.Model() as model:
        poisson(gp_prior("f", reparameterize=False) + offset)
    with pytest.raises(DataError, match="y.*not finite for 1 observations"):
        compiled(model)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
def test_an_exposure_that_cannot_be(bad):
    exposure = np.where(np.arange(N) == 2, bad, 1.5)
    with pm.Model() as model:
        pm.Poisson("y", mu=exposure * pm.math.exp(gp_prior("f", reparameterize=False)), observed=COUNTS)
    with pytest.raises(DataError, match="exposure of y.*1 observations"), np.errstate(invalid="ignore"):
        compiled(model)


def test_an_exposure_of_zero_with_events():
    with pm.Model() as model:
        mu = np.array([1.0, 0.0] + [2.0] * (N - 2)) * pm.math.exp(gp_prior("f", reparameterize=False))
        pm.Poisson("y", mu=mu, observed=COUNTS)
    with pytest.raises(DataError, match="counts above 0 where its exposure is 0"), np.errstate(divide="ignore"):
        compiled(model)


def test_a_parameter_that_is_not_finite():
    with pm.Model() as model:
        f = gp_prior("f", reparameterize=False)
        pm.Normal("y", f, np.where(np.arange(N) == 1, np.nan, 1.0), observed=COUNTS)
    with pytest.raises(DataError, match="sigma of y"):
        compiled(model)


def test_data_out_of_support():
    with pm.Model() as model:
        poisson(gp_prior("f", reparameterize=False), observed=COUNTS - 1)
    with pytest.raises(DataError, match="the data of y must"):
        compiled(model)


def test_the_reason_for_leaving_a_variable():
    structure = read_structure(MODELS["other_parameter"]())
    assert structure.left_over == ("alpha",)
    assert "not a latent Gaussian" in structure.reasons["alpha"]
