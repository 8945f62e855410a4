"""`make`: a virtual environment that was left half made is removed, and only what is ours is."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Stands in for Python and pip. Files `venv` and `pip` in the folder FAKE say how each ends.
FAKE_PYTHON = r"""#!/bin/sh
how() { cat "$FAKE/$1" 2>/dev/null; }
packages=$(dirname "$0")/../lib/python3.13/site-packages
case "$1 $2" in
  "--version ") echo "Python 3.13.0" ;;
  "-c "*) exit 0 ;;
  "-m venv")
    mkdir -p "$3/bin" "$3/lib/python3.13/site-packages"
    cp "$0" "$3/bin/python"
    [ "$(how venv)" != fails ] ;;
  "-m pip")
    [ "$3" = --version ] && exit 0
    echo "$@" >>"$FAKE/pip.log"
    sleep 0.02
    case "$(how pip)" in
      fails) exit 1 ;;
      fails-midway) mkdir -p "$packages/half"; exit 1 ;;
      hangs) mkdir -p "$packages/half"; : >"$FAKE/hanging"; sleep 20 ;;
      *) mkdir -p "$packages/whole" ;;
    esac ;;
  *) echo "ran $*" ;;
esac
"""


# Runs a command that heeds signals, even if these tests run in the background and do not.
HEEDING_SIGNALS = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""


class Checkout:
    """A folder with the make file, and a fake Python first on PATH."""

    def __init__(self, folder: Path, fake: Path):
        self.folder, self.fake, self.venv = folder, fake, folder / ".venv"
        for name in ("benchmarks", "docs", "examples", "pymc_rmhmc", "tests", "tools"):
            (folder / name).mkdir(parents=True)
        fake.mkdir(exist_ok=True)
        for name in ("Makefile", "tools/environment.sh", "pyproject.toml"):
            shutil.copy(ROOT / name, folder / name)
        os.utime(folder / "pyproject.toml", (1e9, 1e9))
        python = fake / "python3"
        python.write_text(FAKE_PYTHON)
        python.chmod(0o755)
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS", "VENV"))}
        self.environment = {**kept, "PATH": f"{fake}:{os.environ['PATH']}", "FAKE": str(fake)}

    def let(self, tool, ending):
        (self.fake / tool).write_text(ending)

    def run(self, *command):
        how = {"cwd": self.folder, "env": self.environment, "capture_output": True, "text": True}
        done = subprocess.run(command, check=False, **how)
        return done.returncode, done.stdout + done.stderr

    def install(self, extras="dev"):
        return self.run("tools/environment.sh", extras)

    def edit_the_project(self):
        """As if pyproject.toml had changed since the installation; a clock's ticks may be longer than this test."""
        for stamp in (".demo", ".dev"):
            os.utime(self.venv / stamp, (1e9, 1e9))
        os.utime(self.folder / "pyproject.toml", (1.1e9, 1.1e9))

    def start_and_signal(self, number):
        """Begin to install, and stop all of it while pip is at work, as a terminal does."""
        self.let("pip", "hangs")
        process = subprocess.Popen(
            [sys.executable, "-c", HEEDING_SIGNALS, "tools/environment.sh", "dev"], cwd=self.folder,
            env=self.environment, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        while not (self.fake / "hanging").exists():
            time.sleep(0.01)
        os.killpg(process.pid, number)
        self.let("pip", "works")
        return process.wait(120)

    @property
    def installs(self):
        log = self.fake / "pip.log"
        return log.read_text().splitlines() if log.exists() else []


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path / "checkout", tmp_path / "fake")


def is_complete(checkout):
    return (checkout.venv / ".dev").exists() and not (checkout.venv / ".installing").exists()


def test_an_environment_is_made_once(checkout):
    assert checkout.install()[0] == 0
    assert is_complete(checkout)
    assert checkout.install() == (0, "")
    assert checkout.install("demo") == (0, "")  # the development tools hold what the demonstration needs
    assert len(checkout.installs) == 1
    checkout.edit_the_project()
    assert checkout.install()[0] == 0
    assert len(checkout.installs) == 2


@pytest.mark.parametrize(("tool", "ending"), [("venv", "fails"), ("pip", "fails"), ("pip", "fails-midway")])
def test_one_that_fails_is_removed_and_the_next_run_makes_it(checkout, tool, ending):
    checkout.let(tool, ending)
    status, said = checkout.install()
    assert status != 0
    assert "is removed" in said
    assert not checkout.venv.exists()
    checkout.let(tool, "works")
    assert checkout.install()[0] == 0
    assert is_complete(checkout)
    assert not list(checkout.venv.rglob("half"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_one_that_is_interrupted_is_removed(checkout, number):
    assert checkout.start_and_signal(number) != 0
    assert not checkout.venv.exists()
    assert checkout.install()[0] == 0
    assert is_complete(checkout)


def test_one_whose_making_was_killed_is_removed_by_the_next_run(checkout):
    assert checkout.start_and_signal(signal.SIGKILL) != 0
    assert (checkout.venv / ".installing").exists()
    status, said = checkout.install()
    assert status == 0
    assert "an earlier installation was cut off" in said
    assert is_complete(checkout)
    assert not list(checkout.venv.rglob("half"))


def test_a_complete_one_survives_a_pip_that_changed_nothing_but_not_one_that_stopped_midway(checkout):
    checkout.install()
    checkout.edit_the_project()
    checkout.let("pip", "fails")
    status, said = checkout.install()
    assert status != 0
    assert "left as it was" in said
    assert (checkout.venv / ".dev").exists()
    checkout.let("pip", "fails-midway")
    assert checkout.install()[0] != 0
    assert not checkout.venv.exists()


def test_one_of_another_folder_or_without_its_python_is_made_again(checkout):
    checkout.install()
    (checkout.venv / "bin" / "python").unlink()
    status, said = checkout.install()
    assert (status, is_complete(checkout)) == (0, True)
    assert "no longer runs" in said
    moved = checkout.folder.rename(checkout.folder.with_name("moved"))
    checkout.folder, checkout.venv = moved, moved / ".venv"
    status, said = checkout.install()
    assert (status, is_complete(checkout)) == (0, True)
    assert "another folder" in said


def test_two_runs_do_not_install_at_once(checkout):
    checkout.install()
    (checkout.venv / ".installing").write_text(str(os.getpid()))
    status, said = checkout.install()
    assert status == 1
    assert str(os.getpid()) in said
    assert (checkout.venv / ".dev").exists()


def test_somebody_elses_environment_is_used_and_never_removed(checkout):
    checkout.run(str(checkout.fake / "python3"), "-m", "venv", str(checkout.venv))
    checkout.let("pip", "fails-midway")
    assert checkout.install()[0] != 0
    assert checkout.venv.exists()
    checkout.let("pip", "works")
    assert checkout.install()[0] == 0
    assert checkout.install() == (0, "")
    status, said = checkout.run("make", "distclean")
    assert status == 0
    assert "make did not make it" in said
    assert checkout.venv.exists()
    (checkout.venv / "bin" / "python").unlink()
    status, said = checkout.install()
    assert status == 1
    assert "make VENV=" in said
    assert checkout.venv.exists()


def test_an_interpreter_that_is_too_old_is_named(checkout):
    old = '#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.9.1" && exit 0\nexit 1\n'
    for name in ("python3", "python3.14", "python3.13", "python3.12"):
        (checkout.fake / name).write_text(old)
        (checkout.fake / name).chmod(0o755)
    status, said = checkout.install()
    assert status == 1
    assert "needs Python 3.12 or later; found: Python 3.9.1" in said
    assert not checkout.venv.exists()


def test_the_demonstration_says_first_what_it_takes(checkout):
    status, said = checkout.run("make", "demo")
    assert status == 0
    assert said.index("The first run takes about") < said.index("Making .venv")
    assert "minutes" in said
    assert "GB of disk" in said
    assert "ran examples/usps_classification.py" in said
    status, said = checkout.run("make", "demo")
    assert status == 0
    assert "first run" not in said
    assert said.index("This takes") < said.index("ran examples")


def test_clean_removes_what_this_folder_left_and_nothing_else(checkout):
    checkout.install()
    ours = ["docs/_build/html/index.html", "dist/a.whl", "figures/a.png", ".coverage", ".mypy_cache/a",
            "pymc_rmhmc/linalg/__pycache__/passes.nbi", "tests/unit/__pycache__/a.pyc"]  # fmt: skip
    kept = ["benchmarks/results/a.json", "data/a.npz", "docs/a.md", "pymc_rmhmc/a.py"]
    for name in ours + kept:
        (checkout.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout.folder / name).touch()
    assert checkout.run("make", "clean")[0] == 0
    assert [name for name in ours if (checkout.folder / name).exists()] == []
    assert [name for name in kept if not (checkout.folder / name).exists()] == []
    assert is_complete(checkout)
    assert checkout.run("make", "distclean")[0] == 0
    assert not checkout.venv.exists()


def test_documentation_without_results_runs_no_code(checkout):
    assert "DOCS_EXECUTION=off" in checkout.run("make", "-n", "docs-fast")[1]
    assert "DOCS_EXECUTION" not in checkout.run("make", "-n", "docs")[1]
