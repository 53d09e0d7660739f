PYTHON ?= python3
BIN    := .venv/bin
# The one list of what to install: the `pip:` lines of environment.yml.
PIP_LINES = $(shell sed -n '/- pip:$$/,$$ s/^      - //p' environment.yml)

# Two workers, one file after the other, and one thread each, so that they do not wait for each other.
WORKERS ?= 2
PYTEST   = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile \
  --nbval --nbval-current-env --nbval-sanitize-with tests/nbval_sanitize.cfg

.PHONY: help env lab test processors notebooks figures slides gpu gpu-ring bench

help:  ## this list
	@grep -E '^[a-z-]+:.*##' Makefile | sed 's/:.*## /\t/' | expand -t 12

env: .venv/installed  ## create .venv and install the course with its pins (the first step of all others)

.venv/installed: environment.yml constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null \
	  || { echo "The course needs Python 3.11 to 3.14, and '$(PYTHON)' is $$($(PYTHON) --version 2>/dev/null || echo missing). Install one, or name it: make lab PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null \
	  || { echo "'$(PYTHON)' has no venv module. On Debian or Ubuntu: apt install python3-venv"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_LINES)
	@touch $@

lab: env  ## open the course in JupyterLab
	@# the root is this folder, not notebooks/: the pictures lie in figures/ beside it
	$(BIN)/jupyter lab --notebook-dir=. notebooks/00_start_here.ipynb

test: env  ## lint, every test, and every cell of every notebook
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --check --quiet .
	$(PYTEST) tests notebooks

# The order of a sum, and so its last digits, is the processor's choice: OpenBLAS, PyTorch and MKL
# do here what they do on others. A core newer than this processor ends in an illegal instruction.
CORES    := Haswell Zen Sandybridge
PRODUCTS := $(addprefix tests/test_,softmax.py attention.py hbm.py elementwise.py ring.py \
  exercises.py) $(wildcard tests/test_kernels_*.py tests/test_nb*.py notebooks/*.ipynb)

processors: env  ## the tests that multiply matrices, summed as on other processors
	@for core in $(CORES); do \
	  export OPENBLAS_CORETYPE=$$core ATEN_CPU_CAPABILITY=default MKL_CBWR=COMPATIBLE; \
	  OPENBLAS_VERBOSE=2 $(BIN)/python -c 'import numpy' && $(PYTEST) -q $(PRODUCTS) || exit 1; \
	done

notebooks: env  ## run every notebook, store its outputs, make its JSON canonical; write the glossary
	$(BIN)/python tools/notebooks.py notebooks/*.ipynb
	$(BIN)/python -m course.glossary

figures: env  ## draw figures/*.svg again
	$(BIN)/python -m course.draw

# Slides of 16:9; what is longer than a slide can be scrolled.
slides: env  ## the notebooks as slide shows for a browser, in slides/
	$(BIN)/jupyter nbconvert --to slides --output-dir slides --SlidesExporter.reveal_scroll=True \
	  --SlidesExporter.reveal_width=1280 --SlidesExporter.reveal_height=720 notebooks/*.ipynb

bench: env  ## how long a slider move takes
	$(BIN)/python -m course.explore

# Most of the time of the tests goes into compiling: side by side, where pytest-xdist is installed.
gpu:  ## on a machine with a CUDA GPU: test the kernels there and record the measurements
	$(PYTHON) -m pytest tests/gpu --ignore tests/gpu/test_measure_gpu.py \
	  $$($(PYTHON) -c 'import xdist; print("-n", 12)' 2>/dev/null)
	$(PYTHON) -m pytest tests/gpu/test_measure_gpu.py
	$(PYTHON) -m course.records

gpu-ring:  ## on a machine with several CUDA GPUs: the ring of notebook 11 on all of them
	$(PYTHON) -m course.ring
