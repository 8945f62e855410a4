# Everything runs in .venv, which is made when it is missing. Python >= 3.12 and git are all that is needed.
VENV := .venv
BIN := $(VENV)/bin
export VENV
export OPENBLAS_NUM_THREADS ?= 1
export OMP_NUM_THREADS ?= 1

.PHONY: demo test test-slow test-slow-fifth lint prose types docs docs-fast wheel bench clean distclean for-demo for-dev for-bench
.DEFAULT_GOAL := test
# Two targets at once would install into the environment at once.
.NOTPARALLEL:

# Measured on two cores. The first run installs and compiles; what it compiles is kept.
define DEMO_FIRST
The first run takes about 4 minutes and 1 GB of disk: up to 2 minutes to install packages into $(VENV), then 2 minutes
to compile and sample. Later runs take a little over 1 minute. docs/installation.md says what is kept where.
endef
define DEMO_LATER
This takes a little over 1 minute, or 2 minutes if no compiled code is left from an earlier run.
endef
export DEMO_FIRST DEMO_LATER

for-demo for-dev for-bench:
	@tools/environment.sh $(@:for-%=%)

demo:
	@if [ -e $(VENV)/.demo ]; then echo "$$DEMO_LATER"; else echo "$$DEMO_FIRST"; fi
	@tools/environment.sh demo
	$(BIN)/python examples/usps_classification.py

test: for-dev
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow" --cov --cov-report=

# The gate on coverage is here: the two suites are counted together.
test-slow: for-dev
	$(BIN)/python -m pytest -n 2 --dist worksteal -m slow --cov --cov-append --cov-report=term --cov-fail-under=0
	$(BIN)/python -m coverage report

# A fifth by turns, and no gate on coverage: for machines on which the whole takes too long.
test-slow-fifth: for-dev
	$(BIN)/python -m pytest -n 2 --dist worksteal -m slow --fifth

lint: for-dev prose
	$(BIN)/ruff check .

# Spelling, terms that have one name here, and how long sentences are: no longer than they were.
prose: for-dev
	$(BIN)/typos
	$(BIN)/python tools/prose.py --limit 15

types: for-dev
	$(BIN)/mypy

# Pages are run again when their code, the package, the data or a version has changed.
# DOCS_EXECUTION=force runs all of them.
docs: for-dev
	$(BIN)/python -m sphinx -W --keep-going -q -j auto -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

# The text alone, for writing it: no code is run, so there are no results on the pages.
docs-fast: for-dev
	DOCS_EXECUTION=off $(BIN)/python -m sphinx -W --keep-going -q -j auto -b html docs docs/_build/fast
	@echo "docs/_build/fast/index.html"

# Build the packages, check them, and run the quickstart from the wheel in an environment that holds nothing else.
wheel: for-dev
	$(BIN)/python tools/check_wheel.py dist

bench: for-bench
	$(BIN)/python -m benchmarks

# Compiled code that PyTensor keeps for all projects stays: see docs/installation.md.
clean:
	rm -rf docs/_build docs/generated docs/jupyter_execute build dist figures
	rm -rf .coverage .coverage.* .pytest_cache .mypy_cache .ruff_cache
	find pymc_rmhmc benchmarks docs examples tests tools -type d -name __pycache__ -prune -exec rm -rf {} +

# And the virtual environment, if make made it.
distclean: clean
	@if [ -e $(VENV)/.made-by-make ]; then echo "rm -rf $(VENV)"; rm -rf $(VENV); \
	elif [ -e $(VENV) ]; then echo "$(VENV) is left: make did not make it."; fi

# Faults that are planted one at a time, each of which its test must find: a table of them in tests/mutants.
.PHONY: mutants mutants-tenth test-processors
mutants: for-dev
	$(BIN)/python -m tests.mutants

mutants-tenth: for-dev
	$(BIN)/python -m tests.mutants --tenth commit

# Both suites as four other processors would run them: hours.
test-processors: for-dev
	$(BIN)/python -m tests.processors

# Models that a grammar writes, each checked against the joint law of its parameters and data: tests/fuzz. A run goes on
# where the last one ended; ten by turns, of those that compile quickly, in some three minutes.
.PHONY: fuzz-models fuzz-ten
fuzz-models: for-dev
	$(BIN)/python -m tests.fuzz --models 200

fuzz-ten: for-dev
	$(BIN)/python -m tests.fuzz --turn --budget 240 --share 30 --no-shrink
