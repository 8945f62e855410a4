"""Each example runs as its first lines say, and leaves a picture."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# `make demo` runs the long one, and its own test follows that.
EXAMPLES = sorted(set(ROOT.glob("examples/*.py")) - {ROOT / "examples" / "usps_classification.py"})
LONGEST_LINES, LONGEST_SECONDS = 80, 900


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short(example):
    assert len(example.read_text().splitlines()) <= LONGEST_LINES
    assert f"python examples/{example.name}" in example.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_leaves_a_picture(example, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(example)], cwd=tmp_path, env=environment, capture_output=True, text=True,
        timeout=LONGEST_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "figures" / f"{example.stem}.png").stat().st_size > 10_000
