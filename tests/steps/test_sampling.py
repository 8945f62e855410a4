"""RMHMC inside pm.sample: what comes back, in which process, beside whom."""

from __future__ import annotations

import gc

import arviz as az
import numpy as np
import pymc as pm
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from pymc_rmhmc import RMHMC, ExplicitTao, GeneralizedLeapfrog, ImplicitMidpoint
from pymc_rmhmc.errors import Failure, SamplingError
from pymc_rmhmc.steps import process_settings as process
from tests.model.conftest import exact_log_density
from tests.steps.conftest import COUNTS, N, X, draw, poisson_model

STATISTICS = {
    "acceptance_rate", "n_steps", "lp", "energy", "energy_error", "diverging", "step_size", "step_size_bar",
    "perf_counter_start", "perf_counter_diff", "process_time_diff", "failure", "n_failures", "reversal_error",
    "n_solver_iter", "n_metric_evals", "n_emulator_divergences", "accepted", "log_weight",
}  # fmt: skip
METRICS = {
    "flat": {},
    "hessian": {"metric": "hessian"},
    "fisher": {"metric": "fisher"},
    "midpoint": {"metric": "hessian", "integrator": ImplicitMidpoint(), "step_size": 0.5, "n_steps": 2},
}


@pytest.mark.parametrize("reparameterize", [False, True])
@pytest.mark.parametrize("options", METRICS.values(), ids=METRICS)
def test_a_run_gives_a_datatree_with_every_statistic(options, reparameterize):
    model = poisson_model(reparameterize=reparameterize)
    with model:
        idata = draw(model, RMHMC(**options))
    assert idata.posterior["f"].shape == (1, 30, N)
    assert set(idata.sample_stats.data_vars) >= STATISTICS
    stats = idata.sample_stats
    assert np.isnan(stats["step_size_bar"]).all() == ("step_size" in options)  # a given step size has no average
    for name in STATISTICS - {"reversal_error", "energy_error"}:
        assert stats[name].shape == (1, 30)
        if name == "step_size_bar" and "step_size" in options:
            continue
        assert np.isfinite(stats[name].values.astype(float)).all(), name
    assert (stats["failure"] == Failure.NONE).all()
    assert 0.5 < float(stats["acceptance_rate"].mean()) <= 1.0
    log_density = exact_log_density(model)
    for i in (0, 17):
        point = {v.name: idata.posterior[v.name].values[0, i] for v in model.value_vars}
        assert float(stats["lp"][0, i]) == pytest.approx(float(log_density(point)), abs=1e-8)


def test_reversal_error_is_reported_where_it_is_checked(model):
    with model:
        checked = draw(model, RMHMC(metric="hessian"))
        unchecked = draw(model, RMHMC(metric="hessian", check_reversibility=False))
    assert float(checked.sample_stats["reversal_error"].max()) < 1e-5
    assert np.isnan(unchecked.sample_stats["reversal_error"].values).all()
    # The check's iterations are counted, and it costs no factorisation.
    assert (checked.sample_stats["n_metric_evals"] == checked.sample_stats["n_steps"]).all()


@pytest.mark.parametrize(("metric", "trajectory"), [("fisher", "auto"), ("hessian", "nuts")])
def test_latent_values_move_by_two_copies_of_phase_space(model, metric, trajectory):
    step = {"integrator": ExplicitTao(omega=10.0), "step_size": 0.05, "trajectory": trajectory}
    with model:
        idata = draw(model, RMHMC(metric=metric, **step))
    assert idata.sample_stats["acceptance_rate"].mean() > 0.6
    assert len(np.unique(idata.posterior["f"][..., 0])) > 20


def test_the_papers_settings_are_taken_literally(model):
    with model:
        step = RMHMC(metric="hessian", integrator=GeneralizedLeapfrog(), step_size=0.1, n_steps=10)
        idata = draw(model, step)
    assert (idata.sample_stats["step_size"] == 0.1).all()
    assert idata.sample_stats["step_size_bar"].isnull().all()
    assert (idata.sample_stats["n_steps"] == 10).all()


def test_statistics_survive_a_file(model, tmp_path):
    idata = draw(model)
    idata.to_netcdf(tmp_path / "run.nc", engine="h5netcdf")
    back = az.from_netcdf(tmp_path / "run.nc", engine="h5netcdf")
    np.testing.assert_array_equal(back.sample_stats["failure"], idata.sample_stats["failure"])


def test_energy_is_of_the_kept_position(model):
    """On rejection the energy still moves: E-BFMI needs this iteration's momentum."""
    with model:
        idata = draw(model, RMHMC(step_size=1.5, n_steps=2), draws=150)
    stats = idata.sample_stats
    rejected = ~stats["accepted"].values.astype(bool)[0]
    assert 5 < rejected.sum() < 145
    energy, draws = stats["energy"].values[0], idata.posterior["f"].values[0]
    for i in np.flatnonzero(rejected)[1:]:
        np.testing.assert_array_equal(draws[i], draws[i - 1])
        assert energy[i] != energy[i - 1]


def test_one_and_two_cores_give_the_same_draws():
    model = poisson_model(sampled=False)
    runs = [draw(model, RMHMC(model=model), chains=2, cores=cores) for cores in (1, 2)]
    np.testing.assert_array_equal(*(run.posterior["f"].values for run in runs))
    np.testing.assert_array_equal(*(run.sample_stats["energy"].values for run in runs))


@pytest.mark.slow
@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_workers_can_be_started_in_every_way(context):
    model = poisson_model()
    with model:
        here = draw(model, RMHMC(), chains=2, draws=5)
        there = draw(model, RMHMC(), chains=2, draws=5, cores=2, mp_ctx=context)
    np.testing.assert_array_equal(here.posterior["f"].values, there.posterior["f"].values)


def test_the_same_seed_gives_the_same_draws_from_the_same_step(model):
    with model:
        step = RMHMC()
    first, second = draw(model, step), draw(model, step)
    np.testing.assert_array_equal(first.posterior["f"].values, second.posterior["f"].values)
    other = draw(model, step, random_seed=8)
    assert not np.array_equal(first.posterior["f"].values, other.posterior["f"].values)


def test_beside_nuts_both_keep_their_acceptance_and_f_follows_the_hyperparameter():
    model = poisson_model(sampled=True)
    with model:
        idata = draw(model, [RMHMC(vars=["f"]), pm.NUTS(vars=[model["ls"]])], draws=60, tune=100)
    assert idata.sample_stats["acceptance_rate"].shape == (1, 60, 2)
    assert idata.sample_stats["failure"].shape == (1, 60)
    rates = idata.sample_stats["acceptance_rate"].values.mean(axis=(0, 1))
    assert (rates > 0.4).all()
    assert (rates <= 1.0).all()
    assert idata.posterior["ls"].values.std() > 0.01
    log_density = exact_log_density(model)
    posterior = idata.posterior
    for i in (3, 40):
        point = {"ls_log__": np.log(posterior["ls"].values[0, i]), "f": posterior["f"].values[0, i]}
        # NUTS is the last in the list: its log density is that of the whole model, and RMHMC's place holds 0.
        np.testing.assert_allclose(idata.sample_stats["lp"].values[0, i], [0.0, log_density(point)], atol=1e-8)


def test_set_data_is_seen():
    with pm.Model() as model:
        data = pm.Data("counts", COUNTS)
        f = pm.MvNormal("f", np.zeros(N), cov=0.5 * np.eye(N))
        pm.Poisson("y", mu=pm.math.exp(f), observed=data)
        step = RMHMC()
    low = draw(model, step, draws=200)
    with model:
        pm.set_data({"counts": COUNTS + 50})
    high = draw(model, step, draws=200)
    assert float(high.posterior["f"].mean()) > float(low.posterior["f"].mean()) + 1.5
    point = {"f": high.posterior["f"].values[0, 3]}
    assert float(high.sample_stats["lp"][0, 3]) == pytest.approx(float(exact_log_density(model)(point)), abs=1e-8)


@pytest.mark.usefixtures("without_a_compiler")
@pytest.mark.parametrize("together", [False, True])
def test_the_log_density_is_that_of_the_data_that_are_set(together):
    """Of the latent values' data, and of data that nothing but another step's variable reads."""
    with pm.Model() as model:
        counts, others = pm.Data("counts", COUNTS), pm.Data("others", np.zeros(3))
        level = pm.Normal("level", 0.0, 1.0)
        ls = pm.LogNormal("ls", -1.0, 0.3) if together else 0.3
        f = pm.gp.Latent(cov_func=pm.gp.cov.Matern52(1, ls=ls)).prior("f", X=X, reparameterize=False)
        pm.Poisson("y", mu=pm.math.exp(f + level), observed=counts)
        pm.Normal("z", level, 1.0, observed=others)
        step = RMHMC() if together else RMHMC(vars=["f"])
    exact, point = exact_log_density(model), model.initial_point()
    for new in ({}, {"others": np.full(3, 2.0)}, {"counts": COUNTS[::-1]}, {"counts": COUNTS, "others": np.ones(3)}):
        with model:
            pm.set_data(new)
        step.setup_chain(np.random.default_rng(1), 10, 10)
        for _ in range(2):
            point, (statistics,) = step.step(point)
            assert statistics["model_logp"] == pytest.approx(float(exact(point)), abs=1e-8)


@pytest.mark.usefixtures("without_a_compiler")
@pytest.mark.parametrize("scale", [1.0, None])
def test_the_log_density_has_a_term_of_data_alone(scale):
    """Its parameters are known, so that it moves no draw; and the data may be replaced."""
    with pm.Model() as model:
        trials = pm.Data("trials", np.arange(4))
        pm.Binomial("z", n=5, p=0.3, observed=trials)
        f = pm.MvNormal("f", np.zeros(N), cov=(pm.HalfNormal("s") if scale is None else scale) * np.eye(N))
        pm.Poisson("y", mu=pm.math.exp(f), observed=COUNTS)
        step = RMHMC()
    exact, point = exact_log_density(model), model.initial_point()
    for new in (np.arange(4), np.array([5, 0, 0, 5])):
        with model:
            pm.set_data({"trials": new})
        step.setup_chain(np.random.default_rng(1), 10, 10)
        point, (statistics,) = step.step(point)
        assert statistics["model_logp"] == pytest.approx(float(exact(point)), abs=1e-8)


def test_several_gps_and_rows_are_sampled_together():
    with pm.Model() as model:
        gp = pm.gp.Latent(cov_func=pm.gp.cov.Matern32(1, ls=0.3))
        a = gp.prior("a", X=X, reparameterize=False)
        b = pm.gp.Latent(cov_func=pm.gp.cov.Matern32(1, ls=0.1)).prior("b", X=X, n_outputs=2)
        pm.Poisson("y", mu=pm.math.exp(a), observed=COUNTS)
        pm.Bernoulli("z", logit_p=b, observed=np.arange(2 * N).reshape(2, N) % 2)
    idata = draw(model)
    assert idata.posterior["b"].shape == (1, 30, 2, N)
    point = {v.name: idata.posterior[v.name].values[0, 9] for v in model.value_vars}
    assert float(idata.sample_stats["lp"][0, 9]) == pytest.approx(float(exact_log_density(model)(point)), abs=1e-8)


def test_one_gp_of_two_is_sampled_given_the_other():
    with pm.Model() as model:
        for name in "ab":
            pm.MvNormal(name, np.zeros(N), cov=np.eye(N) + 0.5)
        pm.Poisson("y", mu=pm.math.exp(model["a"] + model["b"]), observed=COUNTS)
        step = RMHMC(vars=["a"])
    assert [variable.name for variable in step.vars] == ["a"]
    log_density, means = exact_log_density(model), []
    for b in (np.zeros(N), np.full(N, 2.0)):
        step.setup_chain(np.random.default_rng(0), 40, 60)
        point, kept = {"a": np.zeros(N), "b": b}, []
        for i in range(100):
            if i == 40:
                step.stop_tuning()
            point, (stats,) = step.step(point)
            kept.append(point["a"].mean())
        np.testing.assert_array_equal(point["b"], b)
        assert stats["model_logp"] == pytest.approx(float(log_density(point)), abs=1e-8)
        means.append(np.mean(kept[40:]))
    assert means[1] < means[0] - 0.5


@pytest.mark.parametrize("integrator", [GeneralizedLeapfrog, ImplicitMidpoint])
def test_the_search_for_a_step_size_takes_single_steps_of_the_given_integrator(model, integrator):
    sizes = []

    class Recording(integrator):
        def step(self, hamiltonian, state, step_size):
            sizes.append(step_size)
            return super().step(hamiltonian, state, step_size)

    with model:
        step = RMHMC(metric="hessian", integrator=Recording())
    sizes.clear()  # of the step that compiles
    step.setup_chain(np.random.default_rng(0), 10, 10)
    _, (stats,) = step.step(model.initial_point())
    searched = sizes[: len(sizes) - int(stats["tree_size"])]
    # It doubles or halves until acceptance crosses its threshold; only its bound can cut the last trial short.
    assert len(set(searched)) == len(searched) >= 2
    np.testing.assert_allclose(np.abs(np.diff(np.log2(searched[:-1]))), 1.0)


def test_missing_observations_are_imputed():
    counts = COUNTS.astype(float)
    counts[[2, 5]] = np.nan
    with pm.Model() as model:
        f = pm.MvNormal("f", np.zeros(N), cov=np.eye(N))
        with pytest.warns(UserWarning, match="missing values"):
            pm.Poisson("y", mu=pm.math.exp(f), observed=counts)
    idata = draw(model, RMHMC(model=model))
    assert idata.posterior["y_unobserved"].shape == (1, 30, 2)


@pytest.mark.filterwarnings("ignore:Estimated shape parameter of Pareto")
def test_log_likelihood_and_loo_work_after_a_run(model):
    idata = draw(model, draws=100)
    with model:
        pm.compute_log_likelihood(idata, progressbar=False)
    assert np.isfinite(az.loo(idata).elpd)


def test_predictions_work_after_a_run():
    with pm.Model() as model:
        gp = pm.gp.Latent(cov_func=pm.gp.cov.Matern52(1, ls=0.3))
        f = gp.prior("f", X=X, reparameterize=False)
        pm.Poisson("y", mu=pm.math.exp(f), observed=COUNTS)
    idata = draw(model)
    with model:
        gp.conditional("f_new", Xnew=X + 0.01)
        predicted = pm.sample_posterior_predictive(idata, var_names=["f_new"], progressbar=False, random_seed=1)
    gap = predicted.posterior_predictive["f_new"].values - idata.posterior["f"].values
    assert np.abs(gap).mean() < 0.2


def test_a_callback_and_plain_traces(model):
    seen = []
    with model:
        trace = draw(model, callback=lambda trace, draw: seen.append(draw.tuning), return_inferencedata=False)
    assert len(seen) == 70
    assert sum(seen) == 40
    assert trace["f"].shape == (30, N)
    assert len(trace.get_sampler_stats("failure")) == 30


def test_an_interrupt_keeps_what_there_is(model):
    def stop(trace, draw):
        if draw.draw_idx == 50:
            raise KeyboardInterrupt

    idata = draw(model, callback=stop)
    assert 0 < idata.posterior.sizes["draw"] < 30


def test_tuning_has_a_short_default_and_stops(model):
    assert RMHMC.default_tune_steps < 1000
    idata = draw(model, tune=None, draws=10)
    assert idata.posterior.attrs["tuning_steps"] == RMHMC.default_tune_steps
    assert np.ptp(idata.sample_stats["step_size"].values) == 0.0


def test_blas_is_held_while_a_chain_runs_and_given_back(model):
    def threads():
        return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}

    before, during = threads(), []
    with model:
        draw(model, RMHMC(blas_threads=1), callback=lambda trace, draw: during.append(threads()))
    assert set().union(*during[:-1]) == {1}
    assert threads() == before


@pytest.fixture
def no_chains():
    """None that an earlier test has left unfinished holds a limit."""
    gc.collect()


def blas_threads() -> list[int]:
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


def test_two_steps_of_a_compound_give_blas_back_together(no_chains):
    with threadpool_limits(2, user_api="blas"):
        before = blas_threads()
        with poisson_model():
            steps = [RMHMC(), RMHMC()]
        point = steps[0]._initial_point
        for step in steps:
            step.setup_chain(np.random.default_rng(1), 0, 1)
        assert blas_threads() == [1] * len(before)
        steps[0].step(point)
        assert blas_threads() == [1] * len(before)  # the other has not ended
        steps[1].step(point)
        assert blas_threads() == before


class Allocator:
    """In the place of the C library: what it was last asked to keep, by the number of the setting."""

    def __init__(self) -> None:
        self.settings, self.trimmed = {}, 0

    def mallopt(self, setting: int, value: int) -> int:
        self.settings[setting] = value
        return 1

    def malloc_trim(self, pad: int) -> int:
        self.trimmed += 1
        return 1


def test_memory_is_kept_while_a_chain_runs_and_then_given_back(no_chains, monkeypatch):
    allocator = Allocator()
    monkeypatch.setattr(process._process._memory, "_library", allocator)
    with poisson_model():
        steps = [RMHMC(), RMHMC(blas_threads=None)]
    point = steps[0]._initial_point
    for step in steps:
        step.setup_chain(np.random.default_rng(1), 0, 1)
    assert allocator.settings == {process.TRIM_THRESHOLD: process.KEPT, process.MMAP_THRESHOLD: process.KEPT}
    steps[0].step(point)
    assert not allocator.trimmed  # the other has not ended
    steps[1].step(point)
    assert allocator.settings == {
        process.TRIM_THRESHOLD: process.USUAL_TRIM, process.MMAP_THRESHOLD: process.USUAL_MMAP
    }  # fmt: skip
    assert allocator.trimmed == 1


def test_what_a_user_says_of_memory_is_left_alone(monkeypatch):
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "131072")
    memory = process._FreeMemory()
    assert memory._library is None
    memory.keep()
    memory.give_back()


def test_an_error_that_ends_a_chain_gives_blas_back(no_chains, monkeypatch):
    with threadpool_limits(2, user_api="blas"):
        before = blas_threads()
        with poisson_model() as model:
            step = RMHMC()
        step.setup_chain(np.random.default_rng(1), 0, 10)
        assert blas_threads() != before

        def stop(*args, **options):
            raise SamplingError("stand still")

        monkeypatch.setattr(type(step._samplers[0]), "draw", stop)
        with pytest.raises(SamplingError):
            step.step(model.initial_point())
        assert blas_threads() == before


def test_a_progress_bar_shows_steps_acceptance_and_failures(model, capsys):
    with model:
        step = RMHMC()
        draw(model, step, progressbar=True)
    columns, stats = step._progressbar_config(2)
    assert [c.get_table_column().header for c in columns] == ["Step size", "Acceptance", "Failures"]
    (update,) = RMHMC._make_progressbar_update_functions()
    shown = update({"step_size": 0.5, "mean_tree_accept": 0.9, "n_failures": 2})
    assert set(shown) == set(stats) | {"failing"}
    assert shown["failing"]


def test_a_run_that_fails_often_says_so_once_a_chain(model, caplog):
    with model, caplog.at_level("WARNING", logger="pymc"):
        step = RMHMC(metric="hessian", step_size=0.4, n_steps=4, solver_max_iter=3)
        idata = draw(model, step, draws=60, tune=1)
    failed = int((idata.sample_stats["failure"] == Failure.SOLVER).sum())
    assert failed > 30
    said = [r.message for r in caplog.records if "trajectories failed" in r.message]
    assert len(said) == 1
    assert f"{failed} of 60" in said[0]
    assert "solver_max_iter" in said[0]
    stats = idata.sample_stats
    assert stats["diverging"].values[0, 30:].any()  # far above the alarm rate
    assert np.isnan(stats["energy_error"].values[stats["failure"].values > 0]).all()
    assert (stats["acceptance_rate"].values[stats["failure"].values > 0] == 0.0).all()
