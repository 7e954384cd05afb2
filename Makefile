# `make demo` and `make test` need only Python 3.11 or newer, pip and make; everything else goes into .venv.
PYTHON ?= python3
BIN := .venv/bin
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal

.PHONY: demo test coverage test-faults lint docs clean

demo: .venv/.installed  ## compare CLIP and Tent with and without Panda on the embedded model and data
	$(BIN)/tta-panda bench --method clip,tent --limit 1000 --output runs

test: .venv/.installed-for-tests  ## run all tests but the slow ones
	$(PYTEST)
	$(PYTEST) tests/device

coverage: .venv/.installed-for-tests  ## the same, and measure which lines of src they reach: takes about twice as long
	$(PYTEST) --cov --cov-report=
	$(PYTEST) --cov --cov-report= --cov-append tests/device
	$(BIN)/coverage report --format=total

test-faults: .venv/.installed-for-tests  ## slow tests; kill, interrupt and starve commands: plan for more than half an hour
	$(BIN)/python -m pytest -m 'faults or slow'
	$(BIN)/python -m pytest -m 'faults or slow' tests/device

lint: .venv/.installed-for-tests  ## check style, types and spelling
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell

docs: .venv/.installed-for-docs  ## build the documentation site: docs/_build/html/index.html
	$(BIN)/python -m sphinx -n -W --keep-going -d docs/_build/doctrees docs docs/_build/html

clean:
	rm -rf .venv runs build dist docs/_build

.venv/.installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "tta-panda needs Python 3.11 or newer; run: make PYTHON=python3.11 demo")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

.venv/.installed-for-tests: .venv/.installed
	$(BIN)/python -m pip install --quiet --editable '.[test,lint]'
	touch $@

.venv/.installed-for-docs: .venv/.installed
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	touch $@
