# TickRT. `make help` lists the targets; each one sets up the environment that it needs, once.

# The interpreter that makes the environments: the first fit one, or yours (make PYTHON=python3.13 demo).
GIVEN := $(filter command environment,$(origin PYTHON))
PYTHON ?= $$(for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c '$(FIT)' 2>/dev/null && { echo $$p; exit; }; done; echo python3)
# The torch that test-export installs. A CPU build is enough.
TORCH ?= torch==2.13.0
CONFIG ?= configs/demo.toml
# Where demo serves; without it, the port of CONFIG.
PORT ?=
# What test-builder installs: the builder of the extra tensorrt-rtx, without what only a GPU needs.
BUILDER := tensorrt-rtx>=1.7,<2; platform_machine in 'x86_64 AMD64' and sys_platform in 'linux win32'
PYTEST_ARGS ?=
SOAK_MINUTES ?= 30
RELEASE_STEPS ?=
PEERS_ARGS ?=
GPU_CHECK_ARGS ?=
FULL_SIZE_ARGS ?=
# Tests of one file share what they built, so a file stays with one process. Many wait: three processes keep two cores busy.
PARALLEL ?= --numprocesses 3 --dist loadfile

# To collect all tests takes longer than most suites' share of them.
MARKED = $$(grep -rlF mark.$(1) --include="test_*.py" tests)

# npx keeps the compiler in its own cache, outside the tree.
TSC := npx --yes --package=typescript@7 -- tsc
PAGE := server/live/page
TSC_OPTIONS := --noEmit --allowJs --checkJs --strict --target esnext --module esnext --moduleResolution bundler \
	--lib dom,dom.iterable,esnext

# Tests start Python hundreds of times: what it compiles is kept, also where the environment says otherwise.
test test-shipped: export PYTHONDONTWRITEBYTECODE :=

FIT := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))
BIN := .venv/bin
EXPORT_BIN := .venv-export/bin
GPU_BIN := .venv-gpu/bin
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check
PEERS := build/peers
RECIPE_TESTS := tests/configs
DOCS_TESTS := tests/test_readme.py tests/configs/docs
PACKAGES := runtime server engine_build profiling configs/demo/recipe configs/docs

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-shipped test-recipe test-builder test-page bench-page test-clients docs test-docs test-slow test-export test-scale lint bench peers gpu-check gpu-check-parts full-size soak release clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## */  \1\t/' | expand -t 16

demo: .venv/.installed  ## build the demo bundle's engines and serve them on 127.0.0.1:8000 (PORT=8001: on another port)
	$(BIN)/tickrt-build $(CONFIG)
	exec $(BIN)/tickrt-serve $(CONFIG) $(if $(PORT),--port $(PORT))

test: .venv/.installed-test  ## the test suite: no torch, no GPU
	$(BIN)/python -m pytest -m "not export and not slow and not gpu and not page and not builder and not shipped and not docs" --ignore $(RECIPE_TESTS) --ignore tests/clients $(PARALLEL) $(PYTEST_ARGS)

test-shipped: .venv/.installed-test  ## what is shipped, as a user runs it: the demo model, READMEs, the wheel, commands in processes of their own
	$(BIN)/python -m pytest -m "shipped and not export and not slow" $(PARALLEL) $(call MARKED,shipped) $(PYTEST_ARGS)

test-recipe: .venv/.installed-recipe  ## the demo bundle's recipe: corpus, codec, tokenizers, evaluation
	$(BIN)/python -m pytest -m "not export and not slow and not docs" $(PARALLEL) $(RECIPE_TESTS) $(PYTEST_ARGS)

# Tracing is one thread's work: two processes, each with one thread. Both targets share the tiny exports in build/.
test-builder: export OMP_NUM_THREADS := 1
test-builder: .venv/.installed-builder .venv/.contract .venv-export/.installed-builder  ## NVIDIA's own packages: the bindings have our calls, parser and builder (TensorRT-RTX) take every engine: no GPU
	$(BIN)/python -m pytest -m "builder and not export" --numprocesses 2 --dist worksteal $(call MARKED,builder) $(PYTEST_ARGS)
	$(EXPORT_BIN)/python -m pytest -m "builder and export" --numprocesses 2 --dist loadfile $(call MARKED,builder) $(PYTEST_ARGS)

test-slow: .venv/.installed-test  ## long runs: soak, floods, kill and resume
	$(BIN)/python -m pytest -m "slow and not export and not gpu" $(PYTEST_ARGS)

test-page: .venv/.installed-page  ## the page in a headless browser: Chromium, and Firefox where it is
	$(BIN)/tickrt-build $(CONFIG)
	$(BIN)/python -m pytest -m page --numprocesses 2 --dist loadfile $(PYTEST_ARGS) tests/page

bench-page: .venv/.installed-page  ## from pressing play on the page to the first sound, in a headless browser
	$(BIN)/tickrt-build $(CONFIG)
	$(BIN)/python tests/page/first_sound.py

test-clients: .venv/.installed-clients build/clients/.installed  ## other people's clients: Google's, MCP's; Node's where npm is
	$(BIN)/tickrt-build $(CONFIG)
	$(BIN)/python -m pytest -m clients $(PYTEST_ARGS) tests/clients

docs: .venv/.installed-docs  ## the site of the documentation, in build/docs
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going --fresh-env --conf-dir configs/docs \
		--doctree-dir build/doctrees --builder html . build/docs
	@echo "build/docs/index.html"

test-docs: .venv/.installed-docs  ## the site: built, its links, its examples
	$(BIN)/python -m pytest -m docs --numprocesses 2 --dist loadfile $(PYTEST_ARGS) $(DOCS_TESTS)

test-export: export OMP_NUM_THREADS := 1
test-export: .venv-export/.installed  ## what needs torch, in an environment of its own
	$(EXPORT_BIN)/python -m pytest -m "export and not gpu and not builder" --numprocesses 2 --dist loadfile $(call MARKED,export) $(PYTEST_ARGS)

lint: .venv/.installed-test  ## ruff and mypy, strict; the limits of size in tests/house.toml; tsc for the page where Node.js is
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(PACKAGES) .ci/play.py .ci/release.py
	$(BIN)/python tests/house.py
	@if $(TSC) --version >/dev/null 2>&1; then $(TSC) $(TSC_OPTIONS) $(PAGE)/main.js $(PAGE)/client.js $(PAGE)/audio/worklet.js tests/server/clients/types.ts; \
	else echo "The page's types are not checked: npx (Node.js) cannot run TypeScript's compiler here."; fi

bench: .venv/.installed  ## what a tick costs over the bare engine, against its budgets
	$(BIN)/tickrt-build $(CONFIG)
	$(BIN)/tickrt-bench budgets $(CONFIG)

peers: .venv-export/.installed-peers $(PEERS)/bundle/bundle.toml  ## a small ACE-Step and the demo against OpenVINO, ONNX Runtime, PyTorch and diffusers' pipeline
	$(EXPORT_BIN)/tickrt-build $(PEERS)/example.toml
	$(EXPORT_BIN)/tickrt-build $(PEERS)/demo.toml
	$(EXPORT_BIN)/tickrt-bench peers $(PEERS)/example.toml --torch $(PEERS)/checkpoint --json $(PEERS)/example.json $(PEERS_ARGS)
	$(EXPORT_BIN)/tickrt-bench peers $(PEERS)/demo.toml --json $(PEERS)/demo.json $(PEERS_ARGS)
	$(EXPORT_BIN)/tickrt-build $(CONFIG)
	$(EXPORT_BIN)/tickrt-bench peers $(CONFIG) --json $(PEERS)/demo-shipped.json $(PEERS_ARGS)

# A small ACE-Step with random weights, whose every part both sides have.
$(PEERS)/bundle/bundle.toml: profiling/bench/peers/example.py | .venv-export/.installed-peers
	$(EXPORT_BIN)/python -m profiling.bench.peers.example $(PEERS)
	$(EXPORT_BIN)/python -m engine_build.export acestep --checkpoint $(PEERS)/checkpoint --out $(PEERS)/bundle \
		--canvas-seconds 10.24 --deployment $(PEERS)/example.toml

gpu-check: .venv-gpu/.installed  ## on a machine with a GPU: all that only a GPU can show, in build/gpu-check, in ten minutes
	$(GPU_BIN)/python -m profiling.gpu_check prepare
	$(GPU_BIN)/python -m profiling.gpu_check $(GPU_CHECK_ARGS)

full-size: .venv-export/.installed-builder  ## the published models at full size, random weights: exported, built, served; 24 GB of memory, 40 GB of disk
	$(EXPORT_BIN)/python -m profiling.full_size $(FULL_SIZE_ARGS)

gpu-check-parts: .venv-export/.installed  ## without a GPU: all that gpu-check needs on a machine without a network, in build/gpu-check-parts
	$(EXPORT_BIN)/python -m profiling.gpu_check prepare --out build/gpu-check-parts $(GPU_CHECK_ARGS)

soak: .venv/.installed-test  ## live sessions and generations for SOAK_MINUTES: no leak, no underrun, nothing unaccounted for
	SOAK_MINUTES=$(SOAK_MINUTES) $(BIN)/python -m pytest -m slow tests/integration/test_live_soak.py $(PYTEST_ARGS)

release: .venv/.installed-release  ## the files of a release, in dist/: built, checked, installed and used on every Python, resolved (RELEASE_STEPS="build check")
	$(BIN)/python .ci/release.py $(RELEASE_STEPS)

test-scale: .venv/.installed-scale  ## replicas behind HAProxy, also under Ray Serve: killed, frozen, drained, upgraded, without their store; also in a browser, after test-page
	$(BIN)/python -m pytest -m slow -s tests/integration/test_cluster.py tests/integration/test_ray_cluster.py tests/integration/test_nginx.py tests/server/cluster tests/profiling/bench/test_cluster.py \
		tests/page/test_cluster.py $(PYTEST_ARGS)

clean:  ## remove engines, caches and build outputs; the environments stay
	rm -rf configs/.engines build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find $(PACKAGES) tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Environments. A stamp file says that what pyproject.toml asks for is installed, so a second make installs nothing.

.venv/.installed: pyproject.toml | .venv/bin/python
	@echo "Installing TickRT into .venv (a few minutes the first time) ..."
	$(BIN)/python $(PIP_INSTALL) --editable '.[cpu]'
	@touch $@

.venv/.installed-test: .venv/.installed
	@echo "Installing the test tools into .venv ..."
	$(BIN)/python $(PIP_INSTALL) --editable '.[cpu,test]'
	@touch $@

# All of them but Ray and a release's tools, resolved once. Each of these stamps has a rule of its own, so one at a time works too.
.venv/.installed-all: pyproject.toml | .venv/bin/python
	@echo "Installing TickRT and what its tests need into .venv (a few minutes) ..."
	$(BIN)/python $(PIP_INSTALL) --editable '.[cpu,test,recipe,page,clients,docs]' "$(BUILDER)"
	@touch .venv/.installed .venv/.installed-test $(addprefix .venv/.installed-,recipe builder page clients docs) $@

.venv/.installed-recipe: .venv/.installed-test
	@echo "Installing librosa into .venv ..."
	$(BIN)/python $(PIP_INSTALL) --editable '.[cpu,test,recipe]'
	@touch $@

.venv/.installed-scale: .venv/.installed-test
	@echo "Installing Ray into .venv (a few minutes the first time) ..."
	$(BIN)/python $(PIP_INSTALL) --editable '.[cpu,test,scale]'
	@touch $@

.venv/.installed-builder: .venv/.installed-test
	@echo "Installing TensorRT-RTX into .venv (230 MB) ..."
	$(BIN)/python $(PIP_INSTALL) --editable '.[cpu,test]' "$(BUILDER)"
	@touch $@

.venv/.installed-page: .venv/.installed-test
	@echo "Installing Playwright into .venv ..."
	$(BIN)/python $(PIP_INSTALL) --editable '.[cpu,test,page]'
	@touch $@

.venv/.installed-release: .venv/.installed
	@echo "Installing what checks a release into .venv ..."
	$(BIN)/python $(PIP_INSTALL) --editable '.[cpu,release]'
	@touch $@

.venv/.installed-clients: .venv/.installed-test
	@echo "Installing other people's clients into .venv ..."
	$(BIN)/python $(PIP_INSTALL) --editable '.[cpu,test,clients]'
	@touch $@

.venv/.installed-docs: .venv/.installed-test
	@echo "Installing Sphinx into .venv ..."
	$(BIN)/python $(PIP_INSTALL) --editable ".[cpu,test,docs]"
	@touch $@

# Node's client, and the inspector of MCP. Where they cannot be had, their tests are skipped and say so.
build/clients/.installed:
	@mkdir -p $(@D)
	@for package in '@google/genai@>=2' '@modelcontextprotocol/inspector@>=2'; do \
		npm install --silent --no-audit --no-fund --fetch-retries 1 --prefix $(@D) "$$package" || \
		{ echo "Left out: npm cannot install $$package here."; missing=1; }; done; [ -n "$$missing" ] || touch $@

# TensorRT's and CUDA's real Python bindings, beside the environment, not in it: tests compare our calls with them.
.venv/.contract: tests/contract/install.py | .venv/bin/python
	@echo "Installing the bindings that the contract tests read into .venv/contract ..."
	$(BIN)/python tests/contract/install.py .venv/contract
	@touch $@

.venv-export/.installed: pyproject.toml | .venv-export/bin/python
	@echo "Installing torch and the exporter into .venv-export (several minutes the first time) ..."
	$(EXPORT_BIN)/python $(PIP_INSTALL) '$(TORCH)' --editable '.[export,test]'
	@touch $@

.venv-export/.installed-builder: pyproject.toml | .venv-export/bin/python
	@echo "Installing torch, the exporter and TensorRT-RTX into .venv-export (several minutes the first time) ..."
	$(EXPORT_BIN)/python $(PIP_INSTALL) '$(TORCH)' --editable '.[export,test]' "$(BUILDER)"
	@touch .venv-export/.installed $@

.venv-export/.installed-peers: .venv-export/.installed
	@echo "Installing OpenVINO into .venv-export ..."
	$(EXPORT_BIN)/python $(PIP_INSTALL) --editable '.[export,test,peers]'
	@touch $@

.venv-gpu/.installed: pyproject.toml | .venv-gpu/bin/python
	@echo "Installing TensorRT, torch and the exporter into .venv-gpu (several minutes the first time) ..."
	$(GPU_BIN)/python $(PIP_INSTALL) '$(TORCH)' --editable '.[tensorrt,tensorrt-rtx,export,test]'
	@touch $@

# An environment that is there is kept, or refused where PYTHON asks for another build: what was put into it is its user's.
%/bin/python: FORCE
	@its_maker() { $(PYTHON) "$$@"; }; has=$$($@ -VV 2>/dev/null); \
	if [ -n "$$has" ] && [ -z "$(GIVEN)" ]; then exit; fi; \
	its_maker -c '$(FIT)' 2>/dev/null || { echo "TickRT needs Python 3.11, 3.12, 3.13 or 3.14;" \
		"$(PYTHON) is $$(its_maker --version 2>/dev/null || echo missing)."; \
		echo "  fix: install one of them and name it: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; } >&2; \
	if [ -n "$$has" ] || [ -e $*/.installed ]; then \
		if [ "$$has" = "$$(its_maker -VV)" ]; then exit; fi; \
		echo "$* was made by another Python: it has $${has:-no interpreter that runs}, $(PYTHON) is $$(its_maker -VV)."; \
		echo "  fix: remove it with all that is installed in it, and make again: rm -rf $*"; exit 1; fi >&2; \
	echo "Making $* with $$(its_maker --version) ..."; its_maker -m venv $*

FORCE:
