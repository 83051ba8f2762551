# Two commands do everything: `make run` (the whole system, real models) and `make test` (every check and test).
# The others say how good the tests are: `make coverage mutants conformance fuzz`.
PYTHON ?= python3
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup run test check coverage mutants conformance fuzz clean
.DEFAULT_GOAL := test

setup: $(STAMP)

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing the locked requirements into $(VENV) (once; torch is large)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable . --editable conformance
	@touch $@

# Starts every role as its own process and asks one question; ARGS=--once stops after the answer.
run: setup
	@$(BIN)/sdcp models fetch demo
	@$(BIN)/sdcp up --prompt "Explain in a few sentences why the sky is blue." $(ARGS)

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	cd conformance && ../$(BIN)/mypy
	$(BIN)/lint-imports

test: check
	@$(BIN)/sdcp models fetch demo
	$(BIN)/sdcp vectors tests/data/vectors/*.json
	$(BIN)/pytest -q

# The recorded test that catches each deliberate fault; `.venv/bin/python -m tests.mutants --help` for whole tiers.
mutants: setup
	$(BIN)/python -m tests.mutants --recorded --jobs 2 $(ARGS)

# Judges our roles over the wire, as any other implementation would be.
conformance: setup
	$(BIN)/sdcp-conformance run --subject $(BIN)/sdcp $(ARGS)

fuzz: setup
	$(BIN)/python -m fuzz --seconds 60 --jobs 2 $(ARGS)

clean:
	rm -rf $(VENV) .sdcp .mypy_cache .ruff_cache .pytest_cache
