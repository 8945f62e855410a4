"""Build the packages, check them, and run the quickstart from the wheel in an environment that holds nothing else.

Run it with ``make wheel``. The quickstart is read from README.md and docs/quickstart.md each time, so that what is
tested is what is shown.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from email import message_from_bytes
from pathlib import Path

from readme_renderer import markdown

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "pymc_rmhmc"
# As docs/installation.md names them.
WITH_ZARR = ("zarr<3", "xarray<=2026.2", "pytest", "cloudpickle")

# Stands before each script: it must be the wheel that is tested.
PREAMBLE = f"""
import sys
from importlib.metadata import version
from pathlib import Path

import {PACKAGE}

assert Path({PACKAGE}.__file__).is_relative_to(sys.prefix), {PACKAGE}.__file__
assert {PACKAGE}.__version__ == version("{PACKAGE}")
"""


def readme_example(text: str) -> str:
    """Return the first block of Python in README.md."""
    found = re.search(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    if found is None:
        raise SystemExit("README.md has no block of Python.")
    return found[1]


def page_code(text: str) -> str:
    """Return the code cells of a page of the documentation, without options and IPython's own commands."""
    cells = re.findall(r"^```\{code-cell\}[^\n]*\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    if not cells:
        raise SystemExit("The page has no code cells.")
    lines = "\n".join(cells).splitlines()
    return "\n".join(line for line in lines if not line.startswith(("%", ":")))


def relative_targets(text: str) -> list[str]:
    """Return the links and pictures of Markdown or HTML that lead nowhere once a page is away from its repository."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    inline = re.findall(r"\]\(([^)\s]*)", prose)
    by_reference = re.findall(r"^\[[^\]]+\]:\s*(\S+)", prose, flags=re.MULTILINE)
    in_html = re.findall(r"(?:src|href)=[\"']([^\"']*)", prose)
    found = [each for each in inline + by_reference + in_html if not re.match(r"https?://|mailto:", each)]
    return [each for each in found if f'id="{each.removeprefix("#")}"' not in prose]


def build(folder: Path) -> Path:
    """Build the source distribution, and the wheel from it; return the wheel."""
    for old in folder.glob(f"{PACKAGE}-*"):
        old.unlink()
    run(sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT))
    (wheel,) = folder.glob("*.whl")
    run(sys.executable, "-m", "twine", "check", "--strict", *map(str, sorted(folder.glob(f"{PACKAGE}-*"))))
    return wheel


def check_contents(wheel: Path) -> None:
    """Stop if the wheel lacks a file of the package or holds others, or if its page does not render."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        description = message_from_bytes(archive.read(metadata)).get_payload(decode=True)
    sources = ROOT / PACKAGE
    expected = {str(path.relative_to(ROOT)) for path in sources.rglob("*.py")} | {f"{PACKAGE}/py.typed"}
    if names != expected:
        raise SystemExit(f"The wheel lacks {sorted(expected - names)} and should not hold {sorted(names - expected)}.")
    check_page(description.decode() if isinstance(description, bytes) else "")


def check_page(text: str) -> None:
    """Render the page as a package index does (twine renders no Markdown), and look for links that lead nowhere."""
    page = markdown.render(text)
    if not page or "<table" not in page or "<pre" not in page:
        raise SystemExit("The package index would not render README.md.")
    targets = [*relative_targets(page), *relative_targets(text)]
    if targets:
        raise SystemExit(f"The page of the package index would have links that lead nowhere: {targets}")
    print("README.md renders as a package index shows it.")


def try_quickstart(wheel: Path) -> None:
    """Run README's example with the wheel alone, then the quickstart's page with its extra `save`; save a result."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    page = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        environment = Path(folder) / "environment"
        venv.create(environment)
        python = environment / "bin" / "python"
        install(python, str(wheel))
        run_script(python, readme_example(readme), Path(folder), "README.md's example")
        install(python, f"{wheel}[save]")
        run_script(python, page_code(page) + '\nidata.to_netcdf("run.nc")\n', Path(folder), "docs/quickstart.md")
        print("What was kept of compiled code in the environment:", compiled_size(environment), "MB")
        try_zarr(python)


def try_zarr(python: Path) -> None:
    """Run the tests of PyMC's ZarrTrace, which needs versions that the development environment cannot have."""
    install(python, *WITH_ZARR)
    run(str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", str(ROOT / "tests" / "steps" / "test_zarr.py"))


def install(python: Path, *what: str) -> None:
    """Install into the environment with this one's pip. Not compiling what is never imported saves half the time."""
    started = time.perf_counter()
    pip = (sys.executable, "-m", "pip", "--python", str(python))
    run(*pip, "install", "--quiet", "--disable-pip-version-check", "--no-compile", *what)
    names = ", ".join(Path(each).name for each in what)
    print(f"Installed {names} in {time.perf_counter() - started:.0f} s", flush=True)


def run_script(python: Path, code: str, folder: Path, name: str) -> None:
    """Run code in a folder of its own, away from the checkout; workers that are spawned find no script to run again."""
    started = time.perf_counter()
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    script = (PREAMBLE + code).encode()
    done = subprocess.run([python, "-"], input=script, cwd=folder, env={**clean, "MPLBACKEND": "Agg"}, check=False)
    if done.returncode:
        raise SystemExit(f"{name} does not run from the wheel (see above).")
    print(f"Ran {name} from the wheel in {time.perf_counter() - started:.0f} s", flush=True)


def compiled_size(environment: Path) -> int:
    """Return the megabytes of the package's loops that Numba has kept beside their source."""
    kept = (path for pattern in ("*.nbc", "*.nbi") for path in environment.rglob(pattern))
    return round(sum(path.stat().st_size for path in kept) / 1e6)


def run(*command: str) -> None:
    """Run a command that must succeed."""
    if subprocess.run(command, check=False).returncode:
        raise SystemExit(f"Failed: {' '.join(command)}")


if __name__ == "__main__":
    output = Path(sys.argv[1] if len(sys.argv) > 1 else "dist")
    built = build(output)
    check_contents(built)
    try_quickstart(built)
