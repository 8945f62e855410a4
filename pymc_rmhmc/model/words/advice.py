"""Which form of a model is read, in place of one that is not, as code with the names of the model's own variables.

What is advised was tried: the tests of each form build the advised model and look that it is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.multivariate import CARRV, ICARRV, KroneckerNormalRV, MatrixNormalRV, ZeroSumNormalRV
from pymc.distributions.timeseries import AutoRegressiveRV, EulerMaruyamaRV, RandomWalkRV
from pytensor.tensor.random.basic import MvNormalRV, NormalRV
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.model.forms.priors import LatentVariable, root_of
from pymc_rmhmc.model.graph.affine import is_linear
from pymc_rmhmc.model.graph.graphs import reaches
from pymc_rmhmc.model.graph.source_code import UNKNOWN, code_of, distribution_of, lkj_factor, n_series, shape_of

__all__ = [
    "AS_IT_IS", "INSTEAD_OF_SEVERAL", "NUTS", "UNREAD_GAUSSIANS", "as_a_sum", "one_by_one", "one_step_each",
    "rows_as_a_product", "unread_forms", "unread_rows",
]  # fmt: skip

NUTS = "sample with NUTS"
# What samples a likelihood of several latent values; the second has an observation's whole block in its matrix.
INSTEAD_OF_SEVERAL = (
    'RMHMC() samples such a model, and so does RMHMC(metric=FisherMetric(chart="graph")); laplace(model) approximates '
    "its latent values, and log_evidence(model) has its evidence."
)
AS_IT_IS = f"\n    # {UNKNOWN} stays as it is in your model"


def unread_forms(model: pm.Model, variables: Sequence[TensorVariable]) -> dict[str, str]:
    """Return what to do and to write, by name, instead of each Gaussian variable that is not read as a latent one."""
    advice = {}
    for variable in variables:
        write = FORMS.get(type(variable.owner.op))
        written = write(model, variable) if write else None
        if written:
            advice[str(variable.name)] = written + (AS_IT_IS if UNKNOWN in written else "")
    return advice


def unread_rows(model: pm.Model, variables: Sequence[TensorVariable]) -> dict[str, str]:
    """Return what to write instead of each walk, autoregression or map in several rows."""
    series = [v for v in variables if distribution_of(v) in ROWS and v.ndim > 1]
    return {
        name: f"Several rows are not read as latent vectors, and a list of them is. {text}"
        for name, text in unread_forms(model, series).items()
    }


def _series(model: pm.Model, variable: TensorVariable) -> str | None:
    """Write the rows of a walk, an autoregression or a map one by one; None for any other variable."""
    shape, name, kind = shape_of(model, variable), as_identifier(variable), distribution_of(variable)
    if len(shape) < 2 or kind not in ROWS:
        return None
    arguments = ROWS[kind](model, variable)
    return (
        "Write one variable and one likelihood for each row:\n"
        f"    for i in range({n_series(shape)}):\n"
        f'        {name}_i = pm.{kind}(f"{name}_{{i}}", {arguments})\n'
        f"        # the likelihood of row i, with {name}_i in the place of {name}[i]"
    )


def _walk_arguments(model: pm.Model, variable: TensorVariable) -> str:
    begin, steps, *_ = variable.owner.inputs
    mean, sigma = (_of_a_row(model, p, -1) for p in steps.owner.op.dist_params(steps.owner))  # (steps, rows)
    moves = "" if mean == "0" else f"mu={mean}, "
    return f"{moves}sigma={sigma}, init_dist={_start(model, begin, -1)}, shape={shape_of(model, variable)[-1]}"


def _autoregression_arguments(model: pm.Model, variable: TensorVariable) -> str:
    rhos, sigma, begin, *_ = variable.owner.inputs
    constant = ", constant=True" if variable.owner.op.constant_term else ""
    return (
        f"rho={_of_a_row(model, rhos, -2)}, sigma={_of_a_row(model, sigma, -1)}{constant}, "
        f"init_dist={_start(model, begin, -2)}, shape={shape_of(model, variable)[-1]}"
    )


def _of_a_row(model: pm.Model, parameter: TensorVariable, axis: int) -> str:
    """Return code for a parameter of one row; `axis` is where rows differ, if they do."""
    code = code_of(model, parameter)
    axes = parameter.type.broadcastable[: parameter.ndim + axis + 1]
    if all(axes):
        return code
    return f"{code}[i]" if code.isidentifier() and not axes[-1] and all(axes[:-1]) else UNKNOWN


def _start(model: pm.Model, begin: TensorVariable, axis: int) -> str:
    """Return code for the unnamed Normal that one row begins with, or `UNKNOWN`."""
    node = begin.owner
    if node is None or not isinstance(node.op, NormalRV):
        return UNKNOWN
    parameters = [_of_a_row(model, parameter, axis) for parameter in node.op.dist_params(node)]
    return UNKNOWN if UNKNOWN in parameters else f"pm.Normal.dist({', '.join(parameters)})"


ROWS: dict[str, Callable[[pm.Model, TensorVariable], str]] = {
    "GaussianRandomWalk": _walk_arguments, "AR": _autoregression_arguments, "CAR": lambda *_: UNKNOWN,
    "ICAR": lambda *_: UNKNOWN,
}  # fmt: skip


def _walk(model: pm.Model, variable: TensorVariable) -> str | None:
    """Write a walk in rows, or of vectors, in a form that is read; None for one that is not Gaussian."""
    steps = variable.owner.inputs[1].owner
    if distribution_of(variable) != "MvGaussianRandomWalk":
        return _series(model, variable)
    shape, name = shape_of(model, variable), as_identifier(variable)
    if len(shape) != 2:
        return None
    mean, covariance = steps.op.dist_params(steps)
    return (
        "Write it as the sum of its steps:\n"
        f'    {name}_start = pm.Normal("{name}_start", 0, 1, shape=(1, {shape[1]}))  # with the law of your init_dist\n'
        f'    {name}_steps = pm.Normal("{name}_steps", 0, 1, shape=({shape[0] - 1}, {shape[1]}))\n'
        f"    steps = {_added(model, mean)}{name}_steps @ {_factor(model, covariance)}.T\n"
        f'    {name} = pm.Deterministic("{name}", '
        f"pm.math.cumsum(pm.math.concatenate([{name}_start, steps]), axis=0))"
    )


def _added(model: pm.Model, mean: TensorVariable) -> str:
    """Return code that adds a mean, if there is one."""
    code = code_of(model, mean)
    return "" if code == "0" else f"{code} + "


def _factor(model: pm.Model, covariance: TensorVariable) -> str:
    """Return code for the lower factor of a covariance: as it was given, or by what makes it."""
    matrix, root = root_of(covariance)
    if root == "covariance":
        return f"pt.linalg.cholesky({code_of(model, matrix)})"
    codes = [code_of(model, matrix), lkj_factor(model, matrix)] if root == "cholesky" else []
    return next((code for code in codes if code != UNKNOWN), "chol")


def _zero_sum(model: pm.Model, variable: TensorVariable) -> str:
    """Write a zero-sum variable as Normals minus their mean, which have the same distribution."""
    name, shape = as_identifier(variable), shape_of(model, variable)
    sigma = code_of(model, variable.owner.inputs[2])
    size = shape[0] if len(shape) == 1 else shape
    code = f'    {name}_free = pm.Normal("{name}_free", 0, {sigma}, shape={size})\n'
    free = f"{name}_free"
    for axis in range(1, variable.owner.op.ndim_supp):
        code += f"    {free} = {free} - {free}.mean(axis={-axis - 1}, keepdims=True)\n"
    return (
        "Write it as Normals without their mean, which is the same distribution:\n"
        f'{code}    {name} = pm.Deterministic("{name}", {free} - {free}.mean(axis=-1, keepdims=True))'
    )


def _stochastic_equation(model: pm.Model, variable: TensorVariable) -> str | None:
    """Write a linear equation as the autoregression that the scheme makes of it; None for any other equation."""
    op, (begin, _, *parameters, _) = variable.owner.op, variable.owner.inputs
    at = begin.type()
    drift, noise = map(pt.as_tensor, op.sde_fn(at, *[p.type() for p in parameters]))
    if not is_linear(drift, [at]) or reaches(noise, [at]):
        return None
    name, dt = as_identifier(variable), code_of(model, pt.as_tensor(op.dt))
    return (
        "Its drift is linear, so it is an autoregression. With a * x + b the drift and g the noise of sde_fn:\n"
        f'    {name} = pm.AR("{name}", rho=[{dt} * b, 1 + {dt} * a], sigma={dt}**0.5 * g, constant=True, '
        f"init_dist={_start(model, begin, 0)}, shape={shape_of(model, variable)[-1]})"
    )


def _kronecker(model: pm.Model, variable: TensorVariable) -> str:
    name, n = as_identifier(variable), len(variable.owner.inputs) - 4
    factors = ", ".join(f"K_{i + 1}" for i in range(n))
    return (
        f"Write it as one MvNormal, with {factors} its covs:\n"
        f'    {name} = pm.MvNormal("{name}", {UNKNOWN}, cov=pm.math.kronecker({factors}))'
    )


def _matrix_normal(model: pm.Model, variable: TensorVariable) -> str:
    name, shape = as_identifier(variable), shape_of(model, variable)
    added = _added(model, variable.owner.op.dist_params(variable.owner)[0])
    return (
        "Write it as a product, with rowchol and colchol the Cholesky factors of its covariances:\n"
        f'    {name}_z = pm.Normal("{name}_z", 0, 1, shape={shape})\n'
        f'    {name} = pm.Deterministic("{name}", {added}rowchol @ {name}_z @ colchol.T)'
    )


FORMS: dict[type, Callable[[pm.Model, TensorVariable], str | None]] = {
    RandomWalkRV: _walk, AutoRegressiveRV: _series, CARRV: _series, ICARRV: _series, ZeroSumNormalRV: _zero_sum,
    EulerMaruyamaRV: _stochastic_equation, KroneckerNormalRV: _kronecker, MatrixNormalRV: _matrix_normal,
}  # fmt: skip
# Of these the prior is Gaussian, if it is not one that the choice of latent variables knows.
UNREAD_GAUSSIANS = (ZeroSumNormalRV, KroneckerNormalRV, MatrixNormalRV)


def one_by_one(model: pm.Model, observed: TensorVariable) -> str:
    """Say what to write for a likelihood of several values at once: a likelihood of each value, or NUTS."""
    kind = distribution_of(observed)
    if kind == "MvNormal" and observed.ndim == 1:
        return f"if pm.gp.Marginal makes it, keep it, because it integrates the latent values out, and {NUTS}"
    if kind == "GaussianRandomWalk" and observed.ndim == 1:
        steps = observed.owner.inputs[1]
        mean, sigma = (code_of(model, p) for p in steps.owner.op.dist_params(steps.owner))
        regression = f'pm.Normal("{observed.name}", mu={mean}, sigma={sigma}, observed=np.diff(data))'
        return f"write it as a Normal of its steps, {regression}, or {NUTS}"
    if kind == "AR" and observed.ndim == 1:
        return f"write it as a regression on its own past, {_regression(model, observed)}, or {NUTS}"
    return NUTS


def _regression(model: pm.Model, observed: TensorVariable) -> str:
    """Return code for an observed autoregression as a Normal of each value, given those before it."""
    rhos, sigma, *_ = observed.owner.inputs
    order, constant = observed.owner.op.ar_order, observed.owner.op.constant_term
    code = code_of(model, rhos)
    code = "rho" if code == UNKNOWN else code
    parts = code[1:-1].split(", ") if code.startswith("[") else [f"{code}[{i}]" for i in range(order + constant)]
    lags = [f"{rho} * data[{order - k or ''}:-{k}]" for k, rho in enumerate(parts[constant:], start=1)]
    mean = " + ".join([*parts[: int(constant)], *lags])
    return f'pm.Normal("{observed.name}", mu={mean}, sigma={code_of(model, sigma)}, observed=data[{order}:])'


def rows_as_a_product(model: pm.Model, latents: Iterable[LatentVariable]) -> dict[str, str]:
    """Return what to write for rows of an MvNormal whose covariance is free, if the two are not sampled together."""
    advice = {}
    for latent in latents:
        variable = latent.variable
        is_rows = isinstance(variable.owner.op, MvNormalRV) and variable.ndim == 2 and latent.matrix.ndim == 2
        if not is_rows or not reaches(latent.matrix, model.free_RVs):
            continue
        name, shape = as_identifier(variable), shape_of(model, variable)
        mean, covariance = variable.owner.op.dist_params(variable.owner)
        written = (
            f"Write {variable.name} as a product of independent Normals, and it is sampled together with them:\n"
            f'    {name}_z = pm.Normal("{name}_z", 0, 1, shape={shape})\n'
            f'    {name} = pm.Deterministic("{name}", {_added(model, mean)}{name}_z @ {_factor(model, covariance)}.T)'
        )
        advice[str(variable.name)] = written + (AS_IT_IS if UNKNOWN in written else "")
    return advice


def as_a_sum(
    model: pm.Model, latents: Iterable[LatentVariable], processes: Sequence[TensorVariable]
) -> dict[str, str]:
    """Return what to write, by name, where a process is the mean of a latent variable and therefore is none itself.

    An MvNormal is read as that sum wherever it can be.
    """
    advice: dict[str, str] = {}
    for latent in latents:
        if latent.mean is None or isinstance(latent.variable.owner.op, MvNormalRV):
            continue
        above = [v for v in processes if reaches(latent.mean, [v], model.basic_RVs)]
        if not above or not is_linear(latent.mean, above, model.basic_RVs):
            continue
        text = _sum_with_its_mean(model, latent.variable, [str(v.name) for v in above])
        advice |= {str(v.name): text for v in above}
    return advice


def _sum_with_its_mean(model: pm.Model, variable: TensorVariable, above: Sequence[str]) -> str:
    """Write a process about a mean as the mean plus a process about 0."""
    name, kind = as_identifier(variable), distribution_of(variable)
    rest, mean, arguments = f"{name}_rest", "mu", UNKNOWN
    if kind == "GaussianRandomWalk":
        begin, steps, *_ = variable.owner.inputs
        sigma, n = code_of(model, steps.owner.op.dist_params(steps.owner)[1]), shape_of(model, variable)[-1]
        arguments = f"sigma={sigma}, init_dist={_start(model, begin, 0)}, shape={n}"
        mean = "pm.math.concatenate([[0.0], pm.math.cumsum(mu)])"
    return (
        f"Take {', '.join(above)} out of the prior of {variable.name}, with mu what its mu is now:\n"
        f'    {rest} = pm.{kind}("{rest}", {arguments})\n'
        f'    {name} = pm.Deterministic("{name}", {rest} + {mean})'
    )


def one_step_each(names: Mapping[str, Sequence[str]]) -> str:
    """Return code that samples latent vectors by turns, each with its own hyperparameters."""
    steps = ", ".join(
        f"RMHMC(vars=[{', '.join(repr(n) for n in (name, *own))}])".replace("'", '"') for name, own in names.items()
    )
    return f"Sample {' and '.join(names)} by turns:\n    pm.sample(step=[{steps}])"


def as_identifier(variable: TensorVariable) -> str:
    """Convert a variable's name to one that Python accepts."""
    return re.sub(r"\W", "_", str(variable.name))
