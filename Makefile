# The doors of the repository. `make` lists them; CI (.ci/run) goes through the same ones.
# A fresh machine needs Python 3.11 with venv, and make.

PYTHON    ?= python3
BIN       := .venv/bin
PROJECTS  := pyproject.toml model-sdk/pyproject.toml requirements.lock tools/venv.py tools/lock.py
SOURCES   := sidecar operator model-sdk
LINTED    := $(wildcard $(SOURCES) tests e2e images tools benchmarks examples)

# What the doors take from the command line, e.g. `make test T=tests/protocol`, `make sim HISTORIES=100000`.
T         ?= tests
PROCESSES ?= auto
HISTORIES ?= 2000
SEED      ?= 1
MODE_HISTORIES ?= 200
DEMO      ?=
BENCH     ?= chain
E2E       ?=
BUILDER   ?= auto
REGISTRY  ?= hams.local
PUSH      ?=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup check check-format check-lint check-types check-imports check-chart compile compile-sim test test-faults test-faults-ci test-fast fuzz sim sim-modes sim-mutants bench bench-ci bench-peers demo e2e images chart wheels check-wheels lock clean

help: ## this list
	@echo "HAMS: graphs of models as one service that never forgets. The doors:"; echo
	@sed -n 's/^\([a-z0-9-]*\):[^#]*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r door what; do printf '  make %-14s %s\n' "$$door" "$$what"; done

# ---- setup: two steps, so that checks and most tests do not wait for the deep-learning libraries (several GB) ----

.venv/.core: $(PROJECTS)
	@$(PYTHON) tools/venv.py core

.venv/.torch: $(PROJECTS) .venv/.core
	@$(PYTHON) tools/venv.py torch

setup: .venv/.core .venv/.torch ## make .venv with everything: runtime, tools, torch for the demo (versions from requirements.lock)
	@echo "setup: .venv is ready; next: . .venv/bin/activate && hams --help"
	@echo "setup: make compile turns the core into machine code (optional; a C compiler, one to two minutes on two cores), which takes a tenth off the processor time of a request"

# ---- quality ----

check: .venv/.core ## format, lint, types (mypy --strict), who may import whom, CRD and chart; reports them all before it fails
	@$(MAKE) --no-print-directory --keep-going check-format check-lint check-types check-imports check-chart

check-format: .venv/.core
	$(BIN)/ruff format --check $(LINTED)

check-lint: .venv/.core
	$(BIN)/ruff check $(LINTED)

check-types: .venv/.core
	$(BIN)/mypy $(SOURCES) benchmarks

check-imports: .venv/.core
	HAMS_PURE=1 $(BIN)/lint-imports --no-cache --no-logo

check-chart: .venv/.core
	$(BIN)/pytest -q tests/chart tests/graph/test_crd.py

test: setup ## every test but those that kill real processes (make test T=tests/protocol for one part; PROCESSES=0: in one process, as a debugger needs)
	$(BIN)/pytest -n $(PROCESSES) --maxprocesses 4 --dist loadfile -m "not process" $(T)

test-faults: setup ## the tests that start real processes and kill them
	$(BIN)/pytest -m process $(T)

test-faults-ci: setup ## of these, those that CI runs: all but the ones that take long and are marked by_hand
	$(BIN)/pytest -m "process and not by_hand" $(T)

test-fast: .venv/.core ## as `make test`, but without torch and etcd: for the inner loop
	$(BIN)/pytest -n $(PROCESSES) --maxprocesses 4 --dist loadfile -m "not process and not etcd" $(T)

fuzz: setup ## 100,000 cases of every fuzzer but that of requests to a live graph, where the tests run a few hundred (make fuzz T=tests/fuzz/test_peer_frames.py for one)
	HAMS_FUZZ_CASES=100000 $(BIN)/pytest $(patsubst tests,tests/fuzz,$(T))

compile: .venv/.core ## turn the protocol core into machine code, if there is a C compiler: nothing else changes, a request takes a tenth less processor time
	$(BIN)/python tools/compile.py

compile-sim: .venv/.core ## the simulator too, for long runs of `make sim`: the same histories in three quarters of the time; compiles for some minutes
	$(BIN)/python tools/compile.py --simulator

# ---- simulation: one seed decides everything; a failure names the seed that replays it ----

sim: .venv/.core ## simulate HISTORIES=2000 seeded histories from SEED=1 and check each
	$(BIN)/hams sim --histories $(HISTORIES) --seed $(SEED)

sim-modes: .venv/.core ## MODE_HISTORIES=200 each in every other mode of replication, and under the policy `distribution`
	for mode in BufferedOutputs StopAndCopy Remus LineageStash; do \
		$(BIN)/hams sim --mode $$mode --histories $(MODE_HISTORIES) --seed $(SEED) || exit 1; \
	done
	$(BIN)/hams sim --policy distribution --histories $(MODE_HISTORIES) --seed $(SEED)

sim-mutants: .venv/.core ## break the protocol on purpose: the simulation must catch each mutant
	$(BIN)/hams sim --mutants

# ---- running it ----

demo: setup ## run a graph on this machine, kill a model under load, show that nothing was forgotten
	$(BIN)/hams demo $(DEMO)

bench: .venv/.core ## measure into out/ (make bench BENCH=chain)
	@mkdir -p out
	$(BIN)/hams bench $(BENCH) --out out/bench-$(BENCH).json

bench-ci: .venv/.core ## the short form of `make bench` that CI runs
	@mkdir -p out
	$(BIN)/hams bench chain --short --out out/bench-ci.json

.venv-peers/.installed: benchmarks/paper/peers/requirements.txt
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/pip install -q -r benchmarks/paper/peers/requirements.txt
	@touch $@

bench-peers: .venv/.core .venv-peers/.installed ## two services of the paper beside Ray Serve, which it installs into .venv-peers (1 GB)
	@mkdir -p out
	$(BIN)/hams bench paper --part peers --out out/paper.json

# ---- Kubernetes ----

e2e: .venv/.core compile ## scenarios of the fault catalogue on a cluster made for them (root; CLUSTER=existing uses the current context; FULL=1: full length)
	$(BIN)/python -m e2e.whole --builder $(BUILDER) --registry $(REGISTRY) $(E2E)

images: .venv/.core compile ## the container images, with docker, podman, buildah, or a builder of our own (BUILDER=, REGISTRY=, PUSH=1)
	$(BIN)/python -m images.build --builder $(BUILDER) --registry $(REGISTRY) $(if $(PUSH),--push)

chart: .venv/.core ## check the Helm chart and package it into out/ (builds helm if there is none)
	$(BIN)/python -m e2e.cluster helm > /dev/null
	$(BIN)/pytest -q tests/chart
	@mkdir -p out
	$$($(BIN)/python -m e2e.cluster helm) package charts/hams --destination out

# ---- wheels ----

wheels: .venv/.core ## both wheels into dist/; after `make compile` also one for this platform, with the core as machine code
	@$(BIN)/python tools/wheels.py

check-wheels: .venv/.core ## install the wheels as a stranger does, with the newest versions allowed, and run a graph from them
	@$(BIN)/python tools/wheels.py
	@$(BIN)/python tools/check_wheels.py

# ---- upkeep ----

lock: ## write requirements.lock anew from the newest versions that pyproject.toml allows
	$(PYTHON) tools/lock.py

clean: ## remove .venv and every cache
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
