# The doors of the repository. `make` lists them; CI (.ci/run) goes through the same ones.
# A fresh machine needs Python 3.11 with venv, and make.

PYTHON    ?= python3
BIN       := .venv/bin
PROJECTS  := pyproject.toml model-sdk/pyproject.toml requirements.lock tools/venv.py
SOURCES   := sidecar operator model-sdk
LINTED    := $(wildcard $(SOURCES) tests e2e tools benchmarks examples)

# What the doors take from the command line, e.g. `make test T=tests/protocol`, `make sim HISTORIES=100000`.
T         ?= tests
HISTORIES ?= 2000
SEED      ?= 1
DEMO      ?=
BENCH     ?= chain

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup check test test-fast sim sim-mutants bench bench-ci demo e2e images chart lock clean

help: ## this list
	@echo "HAMS: graphs of models as one service that never forgets. The doors:"; echo
	@sed -n 's/^\([a-z0-9-]*\):[^#]*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r door what; do printf '  make %-12s %s\n' "$$door" "$$what"; done

# ---- setup: two steps, so that checks and most tests do not wait for the deep-learning libraries (several GB) ----

.venv/.core: $(PROJECTS)
	@$(PYTHON) tools/venv.py core

.venv/.torch: $(PROJECTS) .venv/.core
	@$(PYTHON) tools/venv.py torch

setup: .venv/.core .venv/.torch ## make .venv with everything: runtime, tools, torch for the demo (versions from requirements.lock)

# ---- quality ----

check: .venv/.core ## format, lint, types (mypy --strict), who may import whom
	$(BIN)/ruff format --check $(LINTED)
	$(BIN)/ruff check $(LINTED)
	$(BIN)/mypy $(SOURCES)
	$(BIN)/lint-imports --no-cache

test: setup ## every test of the repository (make test T=tests/protocol for one part)
	$(BIN)/pytest $(T)

test-fast: .venv/.core ## the tests that start no process and need no torch
	$(BIN)/pytest -m "not process and not etcd" $(T)

# ---- simulation: one seed decides everything; a failure names the seed that replays it ----

sim: .venv/.core ## simulate HISTORIES=2000 seeded histories from SEED=1 and check each
	$(BIN)/hams sim --histories $(HISTORIES) --seed $(SEED)

sim-mutants: .venv/.core ## break the protocol on purpose: the simulation must catch each mutant
	$(BIN)/hams sim --mutants

# ---- running it ----

demo: setup ## run a graph on this machine, kill a model under load, show that nothing was forgotten
	$(BIN)/hams demo $(DEMO)

bench: .venv/.core ## measure (make bench BENCH=chain)
	$(BIN)/hams bench $(BENCH)

bench-ci: .venv/.core ## the short form of `make bench` that CI runs
	$(BIN)/hams bench chain --short

# ---- Kubernetes: nothing behind these doors yet ----

e2e: ## (not there yet: issue Kubernetes) the fault suite on a cluster
	@echo "make e2e: not there yet: issue Kubernetes" >&2; exit 1

images: ## (not there yet: issue Kubernetes) the container images
	@echo "make images: not there yet: issue Kubernetes" >&2; exit 1

chart: ## (not there yet: issue Kubernetes) package and check the Helm chart
	@echo "make chart: not there yet: issue Kubernetes" >&2; exit 1

# ---- upkeep ----

lock: ## write requirements.lock anew from the newest versions that pyproject.toml allows
	$(PYTHON) tools/lock.py

clean: ## remove .venv and every cache
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
