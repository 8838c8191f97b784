# Everything runs in .venv, which the first target that needs it makes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The build of torch that the slow tests use; one that needs no GPU.
TORCH ?= torch==2.13.0
# What the README's recipes use beside the extras.
RECIPES ?= stable-baselines3 minigrid
SOAK_SECONDS ?= 600
CHAOS_SECONDS ?= 3600
# Tests that run at once: most of them wait for processes, not for a core.
JOBS ?= 3
# Of what the tests draw at random, and of make train.
SEED ?= 0
PYTEST = $(BIN)/python -m pytest -n $(JOBS) --dist loadgroup --durations 10 --hypothesis-seed $(SEED)
# What bench-peers compares with; these versions work together on Python 3.11.
PEERS ?= stable-baselines3==2.9.2 tianshou==2.0.1 torchrl==0.14.1 envpool==1.2.5 ray==2.60.0

.PHONY: run test test-slow test-machine test-all check bench bench-quick bench-predict bench-peers train matrix soak chaos clean

run: $(VENV)/.base
	$(BIN)/mprunner collect ALE/Breakout-v5 --num-runners 2 --steps 20000

test: $(VENV)/.dev
	$(PYTEST) -m "not slow and not machine"

test-slow: $(VENV)/.slow
	$(PYTEST) -m "slow and not machine" --timeout 900

# What needs the whole machine, one test after the other.
test-machine: $(VENV)/.slow
	$(BIN)/python -m pytest -m machine --timeout 900

# Everything; with the ten minutes of soak and the hour of chaos.
test-all: check test test-slow test-machine soak chaos

check: $(VENV)/.dev
	$(BIN)/python -m flake8
	$(BIN)/python -m mypy

# About six minutes, on a machine that does nothing else; then README.md's tables and pictures.
bench: $(VENV)/.bench $(VENV)/.slow
	$(BIN)/python -m benchmarks.throughput --repeats 5 --seconds 1.5
	$(BIN)/python -m benchmarks.scale --workers 1 16 64 256 --seconds 2 --peers
	$(BIN)/python -m benchmarks.sample --repeats 5
	$(BIN)/python -m benchmarks.compare_threads --repeats 5 --seconds 1.5 --update-readme
	$(BIN)/python -m benchmarks.harness.report

# A quarter of an hour: thirty pools and vector environments, one after the other.
bench-predict: $(VENV)/.bench $(VENV)/.slow
	$(BIN)/python -m benchmarks.predict --repeats 9
	$(BIN)/python -m benchmarks.harness.report

# Under two minutes; fails only below generous floors.
bench-quick: $(VENV)/.dev
	$(BIN)/python -m benchmarks.quick

# More than an hour; the peers have an environment of their own.
bench-peers: $(VENV)/peers/.done
	$(VENV)/peers/bin/python -m benchmarks.peers
	$(VENV)/peers/bin/python -m benchmarks.learner_side
	$(VENV)/peers/bin/python -m benchmarks.scale --workers 64 --seconds 3 \
		--json benchmarks/results/scale_peers.json
	$(VENV)/peers/bin/python -m benchmarks.harness.report

# CartPole-v1 until the agent balances it: about half a minute, at most three.
train: $(VENV)/.slow
	$(BIN)/python -m benchmarks.dqn --env CartPole-v1 --seed $(SEED)

# Every way in which a worker can die, at every stage; the table goes into the README.
matrix: $(VENV)/.dev
	MPRUNNER_MATRIX=benchmarks/results/matrix.json \
		$(BIN)/python -m pytest -q -m "slow or not slow" tests/faults/test_matrix.py
	$(BIN)/python -m tests.faults.report benchmarks/results/matrix.json README.md

# Workers are killed, stopped and crashed for SOAK_SECONDS while a learner samples.
soak: $(VENV)/.dev
	$(BIN)/python -m tests.faults.soak --seconds $(SOAK_SECONDS)

# What only chance finds, for CHAOS_SECONDS; each round's seed is printed before it begins.
chaos: $(VENV)/.dev
	$(BIN)/python -m tests.chaos --seconds $(CHAOS_SECONDS)

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
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		-e '.[atari,cli,dev,minari,ray,tensorboard]' $(RECIPES)
	touch $@

# torch first, so that no peer pulls in a build for GPUs.
$(VENV)/peers/.done: setup.cfg setup.py | $(VENV)/bin/python
	$(PYTHON) -m venv $(VENV)/peers
	$(VENV)/peers/bin/python -m pip install --quiet --disable-pip-version-check '$(TORCH)'
	$(VENV)/peers/bin/python -m pip install --quiet --disable-pip-version-check \
		-e '.[atari,bench]' $(PEERS)
	touch $@

$(VENV)/.bench: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[atari,cli,bench]'
	touch $@
