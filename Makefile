# Works from a fresh clone with Python 3.11+, make and git. `make help` lists the targets.

PYTHON ?= python3
VENV   ?= .venv
# Arguments for pytest: make test ARGS="tests/unit -x"
ARGS   ?=
# Files tested beside each other: much of the suite waits for leases to end, so there are more than two cores would need.
JOBS   ?= 5
DEMO   ?= $(VENV)/bin/python -m oah.cli.demo
BENCH  ?= $(VENV)/bin/python -m benchmarks

# make chaos SEEDS=10 SECONDS=60 FIRST=1, or one story again: make chaos SEED=7 SECONDS=60. Logs of bad ones: KEEP.
FIRST   ?= 1
SEEDS   ?= 10
SECONDS ?= 60
KEEP    ?= /tmp/oah-chaos

# Deferred variables: asked only by the recipes that use them.
PIP     = $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
RUN_OK := $(VENV)/.installed-run
DEV_OK := $(VENV)/.installed-dev

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-full agents test-agents chaos lint format reference bench clean

help: ## This list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 20

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else "OAH needs Python 3.11 or newer, %s is %d.%d; try: make PYTHON=python3.12 ..." % (sys.executable, v[0], v[1]))'
	@echo "creating $(VENV)"
	@$(PYTHON) -m venv $(VENV) || { echo "the venv module is missing (on Debian: apt-get install python3-venv)" >&2; exit 1; }

# The stamps are older than what they were made from only when something changed: a second run starts at once.
$(RUN_OK): pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing OAH into $(VENV)"
	@$(PIP) --editable .
	@touch $@

$(DEV_OK): pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing OAH and its test tools into $(VENV)"
	@$(PIP) --editable '.[dev]'
	@touch $(RUN_OK) $@

setup: $(DEV_OK) ## Create the environment with everything that tests and lint need
	@:

demo: $(RUN_OK) ## The main job on this machine: queues, terminals, a worker killed, its run recovered
	@$(DEMO)

test: $(DEV_OK) ## Set-up and the whole test suite (ARGS="tests/unit -x" narrows it)
	@$(VENV)/bin/python -m pytest --numprocesses $(JOBS) --dist loadfile $(ARGS)

test-full: $(DEV_OK) ## The same with the large counts: thousands of runs, starts and requeues, 200 MB floods (about twice as long)
	@OAH_TEST_FULL=1 $(VENV)/bin/python -m pytest --numprocesses $(JOBS) --dist loadfile $(ARGS)

agents: $(DEV_OK) ## Install the real agent programs that tests can drive (AGENTS="qwen pi" for some, quick for those of make test), below OAH_AGENTS_DIR
	@$(VENV)/bin/python -m tests.support.real_agents $(AGENTS)

test-agents: $(DEV_OK) ## Drive all of them through the queue, and terminals with all that is dear (AGENTS="qwen pi" for some)
	@OAH_TEST_AGENTS="$(or $(AGENTS),all)" OAH_TEST_FULL=1 $(VENV)/bin/python -m pytest tests/process/test_real_agents.py \
	  tests/process/test_real_homes.py tests/process/test_terminal_leaks.py tests/process/test_terminal_scenarios.py tests/golden $(ARGS)

chaos: $(DEV_OK) ## Stores and processes fail by seed, a judge looks for what is lost or doubled (SEEDS=10 SECONDS=60, or SEED=7)
	@$(VENV)/bin/python -m tests.support.chaos $(or $(SEED),$(FIRST)) $(if $(SEED),1,$(SEEDS)) $(SECONDS) $(KEEP)

lint: $(DEV_OK) ## ruff, mypy --strict, import contracts
	@$(VENV)/bin/ruff check
	@$(VENV)/bin/ruff format --check
	@$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports --no-logo

format: $(DEV_OK) ## Let ruff fix and format
	@$(VENV)/bin/ruff check --fix
	@$(VENV)/bin/ruff format

reference: $(DEV_OK) ## Write the tables of docs/reference that come from the code
	@$(VENV)/bin/python -m tests.support.commands_page
	@$(VENV)/bin/python -m tests.support.reference_pages

bench: $(DEV_OK) ## Benchmarks; JSON on standard output
	@$(BENCH)

clean: ## Remove the environment and caches (never data directories)
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
