# `make help` lists the commands. Settings, by name=value or from the environment:
#   PYTHON   the Python to build on, 3.11 to 3.13 (python3)
#   ARGS     arguments for the command, e.g. make quickstart ARGS=--fresh
#   UV_*     uv's own settings, e.g. UV_TORCH_BACKEND=cpu for a CPU-only torch

ifneq ($(shell uname -s),Linux)
$(error air runs on Linux and this is $(shell uname -s): use a Linux container or a remote machine)
endif

SHELL  := /bin/bash -eo pipefail
PYTHON ?= python3
BIN    := .venv/bin
PY     := $(BIN)/python
READY  := .venv/.ready
AIR_CLI := $(BIN)/air

.DEFAULT_GOAL := help
.PHONY: help quickstart test learning mutants bench-sandbox check clean env

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 24

quickstart: $(READY)  ## set everything up, then train a small agent on three tasks
	@$(AIR_CLI) setup
	@AIR_SETUP_SAID_SO=1 $(AIR_CLI) quickstart $(ARGS)

test: $(READY)  ## set everything up, then run every test (AIR_REQUIRE_DOCKER=1: none may be skipped)
	@$(AIR_CLI) setup
	@$(BIN)/pytest $(ARGS)

learning: $(READY)  ## show that training raises the reward, against a control (up to an hour)
	@$(AIR_CLI) setup
	@$(PY) bench/learning.py $(ARGS)

mutants: $(READY)  ## take out each defence of the boxes in turn; a test must turn red
	@$(AIR_CLI) setup
	@$(PY) -m tests.mutants $(ARGS)

bench-sandbox: $(READY)  ## time boxes beside docker and verifiers (a quarter of an hour; ARGS=--quick)
	@$(AIR_CLI) setup
	@$(PY) bench/sandbox.py $(ARGS)

.PHONY: test-primerl
test-primerl:  ## run prime-rl's orchestrator, loader and loss on our environment: PRIME_RL=DIR (Python 3.12)
	@PYTHON="$(PYTHON)" PRIME_RL="$(PRIME_RL)" VERIFIERS="$(VERIFIERS)" .ci/primerl $(ARGS)

check: $(READY)  ## style, types, and the direction of imports
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/pytest -q tests/unit/test_imports.py tests/unit/test_light.py

clean:  ## remove the environment and caches; outputs/ and Docker images stay
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache

env: $(READY)  ## only the Python environment

$(READY): pyproject.toml constraints.txt
	@PYTHON="$(PYTHON)" .ci/environment
