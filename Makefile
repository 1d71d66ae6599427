# Two commands: `make run` shows what quire does, `make test` proves it. Both set up `.venv` first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: run test test-slow lint docs clean

run: $(READY)
	$(BIN)/python examples/tour.py

test: $(READY)
	$(BIN)/pytest -q -m "not slow and not gpu"

test-slow: $(READY)
	$(BIN)/pytest -q -m "slow or not slow"

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/cog --check docs/hooks.md docs/options.md docs/plugins.md

docs: $(READY)
	$(BIN)/cog -r docs/hooks.md docs/options.md docs/plugins.md

# pip, with a constraints file: elsewhere an unpinned torch pulls gigabytes of CUDA libraries.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("quire needs Python 3.11 or newer") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $(READY)

clean:
	rm -rf $(VENV)
