"""What is compiled of a model: small graphs, without loops."""

from __future__ import annotations

import pytensor
import pytest
from pytensor.scan.op import Scan

from pymc_rmhmc.model import compile_model, read_structure
from tests.model.conftest import MODELS
from tests.model.test_compile import log_density


@pytest.mark.parametrize("name", ["centred_free_lengthscale", "mvnormal_rows", "two_outputs_whitened", "unregistered"])
def test_nothing_that_is_evaluated_every_draw_holds_a_scan(name, monkeypatch):
    """PyTensor's loop costs more than all the rest of such a graph."""
    compiled, compile_function = [], pytensor.function

    def recording(*args, **kwargs):
        compiled.append(compile_function(*args, **kwargs))
        return compiled[-1]

    monkeypatch.setattr(pytensor, "function", recording)
    model = MODELS[name]()
    log_density(compile_model(read_structure(model)), model.initial_point())
    operations = [node.op for function in compiled for node in function.maker.fgraph.apply_nodes]
    assert operations
    assert not any(isinstance(operation, Scan) for operation in operations)
