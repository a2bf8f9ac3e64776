# Two commands do all the set-up on a fresh machine: `make predict` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: predict test lint conform mutants bench clean

predict: $(VENV)/.installed
	$(BIN)/epsim predict --system ubl128 --model benchmark --ep 8,16,32,64,128 --stepped --draws auto --compare

# Files of tests go to as many processes as there are cores; `python -m pytest` alone does the same in one.
test: $(VENV)/.installed-test
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

conform: $(VENV)/.installed-test
	$(BIN)/epsim conform --backend twin --profile full

mutants: $(VENV)/.installed-test
	$(BIN)/python -m tests.mutants

bench: $(VENV)/.installed-test
	$(BIN)/python -m benchmarks

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "epsim needs Python 3.11 or newer; set PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.installed-test: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[plot,fast,parquet,cluster,exchange,torch,test,dev]'
	touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .hypothesis
