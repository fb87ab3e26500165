# Every recipe line is one quoted command from this folder, so that spaces in its path do no harm.
.PHONY: help demo test lint bench
SHELL := /bin/bash
# make runs here whatever the caller's directory is: make -C FOLDER demo
in_venv := PATH="$$PWD/.venv/bin:$$PATH"

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 12

demo: ## install into .venv, then train and hear the model on real speech (about 25 minutes on 2 cores)
	@recipes/setup.sh weights formats eval
	@$(in_venv) egs/asterisk/run.sh

test: lint ## install into .venv, then all checks and tests
	@$(in_venv) python -m pytest

lint: ## formatting, types, import layers, shell scripts
	@recipes/setup.sh weights formats eval dev
	@$(in_venv) ruff check .
	@$(in_venv) ruff format --check .
	@$(in_venv) mypy
	@$(in_venv) lint-imports --no-logo
	@$(in_venv) shellcheck recipes/*.sh egs/*/*.sh egs/*/local/*.sh .ci/run

bench: ## speed, as ratios against named peers
	@recipes/setup.sh weights formats eval dev
	@set -e; for script in benchmarks/*.py; do $(in_venv) python "$$script"; done
