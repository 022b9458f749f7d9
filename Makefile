# `make demo` runs a real recompute study on this machine, `make test` the tests. Both install into .venv what
# requirements.lock names, once. PYTHON chooses the interpreter, PIP_ARGS goes to every pip (an index of CPU builds, say).
PYTHON ?= python3
PIP_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS)
DEMO_RESULTS ?= results/demo
# There is one test cluster on a machine, so its tests run in one process. They mostly wait for Slurm: the others run
# beside them, and what either says is printed when it ends.
SLURM_TESTS := tests/integration/slurm
# Options that choose among them; none runs all.
SELECT :=
SIDE_BY_SIDE := --no-print-directory --jobs 2 --output-sync slurm-tests other-tests
# Reports as the browser drew them, in light, in dark and on a phone: kept for whoever looks at a build.
export ORCHESTRATOR_SCREENSHOTS ?= $(CURDIR)/build/screenshots

.PHONY: demo test test-all slurm-tests other-tests docs check packages clean

demo: $(VENV)/installed
	$(BIN)/python -m orchestrator -m study=demo results_dir=$(DEMO_RESULTS)
	@echo "next: . $(BIN)/activate && python -m orchestrator recommend --target-gb 0.12 --results $(DEMO_RESULTS)"

test: check $(VENV)/revisions
	$(MAKE) $(SIDE_BY_SIDE) SELECT='-m "not slow"'

# Debian's PostgreSQL, Slurm and Chromium, for the tests that need a real one. Needs root; without them those tests are
# left out, and the summary says so.
packages:
	tests/install-debian-packages.sh

# What `make test` leaves out for its time: whole covering sets of labels and layouts, long searches.
test-all: check $(VENV)/revisions
	$(MAKE) $(SIDE_BY_SIDE)

slurm-tests:
	$(BIN)/python -m pytest $(SELECT) $(SLURM_TESTS)

other-tests:
	$(BIN)/python -m pytest -n 2 --dist loadfile $(SELECT) --ignore $(SLURM_TESTS)

# The pages, with the reference that is made of the code, below site/.
docs: $(VENV)/installed
	$(BIN)/python -m mkdocs build --strict

check: $(VENV)/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

$(VENV)/installed: requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -r requirements.lock
	$(INSTALL) --no-deps --editable .
	touch $@

# Other releases, beside the installed ones: what they accept, and where they can be marked, is tested against them.
$(VENV)/revisions: $(VENV)/installed
	$(INSTALL) --no-deps --target $(VENV)/revisions/megatron-core-0.15.3 megatron-core==0.15.3
	$(INSTALL) --no-deps --target $(VENV)/revisions/megatron-bridge-0.3.1 megatron-bridge==0.3.1
	touch $@

clean:
	rm -rf $(VENV) build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
