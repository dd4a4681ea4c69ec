# The habitual commands in one place.
.DEFAULT_GOAL := help
.PHONY: help setup demo test lint types sim soak bench docs machines columns notebook format lock clean

PY := .venv/bin/python

help:     ## show this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  \1	\2/p' $(MAKEFILE_LIST)

setup:    ## .venv with the pinned packages, and Java if it is missing
	@scripts/setup.sh

demo:     ## the demo
	@./demo

test:     ## lint, types and all fast tests
	@./test

lint:     setup ## ruff: rules and format
	@.venv/bin/ruff check
	@.venv/bin/ruff format --check

types:    setup ## mypy
	@.venv/bin/mypy

sim:      ## the simulator's tests: the judge of the protocol
	@./test --only sim

soak:     ## the tests that take minutes
	@./test soak

bench:    setup ## the benchmarks
	@.venv/bin/clonos-bench

docs:     setup ## run every example in the docstrings
	@$(PY) -m pytest src/clonos benchmarks/src examples/demo

columns: setup ## make the list in docs/columns.md from the table of functions
	@$(PY) scripts/columns.py

notebook: setup ## run the notebook of the fraud example, and keep what it shows
	@$(PY) scripts/notebook.py

machines: setup ## make docs/machines.md from the tables
	@$(PY) scripts/machines.py > docs/machines.md

format:   setup ## let ruff format and fix what it can
	@.venv/bin/ruff check --fix
	@.venv/bin/ruff format

lock:     setup ## resolve the locks anew
	@$(PY) -m pip install -q uv
	@$(PY) -m uv pip compile pyproject.toml benchmarks/pyproject.toml --extra causal --extra delta --extra iceberg --extra kafka --extra mqtt --extra objects --extra otel --extra postgres --extra prometheus --extra redis --extra tls --extra watch --extra websocket \
	    --group dev --no-emit-package clonos \
	    --universal --python-version 3.10 --generate-hashes --no-annotate --no-emit-index-url \
	    --no-emit-find-links --custom-compile-command "make lock" --upgrade -q -o requirements.lock
	@$(PY) -m uv pip compile scripts/flink.in --universal --python-version 3.10 --generate-hashes \
	    --no-annotate --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" \
	    --upgrade -q -o scripts/flink.lock

clean:    ## remove everything that was made
	@rm -rf .venv .venv-flink .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist out \
	    spark-warehouse metastore_db artifacts derby.log
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
