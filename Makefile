# Every target installs what it needs first; a second run of `make install` does nothing.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
STAMP := $(VENV)/.installed-$(lastword $(shell $(PYTHON) --version 2>&1))
FRAMEWORKS := $(VENV)/.frameworks
RUFFED := s3mount tests scripts

.DEFAULT_GOAL := help
.PHONY: help install demo test test-unit test-integration test-mount test-stress test-frameworks check fix bench lock clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

install: $(STAMP) ## Install everything into .venv, and system packages where missing and root

$(STAMP): pyproject.toml requirements.lock requirements-build.lock scripts/install
	@PYTHON=$(PYTHON) scripts/install $(VENV)
	@rm -f $(VENV)/.installed* && touch $(VENV)/.installed-$$($(BIN)/python --version | cut -d' ' -f2)

$(FRAMEWORKS): $(STAMP) requirements-frameworks.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements-frameworks.lock
	@touch $@

demo: install ## Mount a real S3 bucket with sample data and show what works
	@$(BIN)/python scripts/demo

test: install $(FRAMEWORKS) ## Run all tests
	$(PYTEST) tests

test-unit: install ## Run the tests that need neither network nor mount
	$(PYTEST) tests/unit

test-integration: install ## Run the tests against real S3 servers
	$(PYTEST) tests/integration

test-mount: install ## Run the tests on real FUSE mounts (needs /dev/fuse)
	$(PYTEST) tests/mount

test-stress: install ## Run the bounded stress tests
	$(PYTEST) tests/stress

test-frameworks: install $(FRAMEWORKS) ## Run PyTorch, safetensors and Parquet on real FUSE mounts
	$(PYTEST) tests/frameworks

check: install ## Check style, types and the direction of imports
	$(BIN)/ruff check $(RUFFED)
	$(BIN)/ruff format --check $(RUFFED)
	$(BIN)/mypy
	$(BIN)/lint-imports

fix: install ## Format and mend what can be mended
	$(BIN)/ruff check --fix $(RUFFED)
	$(BIN)/ruff format $(RUFFED)

bench: install ## Measure against bare loops and, where installed, s3fs and rclone
	@$(BIN)/python -m scripts.bench

lock: ## Pin the newest versions that pyproject.toml allows
	@PYTHON=$(PYTHON) scripts/lock

clean: ## Remove what was made here
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
