# make          sets everything up: the same as make setup
# make help     lists the targets
#
# Variables: PYTHON=python3.12    the interpreter that .venv is made with
#            HOROVOD=0            leaves Horovod out (one-process use does not need it)
#            ARGS='...'           passed on by demo, wheel, matrix, test, test-all and bench
#            DATA=path WORKERS=2  for demo
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := setup

PYTHON ?= python3
HOROVOD ?= 1
ARGS ?=
DATA ?=
WORKERS ?=
ENGINE ?=

VENV := $(CURDIR)/.venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
NATIVE := build/native
# Runs a command with its output in a log, and prints a line now and then.
PROGRESS = $(BIN)/python scripts/progress.py --log
PIP_INSTALL = $(BIN)/python -m pip install --progress-bar off --upgrade
# Nothing to build where CMAKE_ARGS says which RocksDB to take.
ROCKSDB = $(if $(findstring -DSOK_ROCKSDB_,$(CMAKE_ARGS)),true,$(BIN)/python scripts/build_rocksdb.py)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export TF_CPP_MIN_LOG_LEVEL ?= 2

CPP_FILES = $(shell find tf_ops -name '*.h' -o -name '*.cc' -o -name '*.cu')
PYTHON_FILES = $(wildcard setup.py sok_embed feature_column tf_ops tests benchmarks examples scripts docs/site)

.PHONY: setup native demo wheel matrix test test-all check typing docs format bench sanitize clean help

# horovodrun is found, and the python that it starts is ours.
demo test test-all bench: export PATH := $(BIN):$(PATH)

setup: native $(STAMPS)/development $(STAMPS)/horovod  ## all that the other targets need
	@cmake -DSOK_BUILD_TESTS=ON $(NATIVE) > /dev/null

# --- set-up, one stamp a step ---------------------------------------------------------------

# The packages of Python come while RocksDB is compiled. What compiles starts a job for each core
# by itself, and is not told of these two.
MAKEFLAGS += --jobs=2
unexport MAKEFLAGS

$(STAMPS)/venv: scripts/install_system_packages.sh
	@SECONDS=0; scripts/install_system_packages.sh "$(PYTHON)" build; \
	[ -x $(BIN)/python ] || "$(PYTHON)" -m venv $(VENV); \
	echo "  System packages and .venv: done after $$SECONDS s"
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/requirements: requirements.txt $(STAMPS)/venv
	@echo "Installing requirements.txt into .venv: TensorFlow and more, 1 GB, about 1 minute"
	@$(PROGRESS) build/setup/requirements.log Python -- $(PIP_INSTALL) --requirement $<
	@touch $@

$(STAMPS)/development: requirements-dev.txt $(STAMPS)/requirements | $(STAMPS)/editable
	@scripts/install_system_packages.sh "$(PYTHON)" development
	@echo "Installing requirements-dev.txt into .venv: tools for tests and checks"
	@$(PROGRESS) build/setup/development.log Tools -- $(PIP_INSTALL) --requirement $<
	@touch $@

# The engine of `make demo ENGINE=`, of the version that the tests have.
$(STAMPS)/engine-%: requirements-dev.txt $(STAMPS)/requirements
	@$(PROGRESS) build/setup/$*.log $* -- $(PIP_INSTALL) $$(grep --only-matching '^$*[^ ;]*' $<)
	@touch $@

$(STAMPS)/rocksdb: scripts/build_rocksdb.py $(STAMPS)/venv
	@$(ROCKSDB) > /dev/null
	@touch $@

$(STAMPS)/horovod: scripts/build_horovod.py $(STAMPS)/requirements | $(STAMPS)/editable
ifeq ($(HOROVOD),0)
	@echo "Leaving Horovod out; rm $(@:$(CURDIR)/%=%) to have it built after all"
else
	@$(BIN)/python scripts/build_horovod.py
endif
	@touch $@

# The editable install configures and builds $(NATIVE); from then on cmake alone keeps it fresh.
$(STAMPS)/editable: setup.py pyproject.toml $(STAMPS)/requirements $(STAMPS)/rocksdb
	@echo "Building the native libraries, installing sok_embed editable: about 4 core-minutes"
	@SOK_BUILD_DIR=$(NATIVE) CMAKE_ARGS="-DSOK_WERROR=ON $${CMAKE_ARGS:-}" \
	  $(PROGRESS) build/setup/editable.log sok_embed -- $(BIN)/python -m pip install \
	  --verbose --no-build-isolation --no-deps --editable .
	@touch $@

native: $(STAMPS)/editable  ## only bring the native libraries up to date
	@$(ROCKSDB) > /dev/null  # should its cache have been emptied
	@$(PROGRESS) $(NATIVE)/build.log sok_embed -- \
	  cmake --build $(NATIVE) --target sok_core _ops _core
	@cmake --install $(NATIVE) --prefix . > /dev/null

# --- use ------------------------------------------------------------------------------------

demo: native $(if $(ENGINE),$(STAMPS)/engine-$(ENGINE))  ## train the example model; DATA=, WORKERS=, ENGINE=ray and ARGS= are passed on
	$(BIN)/python examples/train_ctr.py $(if $(DATA),--data "$(DATA)") \
	  $(if $(WORKERS),--workers $(WORKERS)) $(if $(ENGINE),--engine $(ENGINE)) $(ARGS)

wheel: $(STAMPS)/requirements  ## one wheel for all Pythons and TensorFlows, in dist/; ARGS=--bullseye: for old systems
	@$(BIN)/python -m pip install --quiet auditwheel==6.8.2
	$(BIN)/python scripts/build_wheel.py $(ARGS)

matrix: native  ## test the wheel in dist/ with each TensorFlow that it is for
	$(BIN)/python scripts/matrix.py $(ARGS)

bench: setup  ## the benchmarks
	$(BIN)/python benchmarks/lookup.py $(ARGS)
	$(BIN)/python benchmarks/train_step.py $(ARGS)
	$(BIN)/python benchmarks/hashed_bag.py $(ARGS)

# --- tests and checks -----------------------------------------------------------------------

# The core's tests are built and run beside those of Python, and told after them. Either may fail.
# Both use the stand-in for a GPU's driver. There is one process more than processors, up to four: a
# test that waits leaves its processor to another.
TESTING = $(shell n=$$(nproc); echo $$((n < 4 ? n + 1 : 4)))
NVRTC = $(firstword $(wildcard $(VENV)/lib/python3.*/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12))
# Bytecode is kept, whatever the environment says: each of some hundred processes would compile the
# same sources.
test test-all: export PYTHONDONTWRITEBYTECODE :=
define run_tests
@mkdir -p $(NATIVE); \
cmake --build $(NATIVE) --target standin_cuda standin_nvrtc standin_kernels_0 standin_kernels_16 \
  > $(NATIVE)/standin.log 2>&1 || { cat $(NATIVE)/standin.log; exit 1; }; \
core() { cmake --build $(NATIVE) --target sok_core_test && SOK_TEST_NVRTC=$(NVRTC) exec $(NATIVE)/sok_core_test; }; \
core > $(NATIVE)/core_tests.log 2>&1 & core=$$!; \
trap 'kill $$core 2> /dev/null || true' EXIT; \
status=0; \
$(BIN)/pytest --numprocesses $(TESTING) --dist loadgroup --no-loadscope-reorder $(1) $(ARGS) || status=$$?; \
echo "The core's tests ($(NATIVE)/core_tests.log):"; \
wait $$core || status=$$?; \
tail --lines 40 $(NATIVE)/core_tests.log; \
exit $$status
endef

test: setup  ## the tests of each change: the core's and Python's; ARGS= goes to pytest
	$(call run_tests,)

test-all: export SOK_TEST_SEED ?= random
test-all: export SOK_TEST_FRESH ?= 1
test-all: export SOK_TEST_LONG ?= 1
test-all: setup  ## all tests, those that take long too, with other random programs each time
	$(call run_tests,-m "")

# mypy (strict, by pyproject.toml) sees the package as installed: all rooms inside sok_embed.
check: setup typing  ## formatting, lint, types, plain English, import direction
	clang-format --dry-run -Werror $(CPP_FILES)
	$(BIN)/ruff format --check --quiet $(PYTHON_FILES)
	$(BIN)/ruff check --quiet $(PYTHON_FILES)
	$(BIN)/python scripts/lint_prose.py
	cd build/typing && $(BIN)/mypy --config-file ../../pyproject.toml -p sok_embed
	$(BIN)/pytest --quiet tests/packaging/test_import_direction.py

# The package as it is when installed, with all rooms inside sok_embed.
typing:
	@rm -rf build/typing && mkdir -p build/typing/sok_embed
	@ln -s $(CURDIR)/sok_embed/* $(wildcard $(CURDIR)/tf_ops $(CURDIR)/feature_column) \
	  build/typing/sok_embed/

# The site has a venv of its own: its tools read the sources, and import nothing of them.
SITE := build/docs-venv
$(SITE)/made: docs/site/requirements.txt
	@"$(PYTHON)" -m venv $(SITE)
	@$(SITE)/bin/python -m pip install --quiet --requirement $<
	@touch $@

docs: export NO_MKDOCS_2_WARNING := 1
docs: typing $(SITE)/made  ## the site of the documentation, in build/site
	$(SITE)/bin/mkdocs build --config-file docs/site/mkdocs.yml

format: setup  ## rewrite C++ and Python in their one format
	clang-format -i $(CPP_FILES)
	$(BIN)/ruff format --quiet $(PYTHON_FILES)
	$(BIN)/ruff check --quiet --fix $(PYTHON_FILES)

# TensorFlow is not needed here, nor is .venv. The thread sanitizer of GCC 12 wants less address
# randomization than newer kernels give; where setarch may not take it away, that may not matter.
sanitize:  ## the core's tests under address and undefined, then thread sanitizer
	@scripts/install_system_packages.sh "$(PYTHON)"
	@rocksdb=$$("$(PYTHON)" scripts/build_rocksdb.py); \
	run=(setarch "$$(uname -m)" --addr-no-randomize); \
	"$${run[@]}" true 2> /dev/null || run=(env); \
	export TSAN_OPTIONS="suppressions=$(CURDIR)/tf_ops/tsan.supp $${TSAN_OPTIONS:-}"; \
	for sanitizer in address thread; do \
	  echo "sok_core_test with SOK_SANITIZE=$$sanitizer"; \
	  cmake -S tf_ops -B build/$$sanitizer -G Ninja -DSOK_BUILD_TESTS=ON \
	    -DSOK_SANITIZE=$$sanitizer -DSOK_ROCKSDB_ROOT="$$rocksdb" > /dev/null; \
	  "$(PYTHON)" scripts/progress.py --log build/$$sanitizer/build.log "$$sanitizer sanitizer" -- \
	    cmake --build build/$$sanitizer; \
	  "$${run[@]}" build/$$sanitizer/sok_core_test; \
	done

clean:  ## remove everything that make made, .venv included; the caches of RocksDB and Horovod stay
	rm -rf .venv build dist runs *.egg-info tf_ops/*.so sok_embed/binding/{*.so,march.txt} \
	  .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

help:
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 12
