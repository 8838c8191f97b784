# Everything runs in .venv, which the first target that needs it makes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The build of torch that the slow tests use; one that needs no GPU.
TORCH ?= torch==2.13.0
SOAK_SECONDS ?= 600

.PHONY: run test test-slow check bench clean

run: $(VENV)/.base
	$(BIN)/mprunner collect ALE/Breakout-v5 --num-runners 2 --steps 20000

test: $(VENV)/.dev
	$(BIN)/python -m pytest -m "not slow"

test-slow: $(VENV)/.slow
	$(BIN)/python -m pytest -m slow --timeout 900

check: $(VENV)/.dev
	$(BIN)/python -m flake8
	$(BIN)/python -m mypy

bench: $(VENV)/.bench
	$(BIN)/python benchmarks/compare_threads.py

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.base: setup.cfg setup.py | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[atari,cli]'
	touch $@

$(VENV)/.dev: $(VENV)/.base
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[atari,cli,dev]'
	touch $@

$(VENV)/.slow: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check '$(TORCH)'
	touch $@

$(VENV)/.bench: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[atari,cli,bench]'
	touch $@
