.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Installation is finished when this file is newer than what it installed from.
INSTALLED := $(VENV)/.installed
INSTALLED_EXTRAS := $(VENV)/.installed-extras

help:  ## list these targets
	@awk -F ':.*##' '/^[a-z-]+:.*##/ {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# A run that was interrupted begins again, with the packages that pip has kept. setuptools warns that folders named as the
# package may take its place: in an editable installation they are the package.
PIP_INSTALL := PYTHONWARNINGS="ignore:Editable installation" $(BIN)/python -m pip install --disable-pip-version-check

$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "hf_video needs Python 3.11 or later; $(PYTHON) is not. Name another: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) cannot make virtual environments. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@echo $(if $(wildcard $@),"Bringing $(VENV) up to date with pyproject.toml.","Installing hf_video with PyTorch and the \
	  tools of development into $(VENV), once: 7 GB on disk. Downloads take minutes.")
	@$(PYTHON) -m venv $(VENV)
	@$(PIP_INSTALL) --quiet --upgrade pip
	@$(PIP_INSTALL) $(if $(wildcard $@),--quiet) --editable '.[dev]'
	@touch $@

$(INSTALLED_EXTRAS): $(INSTALLED)
	@echo "Installing Gradio, Ray and Playwright into $(VENV)."
	@$(PIP_INSTALL) --quiet --editable '.[dev,test-extras]'
	@touch $@

demo: $(INSTALLED)  ## train, evaluate, save and reload a video classifier on moving digits (3 minutes)
	@$(BIN)/hf-video demo

# One process a core. A file stays in one process, which makes its fixtures once; the order is that of tests/conftest.py.
PYTEST := $(BIN)/python -m pytest --numprocesses logical --maxprocesses 8 --dist loadfile --no-loadscope-reorder
QUICK := -m "not slow and not gpu and not extras"
LINT := $(BIN)/ruff check && $(BIN)/ruff format --check && $(BIN)/lint-imports && $(BIN)/mypy

# Lint runs beside the tests, and is printed after them. The last line is that of pytest.
test: $(INSTALLED)  ## lint, and run every test that needs no GPU and no browser and is not slow (7 minutes on two cores)
	@{ $(LINT); } >$(VENV)/lint.log 2>&1 & lint=$$!; \
	{ $(PYTEST) $(QUICK) $(ARGS); echo $$? >$(VENV)/tests.code; } | tee $(VENV)/tests.log; \
	wait $$lint; lint=$$?; cat $(VENV)/lint.log; tail -n 1 $(VENV)/tests.log; exit $$(($$(cat $(VENV)/tests.code) | lint))

test-slow: $(INSTALLED)  ## run the tests that repeat others at more sizes, moments and combinations (40 minutes at most)
	$(PYTEST) --session-timeout 2400 -m "slow and not gpu and not extras" $(ARGS)

# Other machines on this one: a processor without AVX (one thread, and no folder for caches, since nobody can write to
# /sys; Triton needs one), and one with AVX2 (two threads, and tests in an order that the first lines of the run say how to repeat). Each
# run takes less than eight minutes on two idle cores; all run, whatever fails.
OLD_MACHINE := env -u XDG_CACHE_HOME -u NUMBA_CACHE_DIR HOME=/sys TRITON_CACHE_DIR=$(CURDIR)/$(VENV)/triton OMP_NUM_THREADS=1 \
  ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=AVX2 NUMBA_CPU_NAME=generic $(PYTEST)
OTHER_MACHINE := env OMP_NUM_THREADS=2 ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 $(PYTEST) --random-order
NUMERIC := tests/ops tests/models tests/conversion tests/properties tests/inference tests/training
MACHINES := old-machine-numbers old-machine-commands other-machine-numbers other-machine-commands
old-machine-%: WITH := $(OLD_MACHINE)
other-machine-%: WITH := $(OTHER_MACHINE)
%-numbers: TESTS := $(NUMERIC)
%-commands: TESTS := tests/cli

test-machines: $(INSTALLED)  ## run the tests of numbers and commands with other instructions, threads, orders, and no home
	@$(MAKE) --no-print-directory --keep-going --jobs=1 $(MACHINES)

$(MACHINES): $(INSTALLED)
	$(WITH) $(QUICK) $(TESTS) $(ARGS)

test-extras: $(INSTALLED_EXTRAS)  ## drive the app in the machine's Chromium (apt-get install chromium), and Ray (10 minutes)
	$(BIN)/python -m pytest -m "extras and not slow" tests/app tests/cli $(ARGS)

lint: $(INSTALLED)  ## style, formatting, layers of imports and types
	$(LINT)

format: $(INSTALLED)  ## rewrite the code in the project's style
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# What it writes into start_run/sight/start becomes hf_video/start.
start: $(INSTALLED)  ## train the bundled model anew, on generated videos and pictures of packages (three hours)
	$(BIN)/python examples/train_start.py start_run/motion $(ARGS)
	$(BIN)/python examples/train_start.py start_run/shape --model start_run/motion/start --steps 4500 $(ARGS)
	$(BIN)/python examples/start_pictures.py start_run/pictures
	$(BIN)/python examples/train_start.py start_run/sight --model start_run/shape/start --steps 6100 --pictures start_run/pictures $(ARGS)

cards: $(INSTALLED)  ## write the cards that are kept and the tables of released models anew from their facts
	$(BIN)/python model_cards/generate.py

docs: $(INSTALLED)  ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# The model of the timeline is that of a benchmark.
screenshots: $(INSTALLED_EXTRAS)  ## draw the pictures of the app (MODEL=hf_video_demo/model is that of make demo; 5 minutes)
	PYTHONPATH=benchmarks $(BIN)/python -m docs.app_screenshots --model $(or $(MODEL),hf_video_demo/model) $(ARGS)

pictures: $(INSTALLED)  ## run the commands of pages and draw their pictures (MODEL=hf_video_demo/model is that of make demo; 8 minutes)
	PYTHONPATH=benchmarks $(BIN)/python -m docs.pictures --model $(or $(MODEL),hf_video_demo/model) $(ARGS)

bench: $(INSTALLED)  ## run benchmarks, one after the other (an hour; ONLY="videovit int8"; ARGS=--smoke)
	@for name in $(or $(ONLY),$(basename $(notdir $(wildcard benchmarks/*.py)))); do \
	  echo "$$name"; $(BIN)/python benchmarks/$$name.py $(ARGS) || echo "$$name: exit code $$?" >&2; done

.PHONY: help demo start test test-slow test-machines $(MACHINES) test-extras lint format cards docs screenshots pictures bench
