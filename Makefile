# Two commands do everything on a machine with Python and a C++ compiler:
#   make run    installs Olivine and asks a model: the one in the box, or MODEL=path PROMPT="…"
#   make test   installs the test tools and passes the tests
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip --quiet --disable-pip-version-check
MODEL ?= olivine-mini
PROMPT ?= Tell me a story about a fox and a boat

.PHONY: run test lint types unit sanitize clean

run: $(VENV)/.installed
	$(BIN)/olivine run "$(MODEL)" "$(PROMPT)"

test: lint types unit

lint: $(VENV)/.test-installed
	$(BIN)/ruff check src tests benches native tools
	$(BIN)/ruff format --check src tests benches native tools

types: $(VENV)/.test-installed
	$(BIN)/mypy

# One BLAS thread a worker, so that workers do not fight over cores.
unit: $(VENV)/.test-installed
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal

# The native tests under AddressSanitizer and UBSan. Python itself is not instrumented, so its leaks do not count.
sanitize: $(VENV)/.test-installed
	$(BIN)/python native/build.py --sanitize
	OLIVINE_LIBRARY=$(CURDIR)/src/olivine/backends/cpu/libolivine-sanitize.so ASAN_OPTIONS=detect_leaks=0 \
	  LD_PRELOAD="$$(c++ -print-file-name=libasan.so) $$(c++ -print-file-name=libubsan.so) $$(c++ -print-file-name=libstdc++.so)" \
	  OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/backends/test_cpu*.py tests/convert/test_quantize.py

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# The install compiles the native library, so it is made again when that changes.
NATIVE = native/build.py $(wildcard native/src/*)

$(VENV)/.installed: pyproject.toml hatch_build.py $(NATIVE) | $(VENV)/bin/python
	$(PIP) install -e .
	@touch $@

# torch first and by itself: an unpinned one would bring gigabytes of CUDA.
$(VENV)/.test-installed: pyproject.toml hatch_build.py $(NATIVE) | $(VENV)/bin/python
	$(PIP) install torch==2.13.0
	$(PIP) install -e '.[test]'
	@touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
