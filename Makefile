.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Installation is finished when this file is newer than what it installed from.
INSTALLED := $(VENV)/.installed

help:  ## list these targets
	@awk -F ':.*##' '/^[a-z-]+:.*##/ {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(INSTALLED): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

demo: $(INSTALLED)  ## train, evaluate, save and reload a video classifier on moving digits (5 minutes)
	$(BIN)/hf-video demo

test: lint  ## lint, then run every test that needs no GPU
	$(BIN)/python -m pytest -m "not slow and not gpu" $(ARGS)

lint: $(INSTALLED)  ## style, formatting and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(INSTALLED)  ## rewrite the code in the project's style
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

cards: $(INSTALLED)  ## write the cards of the released checkpoints anew from their facts
	$(BIN)/python model_cards/generate.py

docs: $(INSTALLED)  ## write the reference page of all settings
	$(BIN)/python -m hf_video.cli.reference > docs/settings.md

bench: $(INSTALLED)  ## run every benchmark and print its figures
	for script in benchmarks/*.py; do $(BIN)/python $$script || [ $$? -eq 77 ] || exit 1; done

.PHONY: help demo test lint format cards docs bench
