# Two commands: `make run` shows what quire does, `make test` proves it. Both set up `.venv` first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: run test test-slow test-gpu lint docs clean

run: $(READY)
	$(BIN)/python examples/tour.py

test: $(READY)
	$(BIN)/pytest -q -m "not slow"

test-slow: $(READY)
	$(BIN)/pytest -q -m "slow or not slow"

# On a machine with a GPU: what only a GPU shows, and the kernels' own tests compiled.
test-gpu: $(READY)
	QUIRE_TEST_DEVICE=cuda $(BIN)/pytest -q -m "not slow" tests/gpu tests/framework/kernels tests/plugins/attention_backends tests/plugins/samplers

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
