# Every task of the repository; `make` alone lists them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DEMO ?= out/demo
DEMO_ID := gar-data-uri-in-prose
DATA ?=

# The stamp carries the checksum of what decides the venv, so a right one is never installed again,
# whatever the times of the files.
STAMP := $(VENV)/.installed-$(shell cat pyproject.toml constraints.txt | cksum | cut -d' ' -f1)

.PHONY: help venv demo test soak lint format docs bench wheel clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(STAMP) ## make .venv and install cleanfeed with the tested versions

$(STAMP):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || { \
	  echo "Python too old or missing: $(PYTHON): got $$($(PYTHON) --version 2>/dev/null || echo nothing)," \
	       "expected Python 3.10 or newer. Name another one: make PYTHON=/path/to/python3" >&2; exit 2; }
	@test -x $(BIN)/python || { echo "making $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,hub,ray,s3,tensorboard,train]'
	@rm -f $(VENV)/.installed-*
	@touch $@

demo: $(STAMP) ## the whole story: build the samples; train, break, go back and go on; the report
	$(BIN)/cleanfeed build data_samples/ --out $(DEMO)/samples --tokenizer data_samples/tokenizer.json --overwrite
	$(BIN)/cleanfeed verify $(DEMO)/samples
	$(BIN)/cleanfeed explain $(DEMO)/samples $(DEMO_ID)
	$(BIN)/python pipelines/demo.py $(DEMO)

test: $(STAMP) ## run the tests
	$(BIN)/python -m pytest

soak: $(STAMP) ## the long tests: kills at many moments, poison of 20 seeds, mutated records (half an hour)
	CLEANFEED_KILLS=56 CLEANFEED_POISON=20 CLEANFEED_MUTATIONS=25000 $(BIN)/python -m pytest \
	  tests/build/test_kills.py tests/build/test_crash.py tests/build/test_mutations.py tests/training/test_crash.py tests/training/test_poison.py

lint: $(STAMP) ## ruff, mypy, the import rule, generated pages up to date
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/generate.py --check

format: $(STAMP) ## let ruff sort imports and format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(STAMP) ## write docs/cli.md, docs/rules.md and docs/signals.md anew
	$(BIN)/python docs/generate.py

bench: $(STAMP) ## measure against the floors (DATA=FILE.jsonl.zst for text of your own)
	$(BIN)/python benchmarks/bench.py $(DATA)
	$(BIN)/python benchmarks/feed_scale.py
	$(BIN)/python benchmarks/feed.py
	$(BIN)/python benchmarks/guard.py
	$(BIN)/python benchmarks/report.py
	$(BIN)/python benchmarks/growth.py --parts signals signatures
	$(BIN)/python benchmarks/growth.py --parts tokens --sizes 1 10

wheel: $(STAMP) ## build the wheel into dist/
	$(BIN)/python -m build --wheel --outdir dist

clean: ## remove what the tasks made, except the venv
	rm -rf dist build-wheel $(DEMO) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
