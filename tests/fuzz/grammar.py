"""The grammar: random models of a few variables, small enough to compile in seconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tests.fuzz.models import SCALE_OF, Array, Free, Line, Penalty, Seen, Statement, Sum, Tree

__all__ = ["random_tree"]

# Families of a real value, by location and scale.
REAL = {
    "Normal": (("mu", "{m}"), ("sigma", "{s}")),
    "StudentT": (("nu", "5.0"), ("mu", "{m}"), ("sigma", "{s}")),
    "Laplace": (("mu", "{m}"), ("b", "{s}")),
    "Logistic": (("mu", "{m}"), ("s", "0.5 * {s}")),
    "SkewNormal": (("mu", "{m}"), ("sigma", "{s}"), ("alpha", "2.0")),
    "Gumbel": (("mu", "{m}"), ("beta", "0.7 * {s}")),
    "TruncatedNormal": (("mu", "{m}"), ("sigma", "{s}"), ("lower", "-4.0"), ("upper", "3.0")),
    "AsymmetricLaplace": (("kappa", "1.3"), ("mu", "{m}"), ("b", "1.5 / {s}")),
}
# Weights of families where a scale moves the values.
OFTEN = ("Normal", "Normal", "Normal", "Normal", "StudentT", "Laplace")
SCALES = {
    "HalfNormal": (("sigma", "0.8"),),
    "Exponential": (("lam", "1.5"),),
    "Gamma": (("alpha", "2.0"), ("beta", "3.0")),
    "LogNormal": (("mu", "-0.5"), ("sigma", "0.5")),
    "InverseGamma": (("alpha", "4.0"), ("beta", "2.0")),
    "HalfStudentT": (("nu", "4.0"), ("sigma", "0.6")),
    "HalfCauchy": (("beta", "0.2"),),
    "Weibull": (("alpha", "1.5"), ("beta", "0.8")),
    "Uniform": (("lower", "0.1"), ("upper", "1.5")),
    "ChiSquared": (("nu", "2.0"),),
    "Kumaraswamy": (("a", "2.0"), ("b", "2.0")),
}
UNITS = {
    "Beta": (("alpha", "2.0"), ("beta", "2.0")),
    "Uniform": (("lower", "0.05"), ("upper", "0.95")),
    "LogitNormal": (("mu", "0.0"), ("sigma", "0.8")),
    "Kumaraswamy": (("a", "1.5"), ("b", "2.0")),
}


class Writer:
    """What is written of a model so far."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng((seed, 1))
        self.statements: list[Statement] = []
        self.arrays: dict[str, Array] = {}
        self.count = 0
        self.sizes = {
            name: int(self.rng.integers(low, high))
            for name, low, high in (("N", 5, 13), ("G", 2, 5), ("H", 2, 3), ("K", 2, 4), ("T", 4, 8))
        }

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def pick[Item](self, items: tuple[Item, ...] | list[Item]) -> Item:
        return items[int(self.rng.integers(len(items)))]

    def name(self, letter: str) -> str:
        self.count += 1
        return f"{letter}{self.count}"

    def number(self, low: float, high: float) -> str:
        return str(round(float(self.rng.uniform(low, high)), 1))

    def add(self, statement: Statement) -> str:
        self.statements.append(statement)
        return statement.name

    def array(self, name: str, kind: str, *size: str, bound: str = "") -> str:
        self.arrays[name] = Array(name, kind, size, bound)
        return name

    def free(
        self, letter: str, family: str, arguments: tuple[tuple[str, str], ...], *size: str, constant: str = "0.3"
    ) -> str:
        return self.add(Free(self.name(letter), family, arguments, size, constant))

    def told(self, letter: str, code: str, constant: str) -> str:
        return self.add(Line(self.name(letter), code, self.chance(0.5), constant))


def _filled(arguments: tuple[tuple[str, str], ...], m: str, s: str) -> tuple[tuple[str, str], ...]:
    return tuple((key, code.format(m=m, s=s)) for key, code in arguments)


def location(w: Writer) -> str:
    """A number, or a free value."""
    if w.chance(0.3):
        return w.number(-1.0, 1.0)
    family = w.pick(list(REAL)) if w.chance(0.3) else "Normal"
    return w.free("m", family, _filled(REAL[family], w.number(-0.5, 0.5), w.number(0.3, 1.2)))


def scale(w: Writer) -> str:
    """A number, or a free positive value, also as a function of one."""
    kind = w.rng.random()
    if kind < 0.15:
        return w.number(0.3, 1.2)
    if kind < 0.75:
        family = w.pick(list(SCALES))
        return w.free("s", family, SCALES[family], constant="0.6")
    if kind < 0.85:
        log = w.free("l", "Normal", (("mu", "-0.7"), ("sigma", w.number(0.3, 0.8))), constant="-0.5")
        return w.told("s", f"pm.math.exp({log})", "0.6")
    if kind < 0.93:
        precision = w.free("p", "Gamma", (("alpha", "3.0"), ("beta", "1.5")), constant="2.0")
        return w.told("s", f"1.0 / pm.math.sqrt({precision})", "0.6")
    variance = w.free("v", "InverseGamma", (("alpha", "4.0"), ("beta", "1.5")), constant="0.5")
    return w.told("s", f"pm.math.sqrt({variance})", "0.6")


def unit(w: Writer) -> str:
    """A free value in (0, 1)."""
    if w.chance(0.25):
        return w.told("q", f"pm.math.invlogit({location(w)})", "0.4")
    family = w.pick(list(UNITS))
    return w.free("q", family, UNITS[family], constant="0.4")


def effects(w: Writer, size: str, m: str, s: str) -> str:
    """A vector around a location, in one of the ways in which people write it."""
    form = w.pick(["centred", "centred", "centred", "non-centred", "located", "scaled", "precise", "sum to zero"])
    family = w.pick(list(OFTEN))
    if form == "centred":
        return w.free("b", family, _filled(REAL[family], m, s), size)
    if form == "precise":
        return w.free("b", "Normal", (("mu", m), ("tau", f"1.0 / {s} ** 2")), size)
    if form == "sum to zero":
        raw = w.free("z", "ZeroSumNormal", (("sigma", s),), size)
        return w.told("b", f"{m} + {raw}", f"np.zeros({size})")
    raw_m, raw_s = ("0.0", "1.0") if form == "non-centred" else ("0.0", s) if form == "located" else (m, "1.0")
    raw = w.free("z", family, _filled(REAL[family], raw_m, raw_s), size)
    code = {"non-centred": f"{m} + {s} * {raw}", "located": f"{m} + {raw}", "scaled": f"{s} * {raw}"}[form]
    return w.told("b", code, f"np.zeros({size})")


def groups(w: Writer) -> str:
    """Effects of groups, one or two levels above the observations."""
    m = location(w)
    if w.chance(0.35):
        upper = effects(w, "H", m, scale(w))
        m = f"{upper}[{w.array('region', 'index', 'G', bound='H')}]"
    found = effects(w, "G", m, scale(w))
    return f"{found}[{w.array('group', 'index', 'N', bound='G')}]"


def design(w: Writer) -> str:
    """A few coefficients of a matrix."""
    x, s = w.array("X", "normal", "N", "K"), scale(w)
    form = w.pick(["centred", "non-centred", "local"])
    if form == "local":
        local = w.free("r", "HalfNormal", (("sigma", "1.0"),), "K", constant="0.7")
        raw = w.free("z", "Normal", (("mu", "0.0"), ("sigma", "1.0")), "K")
        return f"pt.dot({x}, {raw} * {local} * {s})"
    family = w.pick(list(OFTEN))
    if form == "centred":
        return f"pt.dot({x}, {w.free('c', family, _filled(REAL[family], '0.0', s), 'K')})"
    raw = w.free("z", family, _filled(REAL[family], "0.0", "1.0"), "K")
    return f"{s} * pt.dot({x}, {raw})"


def slope(w: Writer) -> str:
    return f"{location(w)} * {w.array('x', 'normal', 'N')}"


def varying(w: Writer) -> str:
    """Slopes of groups."""
    found = effects(w, "G", location(w), scale(w))
    return f"{found}[{w.array('group', 'index', 'N', bound='G')}] * {w.array('x', 'normal', 'N')}"


def walk(w: Writer) -> str:
    """A series."""
    s, t = scale(w), w.array("time", "index", "N", bound="T")
    form = w.pick(["walk", "autoregression", "sums"])
    start = "init_dist=pm.Normal.dist(0.0, 1.0)"
    if form == "sums":
        raw = w.free("z", "Normal", (("mu", "0.0"), ("sigma", "1.0")), "T")
        return f"{s} * pt.cumsum({raw})[{t}]"
    name = w.name("w")
    if form == "walk":
        code = f'{name} = pm.GaussianRandomWalk("{name}", mu=0.0, sigma={s}, {start}, shape=(T,))'
    else:
        rho = w.told("rho", f"2.0 * {unit(w)} - 1.0", "0.4") if w.chance(0.7) else "0.6"
        code = f'{name} = pm.AR("{name}", rho=pt.stack([{rho}]), sigma={s}, {start}, shape=(T,))'
    w.add(Free(name, "AR", size=("T",), constant="0.0", written=code))
    return f"{name}[{t}]"


def process(w: Writer) -> str:
    """A Gaussian process on few places."""
    s, name = scale(w), w.name("f")
    length = w.number(0.2, 0.8)
    if w.chance(0.6):
        length = w.free("ls", "InverseGamma", (("alpha", "5.0"), ("beta", "2.0")), constant="0.4")
    kernel = w.pick(["ExpQuad", "Matern32", "Matern52"])
    place, t = w.array("place", "grid", "T"), w.array("time", "index", "N", bound="T")
    rotated = w.pick(["True", "False"])
    code = (
        f"{name} = pm.gp.Latent(cov_func={s} ** 2 * pm.gp.cov.{kernel}(1, ls={length}))"
        f'.prior("{name}", X={place}[:, None], reparameterize={rotated}, jitter=1e-4)'
    )
    w.add(Free(name, "GP", size=("T",), constant="0.0", written=code))
    return f"{name}[{t}]"


def rows(w: Writer) -> str:
    """Correlated intercepts and slopes of groups."""
    factor, name = w.name("L"), w.name("u")
    code = (
        f'{factor}, _, _ = pm.LKJCholeskyCov("{factor}", n=2, eta={w.number(1.0, 3.0)}, '
        f"sd_dist=pm.{w.pick(['Exponential.dist(1.5, shape=2)', 'HalfNormal.dist(0.7, shape=2)'])}, compute_corr=True)"
    )
    w.add(Free(factor, "LKJCholeskyCov", constant="np.array([[0.6, 0.0], [0.2, 0.5]])", written=code))
    group, x = w.array("group", "index", "N", bound="G"), w.array("x", "normal", "N")
    if w.chance(0.5):
        mean = f"pt.stack([{location(w)}, {location(w)}])"
        code = f'{name} = pm.MvNormal("{name}", mu={mean}, chol={factor}, shape=(G, 2))'
        w.add(Free(name, "MvNormal", size=("G", "2"), constant="0.0", written=code))
    else:
        raw = w.free("z", "Normal", (("mu", "0.0"), ("sigma", "1.0")), "G", "2")
        w.add(Line(name, f"pt.dot({raw}, {factor}.T)", False, "np.zeros((G, 2))"))
    return f"{name}[{group}, 0] + {name}[{group}, 1] * {x}"


def offset(w: Writer) -> str:
    return w.array("offset", "noise", "N")


def saturating(w: Writer) -> str:
    """A curve of two parameters."""
    top, half, x = location(w), scale(w), w.array("dose", "grid", "N")
    return w.pick([f"{top} * {x} / ({half} + {x})", f"{top} * pm.math.exp(-{half} * {x})", f"{top} * {x} ** {half}"])


def product(w: Writer) -> str:
    """A positive factor that multiplies another term."""
    factor = w.told("d", f"pm.math.exp(0.3 * {effects(w, 'G', '0.0', scale(w))})", "np.ones(G)")
    return f"{factor}[{w.array('group', 'index', 'N', bound='G')}] * {slope(w)}"


TERMS: tuple[tuple[Callable[[Writer], str], float], ...] = (
    (location, 3.0), (groups, 6.0), (design, 3.0), (slope, 2.0), (varying, 2.0), (walk, 2.0), (process, 1.5),
    (rows, 1.5), (offset, 1.0), (product, 1.0), (saturating, 1.5),
)  # fmt: skip


def predictor(w: Writer, most: int = 3) -> str:
    """The name of a predictor (N,)."""
    weights, n = np.array([weight for _, weight in TERMS]), min(most, 1 + int(w.rng.binomial(2, 0.3)))
    chosen = w.rng.choice(len(TERMS), size=n, replace=False, p=weights / weights.sum())
    terms = tuple(TERMS[i][0](w) for i in chosen)
    return w.add(Sum(w.name("eta"), terms))


def _normal(w: Writer) -> Seen:
    family = w.pick(["Normal", "Normal", "StudentT", "Laplace", "Logistic"])
    return Seen("y", family, _filled(REAL[family], predictor(w), scale(w)))


def _two_predictors(w: Writer) -> Seen:
    return Seen("y", "Normal", (("mu", predictor(w)), ("sigma", f"pm.math.exp(0.5 * {predictor(w, 1)} - 0.5)")))


COUNTS = (
    "Poisson", "Poisson", "Poisson", "NegativeBinomial", "NegativeBinomial", "ZeroInflatedPoisson",
    "ZeroInflatedNegativeBinomial", "HurdlePoisson", "HurdleNegativeBinomial",
)  # fmt: skip


def _count(w: Writer) -> Seen:
    mean = f"pm.math.exp({predictor(w)})"
    kind = w.pick(COUNTS)
    arguments = [("mu", mean)]
    if "Negative" in kind:
        arguments.append(("alpha", w.free("a", "Gamma", (("alpha", "3.0"), ("beta", "1.0")), constant="2.0")))
    if "Zero" in kind or "Hurdle" in kind:
        arguments.insert(0, ("psi", unit(w)))
    return Seen("y", kind, tuple(arguments), whole=True)


def _binary(w: Writer) -> Seen:
    eta = predictor(w)
    p = w.pick([("logit_p", eta), ("p", f"pm.math.invlogit({eta})"), ("p", f"pm.math.invprobit({eta})")])
    kind = w.pick(["Bernoulli", "Binomial", "BetaBinomial", "ZeroInflatedBinomial"])
    if kind == "Bernoulli":
        return Seen("y", kind, (p,), whole=True)
    trials = ("n", w.array("trials", "trials", "N"))
    if kind == "Binomial":
        return Seen("y", kind, (trials, p), whole=True)
    mean = f"pm.math.invlogit({eta})"
    if kind == "BetaBinomial":
        shapes = (("alpha", f"3.0 * {mean} + 0.1"), ("beta", f"3.0 * (1.0 - {mean}) + 0.1"))
        return Seen("y", kind, (trials, *shapes), whole=True)
    return Seen("y", kind, (("psi", unit(w)), trials, ("p", mean)), whole=True)


def _positive(w: Writer) -> Seen:
    mean = f"pm.math.exp({predictor(w)})"
    kind = w.pick(["Gamma", "Exponential", "LogNormal", "Weibull", "InverseGamma"])
    if kind == "Exponential":
        return Seen("y", kind, (("lam", f"1.0 / {mean}"),))
    if kind == "LogNormal":
        return Seen("y", kind, (("mu", f"pm.math.log({mean})"), ("sigma", scale(w))))
    shape = w.free("a", "Gamma", (("alpha", "4.0"), ("beta", "2.0")), constant="2.0")
    arguments = {
        "Gamma": (("alpha", shape), ("beta", f"{shape} / {mean}")),
        "Weibull": (("alpha", shape), ("beta", mean)),
        "InverseGamma": (("alpha", f"{shape} + 1.0"), ("beta", mean)),
    }[kind]
    return Seen("y", kind, arguments)


def _between(w: Writer) -> Seen:
    mean = f"pm.math.invlogit({predictor(w)})"
    return Seen("y", "Beta", (("alpha", f"4.0 * {mean} + 0.2"), ("beta", f"4.0 * (1.0 - {mean}) + 0.2")))


def _categories(w: Writer) -> Seen:
    if w.chance(0.5):
        cuts = w.name("cut")
        code = (
            f'{cuts} = pm.Normal("{cuts}", mu=0.0, sigma=1.5, shape=2, '
            "transform=pm.distributions.transforms.ordered, initval=np.array([-1.0, 1.0]))"
        )
        w.add(Free(cuts, "Normal", size=("2",), constant="np.array([-1.0, 1.0])", written=code))
        called = f"pm.OrderedLogistic(eta={predictor(w)}, cutpoints={cuts}, compute_p=False)"
        return Seen("y", written=called, whole=True)
    if w.chance(0.3):
        shares = w.name("pi")
        code = f'{shares} = pm.Dirichlet("{shares}", a=np.array([2.0, 1.5, 1.0]))'
        w.add(Free(shares, "Dirichlet", constant="np.array([0.5, 0.3, 0.2])", written=code))
        return Seen("y", "Categorical", (("p", shares),), whole=True)
    logits = f"pt.stack([{predictor(w, 2)}, {predictor(w, 1)}, np.zeros(N)], axis=1)"
    return Seen("y", "Categorical", (("logit_p", logits),), whole=True)


def _mixture(w: Writer) -> Seen:
    eta, gap, s = predictor(w, 2), scale(w), scale(w)
    parts = f"[pm.Normal.dist({eta}, {s}), pm.Normal.dist({eta} + 1.0 + {gap}, 0.5)]"
    share = unit(w)
    return Seen("y", written=f"pm.Mixture(w=pt.stack([{share}, 1.0 - {share}]), comp_dists={parts})")


def _censored(w: Writer) -> Seen:
    eta, s = predictor(w), scale(w)
    return Seen("y", written=f"pm.Censored(dist=pm.Normal.dist({eta}, {s}), lower=-1.5, upper=1.5)")


def _vectors(w: Writer) -> Seen:
    """Rows of two values with a covariance."""
    factor = w.name("L")
    sd = w.pick(["Exponential.dist(1.5, shape=2)", "HalfNormal.dist(0.7, shape=2)"])
    code = f'{factor}, _, _ = pm.LKJCholeskyCov("{factor}", n=2, eta=2.0, sd_dist=pm.{sd}, compute_corr=True)'
    w.add(Free(factor, "LKJCholeskyCov", constant="np.array([[0.6, 0.0], [0.2, 0.5]])", written=code))
    mean = f"pt.stack([{predictor(w, 2)}, {predictor(w, 1)}], axis=1)"
    return Seen("y", "MvNormal", (("mu", mean), ("chol", factor)), size=("N", "2"))


OBSERVED = (
    (_normal, 5.0), (_two_predictors, 1.0), (_count, 4.0), (_binary, 4.0), (_positive, 2.5), (_between, 1.0),
    (_categories, 1.5), (_mixture, 1.0), (_censored, 1.0), (_vectors, 1.0),
)  # fmt: skip
# Families whose missing values PyMC samples.
IMPUTED = ("Normal", "StudentT", "Laplace", "Gamma", "Exponential", "LogNormal", "Poisson", "NegativeBinomial", "Beta")
OPTIONS = ("", "", "", "", "", "", "", 'metric=FlatMetric(chart="graph")', 'trajectory="nuts"')


def _observed(w: Writer, name: str) -> Seen:
    """An observed variable with all that it reads, now and then with missing values or as a Potential."""
    weights = np.array([weight for _, weight in OBSERVED])
    found = OBSERVED[int(w.rng.choice(len(OBSERVED), p=weights / weights.sum()))][0](w)
    found = replace(found, name=name)
    if found.family in IMPUTED and not found.written and w.chance(0.08):
        return replace(found, missing=tuple(sorted(w.rng.choice(w.sizes["N"], 2, replace=False).tolist())))
    return replace(found, as_potential=w.chance(0.05))


def _again(w: Writer) -> Seen:
    """A second observed variable, which reads effects that the first one reads too."""
    vectors = [each for each in w.statements if each.name[0] == "b" and "G" in (*getattr(each, "size", ()), "G")]
    groups_of = [each.name for each in vectors if "np.zeros(H)" not in each.instead and "H" not in each.instead]
    read = f"{w.pick(groups_of)}[{w.array('group', 'index', 'N', bound='G')}]" if groups_of else location(w)
    family, arguments = w.pick((
        ("Normal", (("mu", read), ("sigma", "0.8"))), ("Poisson", (("mu", f"pm.math.exp(0.5 * {read})"),)),
        ("Bernoulli", (("logit_p", f"2.0 * {read}"),)),
    ))  # fmt: skip
    return Seen("y2", family, arguments, whole=family != "Normal")


def random_tree(seed: int) -> Tree:
    """The model of a seed."""
    w = Writer(seed)
    seen = [_observed(w, "y")]
    if w.chance(0.12):
        seen.append(_again(w))
    if not any(isinstance(each, Free) for each in w.statements):
        w.free("m", "Normal", (("mu", "0.0"), ("sigma", "1.0")))  # which nothing reads: it is drawn from its prior
    free = [each for each in w.statements if isinstance(each, Free) and not each.written]
    scalars = [each.name for each in free if not each.size]
    if scalars and w.chance(0.1):
        w.add(Penalty("penalty", f"-0.5 * ({w.pick(scalars)} - 0.5) ** 2"))
    of_scale = [f.name for f in free if {"mu", SCALE_OF.get(f.family, "no")} <= set(dict(f.arguments))]
    standard = tuple(name for name in of_scale if w.chance(0.7)) if w.chance(0.12) else ()
    return Tree(
        seed, tuple(w.sizes.items()), tuple(w.arrays.values()), (*w.statements, *seen), shared=w.chance(0.2),
        refilled=w.chance(0.93), dims=w.chance(0.15), standard=standard, options=w.pick(OPTIONS),
    )  # fmt: skip
