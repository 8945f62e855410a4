"""Runs that PyMC writes to a store while it samples.

PyMC 6.4's ZarrTrace imports `zarr.storage.BaseStore`, which zarr 3 no longer has: it works with zarr 2.18, and with an
xarray that still reads that, up to 2026.2. nutpie needs zarr 3, so that an environment with it skips these tests.
"""

from __future__ import annotations

import pymc as pm
import pytest

from pymc_rmhmc import RMHMC, summarize_failures
from tests.steps.conftest import draw, poisson_model

storage = pytest.importorskip("zarr.storage", reason="zarr is not installed")
if not hasattr(storage, "BaseStore"):
    pytest.skip("PyMC's ZarrTrace needs zarr 2 (pip install 'zarr<3' 'xarray<=2026.2')", allow_module_level=True)


@pytest.fixture(autouse=True)
def trusted(monkeypatch):
    """PyMC keeps states of steps as pickles, which numcodecs reads from 0.15.2 on where it is told to."""
    monkeypatch.setattr("numcodecs.pickles.ALLOW_UNSAFE_PICKLE_DECODE", True, raising=False)


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("beside", [False, True])
def test_a_run_is_written_and_read(tmp_path, cores, beside):
    from pymc.backends.zarr import ZarrTrace

    trace = ZarrTrace(storage.DirectoryStore(str(tmp_path / "run.zarr")), draws_per_chunk=5)
    with poisson_model(sampled=True) as model:
        step = [RMHMC(vars=["f"]), pm.Slice([model["ls"]])] if beside else RMHMC()
        written = draw(model, step, trace=trace, draws=20, tune=60, chains=2, cores=cores)
    with poisson_model(sampled=True) as model:
        step = [RMHMC(vars=["f"]), pm.Slice([model["ls"]])] if beside else RMHMC()
        kept = draw(model, step, draws=20, tune=60, chains=2, cores=cores)
    assert written.posterior["f"].equals(kept.posterior["f"])
    assert written.sample_stats["sampler_0__step_size"].shape == (2, 20)
    assert str(summarize_failures(written)).startswith(str(summarize_failures(kept)))
    state = trace.root["_sampling_state"]["sampling_state"][0]
    assert state.methods[0].iteration == 80 if beside else state.iteration == 80
