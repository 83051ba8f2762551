# Two commands do everything: `make run` (the whole system, real models) and `make test` (every check and test).
PYTHON ?= python3
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup run test check clean
.DEFAULT_GOAL := test

setup: $(STAMP)

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing the locked requirements into $(VENV) (once; torch is large)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

# Starts every role as its own process and asks one question; ARGS=--once stops after the answer.
run: setup
	@$(BIN)/sdcp models fetch demo
	@$(BIN)/sdcp up --prompt "Explain in a few sentences why the sky is blue." $(ARGS)

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: check
	@$(BIN)/sdcp models fetch demo
	$(BIN)/sdcp vectors tests/data/vectors/*.json
	$(BIN)/pytest -q

clean:
	rm -rf $(VENV) .sdcp .mypy_cache .ruff_cache .pytest_cache
