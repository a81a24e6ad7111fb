# Everything this project does, by name. `make help` explains. Needs: Python 3.11 or later, make, and a package index.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run test test-widgets7 lab notebooks models examine curves heads lint bench faults sanitize cards verify-models readme clean student colab-twin bundle explore

# glibc gives memory back after every big tensor, which costs up to 45 % of the time on a CPU: these keep it.
export MALLOC_MMAP_THRESHOLD_ := 1073741824
export MALLOC_TRIM_THRESHOLD_ := 4294967296
export MALLOC_TOP_PAD_ := 67108864
export PYTHONUNBUFFERED := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

VENV := .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
JOBS ?= 2
# which recipes `make models` trains; which notebooks `make notebooks` takes (all, or e.g. ONLY=01); more words for pytest
WHICH ?= exp1
ONLY ?=
ARGS ?=
# tests run in two processes, one thread each: twice as fast on two cores, and the same figures on any number
WORKERS ?= 2

help: ## this list
	@echo "make <name>, where <name> is one of:"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-13s %s\n", $$1, $$2}' Makefile
	@echo "The first one makes .venv, which takes some minutes; all are safe to repeat. PYTHON=... chooses another Python."

run: $(READY) ## execute the course offline into build/course/index.html and print the table of results
	$(PY) -m tools.build_course

test: $(READY) ## run every test, all notebooks among them (ARGS="-k attacks" takes some)
	$(PY) -m pytest -n $(WORKERS) $(ARGS)

test-widgets7: $(READY) ## the explorer in a browser with Colab's ipywidgets 7.7.1, in an environment of its own under build/
	tools/widgets7.sh $(PY)

lint: $(READY) ## check style and types
	$(PY) -m ruff check .
	$(PY) -m mypy

explore: $(READY) ## open the explorer (notebook 07 without its code) in a browser
	$(PY) -m voila notebooks/07_explore.ipynb $(ARGS)

lab: $(READY) ## open JupyterLab on the notebooks
	$(PY) -m jupyterlab --LabApp.default_url=/lab/tree/notebooks $$([ "$$(id -u)" -ne 0 ] || echo --allow-root) $(ARGS)

notebooks: $(READY) ## make notebooks/*.ipynb again from the .py sources, with outputs (ONLY=01 takes one)
	$(PY) -m tools.notebooks $(ONLY)

student: $(READY) ## write the notebooks without solutions to build/student/, and with them to build/instructor/
	$(PY) -m tools.student $(ONLY)

colab-twin: $(READY) ## run the notebooks with Colab's versions as a student there would, killed and resumed (takes long; ONLY=01)
	$(PY) -m tools.colab_twin $(ONLY)

models: $(READY) ## train the serialized models that are missing or do not verify (WHICH=exp1 JOBS=2)
	$(PY) -m course_lib sweep $(WHICH) --jobs $(JOBS)

examine: $(READY) ## PGD-20, CW-20 and AutoAttack on 200 test images a class of the stored models (WHICH=exp4 JOBS=2; goes on when called again)
	$(PY) -m course_lib examine $(WHICH) --per-class 200 --jobs $(JOBS) $(ARGS)

cards: $(READY) ## write serialized_models/README.md, a card for each stored recipe
	$(PY) -m tools.model_cards

verify-models: $(READY) ## evaluate every bundled model anew and compare with its stored report (ARGS="exp1/pgd-at" takes some)
	OMP_NUM_THREADS=$(JOBS) $(PY) -m tools.verify_models $(ARGS)
	$(PY) -m tools.verify_models --retrain

curves: $(READY) ## compute the explorer's curves that are missing or of other weights (ARGS="exp4" takes some)
	$(PY) -m tools.curves $(ARGS)

heads: $(READY) ## change the last layers of stored networks, and store the errors (ARGS="exp4" takes some)
	$(PY) -m tools.heads $(ARGS)

luf: $(READY) ## train the leave-one-out models that are missing, and store their scores (JOBS=2)
	$(PY) -m course_lib luf luf --jobs $(JOBS)

readme: $(READY) ## write the figure, tables and badges of README.md again
	$(PY) -m tools.readme_results

bench: $(READY) ## measure ratios against peers (benchmarks/)
	$(PY) -m pip install -q --no-deps -r requirements-bench.txt
	$(PY) -m benchmarks $(ARGS)

faults: $(READY) ## the fault tests at full count (make test runs a tenth of each)
	COURSE_FAULTS=full $(PY) -m pytest tests/faults $(ARGS)

sanitize: $(READY) ## the kernel's tests under AddressSanitizer and UndefinedBehaviorSanitizer
	tools/sanitize.sh $(PY)

bundle: $(READY) ## write build/course.zip to upload to Colab, and the same as a wheel in build/wheel/: library, data and models
	$(PY) -m tools.wheel

clean: ## throw away what was built; .venv and the models stay
	rm -rf build .pytest_cache .mypy_cache .ruff_cache

# The first Python that is new enough, has venv, and really runs (a pyenv shim can be on the PATH and fail).
FIND_PYTHON = for p in $(PYTHON) python3 python3.13 python3.12 python3.11 python3.14 python; do \
	"$$p" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo "$$p"; break; }; done

# Ready when this file is newer than what says what to install. An interrupted installation is simply taken up again.
$(READY): constraints.txt requirements.txt pyproject.toml
	@$(PY) -c 'import pip' 2>/dev/null || { \
		python=$$($(FIND_PYTHON)); \
		[ -n "$$python" ] || { echo "No Python 3.11 or later with its venv module was found on the PATH." \
			"Install one (on Debian: apt-get install python3 python3-venv), or name one: make $(MAKECMDGOALS) PYTHON=/path/to/python3" >&2; exit 1; }; \
		echo "Making $(VENV) with $$("$$python" --version); then come the packages, which takes some minutes."; \
		"$$python" -m venv --clear $(VENV); }
	$(PY) -m pip install -c constraints.txt -e '.[test,lab,autoattack,cluster]'
	@echo "torchattacks and foolbox (tests compare with them) come without their requirements: the first asks for a requests of 2021."
	$(PY) -m pip install -c constraints.txt --no-deps torchattacks foolbox eagerpy GitPython gitdb smmap
	@touch $@
