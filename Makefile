# Everything on a fresh machine: `make run`, `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: install run test test-cluster lint docs bench reproduce verify-results clean

install: $(VENV)/.installed

run: $(READY)
	$(BIN)/python -m studies demo

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -q # two processes, a thread each

# Ray and Dask, each with two worker processes on this machine (extra "cluster").
test-cluster: $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[cluster,tune]'
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m cluster tests

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# For example: make reproduce STUDY=table1 OPTIONS=--quick
reproduce: $(READY)
	$(BIN)/python -m studies $(STUDY) $(OPTIONS)

# Committed results: pages show them, and the code still recognizes their settings.
verify-results: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m results tests

bench: $(READY)
	$(BIN)/python -m benchmarks

# What a user needs, without the tools of development.
$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch==$(shell sed -n 's/^torch==//p' constraints.txt)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[all]'
	touch $@

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch==$(shell sed -n 's/^torch==//p' constraints.txt)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
