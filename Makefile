# make demo   a mesh on this machine, real chats, a live table of what routing learnt
# make test   everything that CI checks
# make chaos  a long storm: nodes die and freeze under hundreds of chats
# Both set up all they need: uv and the packages of the lock, in this folder; llama.cpp is compiled once.

UV := $(shell command -v uv 2>/dev/null || echo .tools/bin/uv)
RUN := .venv/bin
ARGS ?=

.PHONY: demo test chaos setup lint types imports tests browser format clean

demo: setup
	$(RUN)/meshnet demo $(ARGS)

test: lint types imports tests

lint: setup
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .

types: setup
	$(RUN)/mypy

imports: setup
	$(RUN)/lint-imports

tests: setup browser
	$(RUN)/pytest

# The dashboard's tests drive the system's Chromium. Without it they are skipped, which CI counts as a failure.
browser:
	@if command -v chromium >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; \
	else echo "No chromium: the dashboard's browser tests will be skipped (Debian: apt install chromium)"; fi

# Nodes are killed and frozen under hundreds of chats; CHATS and SEED say how many and what happens when.
CHATS ?= 300
SEED ?= 1

chaos: setup
	STORM_CHATS=$(CHATS) STORM_SEED=$(SEED) $(RUN)/pytest -s tests/chaos

format: setup
	$(RUN)/ruff check --fix .
	$(RUN)/ruff format .

setup: $(UV)
	@command -v c++ >/dev/null || { echo "A C/C++ compiler is needed to build llama.cpp (Debian: apt install build-essential)"; exit 1; }
	@test -d .venv || echo "Setting up. The first time, llama.cpp is compiled: four to ten minutes on two cores; later set-ups take it from uv's cache."
	$(UV) sync --locked

.tools/bin/uv:
	python3 -m venv .tools || { echo "python3 -m venv does not work here (Debian: apt install python3-venv)"; rm -rf .tools; exit 1; }
	.tools/bin/python -m pip install --quiet --disable-pip-version-check "uv>=0.9"

clean:
	rm -rf .venv .tools .mypy_cache .ruff_cache .pytest_cache .hypothesis
