# `make help` lists the commands. Settings, by name=value or from the environment:
#   PYTHON   the Python to build on, 3.11 to 3.13 (python3)
#   ARGS     arguments for the command, e.g. make quickstart ARGS=--fresh
#   RUN      the folder of a recorded run, for `make pictures`
#   AGENTGYM a checkout of AgentGym, for `make test-agentgym`
#   HARBOR   a checkout with tasks of Harbor, for `make test-harbor`
#   PRIME_RL a checkout of prime-rl, for `make schema`
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
VLLM_HOME := $(or $(AIR_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/air)/vllm
.PHONY: help quickstart test test-fast test-all test-verifiers vllm test-vllm test-primerl test-agentgym test-serve test-openenv test-harbor test-trl learning matrix coevolve hacking harbor integrity mutants bench-sandbox bench-serve bench-train bench-worlds bench-harbor bench-memory schema docs pictures check clean env

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 24

quickstart: $(READY)  ## set everything up, then train a small agent on three tasks
	@$(AIR_CLI) setup
	@AIR_SETUP_SAID_SO=1 $(AIR_CLI) quickstart $(ARGS)

# Tests wait for boxes and processes as often as they compute, so two workers more than cores keep these busy.
WORKERS ?= $(shell echo $$((2 + $$(nproc))))
PYTEST  := .ci/tests $(BIN) $(WORKERS)

test: $(READY)  ## set everything up, then run every test but the heavy ones (AIR_REQUIRE_DOCKER=1: none may be skipped)
	@$(AIR_CLI) setup
	@.ci/browser
	@$(PYTEST) $(ARGS)

test-fast: $(READY)  ## the tests that need no engine, no browser and no training (minutes)
	@$(PYTEST) --fast $(ARGS)

test-all: $(READY)  ## every test with full matrices, then attacks, mutants, older verifiers and other Pythons (hours)
	@$(AIR_CLI) setup
	@.ci/browser
	@AIR_FULL=1 AIR_TEST_PODMAN=$(shell command -v podman >/dev/null && echo 1) $(PYTEST) $(ARGS)
	@$(MAKE) --no-print-directory integrity
	@$(MAKE) --no-print-directory mutants
	@$(MAKE) --no-print-directory test-verifiers
	@.ci/pythons 3.12 3.13

# The oldest verifiers that the package allows; its constraints have the newest.
OLD_VERIFIERS := 0.3.1
OLD_VENV      := build/verifiers-$(OLD_VERIFIERS)
GLUE_TESTS    := tests/unit/env tests/e2e/episodes/test_episode.py tests/e2e/episodes/test_gpu_tasks.py \
                 tests/e2e/episodes/test_reward_terms.py tests/e2e/verifiers/test_commands.py \
                 tests/e2e/verifiers/test_serve.py tests/e2e/verifiers/test_time_limit.py

test-verifiers: $(READY)  ## test what touches verifiers on the oldest one that is supported, then on ours
	@$(AIR_CLI) setup
	@AIR_VENV=$(OLD_VENV) VERIFIERS=$(OLD_VERIFIERS) PYTHON="$(PYTHON)" .ci/environment
	$(OLD_VENV)/bin/pytest -n $(WORKERS) --dist loadgroup $(GLUE_TESTS) $(ARGS)
	$(PYTEST) $(GLUE_TESTS) $(ARGS)

vllm: $(READY)  ## install vLLM, for `rl --inference vllm`, into an environment of its own
	@PYTHON="$(PYTHON)" .ci/vllm

test-vllm: vllm  ## run whole training steps through a real vLLM process (ten minutes)
	@AIR_VLLM_PYTHON="$${AIR_VLLM_PYTHON:-$(VLLM_HOME)/bin/python}" $(BIN)/pytest tests/vllm $(ARGS)

test-agentgym: $(READY)  ## play and train on three real servers of a checkout: AGENTGYM=DIR (needs Java 17)
	@PYTHON="$(PYTHON)" .ci/agentgym
	@AIR_AGENTGYM_ROOT="$(abspath $(AGENTGYM))" $(BIN)/pytest -q tests/agentgym $(ARGS)

test-openenv: $(READY)  ## play with the stock packages openenv and openreward, as clients and as servers (minutes)
	@PYTHON="$(PYTHON)" .ci/openenv
	@AIR_OPENENV_PYTHON="$(CURDIR)/build/openenv/bin/python" $(BIN)/pytest tests/openenv/test_stock.py $(ARGS)

test-harbor: $(READY)  ## hold tasks, trajectories and rewards against Harbor's own package; HARBOR=DIR: look at a checkout's tasks
	@PYTHON="$(PYTHON)" .ci/harbor
	@$(AIR_CLI) setup
	@AIR_HARBOR_PYTHON="$(CURDIR)/build/harbor/bin/python" $(BIN)/pytest tests/harbor_package $(ARGS)
	@if [ -n "$(HARBOR)" ]; then AIR_HARBOR_PYTHON="$(CURDIR)/build/harbor/bin/python" \
		$(PY) -m tests.harbor_package.checkout "$(HARBOR)"; fi

test-trl: $(READY)  ## train with TRL on a task that air serves, by ORS and by OpenEnv (minutes; 1.4 GB)
	@PYTHON="$(PYTHON)" .ci/openenv trl
	@$(AIR_CLI) setup
	@AIR_TRL_PYTHON="$(CURDIR)/build/openenv-trl/bin/python" $(BIN)/pytest tests/openenv/test_trl.py $(ARGS)

learning: $(READY)  ## show that training raises the reward, against a control (up to an hour); ARGS="--recipe two-validates": with a changed recipe; ARGS=--algorithms: each algorithm on a small game; ARGS=--worlds: the games; ARGS=--harbor: Harbor tasks; ARGS=--tools: when to call the calculator
	@$(AIR_CLI) setup
	@$(PY) -m bench.learning $(ARGS)

harbor: $(READY)  ## check the small Harbor tasks of tests/harbor: sound ones pass, planted flaws are caught (a quarter of an hour)
	@AIR_FULL=1 $(BIN)/pytest tests/harbor $(ARGS)

matrix: $(READY)  ## train a small policy on each of four games, and play eight with each; interrupted, it continues
	@$(PY) -m bench.learning.matrix $(ARGS)

coevolve: $(READY)  ## train a proposer of questions and an executor on each other, with controls; interrupted, it continues
	@$(PY) -m bench.coevolve $(ARGS)

integrity: $(READY)  ## try to earn or escape a reward by cheating, on every task in both kinds of box (hours)
	@$(AIR_CLI) setup
	@failed=0; for kind in docker process; do $(AIR_CLI) tasks check --attacks --all --provider $$kind \
		--at-once 4 --report build/integrity-$$kind.json $(ARGS) || failed=1; done; exit $$failed

hacking: $(READY)  ## train a policy that was shown cheats, with the defences on and off (half an hour)
	@$(AIR_CLI) setup
	@$(PY) -m bench.hacking $(ARGS)

mutants: $(READY)  ## take out each defence of the boxes in turn; a test must turn red
	@$(AIR_CLI) setup
	@$(PY) -m tests.mutants $(ARGS)

bench-sandbox: $(READY)  ## time boxes beside docker and verifiers (a quarter of an hour; ARGS=--quick)
	@$(AIR_CLI) setup
	@$(PY) -m bench.sandbox $(ARGS)

bench-serve: $(READY)  ## time `air serve sandbox` beside SandboxFusion (five minutes; ORIGINAL=CHECKOUT, ARGS=--quick)
	@$(AIR_CLI) setup
	@$(PY) -m bench.serve $(if $(ORIGINAL),--original $(ORIGINAL)) $(ARGS)

bench-train: $(READY)  ## time the embedded engine beside TRL's GRPOTrainer (ten minutes; ARGS="--models 9M --cases short")
	@PYTHON="$(PYTHON)" .ci/trl
	@$(PY) -m bench.train $(ARGS)

test-serve: $(READY)  ## test `air serve sandbox`; FUSION=DIR E2B=DIR VERL=DIR: with checkouts of its clients
	@$(AIR_CLI) setup
	@$(PY) -c "from air.sandbox.docker import air_images; air_images.ensure('code'); air_images.ensure('e2b')"
	@AIR_FULL=1 AIR_VERL_ROOT="$(VERL)" $(BIN)/pytest -q tests/docker/serve $(ARGS)
	@if [ -n "$(FUSION)" ]; then $(PY) -m tests.docker.serve.fusion_suite "$(FUSION)"; fi
	@if [ -n "$(E2B)" ]; then $(PY) -m tests.docker.serve.e2b_suite "$(E2B)"; fi

bench-worlds: $(READY)  ## time games, questions and remote worlds, without a model (two minutes; ARGS="--games sokoban6")
	@$(PY) -m bench.worlds $(ARGS)

bench-harbor: $(READY)  ## time trials of Harbor's tasks beside Harbor's own package (minutes; ARGS="--rounds 1")
	@PYTHON="$(PYTHON)" .ci/harbor
	@$(AIR_CLI) setup
	@AIR_HARBOR_PYTHON="$(CURDIR)/build/harbor/bin/python" $(PY) -m bench.harbor $(ARGS)

bench-memory: $(READY)  ## measure the memory of one GRPO step of a 0.6B model (needs 16 GB; half an hour alone)
	@$(PY) -m bench.memory $(ARGS)

schema: $(READY)  ## read prime-rl's keys anew out of a checkout (PRIME_RL=DIR)
	@$(PY) -m air.train.prime_rl.schema.write_schema "$(PRIME_RL)"

test-primerl:  ## run prime-rl's launcher, orchestrator, trainer and loss on our environment: PRIME_RL=DIR (Python 3.12)
	@PYTHON="$(PYTHON)" PRIME_RL="$(PRIME_RL)" VERIFIERS="$(VERIFIERS)" .ci/primerl $(ARGS)

docs: $(READY)  ## build the documentation into build/docs, strictly
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet --strict -f docs/site/mkdocs.yml

pictures: $(READY)  ## make the pictures of the documentation from a recorded run: RUN=outputs/quickstart
	@$(PY) scripts/screenshots.py $(RUN) $(ARGS)

check: $(READY) docs  ## style, types, the direction of imports, licences, and the documentation
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/pytest -q tests/unit/test_imports.py tests/unit/test_light.py tests/unit/test_licences.py

clean:  ## remove the environment and caches; outputs/ and Docker images stay
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache

env: $(READY)  ## only the Python environment

$(READY): pyproject.toml constraints.txt
	@PYTHON="$(PYTHON)" .ci/environment
