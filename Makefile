# Two commands do everything: `make run` (the whole system, real models) and `make test` (every check and test).
# The others say how good the tests are: `make coverage mutants conformance fuzz`.
PYTHON ?= python3
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
EMPTY :=
SPACE := $(EMPTY) $(EMPTY)
COMMA := ,
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
	$(BIN)/sdcp vectors tests/data/vectors/*.json conformance/vectors/*.json
	$(BIN)/pytest -q

# Every branch of the core is taken by its own unit tests.
CORE := errors wire messages rules machines
coverage: setup
	HYPOTHESIS_PROFILE=brief $(BIN)/coverage run --branch --source=$(subst $(SPACE),$(COMMA),$(CORE:%=sdcp.%)) -m pytest -q \
	  $(addprefix tests/unit/,wire messages rules machines) \
	  $(addprefix --ignore=tests/unit/machines/,test_verifier_random.py test_drafter_random.py test_drafter_verifier.py) \
	  -k "not memory and not integers_count_as and not counts_as_an_item and not bounds_hold"
	$(BIN)/coverage report --fail-under=100 --show-missing --skip-covered

# The recorded test that catches each deliberate fault; `.venv/bin/python -m tests.mutants --help` for whole tiers.
mutants: setup
	$(BIN)/python -m tests.mutants --recorded --jobs 2 $(ARGS)

# Judges our roles over the wire, as any other implementation would be.
conformance: setup
	$(BIN)/sdcp-conformance run --subject $(BIN)/sdcp $(ARGS)

# The same luck each time; `ARGS="--seed 0 --seconds 600"` tries its own, for longer.
fuzz: setup
	$(BIN)/python -m fuzz --seconds 60 --jobs 2 --seed 1 $(ARGS)

clean:
	rm -rf $(VENV) .sdcp .mypy_cache .ruff_cache .pytest_cache
