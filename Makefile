# Needs python3 (>= 3.11, with venv), make and git. Everything else comes from requirements/.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
CODE := store gateway dispatcher runtime devcluster sdk $(wildcard tests examples loadtest)
UV_VERSION := 0.13.9

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help
help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(STAMP) ## make .venv with the pinned dependencies and this project in it

$(STAMP): requirements/dev.txt pyproject.toml sdk/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Orbit needs Python 3.11 or newer; set PYTHON=")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet --no-build-isolation --no-deps -e sdk -e .
	@touch $@

.PHONY: demo
demo: setup ## see it work on a FOLDER's files, with a gateway killed half-way, in under a minute
	$(BIN)/python examples/demo.py $(ARGS) $(if $(FOLDER),"$(FOLDER)")

.PHONY: test
test: setup ## run the tests, in random order, on two processes
	$(BIN)/python -m pytest -n 2 $(ARGS)

.PHONY: simulate
simulate: setup ## join the pure cores under SEEDS seeded faults, on two processes
	$(BIN)/python -m tests.simulation --seeds $(or $(SEEDS),1000) $(ARGS)

.PHONY: model
model: setup ## drive the store and its model side by side for STEPS random steps
	ORBIT_MODEL_STEPS=$(or $(STEPS),200000) $(BIN)/python -m pytest tests/store/test_model.py $(ARGS)

.PHONY: check
check: setup ## lint, format check, strict types, import rules, house rules
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q -p no:randomly tests/arch

.PHONY: format
format: setup ## sort imports, apply safe fixes, format
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

.PHONY: schema
schema: setup ## write store/schema.sql anew, after a migration was added
	$(BIN)/python -m devcluster.schema

.PHONY: protocol
protocol: setup ## write the outcome table of docs/protocol.md anew, after its rows were changed
	$(BIN)/python -m devcluster.protocol_page

.PHONY: transcripts
transcripts: setup ## write docs/transcripts.md anew, from a run on a cluster of the moment
	$(BIN)/python -m tests.transcripts.write

.PHONY: bench
bench: setup ## measure full lives a second and dispatch latency on this machine
	$(BIN)/python -m loadtest.bench $(ARGS)

.PHONY: races
races: setup ## run each race of tests/races 100 times, stop at the first failure (its name has the seed)
	ORBIT_RACE_REPEATS=$${ORBIT_RACE_REPEATS:-100} \
	    $(BIN)/python -m pytest -n $(or $(PROCESSES),6) -x -p no:randomly tests/races $(ARGS)

.PHONY: stall
stall: setup ## let 100 readers stand still beside 500 workers for STALL_S seconds (1800), and judge times
	ORBIT_RACE_STALL_S=$(or $(STALL_S),1800) $(BIN)/python -m pytest -q -p no:randomly \
	    --log-cli-level=INFO tests/races/test_stall_races.py $(ARGS)

.PHONY: campaign
campaign: setup ## kill gateways, dispatchers, workers and stores under load, then balance the books
	$(BIN)/python -m loadtest.campaign $(ARGS)

.PHONY: lock
lock: ## pin the dependencies anew, with hashes and without addresses
	@tools=$$(mktemp -d); trap 'rm -rf "$$tools"' EXIT; \
	$(PYTHON) -m venv "$$tools" && "$$tools/bin/pip" install --quiet uv==$(UV_VERSION); \
	compile="$$tools/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	    --no-header --no-annotate --no-emit-index-url --no-emit-find-links \
	    --no-emit-package orbit-sdk $(LOCKARGS)"; \
	$$compile pyproject.toml sdk/pyproject.toml --extra embedded --extra dev -o requirements/dev.txt; \
	$$compile pyproject.toml sdk/pyproject.toml -c requirements/dev.txt -o requirements/base.txt

.PHONY: clean
clean: ## remove .venv, caches and the local cluster's data
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .orbit dist build \
	    htmlcov .coverage .coverage.*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
