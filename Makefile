# Two commands do everything on a machine with Python and a C++ compiler:
#   make run    installs Olivine and runs a model (MODEL=path)
#   make test   installs the test tools and passes the tests
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
MODEL ?=
PROMPT ?= Once upon a time

.PHONY: run test lint types unit clean

run: $(VENV)/.installed
	@if [ -n "$(MODEL)" ]; then $(BIN)/olivine run "$(MODEL)" -p "$(PROMPT)"; else $(BIN)/olivine run; fi

test: lint types unit

lint: $(VENV)/.test-installed
	$(BIN)/ruff check src tests
	$(BIN)/ruff format --check src tests

types: $(VENV)/.test-installed
	$(BIN)/mypy

# One BLAS thread a worker: two workers on two cores, and the same numbers everywhere.
unit: $(VENV)/.test-installed
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(VENV)/.test-installed: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test]'
	@touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
