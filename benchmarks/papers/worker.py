"""One run in one process: ``python -m benchmarks.papers.worker PAPER JSON``."""

from __future__ import annotations

import json
import logging
import sys
import warnings

from benchmarks.papers.paper import Run, load_paper


def main(name: str, spec: str) -> None:
    """Run, and print a line for the harness."""
    logging.getLogger("pymc").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    values = json.loads(spec)
    run = Run(values["experiment"], values["sampler"], values["seed"], values["asked"], values["limit"])
    try:
        record = load_paper(name).measure(run)
    except Exception as error:  # noqa: BLE001 - it is what is recorded
        record = {"error": f"{type(error).__name__}: {error}"}
    print("RESULT " + json.dumps(record))


if __name__ == "__main__":
    main(*sys.argv[1:])
