"""``python -m benchmarks.ridges``: curved ridges whose thin end needs shorter steps than the bulk, next to a grid.

An Emax dose response with a linear drift in time: where the dose rises with time too, the drift and a far-off maximum
explain the data alike, and the posterior is a ridge that bends and grows thin. Given ed50 and the noise everything else
is normal, so that a grid over these two gives exact moments. Printed for each seed: the ratio of standard deviations,
the error of the mean in its own standard errors, effective draws a second of CPU time, and failures.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import arviz as az
import numpy as np
import pymc as pm

from pymc_rmhmc import RMHMC, summarize_failures

N_DATA, PRIOR_SDS = 150, np.array([2.0, 3.0, 1.0])  # of e0, emax, slope


@dataclass(frozen=True)
class Emax:
    """One data set: doses from 0 to `largest`, in the order of time."""

    largest: float
    noise: float = 0.2
    seed: int = 1

    @property
    def dose(self) -> np.ndarray:
        return np.linspace(0.0, self.largest, N_DATA)

    @property
    def time(self) -> np.ndarray:
        return np.linspace(0.0, 1.0, N_DATA)

    @property
    def response(self) -> np.ndarray:
        errors = np.random.default_rng(self.seed).normal(0.0, self.noise, N_DATA)
        return 1.0 + 1.5 * self.dose / (0.3 * self.largest + self.dose) + 0.5 * self.time + errors

    def model(self) -> pm.Model:
        with pm.Model() as model:
            e0, emax, slope = (pm.Normal(n, 0.0, s) for n, s in zip(("e0", "emax", "slope"), PRIOR_SDS, strict=True))
            ed50, sigma = pm.LogNormal("ed50", 0.0, 1.0), pm.HalfNormal("sigma", 1.0)
            mean = e0 + emax * self.dose / (ed50 + self.dose) + slope * self.time
            pm.Normal("y", mean, sigma, observed=self.response)
        return model

    def moments(self) -> dict[str, tuple[float, float]]:
        """Mean and standard deviation of emax and of log ed50, by a grid over log ed50 and log sigma."""
        y, rows = self.response, np.linspace(-6.0, 6.0, 600)
        columns = np.linspace(np.log(0.3 * self.noise), np.log(3.0 * self.noise), 120)
        weight, mean, square = (np.empty((rows.size, columns.size)) for _ in range(3))
        for i, log_ed50 in enumerate(rows):
            design = np.stack([np.ones(N_DATA), self.dose / (np.exp(log_ed50) + self.dose), self.time], axis=1)
            precision = np.exp(-2.0 * columns)[:, None, None] * (design.T @ design) + np.diag(PRIOR_SDS**-2.0)
            pulled = np.exp(-2.0 * columns)[:, None] * (design.T @ y)
            covariance = np.linalg.inv(precision)
            centre = np.einsum("kij,kj->ki", covariance, pulled)
            priors = -0.5 * log_ed50**2 - 0.5 * np.exp(2.0 * columns) + columns
            fit = 0.5 * (pulled * centre).sum(axis=1) - 0.5 * np.exp(-2.0 * columns) * (y @ y) - N_DATA * columns
            weight[i] = priors + fit - 0.5 * np.linalg.slogdet(precision)[1]
            mean[i], square[i] = centre[:, 1], centre[:, 1] ** 2 + covariance[:, 1, 1]
        weight = np.exp(weight - weight.max())
        weight /= weight.sum()
        first, of_rows = float((weight * mean).sum()), weight.sum(axis=1)
        middle = float(of_rows @ rows)
        return {
            "emax": (first, float(np.sqrt((weight * square).sum() - first**2))),
            "log_ed50": (middle, float(np.sqrt(of_rows @ (rows - middle) ** 2))),
        }


PROBLEMS = {"largest dose 1": Emax(1.0), "largest dose 4": Emax(4.0), "largest dose 10": Emax(10.0)}


def values(idata) -> dict[str, np.ndarray]:
    """Draws (chains, draws) of what the grid knows."""
    return {"emax": idata.posterior["emax"].values, "log_ed50": np.log(idata.posterior["ed50"].values)}


def sampled(model: pm.Model, sampler: str, seed: int):
    """The result of one run, and its seconds."""
    options = {"draws": 1000, "tune": 1000, "chains": 2, "cores": 1, "random_seed": seed, "progressbar": False}
    with model:
        if sampler == "nutpie":
            started = time.process_time()
            idata = pm.sample(nuts_sampler="nutpie", compute_convergence_checks=False, **options)
        else:
            step = RMHMC(trajectory="nuts" if sampler == "nuts" else "auto")
            started = time.process_time()
            idata = pm.sample(step=step, compute_convergence_checks=False, **options)
    return idata, time.process_time() - started


def main() -> None:
    """Print one line a run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--sampler", action="append", choices=("rmhmc", "nuts", "nutpie"), default=[])
    arguments = parser.parse_args()
    for name, problem in PROBLEMS.items():
        exact, model = problem.moments(), problem.model()
        for sampler in arguments.sampler or ("rmhmc", "nutpie"):
            for seed in range(arguments.seeds):
                idata, seconds = sampled(model, sampler, seed)
                said = []
                for value, draws in values(idata).items():
                    (mean, sd), ess = exact[value], float(az.ess(draws))
                    error = (draws.mean() - mean) / (sd / np.sqrt(ess))
                    said.append(f"{value} sd {draws.std() / sd:.2f} z {error:+.1f} {ess / seconds:.0f} ESS/s")
                failed = f", {summarize_failures(idata).total} failures" if sampler != "nutpie" else ""
                print(f"{name}, {sampler}, seed {seed}: {'; '.join(said)}{failed}, {seconds:.1f} s", flush=True)


if __name__ == "__main__":
    main()
