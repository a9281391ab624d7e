# Every public target has a `##` text: `make help` prints them.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
DEV := .venv-dev
LINT := .venv-lint
MUTATE := .venv-mutate
# What is compared with, in an environment of its own.
BENCH := .venv-bench
RUN := $(VENV)/bin/vllm-supervisor
PIP_FLAGS := -qq --disable-pip-version-check --no-input
# Processes are started by the hundred here: where none keeps bytecode, each compiles the sources anew.
unexport PYTHONDONTWRITEBYTECODE
ARGS ?=
FUZZ ?= short
# Every branch of these is taken by some test.
WHOLE := vllm_supervisor/domain/*,vllm_supervisor/runtime/*
SOAK ?= long
# Where `make install` puts things; PYTHON= there must be an interpreter that the service's user can read.
PREFIX ?= /usr
SYSCONFDIR ?= /etc
DESTDIR ?=
PURGE ?=
WHEELS ?= wheels
# Faults of `make chaos`; CHAOS=long does 5,000.
CHAOS ?=
FAULTS ?= $(if $(filter long,$(CHAOS)),5000,300)
SEED ?=
INSTALL = PYTHON="$(if $(filter file,$(origin PYTHON)),/usr/bin/python3,$(PYTHON))" PREFIX="$(PREFIX)" \
	SYSCONFDIR="$(SYSCONFDIR)" DESTDIR="$(DESTDIR)" PIP_FLAGS="$(PIP_FLAGS)" PURGE="$(PURGE)" \
	WHEELS="$(WHEELS)" sh etc/install.sh
PROFILES := short long
$(foreach what,FUZZ SOAK CHAOS,$(if $(filter-out $(PROFILES),$($(what))),$(error $(what)=$($(what)): it is one of $(PROFILES))))
# Facts and tools that live beside the checkout; tests that need them say so and skip where they are absent.
SHARED ?= $(wildcard ../shared)
$(if $(SHARED),$(if $(wildcard $(SHARED)/.),,$(error SHARED=$(SHARED): there is no such folder)))
export VLLM_FACTS ?= $(if $(SHARED),$(abspath $(SHARED)/vllm))

.PHONY: help run test test-systemd test-vllm fuzz soak coverage mutate bench bench-vllm chaos lint fmt types lock install uninstall wheels completions clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

# The run-time environment holds what an operator would install and nothing else: figures are taken in it.
$(VENV)/.done: requirements.txt pyproject.toml
	@echo "setting up $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or later is needed; set PYTHON=" >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/pip install $(PIP_FLAGS) --require-hashes -r requirements.txt
	@$(VENV)/bin/pip install $(PIP_FLAGS) --no-deps -e .
	@touch $@

$(DEV)/.done: requirements-dev.txt pyproject.toml
	@echo "setting up $(DEV)"
	@$(PYTHON) -m venv $(DEV)
	@$(DEV)/bin/pip install $(PIP_FLAGS) --require-hashes -r requirements-dev.txt
	@$(DEV)/bin/pip install $(PIP_FLAGS) --no-deps -e .
	@touch $@

run: $(VENV)/.done ## run the daemon on the built-in simulator (etc/demo.yaml)
	@$(RUN) run -c etc/demo.yaml

test: $(DEV)/.done ## run the tests that need neither root nor a real vLLM
	@$(DEV)/bin/python -m pytest -n 5 --dist worksteal -m 'not systemd and not vllm' $(ARGS)

test-systemd: $(DEV)/.done ## run the shipped unit under a real systemd (root, Debian's systemd-container)
	@REAL_SYSTEMD=$(if $(SHARED),$(abspath $(SHARED)/real-systemd/boot.sh)) \
		$(DEV)/bin/python -m pytest -m systemd $(ARGS)

test-vllm: $(DEV)/.done ## run the promises on a real vLLM: VLLM_BIN=... VLLM_TINY_MODEL=...
	@VLLM_BIN=$(VLLM_BIN) VLLM_TINY_MODEL=$(VLLM_TINY_MODEL) $(DEV)/bin/python -m pytest -m vllm -o faulthandler_timeout=900 $(ARGS)

$(LINT)/.done: tests/lint-requirements.txt
	@echo "setting up $(LINT)"
	@$(PYTHON) -m venv $(LINT)
	@$(LINT)/bin/pip install $(PIP_FLAGS) --require-hashes -r tests/lint-requirements.txt
	@touch $@

$(MUTATE)/.done: tests/mutate-requirements.txt
	@echo "setting up $(MUTATE)"
	@$(PYTHON) -m venv $(MUTATE)
	@$(MUTATE)/bin/pip install $(PIP_FLAGS) --require-hashes -r tests/mutate-requirements.txt
	@touch $@

mutate: $(MUTATE)/.done ## mutate domain/, and tell the score and what its tests do not notice (an hour): ARGS='vllm_supervisor.domain.machine*'
	@HYPOTHESIS_PROFILE=mutate PATH="$(CURDIR)/$(MUTATE)/bin:$$PATH" $(MUTATE)/bin/python -m tests.mutation $(ARGS)

# What is measured runs at half its pace or less, hence the longer limit. Figures are told of failed tests as well;
# what was killed while it wrote its own is left out.
coverage: $(DEV)/.done ## branch coverage by `make test`, daemons included (slower): all of domain/ and runtime/, 90 % else
	@$(DEV)/bin/coverage erase
	@failed=0; report="$(DEV)/bin/coverage report --skip-covered --show-missing"; \
	$(DEV)/bin/coverage run -m pytest -n 4 --dist worksteal -m 'not systemd and not vllm' -o timeout=600 \
		-o faulthandler_timeout=500 $(ARGS) || failed=1; \
	$(DEV)/bin/coverage combine -q 2>/dev/null || failed=1; \
	rm -f .coverage.*; \
	$$report --omit='$(WHOLE)' --fail-under=90 || failed=1; \
	$$report --include='$(WHOLE)' --fail-under=100 || failed=1; \
	exit $$failed

bench: $(VENV)/.done ## measure the daemon beside others on this machine: ARGS="--quick --json FILE"
	@sh tests/bench/peers.sh $(BENCH) $(PYTHON)
	@BENCH_VENV=$(BENCH) REAL_SYSTEMD=$(if $(SHARED),$(abspath $(SHARED)/real-systemd/boot.sh)) \
		$(VENV)/bin/python -m tests.bench $(ARGS)

fuzz: $(DEV)/.done ## look for what breaks on any input: FUZZ=short, or long with new examples each time
	@HYPOTHESIS_PROFILE=$(FUZZ) $(DEV)/bin/python -m pytest -n 4 --dist worksteal -o timeout=3600 \
		tests/fuzz tests/domain/test_stateful.py tests/domain/test_totality.py tests/config/test_interpolate.py \
		tests/config/test_vllm_args.py tests/adapters/test_engine_metrics.py tests/adapters/test_logtail.py $(ARGS)

chaos: $(DEV)/.done ## run seeded faults against the daemon with an outside observer: SEED= FAULTS=300 CHAOS=long
	@$(DEV)/bin/python -m tests.chaos --faults $(FAULTS) $(if $(SEED),--seed $(SEED)) $(ARGS)

soak: $(VENV)/.done $(DEV)/.done ## 1,000 restarts and 100,000 questions; SOAK=short for half a minute
	@SOAK_RESTARTS=$(if $(filter short,$(SOAK)),40,1000) $(DEV)/bin/python -m pytest -q -o timeout=900 \
		tests/runtime/test_soak.py
	@$(VENV)/bin/python -m tests.soak $(if $(filter short,$(SOAK)),--restarts 15 --queries 3000) $(ARGS)

bench-vllm: $(VENV)/.done ## kill a real vLLM until it serves again: VLLM_BIN=... VLLM_TINY_MODEL=...
	@VLLM_BIN=$(VLLM_BIN) VLLM_TINY_MODEL=$(VLLM_TINY_MODEL) \
		REAL_SYSTEMD=$(if $(SHARED),$(abspath $(SHARED)/real-systemd/boot.sh)) $(VENV)/bin/python -m tests.bench.vllm $(ARGS)

lint: $(DEV)/.done $(LINT)/.done ## ruff, and the floors of the house
	@$(DEV)/bin/ruff check .
	@$(DEV)/bin/ruff format --check .
	@PYTHONPATH=. $(LINT)/bin/lint-imports

types: $(DEV)/.done ## mypy, strict
	@$(DEV)/bin/mypy

fmt: $(DEV)/.done ## format
	@$(DEV)/bin/ruff format .
	@$(DEV)/bin/ruff check --fix .

lock: ## pin dependencies with hashes (needs uv)
	@uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header pyproject.toml -o requirements.txt
	@uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --group dev pyproject.toml -o requirements-dev.txt
	@uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --group pyproject.toml:lint -o tests/lint-requirements.txt
	@uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --group mutate pyproject.toml -o tests/mutate-requirements.txt

install: ## install for this host: PREFIX=/usr SYSCONFDIR=/etc DESTDIR= PYTHON=/usr/bin/python3 PIP_FLAGS=
	@$(INSTALL) install

uninstall: ## remove what install put there; PURGE=1 removes configuration, state and logs too
	@$(INSTALL) uninstall

wheels: ## fetch what `make install` takes from the network, for a host without: WHEELS=wheels
	@$(INSTALL) wheels

completions: $(DEV)/.done ## write the shells' completions anew from the commands' parsers
	@$(DEV)/bin/python etc/completions/generate.py

clean: ## remove what was set up and built here
	@rm -rf $(VENV) $(DEV) $(LINT) $(BENCH) build dist wheels .coverage* .hypothesis
