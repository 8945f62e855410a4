"""Draw the picture of README.md's first run: `python tools/first_run.py` runs the example and writes the figure."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from check_wheel import readme_example

ROOT = Path(__file__).resolve().parents[1]
FIGURE = ROOT / "docs" / "_static" / "first_run.svg"


def main() -> None:
    """Run the example as it is written, and draw its rate over its counts."""
    found: dict[str, object] = {}
    # It is this repository's own text.
    exec(readme_example((ROOT / "README.md").read_text(encoding="utf-8")), found)  # noqa: S102
    x, counts, idata = np.ravel(found["x"]), found["counts"], found["idata"]
    rate = np.exp(idata.posterior["f"].values.reshape(-1, x.size))
    low, middle, high = np.quantile(rate, [0.05, 0.5, 0.95], axis=0)
    plt.style.use(ROOT / "docs" / "_static" / "gallery.mplstyle")
    # The same file for the same draws.
    plt.rcParams["svg.hashsalt"] = "first run"
    figure, axis = plt.subplots(figsize=(8.0, 2.6))
    figure.patch.set_facecolor("white")
    axis.plot(x, counts, ".", color="0.5", ms=5, label="counts")
    axis.fill_between(x, low, high, color="C0", alpha=0.25, lw=0)
    axis.plot(x, middle, color="C0", label="rate: median and 90 %")
    axis.plot(x, np.exp(1.0 + np.sin(12.0 * x)), color="C1", lw=1.0, ls="--", label="rate that made them")
    axis.set(xlabel="x", ylabel="count", xlim=(0.0, 1.0), ylim=(0.0, None))
    axis.legend(ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    figure.savefig(FIGURE, metadata={"Date": None})
    print(FIGURE.relative_to(ROOT))


if __name__ == "__main__":
    main()
