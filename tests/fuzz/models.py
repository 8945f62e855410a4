"""A random model as a tree of plain data, which prints itself as the PyMC code that builds it."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt

__all__ = ["SCALE_OF", "Array", "Constant", "Free", "Line", "Penalty", "Seen", "Statement", "Sum", "Tree", "pruned"]

# Where the scale is among the arguments of families of location and scale.
SCALE_OF = {"Normal": "sigma", "StudentT": "sigma", "Laplace": "b", "Logistic": "s", "Gumbel": "beta"}
NAME = re.compile(r"(?<![\w.])[A-Za-z_]\w*")
HEADER = ("import numpy as np", "import pymc as pm", "import pytensor.tensor as pt", "from pymc_rmhmc import RMHMC")


def names_in(code: str) -> set[str]:
    """Every name that a piece of code reads, attributes left out."""
    return set(NAME.findall(code))


@dataclass(frozen=True)
class Array:
    """Data that a model is given besides its observations: indices, covariates, places.

    `kind` is "index" (below the size that `bound` names), "normal", "grid", "trials" or "noise".
    """

    name: str
    kind: str
    size: tuple[str, ...]
    bound: str = ""

    def values(self, sizes: dict[str, int], seed: int) -> np.ndarray:
        """The numbers, which depend on the name, the sizes and the seed alone."""
        rng = np.random.default_rng((seed, zlib.crc32(self.name.encode())))
        shape = tuple(sizes[name] for name in self.size)
        if self.kind == "index":
            return rng.permutation(np.arange(shape[0]) % sizes[self.bound])
        if self.kind == "grid":
            return np.round(np.linspace(0.0, 1.0, shape[0]), 2)
        if self.kind == "trials":
            return rng.integers(1, 8, shape)
        return np.round((0.3 if self.kind == "noise" else 1.0) * rng.standard_normal(shape), 1)


@dataclass(frozen=True)
class Statement:
    """One line of a model; `instead` is the constant that stands for it in a smaller one."""

    name: str

    @property
    def text(self) -> str:
        """The code."""
        raise NotImplementedError

    @property
    def instead(self) -> str:
        """The code of a constant; empty where nothing reads the statement."""
        return ""

    def read(self) -> set[str]:
        """The names that it reads."""
        return names_in(self.text)

    def smaller(self) -> Iterable[Statement]:
        """Simpler statements of the same name."""
        return ()


@dataclass(frozen=True)
class Free(Statement):
    """A free variable.

    `size` names the sizes of its shape; `written` is its whole code where that is no plain call of the family.
    """

    family: str = "Normal"
    arguments: tuple[tuple[str, str], ...] = ()
    size: tuple[str, ...] = ()
    constant: str = "0.3"
    written: str = ""

    @property
    def text(self) -> str:
        if self.written:
            return self.written
        shape = f", shape=({', '.join(self.size)},)" if self.size else ""
        return f'{self.name} = pm.{self.family}("{self.name}", {_called(self.arguments)}{shape})'

    @property
    def instead(self) -> str:
        return f"np.full(({', '.join(self.size)},), {self.constant})" if self.size else self.constant

    @property
    def standard(self) -> Free:
        """Its non-centred form, without location and scale."""
        plain = {"mu": "0.0", SCALE_OF[self.family]: "1.0"}
        arguments = tuple((key, plain.get(key, code)) for key, code in self.arguments)
        return replace(self, name=f"{self.name}_standard", arguments=arguments)

    @property
    def location_and_scale(self) -> tuple[str, str]:
        """Their code."""
        given = dict(self.arguments)
        return given["mu"], given[SCALE_OF[self.family]]

    def smaller(self) -> Iterable[Statement]:
        if self.written:
            return
        if self.family in ("StudentT", "Laplace", "Logistic", "SkewNormal"):
            given = dict(self.arguments)
            scale = given[SCALE_OF.get(self.family, "sigma")]
            yield replace(self, family="Normal", arguments=(("mu", given["mu"]), ("sigma", scale)))
        yield from (replace(self, arguments=each) for each in _plainer(self.arguments))


@dataclass(frozen=True)
class Line(Statement):
    """A named expression; with `told` a Deterministic."""

    code: str = "0.0"
    told: bool = False
    constant: str = "0.0"

    @property
    def text(self) -> str:
        code = f'pm.Deterministic("{self.name}", {self.code})' if self.told else self.code
        return f"{self.name} = {code}"

    @property
    def instead(self) -> str:
        return self.constant

    def smaller(self) -> Iterable[Statement]:
        if self.told:
            yield replace(self, told=False)


@dataclass(frozen=True)
class Constant(Statement):
    """What stands for a statement that was dropped."""

    code: str = "0.0"

    @property
    def text(self) -> str:
        # Shared indices index no NumPy array.
        return f"{self.name} = " + (f"pt.as_tensor({self.code})" if self.code.startswith("np.") else self.code)


@dataclass(frozen=True)
class Sum(Statement):
    """A linear predictor: terms of the shape (N,)."""

    terms: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return f"{self.name} = {' + '.join(self.terms) or '0.0'} + np.zeros(N)"

    @property
    def instead(self) -> str:
        return "np.zeros(N)"

    def smaller(self) -> Iterable[Statement]:
        for i in range(len(self.terms)):
            yield replace(self, terms=self.terms[:i] + self.terms[i + 1 :])


@dataclass(frozen=True)
class Penalty(Statement):
    """A Potential that is never positive, so that draws of the prior can be thinned by it."""

    code: str = "0.0"

    @property
    def text(self) -> str:
        return f'pm.Potential("{self.name}", pt.as_tensor({self.code}))'


@dataclass(frozen=True)
class Seen(Statement):
    """An observed variable; its data are the array `NAME_data`.

    `missing` are the places of missing values. `as_potential` writes its log density as a Potential.
    """

    family: str = "Normal"
    arguments: tuple[tuple[str, str], ...] = ()
    size: tuple[str, ...] = ("N",)
    missing: tuple[int, ...] = ()
    as_potential: bool = False
    whole: bool = False
    written: str = ""

    @property
    def data(self) -> str:
        """The name of its data."""
        return f"{self.name}_data"

    @property
    def text(self) -> str:
        called = self.written or f"pm.{self.family}({_called(self.arguments)})"
        if self.as_potential:
            # Of a distribution made of another one PyMC takes values alone: it would draw the variables anew.
            made = f"model.replace_rvs_by_values([{_dist(called)}])[0]" if self.written else _dist(called)
            return f'pm.Potential("{self.name}", pm.logp({made}, {self.data}).sum())'
        before, _, after = called.partition("(")
        return f'{before}("{self.name}", {after[:-1]}, observed={self.data})'

    def smaller(self) -> Iterable[Statement]:
        if self.missing:
            yield replace(self, missing=())
        if self.as_potential:
            yield replace(self, as_potential=False)
        if not self.written:
            yield from (replace(self, arguments=each) for each in _plainer(self.arguments))


def _called(arguments: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(f"{key}={code}" for key, code in arguments)


def _dist(called: str) -> str:
    before, _, after = called.partition("(")
    return f"{before}.dist({after}"


def _plainer(arguments: tuple[tuple[str, str], ...]) -> Iterable[tuple[tuple[str, str], ...]]:
    """The arguments with one of them that is no number replaced by one."""
    plain = {"mu": "0.0", "sigma": "1.0", "b": "1.0", "alpha": "2.0", "beta": "2.0", "nu": "5.0", "lam": "1.0"}
    for i, (key, code) in enumerate(arguments):
        if key in plain and re.fullmatch(r"[-.\d]+", code) is None:
            yield (*arguments[:i], (key, plain[key]), *arguments[i + 1 :])


@dataclass(frozen=True)
class Tree:
    """A model.

    Attributes
    ----------
    seed : int
        Of its arrays.
    sizes : tuple of (str, int)
        What names such as G stand for.
    arrays, statements
        In order: what is read stands before what reads it.
    shared : bool
        Whether its arrays are `pm.Data`.
    refilled : bool
        Whether its observations are `pm.Data`, so that other data need no other model.
    dims : bool
        Whether shapes are written as dims.
    standard : tuple of str
        Variables that are drawn as they are written, and sampled in their non-centred form: the law is the same.
    options : str
        Of the step, as code.
    """

    seed: int
    sizes: tuple[tuple[str, int], ...]
    arrays: tuple[Array, ...]
    statements: tuple[Statement, ...]
    shared: bool = False
    refilled: bool = True
    dims: bool = False
    standard: tuple[str, ...] = ()
    options: str = ""

    @property
    def seen(self) -> list[Seen]:
        """The observed variables."""
        return [each for each in self.statements if isinstance(each, Seen)]

    @property
    def is_refilled(self) -> bool:
        """Whether one model serves all data: which values are missing is a matter of the model."""
        return self.refilled and not any(each.missing for each in self.seen)

    def placeholders(self) -> dict[str, np.ndarray]:
        """Data of the right shape, by the names of observed variables."""
        sizes = dict(self.sizes)
        shapes = {each: tuple(int(n) if n.isdigit() else sizes[n] for n in each.size) for each in self.seen}
        return {each.name: np.ones(shape, "int64" if each.whole else "float64") for each, shape in shapes.items()}

    def lines(self, data: dict[str, np.ndarray]) -> list[str]:
        """The code, with its data written out."""
        sizes = dict(self.sizes)
        read = {name for each in self.statements for name in (*each.read(), *getattr(each, "size", ()))}
        read |= {name for each in self.arrays for name in each.size if each.name in read}
        arrays = {each.name: each.values(sizes, self.seed) for each in self.arrays if each.name in read}
        before = [f"{name} = {n}" for name, n in self.sizes if name in read]
        before += [f"{name} = {_literal(values)}" for name, values in arrays.items() if not self.shared]
        inside = [f'{name} = pm.Data("{name}", {_literal(values)})' for name, values in arrays.items() if self.shared]
        for each in self.seen:
            literal = _literal(_holed(each, data[each.name]))
            inside.append(f"{each.data} = " + (f'pm.Data("{each.data}", {literal})' if self.is_refilled else literal))
        inside += [each.text for each in self.statements]
        coords = ""
        if self.dims:
            inside = [re.sub(r"shape=\(([A-Z]),\)", r'dims="\1"', line) for line in inside]
            coords = "coords={" + ", ".join(f'"{name}": range({name})' for name, _ in self.sizes if name in read) + "}"
        return [*before, f"with pm.Model({coords}) as model:", *(f"    {line}" for line in inside)]

    def code(self, data: dict[str, np.ndarray]) -> str:
        """A program that samples it, written as it is sampled."""
        tree = self.as_sampled()
        last = f"    pm.sample(step=RMHMC({self.options}))"
        return "\n".join((*HEADER, "", *tree.lines(data), last, ""))

    def run(self, data: dict[str, np.ndarray], more: Iterable[str] = ()) -> dict[str, Any]:
        """Run the code, and lines after it: all that has a name then; the model is `model`."""
        held: dict[str, Any] = {"np": np, "pm": pm, "pt": pt}
        exec("\n".join((*self.lines(data), *more)), held)
        return held

    def complete(self) -> Tree:
        """The same law, of which PyMC can draw: nothing is missing, and no likelihood is a Potential."""
        return self._with_each(Seen, lambda each: replace(each, missing=(), as_potential=False))

    def as_sampled(self) -> Tree:
        """The same law with some variables in their non-centred form."""
        if not self.standard:
            return self
        statements: list[Statement] = []
        for each in self.statements:
            if isinstance(each, Free) and each.name in self.standard:
                location, scale = each.location_and_scale
                code = f"{location} + ({scale}) * {each.standard.name}"
                statements += (each.standard, Line(each.name, code, told=True))
            else:
                statements.append(each)
        return replace(self, statements=tuple(statements))

    def standardised(self) -> dict[str, str]:
        """The code of each variable in its non-centred form, by that form's name."""
        found = {}
        for each in self.statements:
            if isinstance(each, Free) and each.name in self.standard:
                location, scale = each.location_and_scale
                found[each.standard.name] = f"({each.name} - ({location})) / ({scale})"
        return found

    def _with_each(self, kind: type, change: Any) -> Tree:
        changed = tuple(change(each) if isinstance(each, kind) else each for each in self.statements)
        return replace(self, statements=changed)


def _holed(seen: Seen, values: np.ndarray) -> np.ndarray:
    """Data with their missing values."""
    if not seen.missing:
        return values
    holed = np.array(values, dtype=np.float64)
    holed[list(seen.missing)] = np.nan
    return holed


def _literal(values: np.ndarray) -> str:
    """An array as code."""
    return f"np.array({values.tolist()})".replace("nan", "np.nan")


def pruned(tree: Tree) -> Tree:
    """The model without statements that nothing reads, and without arrays of no use."""
    kept: list[Statement] = []
    read: set[str] = set()
    for each in reversed(tree.statements):
        if isinstance(each, (Seen, Penalty)) or each.name in read:
            kept.append(each)
            read |= each.read()
    arrays = tuple(each for each in tree.arrays if each.name in read)
    sized = (*arrays, *kept)
    used = read | {name for each in sized for name in (*getattr(each, "size", ()), getattr(each, "bound", ""))} | {"N"}
    sizes = tuple((name, n) for name, n in tree.sizes if name in used)
    standard = tuple(name for name in tree.standard if any(isinstance(s, Free) and s.name == name for s in kept))
    return replace(tree, sizes=sizes, arrays=arrays, statements=tuple(reversed(kept)), standard=standard)
