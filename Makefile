# `make demo` and `make test` install what they need. They need a clone, Python 3.11 to 3.13 and make.

PYTHON ?= python3
PIP_FLAGS ?=# e.g. --index-url https://download.pytorch.org/whl/cpu --extra-index-url https://pypi.org/simple
BIN := .venv/bin
DRAWABLE := .venv/installed-for-figures
INSTALLED := .venv/installed
TESTABLE := .venv/installed-for-tests
DOCUMENTED := .venv/installed-for-docs
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check $(PIP_FLAGS) -c constraints.txt
STUDY ?= published
TESTS ?= not slow and not ci
TIMES ?= 10
TRITONS := 3.6.0 3.7.1 3.9.0# of PyTorch 2.11, of 2.12 and 2.13, and the newest
MEASURED := $(if $(filter published,$(STUDY)),$(patsubst %/study.json,%,$(wildcard results/measured/*/study.json)))

# `make gpu` installs nothing: it uses the Python of a machine that may have no network.
GPU_PYTHON ?= python3
PRESET ?= gpu
GPU_STUDY ?= config/study.yaml config/gpu.yaml $(if $(filter cpu,$(PRESET)),config/gpu_cpu.yaml)
GPU_FLAGS ?=# e.g. --minutes 5 --only step --size 124M

.PHONY: help demo test races renew compilers coverage lint figures docs gpu package clean
.DELETE_ON_ERROR:

help: ## list these targets
	@sed -n 's/^\([a-z]*\):.*## /make \1	/p' $(firstword $(MAKEFILE_LIST)) | expand -t 17

demo: $(INSTALLED) ## train 24 tiny models on the CPU and draw every figure
	@$(BIN)/lmscaling demo

test: $(TESTABLE) ## run the tests, in eight minutes on two cores; TESTS="not slow" runs all that .ci/run does
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder -m "$(TESTS)" $(PYTEST_FLAGS)

races: $(TESTABLE) ## run the tests of kills, clocks and Slurm ten times beside busy loops
	@for i in $$(seq $$((2 * $$(nproc)))); do (while kill -0 $$$$ 2>/dev/null; do :; done) & done; \
	for i in $$(seq $(TIMES)); do \
		$(BIN)/python -m pytest -q -n auto --dist loadfile -m "race and not slow" || failed="$$failed $$i"; \
	done; echo "failed:$${failed:- none} of $(TIMES)"; test -z "$$failed"

renew: $(TESTABLE) ## write the outputs in tests/golden anew; read the diff
	: > tests/golden/messages.txt
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder -m "not slow" --renew

compilers: $(TRITONS:%=.triton/%) ## unpack versions of Triton for benchmarks/offline.py; 2.3 GB

coverage: $(TESTABLE) ## simulate studies and write how often intervals hold the truth: docs/statistics.md
	$(BIN)/python benchmarks/coverage.py --write $(COVERAGE_FLAGS)

lint: $(TESTABLE) ## check style, types, floors and rules
	$(BIN)/ruff check src tests benchmarks results docs/conf.py docs/extension
	$(BIN)/ruff format --check src tests benchmarks results docs/conf.py docs/extension
	$(BIN)/pyright
	$(BIN)/lint-imports --no-logo
	$(BIN)/snakefmt --check Snakefile workflow
	! git grep -nE '^(<{7}|>{7}) '

figures: $(DRAWABLE) ## draw the published and measured numbers; with STUDY=demo, those of a study
	@for folder in results/$(STUDY) $(MEASURED); do \
		echo "drawing $$folder"; $(BIN)/python -m lmscaling figures $$folder || exit 1; \
	done

docs: $(DOCUMENTED) ## build the documentation into docs/_build/html; a warning is an error
	$(BIN)/python -m sphinx -W --keep-going docs docs/_build/html
	@echo "documentation: $(CURDIR)/docs/_build/html/index.html"

gpu: ## measure this machine's GPU for nine minutes, again goes on: docs/gpu.md
	@for wheel in $(wildcard wheels/*.whl); do $(GPU_PYTHON) -m zipfile -e $$wheel wheels; done
	@PYTHONPATH=src:wheels $(GPU_PYTHON) -m lmscaling gpu $(GPU_STUDY) $(GPU_FLAGS)

package: $(TESTABLE) ## build the wheel and the source distribution into dist/
	$(BIN)/python -m build

clean: ## remove the environment, packages and unpacked compilers; results are kept
	rm -rf .venv .triton build dist

$(DRAWABLE): pyproject.toml requirements/plan.txt requirements/analysis.txt constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) -r requirements/plan.txt -r requirements/analysis.txt
	$(INSTALL) --no-deps -e .
	@touch $@

$(INSTALLED): $(DRAWABLE) requirements/train.txt
	$(INSTALL) -e .
	@touch $@

$(TESTABLE): $(INSTALLED)
	$(INSTALL) -e ".[test]"
	@touch $@

$(DOCUMENTED): $(INSTALLED)
	$(INSTALL) -e ".[docs]"
	@touch $@

.triton/%: | $(INSTALLED)
	$(INSTALL) --no-deps --target $@ triton==$*
