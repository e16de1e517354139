# Two commands do everything on a fresh machine: `make demo` and `make test`. Both build .venv first.
# `make test-fast` leaves out what takes long; `make test-ray` tests sweeps on a Ray cluster, which `make test` leaves out.
# `make speed` measures the step times of docs/speed.md, with the peers, and writes the page: on a machine that does nothing
# else. `make speed SPEED="--quick DIR"` tries it with one model.
# `make test-browser` opens the pages in the system's Chromium; without one its tests are skipped and say why.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 2

.PHONY: demo test test-fast test-ray test-browser check speed clean

demo: $(VENV)/.installed
	$(BIN)/hush train --out demo/digits
	$(BIN)/hush report demo/digits

test: $(VENV)/.installed-test check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) -m "not ray"

test-fast: $(VENV)/.installed-test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) -m "not slow and not repo and not browser and not ray"

test-ray: $(VENV)/.installed-test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 0 -m ray

test-browser: $(VENV)/.installed-test
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[browser]' \
	  || echo "Playwright cannot be installed from here: the tests of pages are skipped"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 0 -rs -m browser

check: $(VENV)/.installed-test
	$(BIN)/ruff check src tests
	$(BIN)/ruff format --check src tests
	$(BIN)/mypy

speed: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[peers,hf]'
	$(BIN)/python benchmarks/speed_page.py measure $(SPEED)

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
