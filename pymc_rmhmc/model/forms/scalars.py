"""Walks and vectors that a model has as scalars, written one by one in a loop."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import pymc as pm
from pytensor.tensor.random.basic import NormalRV
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.model.graph.affine import is_linear
from pymc_rmhmc.model.graph.graphs import operation_name, reaches
from pymc_rmhmc.model.graph.source_code import UNKNOWN, code_of
from pymc_rmhmc.model.likelihoods.links import strip
from pymc_rmhmc.model.observed.observation import direct_readers
from pymc_rmhmc.model.words.advice import AS_IT_IS

__all__ = ["written_as_scalars"]

# Scalars of which each is the mean of the next: fewer may be levels of a hierarchy.
SHORTEST_CHAIN = 5
# As many values after it a value of a series may be in the means of.
MOST_FOLLOWERS = 3
# Scalars that differ by a number in their names: fewer are named each for what it is.
FEWEST_SCALARS = 20


def written_as_scalars(
    model: pm.Model, readers: Mapping[TensorVariable, Sequence[TensorVariable]] | None = None
) -> dict[str, str]:
    """Say what to write for a walk of scalar Normals, each the mean of the next, or for many scalars.

    It is the same advice for each of the scalars, by its name. The readers are those of `direct_readers`, if known.
    """
    readers = direct_readers(model) if readers is None else readers
    scalars = [
        v for v in model.free_RVs
        if v.ndim == 0 and isinstance(v.owner.op, NormalRV) and model.rvs_to_transforms.get(v) is None
    ]  # fmt: skip
    advice: dict[str, str] = {}
    for chain in _chains(scalars, readers):
        text = _as_a_walk(model, chain)
        advice |= {str(v.name): text for v in chain}
    by_stem: dict[str, list[TensorVariable]] = {}
    for scalar in scalars:
        if str(scalar.name) not in advice:
            by_stem.setdefault(_stem(scalar), []).append(scalar)
    for stem, alike in by_stem.items():
        if stem and len(alike) >= FEWEST_SCALARS:
            text = _as_a_vector(model, stem, alike)
            advice |= {str(v.name): text for v in alike}
    return advice


def _chains(
    scalars: Sequence[TensorVariable], readers: Mapping[TensorVariable, Sequence[TensorVariable]]
) -> list[list[TensorVariable]]:
    """Find scalars that are connected by their means, where one leads to the next at least `SHORTEST_CHAIN` times."""
    known = set(scalars)
    followers = {v: [r for r in readers[v] if r in known and _follows(r, v, scalars)] for v in scalars}
    # A drift, a coefficient or a common mean is in the means of many.
    followers = {v: after if len(after) <= MOST_FOLLOWERS else [] for v, after in followers.items()}
    chain_of: dict[TensorVariable, list[TensorVariable]] = {v: [v] for v in scalars}
    depth = dict.fromkeys(scalars, 1)
    for scalar in scalars:  # in the order of the model, where what is read comes first
        for reader in followers[scalar]:
            depth[reader] = max(depth[reader], depth[scalar] + 1)
            mine, other = chain_of[scalar], chain_of[reader]
            if mine is not other:
                mine += other
                for each in other:
                    chain_of[each] = mine
    found = {id(chain): chain for chain in chain_of.values() if max(depth[v] for v in chain) >= SHORTEST_CHAIN}
    return list(found.values())


def _follows(after: TensorVariable, before: TensorVariable, scalars: Sequence[TensorVariable]) -> bool:
    """Return whether a scalar is in another's mean."""
    return reaches(after.owner.op.dist_params(after.owner)[0], [before], scalars)


def _as_a_walk(model: pm.Model, chain: Sequence[TensorVariable]) -> str:
    """Write a chain of scalars as a walk or an autoregression, if it is one."""
    first, *rest = chain
    name, n = _stem(first), len(chain)
    steps = [_step(model, before, after) for before, after in zip(chain, rest, strict=False)]
    kinds = {step if step is None else step[0] for step in steps}
    if not name.isidentifier() or len(kinds) != 1 or None in kinds:
        return (
            "A series in scalars is not read as one. Write it as vectors: pm.GaussianRandomWalk and pm.AR are read, "
            "and so is pm.math.cumsum of a vector of Normals."
        )
    (kind,) = {step[0] for step in steps if step}
    sigmas = {code_of(model, v.owner.op.dist_params(v.owner)[1]) for v in rest}
    others = {step[1] for step in steps if step}
    sigma, other = (each.pop() if len(each) == 1 else UNKNOWN for each in (sigmas, others))
    moves = {"AR": f"rho=[{other}], ", "GaussianRandomWalk": "" if other == "0" else f"mu={other}, "}[kind]
    start = ", ".join(code_of(model, p) for p in first.owner.op.dist_params(first.owner))
    written = (
        f"A series in scalars is not read as one. Write a vector, with {name}[0] in the place of {first.name}:\n"
        f'    {name} = pm.{kind}("{name}", {moves}sigma={sigma}, init_dist=pm.Normal.dist({start}), shape={n})'
    )
    return written + (AS_IT_IS if UNKNOWN in written else "")


def _step(model: pm.Model, before: TensorVariable, after: TensorVariable) -> tuple[str, str] | None:
    """Say how one value follows another: the kind of series, and code for its drift or its coefficient."""
    mean = strip(after.owner.op.dist_params(after.owner)[0])
    if mean is before:
        return "GaussianRandomWalk", "0"
    if mean.owner is None or not reaches(mean, [before]) or not is_linear(mean, [before]):
        return None
    others = [i for i in mean.owner.inputs if strip(i) is not before]
    if len(others) != 1 or len(mean.owner.inputs) != 2 or reaches(others[0], [before]):
        return None
    kind = {"Add": "GaussianRandomWalk", "Mul": "AR"}.get(operation_name(mean))
    return None if kind is None else (kind, code_of(model, others[0]))


def _as_a_vector(model: pm.Model, stem: str, alike: Sequence[TensorVariable]) -> str:
    """Write scalars of one kind as one vector."""
    laws = {tuple(code_of(model, p) for p in v.owner.op.dist_params(v.owner)) for v in alike}
    mean, sigma = laws.pop() if len(laws) == 1 else (UNKNOWN, UNKNOWN)
    written = (
        "Write them as one vector, which compiles much faster:\n"
        f'    {stem} = pm.Normal("{stem}", {mean}, {sigma}, shape={len(alike)})'
    )
    return written + (AS_IT_IS if UNKNOWN in written else "")


def _stem(variable: TensorVariable) -> str:
    """Return a name without the number at its end: x of x_3, x[3] and x3."""
    return re.sub(r"[\W_]*\d+\W*$", "", str(variable.name))
