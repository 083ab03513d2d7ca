# Set-up and all that can be run. Two commands do everything: make demo, make test.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup demo test check bench parity soak clean

setup: $(READY)

$(READY): setup.cfg pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $(READY)

# Real text found on this machine: gather, train a tokenizer, build, verify, train, report.
demo: setup
	$(BIN)/python -m pipelines.demo demo

test: setup
	$(BIN)/python -m pytest

# Format, lint, types, and the import graph.
check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_import_graph.py

# Long: ours against the peers, each in its own environment.
bench: setup
	$(BIN)/python -m benchmarks.run_all

# Long (two hours): the trainer on up to 8 processes, every kind of parallelism, against one
# process; and a loss that falls in every mode, on the demo's corpus.
parity: demo
	$(BIN)/python -m pytest -m parity
	$(BIN)/python -m tests.training.parity_matrix
	$(BIN)/python -m tests.training.demo_modes demo/out

# Long, several GB of disk: more kills, and the memory of a build on made corpora of 2 and 4 GB.
soak: setup
	$(BIN)/python -m pytest -m soak
	$(BIN)/python -m benchmarks.memory --mb 2000 4000

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis demo
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
