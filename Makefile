# Two commands for everyone: `make demo` and `make test`. `make check` is for those who change the code.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# requirements/runtime.lock, which the container has, is without the tools of development.
ENVIRONMENT := requirements/environment.lock
LOCKS := requirements/bootstrap.lock $(ENVIRONMENT)
CORES ?= $(shell getconf _NPROCESSORS_ONLN)

.PHONY: help environment demo test test-all test-quick test-real data-is-named slurm-test test-snakemake test-lowest test-newest claims check format schema \
	screenshots docs wheel sdist lock clean clean-all

help:
	@echo "make demo     set everything up, run the default study, show its results"
	@echo "make test     run the tests but the slow ones"
	@echo "make test-all  run all tests, as the public check does"
	@echo "make test-quick  run the tests of what differs from main, or from BASE, in about three minutes"
	@echo "make test-real  run the tests of real data, in the folder that DPPROBE_TEST_DATA names"
	@echo "make slurm-test  run the tests of a real Slurm of one node, as root"
	@echo "make test-lowest  run tests on the lowest versions that pyproject.toml allows; fetches 3 GB"
	@echo "make test-newest  run tests on the newest versions that pyproject.toml allows; fetches 3 GB"
	@echo "make test-snakemake  plan the default study with the oldest Snakemake that is allowed too; downloads it once"
	@echo "make claims   measure the numbers that README and changelog state, in four minutes"
	@echo "make check    lint, formatting, types, workflow lint"
	@echo "make format   format code and rules"
	@echo "make schema   regenerate what is written from code: workflow/schemas, docs/options.md, docs/python-reference.md,"
	@echo "              the tables of docs/attack-model.md and docs/workflow.md, the options of docs/methods and the picture of the"
	@echo "              pipeline"
	@echo "make screenshots  make all pictures of README and docs again but the pipeline's; needs Chromium"
	@echo "make docs     build the docs site, build/site/index.html, and check its links"
	@echo "make wheel    build dist/dpprobe-*.whl, which has the workflow too: dpprobe run"
	@echo "make sdist    build dist/dpprobe-*.tar.gz, the source distribution"
	@echo "make lock     resolve requirements/*.in again"
	@echo "make clean    remove the environment and the default study's results, nothing else"
	@echo "make clean-all  remove also the results, split tables and downloads of every study in results/ and data/;"
	@echo "              releases, ledgers, links and what is not certainly dpprobe's stay, and a line counts them"

environment: $(READY)

SYNC := $(BIN)/uv pip sync --quiet --require-hashes --compile-bytecode --python $(BIN)/python
ifdef TORCH_INDEX
# All but torch and torchvision is held against the lock's hashes; these two have its versions, and their index's hashes.
define PACKAGES
$(PYTHON) tools/without_cuda.py $(ENVIRONMENT) >$(VENV)/without_cuda.lock
$(SYNC) $(VENV)/without_cuda.lock
$(BIN)/uv pip install --quiet --no-deps --compile-bytecode --python $(BIN)/python --default-index $(TORCH_INDEX) \
	$$($(PYTHON) tools/without_cuda.py $(ENVIRONMENT) --torch)
$(BIN)/python -c 'import sys, torch; sys.exit(torch.version.cuda and "the torch of TORCH_INDEX has CUDA; name an index of builds for CPUs")'
endef
else
PACKAGES = $(SYNC) $(ENVIRONMENT)
endif

# Byte-compiled once: a start of Snakemake then costs less than half, also where PYTHONDONTWRITEBYTECODE is set.
# The last line makes the machine code of this processor, which the first job would otherwise take six seconds for.
$(READY): $(LOCKS) pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "dpprobe needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; try make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/bootstrap.lock
	$(PACKAGES)
	$(BIN)/uv pip install --quiet --no-deps --no-build-isolation --python $(BIN)/python --editable .
	$(BIN)/python -m compileall -q src
	$(BIN)/python -c 'import dpprobe.analyses.fairness.group_kernels, dpprobe.heads.kernels.exact_step, dpprobe.heads.kernels.fused_step, dpprobe.heads.kernels.residuals, dpprobe.privacy.float32_noise, dpprobe.privacy.rounded_gaussian, dpprobe.privacy.sampling'
	@touch $@

demo: $(READY)
	@$(BIN)/snakemake --cores $(CORES)

PYTEST = $(BIN)/python -m pytest -n $(CORES) --dist loadfile --no-loadscope-reorder
test: $(READY)
	$(PYTEST) -m "not slow"

test-all: $(READY)
	$(PYTEST)

BASE ?= main
test-quick: $(READY)
	tests=$$($(BIN)/python tools/changed_tests.py $(BASE)) && \
		$(BIN)/python -m pytest -n $(CORES) --dist loadfile -m "not slow" $$tests

test-real: | data-is-named $(READY)
	$(PYTEST) -m real

data-is-named:
	@test -n "$$DPPROBE_TEST_DATA" || { echo "test-real: set DPPROBE_TEST_DATA to a folder of real data: bench/README.md" >&2; exit 1; }

# A test that is skipped fails this: what is missing must not pass for tested.
slurm-test: $(READY)
	sh tests/install_system_packages.sh slurm
	DPPROBE_REQUIRE_SLURM=1 $(BIN)/python -m pytest -v -n 2 tests/slurm

# Other versions of libraries than the lock's, in an environment of their own. The lowest need a Python 3.11, the oldest
# that is supported; the newest take the Python of the environment.
OTHERS := build/other_versions
test-lowest: RESOLUTION := lowest-direct --python-version 3.11
test-lowest: VERSION := --python 3.11
test-newest: RESOLUTION := highest
test-newest: VERSION := --python $(BIN)/python
test-lowest test-newest: $(READY)
	$(BIN)/uv venv --quiet --clear --no-python-downloads $(VERSION) $(OTHERS)
	$(BIN)/uv pip compile --quiet --upgrade --resolution $(RESOLUTION) --extra all --no-header --no-annotate \
		pyproject.toml -o $(OTHERS)/versions.txt
	$(BIN)/uv pip install --quiet --python $(OTHERS)/bin/python -r $(OTHERS)/versions.txt
	$(BIN)/uv pip install --quiet --python $(OTHERS)/bin/python --constraint $(OTHERS)/versions.txt \
		fairlearn hatchling hypothesis packaging psutil pytest pytest-xdist rocrate
	PYTHONPATH=$(CURDIR)/src $(OTHERS)/bin/python -m pytest -n $(CORES) --dist loadfile -m "not slow and not locked" tests/unit

# In front of the environment's packages stands the oldest Snakemake that pyproject.toml allows.
OLDEST := build/snakemake_oldest
$(OLDEST)/.ready: requirements/snakemake-oldest.lock $(READY)
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --require-hashes -r requirements/snakemake-oldest.lock
	site=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
	there=$$($(OLDEST)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
	echo "import site; site.addsitedir('$$site')" >"$$there/environment.pth"
	@touch $@

test-snakemake: $(OLDEST)/.ready
	bash tests/snakemake_versions.sh $(OLDEST)/bin/python $(BIN)/python

claims: $(READY)
	@$(BIN)/python bench/claims.py

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/snakemake --lint
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/snakefmt Snakefile workflow

schema: $(READY)
	$(BIN)/python tools/pages/schemas.py
	$(BIN)/python tools/pages/options_page.py
	$(BIN)/python tools/pages/entries.py
	$(BIN)/python tools/pages/rules_page.py
	$(BIN)/python tools/pages/reference_page.py
	$(BIN)/python tools/pages/method_cards.py
	$(BIN)/python tools/pages/pipeline_picture.py

screenshots: $(READY)
	@$(BIN)/python tools/pages/pictures.py
	@$(BIN)/python -m tests.browser.screenshots

# Of its own few packages, which nothing else needs; it needs no other part of the environment.
DOCS := build/docs_environment
$(DOCS)/.ready: requirements/docs.lock
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --require-hashes -r requirements/docs.lock
	@touch $@

docs: $(DOCS)/.ready
	NO_MKDOCS_2_WARNING=true $(DOCS)/bin/python -m mkdocs build --quiet
	@echo "the site: build/site/index.html"

# Without an earlier wheel, dist/dpprobe-*.whl names one file, as docs write it. A wheel of other code than the tag's
# has the commit in its name, and no registry accepts it.
wheel: $(READY)
	rm -f dist/dpprobe-*.whl
	$(BIN)/python -m hatchling build -t wheel

sdist: $(READY)
	rm -f dist/dpprobe-*.tar.gz
	$(BIN)/python -m hatchling build -t sdist

LOCK := $(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-annotate \
	--no-header --no-emit-index-url --quiet --upgrade
lock: $(READY)
	$(LOCK) requirements/bootstrap.in -o requirements/bootstrap.lock
	$(LOCK) requirements/environment.in -o requirements/environment.lock
	$(LOCK) requirements/runtime.in --constraint requirements/environment.lock -o requirements/runtime.lock
	$(LOCK) requirements/docs.in -o requirements/docs.lock
	$(LOCK) requirements/snakemake-oldest.in -o requirements/snakemake-oldest.lock
	$(BIN)/python tools/from_lock.py

# Images, results of other studies, releases and ledgers stay.
clean:
	@$(PYTHON) tools/clean.py
	rm -rf $(VENV)

clean-all:
	@$(PYTHON) tools/clean.py --all
	rm -rf $(VENV)
