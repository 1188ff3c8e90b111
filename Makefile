# Development tasks; `make help` lists the targets. The only thing built is an environment in .venv.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.SUFFIXES:

# keep out another Spark or Python that the shell is configured for
unexport SPARK_HOME SPARK_CONF_DIR PYTHONPATH PYTHONHOME PYSPARK_PYTHON PYSPARK_DRIVER_PYTHON PYSPARK_SUBMIT_ARGS VIRTUAL_ENV
# with it, each process of the tests would compile all modules that it imports
unexport PYTHONDONTWRITEBYTECODE
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PYTHONUTF8 := 1

VENV := .venv
PY := $(VENV)/bin/python
STEP := .ci/step

# The stamp is valid only in the checkout that wrote it, and while the environment's Python starts.
INSTALLED_FOR := $(shell $(PY) -c pass 2>/dev/null && cat $(VENV)/.installed 2>/dev/null)
STAMP := $(VENV)/$(if $(findstring |$(CURDIR)|,|$(INSTALLED_FOR)|),.installed,.not-installed)
AIRFLOW := build/airflow
SUITES_STAMP := $(STAMP)-suites
CLASSES := $(VENV)/classes-of-spark.jsa

# Tests wait for the processes that they start: more of them than cores run at a time. tests/conftest.py says which
# tests run in the same one, and in which order.
TEST_PROCESSES ?= 4
SUITES_PROCESSES ?= 4
PYTEST := $(PY) -m pytest --dist loadscope --numprocesses
# seconds on two cores; tests/README.md has what each tier is for
TEST_BUDGET := 360
SUITES_BUDGET := 780

# the second tier: tests that take long, or need more than Python, Java and package registries
MORE := crash or slow or notebook or airflow or browser or cluster or s3 or gs

SAMPLE := tests/golden/sample-logs.tar.gz
SAMPLE_AS_OF_MS := 1798761600000
RUN_DIR := build/run

.PHONY: help install python run test test-all suites search lint bench docs release clean prerequisites

help: ## list the targets
	@sed -n 's/^\([a-z][a-z-]*\):.*## \(.*\)/  make \1#\2/p' $(MAKEFILE_LIST) | awk -F'#' '{ printf "%-16s %s\n", $$1, $$2 }'

# Python for all, Java for what runs Spark or Kafka
python prerequisites:
	@.ci/prerequisites $(filter python,$@) >/dev/null

install: $(STAMP) ## create .venv with the project and its tools, if it is not up to date

$(STAMP): pyproject.toml constraints.txt | python
	@echo "Installing into $(VENV) (a few minutes the first time: Spark is a download of about 450 MB)"
	@rm -f $(VENV)/.installed*
	@"$$(.ci/prerequisites python)" -m venv --clear $(VENV)
	@$(PY) -m pip install --quiet --upgrade -c constraints.txt pip
	@$(PY) -m pip install --quiet -c constraints.txt -e '.[dev]'
	@printf '%s' '$(CURDIR)' > $(VENV)/.installed
	@echo "Installed. To use it in this shell: . $(VENV)/bin/activate"

run: $(STAMP) ## compact the sample logs, as a Spark job and by the command, and show how to compact your own
	@.ci/sample $(VENV) $(SAMPLE) $(RUN_DIR) $(SAMPLE_AS_OF_MS)
	@echo
	@echo 'For your own logs, of a stopped broker:'
	@echo
	@echo '  . $(VENV)/bin/activate'
	@echo '  kafka-log-compaction compact --log-dir /path/to/log-dir --dry-run    # reports what would be dropped, writes nothing'
	@echo '  kafka-log-compaction compact --log-dir /path/to/log-dir'

test: $(STAMP) $(CLASSES) | prerequisites ## run unit tests, Spark tests, and conformance tests with real Kafka
	@$(STEP) "tests" $(PYTEST) $(TEST_PROCESSES) -m "not ($(MORE))" --durations=10 --budget $(TEST_BUDGET)

test-all: test suites ## run all tests and suites, and install what the suites need

suites: $(SUITES_STAMP) $(AIRFLOW)/.installed $(CLASSES) | prerequisites
	@$(STEP) "suites: $(MORE)" $(PYTEST) $(SUITES_PROCESSES) -m "$(MORE)" --durations=20 --budget $(SUITES_BUDGET)

SEARCH_MINUTES ?= 60
search: $(STAMP) | prerequisites ## search for failures with fresh seeds, for SEARCH_MINUTES; what is found becomes a case
	@$(PY) -m tools.search --minutes $(SEARCH_MINUTES)

$(CLASSES): | $(STAMP)
	@$(STEP) "archive the classes of the tests' JVMs" $(PY) -m tests.jvm

$(SUITES_STAMP): $(STAMP)
	@$(STEP) "install what the suites need" $(PY) -m pip install --quiet -c constraints.txt -e '.[dev,suites]'
	@$(STEP) "find or install a browser" .ci/browser $(PY)
	@touch $(VENV)/.installed-suites

# Airflow gets a separate environment: its Spark provider depends on pyspark-client, whose files overwrite those of pyspark
$(AIRFLOW)/.installed: pyproject.toml constraints.txt | $(STAMP)
	@$(STEP) "create an environment for Airflow" sh -c '\
	  $(PY) -m venv --clear $(AIRFLOW) && \
	  $(AIRFLOW)/bin/python -m pip install --quiet --upgrade -c constraints.txt pip && \
	  $(AIRFLOW)/bin/python -m pip install --quiet -c constraints.txt --group airflow'
	@touch $@

lint: $(STAMP) ## check style, types and import rules
	@status=0; \
	$(STEP) "ruff" $(PY) -m ruff check --quiet . || status=1; \
	$(STEP) "mypy" $(PY) -m mypy --no-error-summary || status=1; \
	$(STEP) "import-linter" $(VENV)/bin/lint-imports --no-logo || status=1; \
	exit $$status

BENCH ?= --cases all --out build/benchmark/table
LATEST ?= --cases h,g
bench: $(STAMP)-bench | prerequisites ## compare time and memory with Kafka's own cleaner and with other ways; BENCH and LATEST have the options
	@$(PY) -m tools.benchmark $(BENCH)
	@$(PY) -m tools.benchmark.latest_per_key $(LATEST)

$(STAMP)-bench: $(STAMP)
	@$(PY) -m pip install --quiet -c constraints.txt -e '.[dev,bench]'
	@touch $(VENV)/.installed-bench

docs: $(SUITES_STAMP) ## build the documentation as a site, in build/site
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet && echo "build/site/index.html"

release: $(SUITES_STAMP) | prerequisites ## build the packages, try each in an empty environment by each engine, and print what to upload
	@$(PY) -m tools.release

clean: ## remove the output of runs, tests and tools, but not .venv
	@rm -rf build dist spark-warehouse metastore_db derby.log artifacts .hypothesis
	@rm -rf .mypy_cache .pytest_cache .ruff_cache .import_linter_cache *.egg-info
	@find compaction jobs tests -name __pycache__ -type d -prune -exec rm -rf {} +
