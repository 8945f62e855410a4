"""Handwritten threes against fives: Gaussian-process classification by three samplers.

767 images, 256 grey values each, a probit likelihood under a smooth and strongly correlated prior (squared
exponential, log lengthscale 4.85, log amplitude 5.1, no jitter: the covariance's condition is 2·10¹⁰).
The posterior of the 767 latent values is sampled by RMHMC in the flat metric, by the papers' sampler
(position-dependent metric, generalised leapfrog), and by NUTS on the whitened model; the 773 test images
are predicted from the first. Run it with ``make demo`` or ``python examples/usps_classification.py``.

References: Kuss and Rasmussen (2005); Rasmussen and Williams (2006), section 3.7.3; Paquet and Fraccaro
(2016), section 5.
"""

from __future__ import annotations

import os

# One BLAS thread for each of the two chains: two chains with two threads each wait for one another.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
import pytensor.tensor as pt
from rich.console import Console
from rich.table import Table
from scipy.special import ndtr

from pymc_rmhmc import RMHMC, GeneralizedLeapfrog, compare, describe, plot_compare, summarize_failures

DATA = Path(__file__).resolve().parent.parent / "data" / "usps_3v5.npz"
FIGURES = Path("figures")
LENGTHSCALE, AMPLITUDE = np.exp(4.85), np.exp(5.1)
SEED = 3

console = Console()
phases: dict[str, float] = {}


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Announce a phase and note how long it took."""
    console.rule(name)
    start = time.perf_counter()
    yield
    phases[name] = time.perf_counter() - start


def build_model(x: np.ndarray, y: np.ndarray) -> tuple[pm.Model, pm.gp.Latent]:
    """The model as one writes it for RMHMC: the latent values themselves, no jitter."""
    with pm.Model() as model:
        covariance = AMPLITUDE**2 * pm.gp.cov.ExpQuad(x.shape[1], ls=LENGTHSCALE)
        gp = pm.gp.Latent(cov_func=covariance)
        f = gp.prior("f", X=x, reparameterize=False, jitter=0.0)
        pm.Bernoulli("y", p=pm.math.invprobit(f), observed=y)
    return model, gp


def build_whitened(x: np.ndarray, y: np.ndarray) -> pm.Model:
    """The same posterior as NUTS likes it: f = L v, and a density that does not underflow.

    PyMC's Bernoulli with p = invprobit(f) is -inf from \\|f\\| = 8.3 on, where these latent values live;
    log Φ is the same likelihood without that.
    """
    square = ((x[:, None, :] - x[None, :, :]) ** 2).sum(axis=-1)
    factor = np.linalg.cholesky(AMPLITUDE**2 * np.exp(-0.5 * square / LENGTHSCALE**2))
    with pm.Model() as model:
        v = pm.Normal("v", 0.0, 1.0, shape=y.size)
        f = pm.Deterministic("f", pt.dot(factor, v))
        pm.Potential("y", pm.logcdf(pm.Normal.dist(0.0, 1.0), (2 * y - 1) * f).sum())
    return model


def sample_all(x: np.ndarray, y: np.ndarray, model: pm.Model) -> dict[str, az.InferenceData]:
    """The three samplers, two chains each."""
    common = {"chains": 2, "cores": 2, "random_seed": SEED, "compute_convergence_checks": False}
    results = {}
    with phase("RMHMC, flat metric"), model:
        results["RMHMC flat"] = pm.sample(draws=1500, step=RMHMC(), **common)
    with phase("RMHMC, the papers' sampler"), model:
        papers = RMHMC(metric="hessian", integrator=GeneralizedLeapfrog(), step_size=0.1, n_steps=10)
        results["RMHMC papers"] = pm.sample(draws=100, tune=10, step=papers, **common)
        console.print(str(summarize_failures(results["RMHMC papers"])))
    backend = "nutpie" if find_spec("nutpie") else "pymc"
    with phase(f"NUTS ({backend}), whitened"), build_whitened(x, y):
        results["NUTS"] = pm.sample(draws=500, tune=500, nuts_sampler=backend, **common)
    return results


def predict(idata: az.InferenceData, model: pm.Model, gp: pm.gp.Latent, x_test: np.ndarray) -> np.ndarray:
    """The probability of a three for every test image, from 100 thinned draws of f."""
    posterior = idata.posterior
    total = posterior.sizes["chain"] * posterior.sizes["draw"]
    thinned = idata.sel(draw=slice(None, None, max(1, total // 100)))
    with model:
        # The jitter here is on a scale of amplitude² = 27 000: it keeps the conditional's own factor.
        gp.conditional("f_test", Xnew=x_test, jitter=1e-6)
        predictive = pm.sample_posterior_predictive(
            thinned, var_names=["f_test"], random_seed=SEED, progressbar=False
        )
    f_test = predictive.posterior_predictive["f_test"].values
    return ndtr(f_test).mean(axis=(0, 1))


def report_prediction(probability: np.ndarray, y_test: np.ndarray) -> None:
    """Errors, information in bits a case, and calibration of the predictions."""
    y = (y_test > 0).astype(float)
    p = np.clip(probability, 1e-12, 1 - 1e-12)
    errors = int(((p > 0.5) != (y > 0.5)).sum())
    rate = y.mean()
    baseline = -(rate * np.log2(rate) + (1 - rate) * np.log2(1 - rate))
    bits = baseline + np.mean(y * np.log2(p) + (1 - y) * np.log2(1 - p))
    table = Table(title=f"Predictions of {y.size} test images", title_justify="left")
    table.add_column("measure")
    table.add_column("value", justify="right")
    table.add_row("errors", f"{errors} ({errors / y.size:.1%})")
    table.add_row("information", f"{bits:.3f} bits a case, of {baseline:.3f}")
    table.add_row("Brier score", f"{np.mean((p - y) ** 2):.4f}")
    confident = np.abs(p - 0.5) > 0.4
    right = ((p > 0.5) == (y > 0.5))[confident].mean()
    table.add_row("said with 90 % or more", f"{confident.sum()} images, {right:.1%} of them right")
    console.print(table)


def draw_figures(results: dict, probability: np.ndarray, x_test: np.ndarray, y_test: np.ndarray) -> None:
    """The comparison, the reliability diagram, and the images that the model is least sure of."""
    FIGURES.mkdir(exist_ok=True)
    plot_compare(results, var_names=["f"]).savefig(FIGURES / "comparison.png", dpi=130)
    draw_reliability(probability, (y_test > 0).astype(float)).savefig(FIGURES / "reliability.png", dpi=130)
    draw_uncertain(probability, x_test, y_test).savefig(FIGURES / "uncertain_digits.png", dpi=130)
    console.print(f"Figures: {', '.join(str(p) for p in sorted(FIGURES.glob('*.png')))}")


def draw_reliability(probability: np.ndarray, y: np.ndarray) -> plt.Figure:
    """Observed frequencies against predicted probabilities, with 90 % intervals."""
    figure, axis = plt.subplots(figsize=(4.6, 4.4), layout="constrained")
    edges = np.linspace(0, 1, 8)
    bins = np.clip(np.digitize(probability, edges) - 1, 0, edges.size - 2)
    axis.plot([0, 1], [0, 1], color="0.6", ls=":", lw=1)
    for b in range(edges.size - 1):
        held = bins == b
        if not held.any():
            continue
        mean, frequency, count = probability[held].mean(), y[held].mean(), int(held.sum())
        # Beta(½, ½) intervals behave where all or none of a bin are threes.
        low, high = az_interval(y[held].sum(), count)
        axis.plot([mean, mean], [low, high], color="#0072B2", lw=1.5)
        axis.plot(mean, frequency, "o", color="#0072B2", ms=5)
        axis.annotate(str(count), (mean, high), textcoords="offset points", xytext=(0, 4), ha="center", fontsize=8)
    axis.set(
        xlabel="predicted probability of a three", ylabel="frequency of threes", xlim=(-0.03, 1.03), ylim=(-0.03, 1.1),
        title="Reliability on the test images\n(number of images; 90 % intervals)",
    )  # fmt: skip
    return figure


def az_interval(successes: float, count: int) -> tuple[float, float]:
    """The Jeffreys interval of a frequency, 90 %."""
    from scipy.stats import beta

    low, high = beta.ppf([0.05, 0.95], successes + 0.5, count - successes + 0.5)
    return float(low), float(high)


def draw_uncertain(probability: np.ndarray, x_test: np.ndarray, y_test: np.ndarray) -> plt.Figure:
    """The fifteen images whose probability is closest to one half."""
    order = np.argsort(np.abs(probability - 0.5))[:15]
    figure, axes = plt.subplots(3, 5, figsize=(7.0, 4.9), layout="constrained")
    for axis, i in zip(axes.flat, order, strict=True):
        axis.imshow(x_test[i].reshape(16, 16), cmap="gray_r", vmin=-1, vmax=1)
        truth = 3 if y_test[i] > 0 else 5
        wrong = (probability[i] > 0.5) != (truth == 3)
        axis.set_title(f"is {truth};  P(3) = {probability[i]:.2f}", fontsize=8, color="#D55E00" if wrong else "black")
        axis.set_axis_off()
    figure.suptitle("The images that the model is least sure of (errors in orange)", fontsize=10)
    return figure


def report_comparison(results: dict) -> None:
    """The comparison, one column a sampler, and what each cost in words."""
    # nutpie's result has no times of draws, but PyMC notes the seconds of its whole run, after compiling.
    nuts = results["NUTS"]
    timings = {} if "perf_counter_diff" in nuts.sample_stats else {"NUTS": nuts.posterior.attrs["sampling_time"]}
    frame = compare(results, timings, var_names=["f"], reference="RMHMC flat")
    table = Table(title="Posterior of the 767 latent values", title_justify="left")
    table.add_column("")
    for name in frame.index:
        table.add_column(name, justify="right")
    for column in frame.columns:
        table.add_row(column, *(f"{value:,.4g}" for value in frame[column]))
    console.print(table)
    for note in frame.attrs["notes"]:
        console.print(f"Note: {note}")
    base = frame.loc["RMHMC flat", "ESS/s"]
    for name in frame.index[1:]:
        ess = frame.loc[name, ["ESS bulk min", "ESS tail min"]].min()
        rough = f" (an order of magnitude only: it made {ess:.0f} effective draws)" if ess < 200 else ""
        console.print(
            f"A second of RMHMC in the flat metric is worth {base / frame.loc[name, 'ESS/s']:.0f} of {name}, tuning "
            f"included, on the worst of all latent values{rough}."
        )


def main() -> None:
    """The whole job."""
    began = time.perf_counter()
    with phase("Model"):
        with np.load(DATA) as data:
            x, y = data["X_train"].astype(np.float64), (data["y_train"] > 0).astype(int)
            x_test, y_test = data["X_test"].astype(np.float64), data["y_test"]
        model, gp = build_model(x, y)
        console.print(str(describe(model)), highlight=False, markup=False, soft_wrap=True)
    results = sample_all(x, y, model)
    with phase("Comparison"):
        report_comparison(results)
    with phase("Prediction"):
        probability = predict(results["RMHMC flat"], model, gp, x_test)
        report_prediction(probability, y_test)
    with phase("Figures"):
        draw_figures(results, probability, x_test, y_test)
    table = Table(title="Where the time went", title_justify="left")
    table.add_column("phase")
    table.add_column("seconds", justify="right")
    for name, seconds in phases.items():
        table.add_row(name, f"{seconds:.1f}")
    table.add_row("total", f"{time.perf_counter() - began:.1f}", style="bold")
    console.print(table)


if __name__ == "__main__":
    main()
