# The main targets; they need Python and a C++ compiler:
#   make run        installs Olivine and runs a model: olivine-mini, or MODEL=path PROMPT="…"
#   make test       installs the test tools and runs the tests; those in a browser need Chromium, some need Node
#   make test-all   the same with the exhaustive tests: every case where make test runs a sample
#   make page       builds the chat page of the server from web/ (needs Node); its build is committed
#   make docs       writes what is generated in docs/: references, openapi.json, plots; tests compare
#   make site       the documentation as a site, in build/site
#   make test-web   the tests of the chat page (needs Node)
#   make test-arm, make test-x86   the kernels of the other architecture (needs a cross compiler and qemu)
#   make test-amx   the kernels for AMX, its tiles in C++ (needs AVX-512)
#   make wheel, make sdist, make dist   the packages for PyPI, in dist/ (docs/packaging.md)
#   make test-wheel PYTHONS="python3.10 python3.13"   installs the wheel for these without a compiler, and runs it
#   make test-clients   the server with the clients that people use, those with environments of their own too
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip --quiet --disable-pip-version-check
MODEL ?= olivine-mini
PROMPT ?= Tell me a story about a fox and a boat

.PHONY: run docs site wheel sdist dist test-wheel test test-all test-arm test-x86 test-amx test-clients test-web page test-tools browser-tools lint types unit unit-all sanitize clean

run: $(VENV)/.installed
	$(BIN)/olivine run "$(MODEL)" "$(PROMPT)"

# Types are checked on one core while the tests begin.
test: test-tools lint
	@$(MAKE) --no-print-directory -j2 types unit

test-all: test-tools lint
	@$(MAKE) --no-print-directory -j2 types unit-all

test-tools:
	@$(MAKE) --no-print-directory -j3 $(VENV)/.test-installed browser-tools

lint: $(VENV)/.test-installed
	$(BIN)/ruff check src tests benches native tools
	$(BIN)/ruff format --check src tests benches native tools

types: $(VENV)/.test-installed
	$(BIN)/mypy

# One BLAS thread per worker, so that workers do not compete for cores. An empty -m deselects nothing.
PYTEST = OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal

unit: $(VENV)/.test-installed browser-tools
	$(PYTEST)

unit-all: $(VENV)/.test-installed browser-tools
	$(PYTEST) -m ""

# For the tests of the chat page, which skip without: Chromium, which only root can install, and the packages of web/.
browser-tools:
	@command -v chromium > /dev/null || if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
	  echo "installing Chromium for the tests of the chat page"; \
	  { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends chromium; } \
	    > /dev/null 2>&1 || echo "Chromium cannot be installed: tests of the chat page in a browser skip"; \
	else echo "no Chromium: tests of the chat page in a browser skip (apt-get install chromium)"; fi
	@if command -v npm > /dev/null; then \
	  $(MAKE) --no-print-directory web/node_modules/.installed || echo "npm ci failed: tests of web/ skip"; \
	else echo "no Node: tests of web/ skip"; fi

docs: $(VENV)/.test-installed
	$(BIN)/python -m olivine.server.openapi > docs/openapi.json
	$(BIN)/python tools/reference.py
	$(BIN)/python tools/performance.py

site: $(VENV)-docs/.installed
	NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/mkdocs build --strict

# In an environment of its own: the site needs nothing of Olivine.
$(VENV)-docs/.installed:
	$(PYTHON) -m venv $(VENV)-docs
	@$(VENV)-docs/bin/python -m pip --quiet --disable-pip-version-check install 'mkdocs>=1.6,<2' 'mkdocs-material>=9.7'
	@touch $@

page: web/node_modules/.installed
	cd web && npm run build

test-web: web/node_modules/.installed
	cd web && npm test

web/node_modules/.installed: web/package-lock.json
	cd web && npm ci --no-audit --no-fund
	@touch $@

# litellm's pins conflict with those of the other clients; it imports mcp where a request has tools.
AI_SDK = tests/server/clients/ai-sdk
CLIENTS = OLIVINE_LITELLM_PYTHON=$(abspath $(VENV)-litellm)/bin/python OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 \
  $(BIN)/python -m pytest tests/server/clients

# On olivine-mini, then on a larger model, which takes some minutes.
test-clients: $(VENV)/.test-installed $(VENV)-litellm/.installed
	if command -v npm > /dev/null; then npm ci --prefix $(AI_SDK) --no-audit --no-fund; fi
	$(CLIENTS)
	OLIVINE_TEST_SERVED=$$(PYTHONPATH=tests $(BIN)/python -c \
	  "from oracles.real_models import SMOLLM2; print(SMOLLM2.path())") $(CLIENTS)

$(VENV)-litellm/.installed:
	$(PYTHON) -m venv $(VENV)-litellm
	@$(VENV)-litellm/bin/python -m pip --quiet --disable-pip-version-check install 'litellm>=1.106' mcp
	@touch $@

# The packages. The wheel is built from the sdist, as installers without a wheel for their machine do.
DIST = $(VENV)-dist/bin
PYTHONS ?= $(PYTHON)

$(VENV)-dist/.installed:
	$(PYTHON) -m venv $(VENV)-dist
	@$(VENV)-dist/bin/python -m pip --quiet --disable-pip-version-check install 'build>=1.2' 'auditwheel>=6.2' 'twine>=6.1'
	@touch $@

wheel: $(VENV)-dist/.installed
	$(DIST)/python -m build --wheel --outdir dist
	$(DIST)/twine check --strict dist/*.whl

sdist: $(VENV)-dist/.installed
	$(DIST)/python -m build --sdist --outdir dist
	$(DIST)/twine check --strict dist/*.tar.gz

dist: $(VENV)-dist/.installed
	rm -rf dist
	$(DIST)/python -m build --outdir dist
	$(DIST)/twine check --strict dist/*
	$(if $(filter Linux,$(shell uname)),$(DIST)/auditwheel show dist/*.whl)

test-wheel: wheel
	$(PYTHON) tools/try_wheel.py dist/*.whl $(PYTHONS)

# The native tests under AddressSanitizer and UBSan, without those that run an emulator, which cannot load AddressSanitizer.
# Python itself is not instrumented, so leaks are not checked. Without capture, because a finding ends the process.
sanitize: $(VENV)/.test-installed
	$(BIN)/python native/build.py --sanitize
	OLIVINE_LIBRARY=$(CURDIR)/src/olivine/backends/cpu/libolivine-sanitize.so ASAN_OPTIONS=detect_leaks=0 \
	  LD_PRELOAD="$$(c++ -print-file-name=libasan.so) $$(c++ -print-file-name=libubsan.so) $$(c++ -print-file-name=libstdc++.so)" \
	  $(PYTEST) -s $(filter-out %_emulated.py,$(wildcard tests/backends/test_cpu*.py)) tests/backends/test_without_logits.py \
	  tests/convert/test_quantize.py

# The kernels of another architecture, each instruction set on an emulated CPU that has no newer one. $(1): architecture,
# $(2): its compiler's package, $(3): pairs CPU:instruction set.
define emulated
	@for tool in $(1)-linux-gnu-g++ $(or $(shell command -v qemu-$(1)),qemu-$(1)-static); do \
	  command -v $$tool > /dev/null || { echo "$$tool is not here: apt-get install $(2) qemu-user-static"; exit 1; }; done
	@mkdir -p build/$(1)
	CXX=$(1)-linux-gnu-g++ $(BIN)/python native/build.py -o build/$(1)/libolivine.so
	$(1)-linux-gnu-g++ -std=c++20 -O1 -Wall -Wextra -pthread -static native/tests/agree.cpp build/$(1)/.objects/*.o -o build/$(1)/agree
	@for pair in $(3); do \
	  $(or $(shell command -v qemu-$(1)),qemu-$(1)-static) -cpu $${pair%%:*} build/$(1)/agree $${pair##*:} || exit 1; done
	$(BIN)/python -m pytest tests/backends/test_cpu_objects.py
endef

test-arm: $(VENV)/.test-installed
	$(call emulated,aarch64,g++-aarch64-linux-gnu,cortex-a53:neon neoverse-n1:dotprod max:i8mm)

test-x86: $(VENV)/.test-installed
	$(call emulated,x86_64,g++-x86-64-linux-gnu,qemu64:plain Haswell:avx2)

# Tiles are emulated in C++ (native/src/tiles.h): all else is what runs on a CPU with AMX.
test-amx: $(VENV)/.test-installed
	@mkdir -p build/amx
	CXX="$${CXX:-c++} -DOLV_EMULATE_TILES" $(BIN)/python native/build.py -o build/amx/libolivine.so
	$${CXX:-c++} -std=c++20 -O1 -Wall -Wextra -pthread native/tests/agree.cpp build/amx/.objects/*.o -o build/amx/agree
	build/amx/agree amx
	OLIVINE_LIBRARY=$(CURDIR)/build/amx/libolivine.so OLIVINE_ISA=amx $(PYTEST) $(filter-out %_emulated.py %_objects.py,$(wildcard tests/backends/test_cpu*.py))

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# The install compiles the native library, so it is repeated when that changes. pip would show no progress for
# minutes, so the library is compiled first, and the install finds the object files.
NATIVE = native/build.py $(wildcard native/src/*) src/olivine/backends/grids.inc

$(VENV)/.compiled: $(NATIVE) | $(VENV)/bin/python
	@$(BIN)/python native/build.py
	@touch $@

$(VENV)/.installed: pyproject.toml hatch_build.py $(VENV)/.compiled
	@echo "installing Olivine and its dependencies into $(VENV)"
	@$(PIP) install -e .
	@touch $@

# pip 23.2, which Python 3.11 brings, reads the metadata of this many packages one after another: six minutes where 26.3
# took less than two with all downloads. PyPI's build of torch for Linux includes gigabytes of CUDA, on x86-64 and aarch64
# alike; PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu makes pip take the CPU build.
# The install itself compiles nothing: `make test` has the library compiled meanwhile. Bytecode (--no-compile) is made of
# what the tests import, a small part of these packages.
$(VENV)/.test-packages: pyproject.toml hatch_build.py | $(VENV)/bin/python
	@echo "installing Olivine and the test tools, PyTorch among them, into $(VENV)"
	@$(PIP) install 'pip>=25.3'
	@OLIVINE_COMPILE=no $(PIP) install --no-compile -e '.[test]'
	@touch $@

$(VENV)/.test-installed: $(VENV)/.compiled $(VENV)/.test-packages
	@touch $@

clean:
	rm -rf $(VENV) $(VENV)-litellm $(VENV)-dist $(VENV)-docs build dist .pytest_cache .mypy_cache .ruff_cache
