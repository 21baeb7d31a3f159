# Two commands do everything, set-up included: `make chat` and `make test`.
# All of it lives in .venv; nothing is installed anywhere else.

SHELL := /bin/sh
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv/bin/python
INSTALL := $(VENV) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# The question for `make chat`: make chat Q="…"
Q ?= Which Linux kernel runs here? Use the terminal tool.
# As it was typed: a `$` in a question is no variable of make.
override Q := $(value Q)
export Q
# Start-up is measured and felt with byte code in place, whatever the calling shell says.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help chat test test-all check format docs recording bench wheel clean

help:
	@echo 'make chat [Q="…"]  ask the agent a question'
	@echo 'make test          run the quick tests'
	@echo 'make test-all      also run the tests that need engines, models or time (see scripts/test-services)'
	@echo 'make check         linters, types, import rules, drift of the reference docs'
	@echo 'make format        format the code'
	@echo 'make docs          regenerate the reference docs from the code'
	@echo 'make recording     record the pictures of the chat and the page for the README and the guides'
	@echo 'make bench         measure speed, the terminal, the agent, the tools and the approval gate; writes docs/trust.md'

chat: .venv/.runtime
	@printf 'Asking: %s\n' "$$Q"
	@$(VENV) -m toolcrib chat -q "$$Q"

test: .venv/.dev
	@echo 'Running the quick tests …'
	@$(VENV) -m pytest -n auto -m 'not services' $(ARGS)

test-all: .venv/.dev
	@echo 'Running all tests …'
	@$(VENV) -m pytest -n auto -r s --hypothesis-profile=full $(ARGS)

check: .venv/.dev
	$(VENV) -m ruff check .
	$(VENV) -m ruff format --check .
	$(VENV) -m mypy
	.venv/bin/lint-imports
	$(VENV) scripts/write_reference.py --check

format: .venv/.dev
	$(VENV) -m ruff check --fix .
	$(VENV) -m ruff format .

docs: .venv/.dev
	$(VENV) scripts/write_reference.py

recording: .venv/.dev
	$(VENV) scripts/record_chat.py
	$(VENV) scripts/record_page.py

bench: .venv/.dev
	@# All run, and the page is written, also where a figure is missed.
	@missed=0; $(VENV) bench/run.py $(ARGS) || missed=1; echo; \
	$(VENV) bench/terminal.py $(ARGS) || missed=1; echo; \
	$(VENV) bench/agent.py || missed=1; echo; \
	$(VENV) bench/chat.py || missed=1; echo; \
	$(VENV) bench/sessions.py || missed=1; echo; \
	$(VENV) bench/files.py || missed=1; echo; \
	$(VENV) bench/search.py || missed=1; echo; \
	$(VENV) bench/code.py || missed=1; echo; \
	$(VENV) bench/undo.py || missed=1; echo; \
	$(VENV) bench/mcp_client.py || missed=1; echo; \
	$(VENV) bench/web.py || missed=1; echo; \
	$(VENV) bench/browser.py || missed=1; echo; \
	$(VENV) bench/acp.py || missed=1; echo; \
	$(VENV) bench/serve.py || missed=1; echo; \
	$(VENV) bench/approval.py --write $(ARGS) || missed=1; exit $$missed

wheel: .venv/.dev
	$(VENV) -m build --wheel --no-isolation --outdir dist .

clean:
	rm -rf .venv dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

.venv/pyvenv.cfg:
	@test -n '$(PYTHON)' || { echo 'toolcrib needs Python 3.11 or later; install it, or say which to use: make PYTHON=/path/to/python3 …' >&2; exit 1; }
	@echo 'Making a local environment in .venv …'
	@'$(PYTHON)' -m venv .venv || { rm -rf .venv; echo 'The environment could not be made; on Debian: apt-get install python3-venv' >&2; exit 1; }

.venv/.runtime: .venv/pyvenv.cfg pyproject.toml constraints.txt
	@echo 'Installing toolcrib into .venv …'
	@$(INSTALL) --editable '.[embedded]'
	@touch $@

.venv/.dev: .venv/pyvenv.cfg pyproject.toml constraints.txt
	@echo 'Installing toolcrib and its test tools into .venv …'
	@$(INSTALL) --editable '.[dev]'
	@touch .venv/.runtime $@
