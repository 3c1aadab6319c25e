# keras_dist: `make demo` and `make test` are all a newcomer needs; `make help` lists the rest.

# `make test PYTHON=/path/to/python3.12` uses that interpreter, and an environment of its own.
PYTHON ?= python3

VERSION := import sys; print("%d.%d" % sys.version_info[:2])
ifeq ($(origin PYTHON),file)
VENV := .venv
else
VENV := .venv-$(shell "$(PYTHON)" -c '$(VERSION)' 2>/dev/null || echo none)
endif
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TPU_COMPILER := $(VENV)/tpu_compiler
MEASURED := $(VENV)-accelerator
PIP_OPTIONS = -qq --disable-pip-version-check -c $(MEASURED)/machine.txt $(if $(WHEELS),--no-index --find-links "$(WHEELS)")

# Python keeps what it compiled: the tests alone start a hundred processes that read the same modules.
unexport PYTHONDONTWRITEBYTECODE
# The environment has all packages: those of other projects are not seen.
unexport PYTHONHOME PYTHONPATH PYTHONSTARTUP

# All files are UTF-8. Without such a locale Python 3.11 fails where the path of this folder, which is in a file of the
# environment, has other letters than ASCII.
export PYTHONUTF8 := 1
ifeq ($(findstring UTF-8,$(or $(LC_ALL),$(LC_CTYPE),$(LANG))),)
export LC_ALL := C.UTF-8
endif

.PHONY: help setup demo notebooks docs test test-all coverage soak lint type check bench accelerator release-check dtensor parallax ray clean

PYTEST := $(BIN)/python -m pytest --numprocesses=auto --maxprocesses=8 --dist=worksteal --durations=10

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo "  make demo MESH=data=8,model=1         the same training on another mesh"
	@echo "  make test PYTHON=/path/to/python3.12  any target on another Python"

setup: $(READY) ## make the environment, once (.venv)

demo: export TFDS_DATA_DIR ?= $(CURDIR)/.cache/tensorflow_datasets
demo: $(READY) ## train on handwritten digits, on a mesh of 8 fake CPU devices
	@$(BIN)/keras-dist demo $(if $(MESH),--mesh "$(MESH)")

notebooks: $(READY) ## run every notebook, and keep what it prints
	$(BIN)/python -m tests.test_notebooks

docs: $(READY) ## build the site in build/site, without a network
	$(BIN)/python -m sphinx -b html -W --keep-going -q -a -c docs -d .cache/docs . build/site
	@echo "open build/site/index.html"

test: $(READY) ## run the tests of every package, in minutes
	$(PYTEST) -m "not full"

test-all: $(READY) $(TPU_COMPILER) ## run these, and those with processes, Keras itself, XLA for TPUs, notebooks, a browser
	$(PYTEST)

coverage: $(READY) $(TPU_COMPILER) ## run all tests, and print which share of each package they run
	COVERAGE_FILE=.cache/coverage $(PYTEST) --cov=keras_dist --cov-branch --cov-report=json:.cache/coverage.json
	$(BIN)/python -m tests.rooms_covered .cache/coverage.json

soak: $(READY) $(TPU_COMPILER) ## try more often and larger: kills, deadlocks, memory, last bits (ROUNDS=5; 1 is quick)
	SOAK=$(or $(ROUNDS),5) $(PYTEST) -m soak

lint: $(READY) ## check style, format, imports and words
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports
	$(BIN)/python -m tests.contracts.test_words --check

type: $(READY) ## check types
	$(BIN)/pyright --pythonpath $(BIN)/python

check: lint type test ## lint, type and test

bench: $(READY) ## run every benchmark, and write what they found into docs/reference/benchmarks.md
	@set -e; for script in $(sort $(basename $(notdir $(wildcard benchmarks/bench_*.py)))); do $(BIN)/python -m benchmarks.$$script; done
	@$(BIN)/python -m benchmarks.report

accelerator: $(if $(filter-out 0,$(DRY)),,accelerator-environment) ## measure on the GPUs or TPUs of this machine, in nine minutes (DRY=1, WHEELS=folder)
	@TFDS_DATA_DIR="$${TFDS_DATA_DIR:-$(CURDIR)/.cache/tensorflow_datasets}" \
	  $(if $(filter-out 0,$(DRY)),"$(PYTHON)",$(MEASURED)/bin/python) -m benchmarks.accelerator $(if $(filter-out 0,$(DRY)),--dry-run) $(ARGS)

release-check: $(READY) ## build wheel and sdist, and run each in a clean environment
	$(BIN)/python -m tests.documents.release

dtensor: ## set up TensorFlow 2.15 for `make bench`, with its older numpy in .venv-dtensor
	"$(PYTHON)" -m venv --clear .venv-dtensor
	.venv-dtensor/bin/python -m pip install -qq --disable-pip-version-check -r benchmarks/dtensor.txt

parallax: ## set up google-parallax and google-tunix for `make bench`, in .venv-parallax
	"$(PYTHON)" -m venv --clear .venv-parallax
	.venv-parallax/bin/python -m pip install -qq --disable-pip-version-check -e '.[tpu]' -r benchmarks/parallax.txt

ray: $(READY) ## set up Ray for tests/clusters/test_ray.py, in .venv-ray
	"$(PYTHON)" -m venv --clear .venv-ray
	.venv-ray/bin/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e . -r tests/clusters/ray.txt

clean: ## remove environments, caches and builds
	rm -rf .venv .venv-* .cache .hypothesis .import_linter_cache .pytest_cache .ruff_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is written last, so a setup that was cut off goes on the next time. An environment that is only half made
# (no pip), whose Python has gone, or is of another version, is made anew. Modules are compiled when they are first
# imported (--no-compile): most of the 14,000 never are.
$(READY): pyproject.toml constraints.txt
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo 'keras_dist needs Python 3.11 or newer.' >&2; \
	  echo "  given:    PYTHON=$(PYTHON), $$("$(PYTHON)" --version 2>/dev/null || echo 'which does not run')" >&2; \
	  echo '  fix:      name a newer one: make $(or $(MAKECMDGOALS),setup) PYTHON=/path/to/python3.12' >&2; \
	  exit 1; }
	@echo "Setting up $(VENV) with $$("$(PYTHON)" --version); the first time takes a few minutes ..."
	@[ "$$($(BIN)/python -c 'import pip; $(VERSION)' 2>/dev/null)" = "$$("$(PYTHON)" -c '$(VERSION)')" ] || "$(PYTHON)" -m venv --clear $(VENV)
	@$(BIN)/python -m pip install -qq --no-compile --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

# XLA for TPUs, which compiles without one; tests skip where it is not to be had. In the environment it would be a backend
# of every process there.
$(TPU_COMPILER): $(READY) constraints.txt
	@rm -rf $@
	@$(BIN)/python -m pip install -qq --no-compile --disable-pip-version-check --no-deps -c constraints.txt --target $@ libtpu \
	  || echo 'Tests that compile for TPUs are skipped: there is no libtpu for this machine.' >&2
	@mkdir -p $@ && touch $@

# The packages of the machine, its JAX among them, in its version, and what is missing: from the folder WHEELS where there
# is no network. Without what only some sections need, the others run. Another interpreter or JAX makes it anew.
MACHINE = import sys; from importlib.metadata import version; print(sys.executable, *(f"{name}=={version(name)}" for name in ("jax", "jaxlib")))
.PHONY: accelerator-environment
accelerator-environment:
	@now="$$("$(PYTHON)" -c '$(MACHINE)' 2>/dev/null || command -v "$(PYTHON)")"; \
	[ "$$(cat $(MEASURED)/.ready 2>/dev/null)" = "$$now" ] || { \
	  set -e; echo "Setting up $(MEASURED) with the packages of $$now; WHEELS=folder where there is no network ..."; \
	  "$(PYTHON)" -m venv --clear --system-site-packages $(MEASURED); \
	  "$(PYTHON)" -c 'import site; print(*site.getsitepackages(), sep="\n")' > $$(echo $(MEASURED)/lib/python*/site-packages)/machine.pth; \
	  printf '%s\n' $$now | grep == > $(MEASURED)/machine.txt || true; \
	  "$(PYTHON)" -c 'import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	    extras = project["optional-dependencies"]; \
	    tests = [each for each in extras["test"] if each.startswith(("hypothesis", "pytest>"))]; \
	    open("$(MEASURED)/needed.txt", "w").write("\n".join(project["dependencies"])); \
	    open("$(MEASURED)/wished.txt", "w").write("\n".join([*extras["datasets"], *extras["quantize"], *tests, ""]))'; \
	  $(MEASURED)/bin/python -m pip install $(PIP_OPTIONS) -r $(MEASURED)/needed.txt; \
	  while read -r each; do $(MEASURED)/bin/python -m pip install $(PIP_OPTIONS) "$$each" || echo "$$each is not installed"; \
	  done < $(MEASURED)/wished.txt; \
	  echo "$$now" > $(MEASURED)/.ready; }
