# Everything happens in two virtual environments that this file makes: .venv with torch, for
# exporting and testing, and .venv-runtime without, to show that decoding needs none.
#
# PIP_ARGS goes to every pip install; use it to choose torch's CPU-only wheels.

PYTHON ?= python3
PIP_ARGS ?=
BIN := .venv/bin
RUNTIME := .venv-runtime/bin
ifeq ($(OS),Windows_NT)
BIN := .venv/Scripts
RUNTIME := .venv-runtime/Scripts
endif
INSTALL = -m pip install --disable-pip-version-check --quiet --constraint constraints.txt $(PIP_ARGS)

CASES ?= 2000

.PHONY: help demo test check bench bench-serving chaos fuzz optional clean

help:
	@echo "make demo   export the demo model, prove it equal, translate without torch"
	@echo "make test   run all tests"
	@echo "make check  ruff, mypy --strict, import-linter"
	@echo "make fuzz CASES=100000  drawn cases against everything that reads input, in worker processes"
	@echo "make chaos  corpora on clusters of two and four nodes, while nodes, workers and drivers die"
	@echo "make bench  measure start-up and decoding speed on this machine, beside CTranslate2 and Transformers"
	@echo "make bench-serving  ways of batching behind HTTP under a Poisson load, beside CTranslate2"
	@echo "make clean  remove the virtual environments and caches"

demo: .venv/ready .venv-runtime/ready
	$(BIN)/tfexport demo --runtime-python $(RUNTIME)/python

# What tests can do without is left out where it cannot be had; pytest then says what it skipped.
test: .venv/ready .venv-runtime/ready optional
	$(BIN)/python -m pytest -n auto --dist load --maxschedchunk 1

check: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fuzz: .venv/ready
	$(BIN)/python -m tests.fuzz --cases $(CASES)

bench-serving: .venv/ready
	mkdir -p build/bench
	$(BIN)/python -m benchmarks.serving --json build/bench/serving.json

chaos: .venv/ready
	@mkdir -p build/chaos
	$(BIN)/tfexport onnx --checkpoint examples/de-en -o build/chaos/de-en.bundle --force
	cut -f1 examples/de-en/test.tsv > build/chaos/german.txt
	$(BIN)/python -m tests.corpus.chaos build/chaos/de-en.bundle build/chaos/german.txt --nodes 2
	$(BIN)/python -m tests.corpus.chaos build/chaos/de-en.bundle build/chaos/german.txt --nodes 4

bench: .venv/ready .venv-runtime/ready
	-@$(MAKE) --no-print-directory --keep-going .venv/peers .venv-optimum/ready
	$(BIN)/python -m benchmarks.startup --runtime-python $(RUNTIME)/python
	$(BIN)/python -m benchmarks.decoding
	$(BIN)/python -m benchmarks.compare --json build/bench/compare.json
	$(BIN)/python -m benchmarks.tables build/bench/compare.json | tee build/bench/tables.md
	$(BIN)/python -m benchmarks.plots build/bench/compare.json -o build/bench/performance.png

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python $(INSTALL) --editable '.[dev]'
	@touch $@

# Not editable: what is tested here is the package as a user would install it. Without what an
# earlier build left, which may hold modules that have moved since.
.venv-runtime/ready: pyproject.toml constraints.txt $(shell find tfexport -name '*.py')
	$(PYTHON) -m venv .venv-runtime
	@rm -rf build/lib
	$(RUNTIME)/python $(INSTALL) --force-reinstall --no-deps .
	$(RUNTIME)/python $(INSTALL) '.[tokenizers,sentencepiece,corpus,serve]'
	@touch $@

# The oldest onnxruntime that portable and other graphs name, to load them in.
OLDEST := .venv-onnxruntime-1.18.1/ready .venv-onnxruntime-1.21.1/ready
PACKAGES := examples/node/node_modules/ready examples/web/node_modules/ready

optional:
	-@$(MAKE) --no-print-directory --keep-going $(OLDEST) .venv/peers .venv/spacy .venv/clients \
		$(if $(shell command -v java),.venv/pyspark) $(if $(shell command -v npm),$(PACKAGES))

# What results and speed are compared with.
.venv/peers: .venv/ready
	$(BIN)/python $(INSTALL) ctranslate2 transformers
	@touch $@

# One of the ways to split text.
.venv/spacy: .venv/ready
	$(BIN)/python $(INSTALL) spacy
	@touch $@

# Clients of the protocols that the server speaks.
.venv/clients: .venv/ready
	$(BIN)/python $(INSTALL) deepl libretranslatepy 'tritonclient[http]'
	@touch $@

# Runs the recipe of docs/corpus.md; it needs Java.
.venv/pyspark: .venv/ready
	$(BIN)/python $(INSTALL) pyspark
	@touch $@

.venv-optimum/ready:
	$(PYTHON) -m venv .venv-optimum
	$(subst .venv,.venv-optimum,$(BIN))/python -m pip install --disable-pip-version-check --quiet \
		$(PIP_ARGS) optimum-onnx torch==2.13.0 onnxruntime safetensors
	@touch $@

.venv-onnxruntime-%/ready:
	$(PYTHON) -m venv .venv-onnxruntime-$*
	$(subst .venv,.venv-onnxruntime-$*,$(BIN))/python -m pip install \
		--disable-pip-version-check --quiet $(PIP_ARGS) onnxruntime==$* 'numpy<2'
	@touch $@

# Install scripts are left out: they fetch GPU libraries; the CPU's are in the packages.
%/node_modules/ready: %/package-lock.json
	cd $* && npm ci --ignore-scripts --no-audit --no-fund
	@touch $@

clean:
	rm -rf .venv .venv-* examples/*/node_modules build *.egg-info .mypy_cache .ruff_cache .pytest_cache
