# Two commands do everything on a fresh machine: `make demo` and `make test`. Both build .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 2

.PHONY: demo test check clean

demo: $(VENV)/.installed
	$(BIN)/hush train --out demo/digits

test: $(VENV)/.installed-test check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS)

check: $(VENV)/.installed-test
	$(BIN)/ruff check src tests
	$(BIN)/ruff format --check src tests
	$(BIN)/mypy

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/.installed-test: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test]'
	touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) demo
