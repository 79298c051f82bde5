PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: run test test-slow check bases clean

## Quickstart: set up, then curate real chess puzzles on the CPU, with a report at the end.
run: $(INSTALLED)
	$(BIN)/curate run examples/quickstart.yaml

## All tests, with reduced counts where the full ones are slow.
test: $(INSTALLED)
	$(BIN)/python -m pytest -m "not slow"

## The full counts (20 kills of the driver, ...).
test-slow: $(INSTALLED)
	$(BIN)/python -m pytest -m slow

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

## The models under examples/bases, again: make bases PUZZLES=lichess_puzzles.parquet
bases: $(INSTALLED)
	$(BIN)/python examples/make_bases.py $(PUZZLES)

$(INSTALLED): pyproject.toml constraints.txt
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) runs build *.egg-info
