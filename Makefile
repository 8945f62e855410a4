# Everything runs in .venv, which is made when it is missing. Python >= 3.12 and git are all that is needed.
VENV := .venv
BIN := $(VENV)/bin
export OPENBLAS_NUM_THREADS ?= 1
export OMP_NUM_THREADS ?= 1

.PHONY: demo test test-slow lint types docs bench clean
.DEFAULT_GOAL := test

# The first interpreter that is new enough; its absence is said in words.
define FIND_PYTHON
for p in python3 python3.14 python3.13 python3.12; do \
  if command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 12))' >/dev/null 2>&1; then \
    echo $$p; exit 0; fi; \
done; \
echo "pymc_rmhmc needs Python 3.12 or later; found: $$(python3 --version 2>&1)." >&2; \
echo "Install one, or put it first on PATH, and run make again." >&2; exit 1
endef

$(BIN)/python:
	@python=$$($(FIND_PYTHON)) && echo "Making $(VENV) with $$($$python --version)" && $$python -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.demo: pyproject.toml | $(BIN)/python
	@echo "Installing pymc_rmhmc with what the demonstration needs (a few minutes the first time)"
	@$(BIN)/python -m pip install --quiet --editable ".[demo]"
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	@echo "Installing pymc_rmhmc with its development tools (a few minutes the first time)"
	@$(BIN)/python -m pip install --quiet --editable ".[dev]"
	@touch $@ $(VENV)/.demo

$(VENV)/.bench: $(VENV)/.dev
	@echo "Installing the peers that the benchmarks compare with"
	@$(BIN)/python -m pip install --quiet --editable ".[dev,bench]"
	@touch $@

demo: $(VENV)/.demo
	$(BIN)/python examples/usps_classification.py

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow" --cov --cov-report=

# The gate on coverage is here: the two suites are counted together.
test-slow: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist worksteal -m slow --cov --cov-append --cov-report=term --cov-fail-under=0
	$(BIN)/python -m coverage report

lint: $(VENV)/.dev
	$(BIN)/ruff check .

types: $(VENV)/.dev
	$(BIN)/mypy

docs: $(VENV)/.dev
	$(BIN)/sphinx-build -W --keep-going -q -j auto -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks

clean:
	rm -rf docs/_build docs/generated .coverage .coverage.* .pytest_cache .mypy_cache .ruff_cache figures
