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

# Hundreds of tests start a process: each would compile all modules of the project again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo ready-bundle real test test-all test-native test-quick-start test-wheel check docs docs-links bench bench-serving chaos overload fuzz fuzz-documents fuzz-modules fuzz-native fuzz-serve sanitize optional release-check test-wasm wasm clean

help:
	@echo "make demo   export the demo model, compare it with PyTorch, translate without torch"
	@echo "make ready-bundle  make examples/de-en.bundle again, which ships with the repository"
	@echo "make test   run the tests, but the exhaustive ones; 7 to 14 minutes on two cores"
	@echo "make test-all  run all tests, as a release and the nightly run do: further combinations of"
	@echo "               what make test runs, all pages of one kind, long forms of runs that are killed"
	@echo "make test-quick-start  the README's commands in fresh virtual environments"
	@echo "make test-wheel  the tests of messages and every verb, with the wheel in place of the checkout"
	@echo "make check  ruff, clang-format, mypy --strict, import-linter"
	@echo "make docs   the site, in build/site: warnings are errors, its links, pages and search are tested"
	@echo "make wasm   the native engine for browsers, in native/wasm/dist; needs emscripten and CMake"
	@echo "make test-wasm  its tests, in Node and a browser"
	@echo "make fuzz CASES=100000  drawn cases against everything that reads input, in worker processes"
	@echo "make fuzz-modules CASES=1000 FIRST=0  modules drawn from a grammar, exported and compared with their forward"
	@echo "make fuzz-documents CASES=20000 FIRST=0  documents of all formats, translated there and judged"
	@echo "make fuzz-native CASES=100000  drawn calls of the native engine's C interface, under sanitizers"
	@echo "make fuzz-serve CASES=20000  drawn requests for a server: texts of all scripts, options, framings"
	@echo "make sanitize  the native engine's tests under AddressSanitizer, UndefinedBehaviorSanitizer, ThreadSanitizer"
	@echo "make chaos  corpora on clusters of two and four nodes, while nodes, workers and drivers die"
	@echo "make overload  a server under ten times the load that it can take, for a minute over 2,000 connections and one over all"
	@echo "make bench  measure start-up and decoding speed on this machine, compared with CTranslate2 and Transformers"
	@echo "make bench-serving  ways of batching behind HTTP under a Poisson load, compared with CTranslate2"
	@echo "make real   export published models of the package index, compare them with their own code"
	@echo "make release-check  build the distributions, and try them in fresh environments"
	@echo "make clean  remove the virtual environments and caches"

demo: .venv/ready .venv-runtime/ready
	$(BIN)/tfexport demo --runtime-python $(RUNTIME)/python

# tests/system/demo/test_ready_bundle.py says when it has to be made again.
ready-bundle: .venv/ready
	$(BIN)/tfexport onnx --checkpoint examples/de-en -o examples/de-en.bundle --force \
		--no-pack --quantize int8 --samples examples/de-en/test.tsv

test test-native: CHOSEN = not exhaustive
# Tests trace small modules, no layer of which is like another: torch's cache of traced operators
# costs a third of a trace there. Results are the same; `make test-all` runs with it.
test: export TORCH_FAKE_TENSOR_DISPATCH_CACHE = 0
# What the first half of `make test` has traced is not traced again in that of the native engine.
test: export TFEXPORT_TESTS_TRACES = $(CURDIR)/build/traces
test-all: CHOSEN =
test-all: RESULTS = tests/serve tests/system/demo/test_ready_bundle.py tests/export/recognition \
	tests/export/parity \
	tests/system/peers/test_generation.py

# One more than cores: tests also wait, for servers and processes that they start. With two more
# the whole takes longer.
WORKERS ?= $(shell python3 -c "import os; print(1 + (os.cpu_count() or 1))")
# A file's tests run in one process: what they share (an export, a browser, a cluster) is made once.
# Files are taken as tests/conftest.py orders them, those with slow tests first, so that no worker is
# left with these at the end; pytest-xdist would begin with the files that have the most tests.
PARALLEL = -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# `make docs` tests the site, after building it.
test: LEFT_OUT = --ignore tests/system/test_site.py
# What tests can do without is left out where it cannot be had; pytest then says what it skipped.
test test-all: .venv/ready .venv-runtime/ready optional
	@rm -rf build/traces
	$(BIN)/python -m pytest $(PARALLEL) $(LEFT_OUT) -m "$(CHOSEN)"
	@if [ -f build/native/ready ]; then $(MAKE) --no-print-directory test-native \
		CHOSEN='$(CHOSEN)' RESULTS='$(RESULTS)'; \
	else echo "The native engine could not be built: its tests are left out." >&2; fi

# What the native engine computes instead of onnxruntime where it is installed: all that decodes,
# and of server and shipped bundle what looks at results; connections and exports know no engine.
# Tests of the runtime that open no model (searches over tables, sounds, pictures) need no second
# run, and neither do those that look at onnxruntime: marks say which these are.
BY_ENGINE = native/tests $(shell grep -rL 'pytest.mark.no_model' tests/runtime \
	--include='test_*.py' | sort) \
	tests/export/parity/test_misses.py tests/cli/test_translate.py tests/cli/test_optimize.py
RESULTS = tests/serve/test_own.py tests/serve/test_kserve.py tests/serve/test_pieces.py \
	tests/serve/test_choice.py tests/system/demo/test_ready_bundle.py::test_it_translates_well \
	tests/system/peers/test_generation.py
test-native: .venv/ready build/native/ready
	PYTHONPATH=$(CURDIR)/build/native $(BIN)/python -m pytest $(BY_ENGINE) $(RESULTS) $(PARALLEL) \
		-m "$(if $(CHOSEN),$(CHOSEN) and )not onnxruntime"

# The README's and the quick start's commands, each environment made anew.
test-quick-start: .venv/ready
	$(BIN)/python -m pytest tests/system/test_readme.py -m exhaustive

# What is installed from a wheel, not --editable: messages name the user's lines there, too.
test-wheel: export TORCH_FAKE_TENSOR_DISPATCH_CACHE = 0
test-wheel: .venv-wheel/ready
	$(BIN)/python -m tests.release.wheel .venv-wheel $(PARALLEL)

C_SOURCES = $(shell find native/engine native/tests -name '*.cpp' -o -name '*.h' -o -name '*.inl')

check: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(C_SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports

# Links to elsewhere need a network: `make docs-links`.
docs: .venv/docs
	$(BIN)/python -m sphinx -E -W --keep-going -q -c docs/_site docs build/site
	TFEXPORT_TESTS_SITE=$(CURDIR)/build/site $(BIN)/python -m pytest -q tests/system/test_site.py \
		-m "not exhaustive"
	@echo "build/site/index.html"

docs-links: .venv/docs
	$(BIN)/python -m sphinx -b linkcheck -q -c docs/_site docs build/links

# The engine for browsers, by Debian's emscripten, whose tools look for Debian's Node packages. Its
# libraries are there already: none is built into its cache, which belongs to the system.
WASM := native/wasm/dist/engine.wasm native/wasm/dist/engine-threads.wasm
EMSCRIPTEN := NODE_PATH=/usr/share/nodejs EM_FROZEN_CACHE=1
wasm: $(WASM)

$(WASM) &: $(shell find native/engine -type f) native/wasm/CMakeLists.txt
	$(EMSCRIPTEN) emcmake cmake -S native/wasm -B build/wasm
	$(EMSCRIPTEN) cmake --build build/wasm --parallel 2
	$(EMSCRIPTEN) emcmake cmake -S native/wasm -B build/wasm-threads -DTFN_THREADS=ON
	$(EMSCRIPTEN) cmake --build build/wasm-threads --parallel 2
	@mkdir -p native/wasm/dist
	cp build/wasm/engine.* build/wasm-threads/engine-threads.* native/wasm/dist
	@touch $(WASM)

test-wasm: wasm .venv/ready build/native/ready
	-@$(MAKE) --no-print-directory --keep-going examples/web/node_modules/ready \
		native/wasm/node_modules/ready
	PYTHONPATH=$(CURDIR)/build/native $(BIN)/python -m pytest native/tests/test_wasm.py \
		tests/system/demo/test_page_engine.py

fuzz: .venv/ready
	$(BIN)/python -m tests.fuzz --cases $(CASES)

# Results are appended to build/fuzz-modules/results.jsonl: a seed that is there is not run again.
FIRST ?= 0
fuzz-modules: CASES = 1000
fuzz-modules: .venv/ready
	$(BIN)/python -m tests.drawn_modules --cases $(CASES) --first $(FIRST)

# Documents of which a judge knows what is to be translated and what stays; 20,000 take 6 minutes.
fuzz-documents: .venv/ready
	$(BIN)/python -m tests.drawn_documents --cases $(CASES) --first $(FIRST)

# The native engine with sanitizers, and the program that draws calls of its C interface.
NATIVE := $(shell find native -name '*.cpp' -o -name '*.h' -o -name '*.inl' -o -name CMakeLists.txt)
SANITIZERS_address := address,undefined
SANITIZERS_thread := thread
SANITIZED := build/native-address/fuzz build/native-thread/fuzz
build/native-%/fuzz: $(NATIVE)
	cmake -S native -B $(@D) -DTFN_DRIVER=ON -DTFN_SANITIZE=$(SANITIZERS_$*) \
		-DTFN_OPTIMIZE='-O1 -ffp-contract=fast'
	cmake --build $(@D) --parallel 2
	@touch $@

fuzz-native: $(SANITIZED)
	mkdir -p build/fuzz-native
	build/native-address/fuzz 0 $(CASES) build/fuzz-native
	build/native-thread/fuzz 0 $(CASES) build/fuzz-native
	TFEXPORT_NATIVE_SHARING=rows build/native-thread/fuzz 0 $(CASES) build/fuzz-native

# Python's own memory is left alone: it never gives some of it back. Sanitizers report to stderr and
# end the process, so pytest captures none of it; and what wrote no results has not run.
RESULTS_SANITIZED := build/native-address/results.xml
sanitize: .venv/ready $(SANITIZED)
	$(MAKE) --no-print-directory fuzz-native
	@rm -f $(RESULTS_SANITIZED)
	LD_PRELOAD=$$($(CXX) -print-file-name=libasan.so):$$($(CXX) -print-file-name=libubsan.so) \
		ASAN_OPTIONS=detect_leaks=0 OMP_NUM_THREADS=1 PYTHONPATH=$(CURDIR)/native \
		TFEXPORT_NATIVE_LIBRARY=$(CURDIR)/build/native-address/libtfexport_native.so \
		$(BIN)/python -m pytest native/tests -p no:cacheprovider --sanitizers --capture=sys \
		--junit-xml=$(RESULTS_SANITIZED)
	@grep -q ' tests="[1-9]' $(RESULTS_SANITIZED) || \
		{ echo "sanitize: no test has run" >&2; exit 1; }

# With the native engine, where it can be built.
MEASURE = PYTHONPATH=$(CURDIR)/build/native $(BIN)/python -m
bench-serving: .venv/ready
	-@$(MAKE) --no-print-directory --keep-going .venv/peers build/native/ready
	mkdir -p build/bench
	$(MEASURE) benchmarks.serving --json build/bench/serving.json

# The guides' lines from a wheel: with the releases of constraints.txt; without, which takes the
# newest that are allowed; with the oldest; and with every other Python that is here.
PYTHONS ?= python3.10 python3.12 python3.13
DECODING := --only base --only python --only http --only corpus --bundle build/demo.bundle
release-check: .venv/ready .venv-release/ready
	rm -rf build/dist
	$(RELEASE)/python -m build --outdir build/dist .
	$(RELEASE)/twine check --strict build/dist/*
	$(BIN)/python -m tests.release.trial build/dist/*.whl --constraints constraints.txt
	$(BIN)/tfexport onnx --checkpoint examples/de-en -o build/demo.bundle --no-verify --force
	$(BIN)/python -m tests.release.trial build/dist/*.whl $(DECODING)
	PATH="$$PATH:$(CURDIR)/$(RELEASE)" \
		$(BIN)/python -m tests.release.trial build/dist/*.whl --resolution lowest-direct
	@for python in $(PYTHONS); do \
		$$python --version >/dev/null 2>&1 || { echo "$$python: not here, not tried"; continue; }; \
		echo "$$python:"; with=; \
		$$python -m pip install --dry-run --ignore-installed --no-deps --only-binary :all: --quiet \
			$(PIP_ARGS) torch || { echo "export: no torch for it, not tried"; with='$(DECODING)'; }; \
		$(BIN)/python -m tests.release.trial build/dist/*.whl --python $$python $$with || exit 1; \
	done

chaos: .venv/ready
	@mkdir -p build/chaos
	$(BIN)/tfexport onnx --checkpoint examples/de-en -o build/chaos/de-en.bundle --force
	cut -f1 examples/de-en/test.tsv > build/chaos/german.txt
	$(BIN)/python -m tests.corpus.chaos build/chaos/de-en.bundle build/chaos/german.txt --nodes 2
	$(BIN)/python -m tests.corpus.chaos build/chaos/de-en.bundle build/chaos/german.txt --nodes 4

overload: .venv/ready
	@mkdir -p build/overload
	$(BIN)/tfexport onnx --checkpoint examples/de-en -o build/overload/de-en.bundle --force
	$(BIN)/python -m tests.serve.overload build/overload/de-en.bundle

# The packages are fetched into build/real, and never installed. T5-like models are drawn.
real: .venv/ready build/native/ready
	$(BIN)/python -m benchmarks.real
	$(BIN)/python -m benchmarks.real.t5_folders --draws 2 --others 0
	PYTHONPATH=$(CURDIR)/build/native $(BIN)/python -m benchmarks.real.whisper_sounds

fuzz-serve: .venv/ready
	@mkdir -p build/overload
	$(BIN)/tfexport onnx --checkpoint examples/de-en -o build/overload/de-en.bundle --force
	$(BIN)/python -m tests.serve.fuzz_requests build/overload/de-en.bundle --cases $(CASES)

bench: .venv/ready .venv-runtime/ready
	-@$(MAKE) --no-print-directory --keep-going .venv/peers .venv-optimum/ready build/native/ready
	$(BIN)/python -m benchmarks.startup --runtime-python $(RUNTIME)/python
	$(BIN)/python -m benchmarks.decoding
	$(BIN)/python -m benchmarks.found_steps
	$(MEASURE) benchmarks.compare --json build/bench/compare.json
	$(MEASURE) benchmarks.sentences
	-$(MEASURE) benchmarks.neighbour
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

# The wheel alone is in it; what it needs is found in .venv.
.venv-wheel/ready: .venv/ready tests/support/installs.py pyproject.toml \
		$(shell find tfexport -type f -not -name '*.pyc')
	$(BIN)/python -m tests.support.installs .venv-wheel
	@touch $@

# Builds the site; the reference is made by importing what it describes.
.venv/docs: .venv/ready
	$(BIN)/python $(INSTALL) --editable '.[docs]'
	@touch $@

# The oldest onnxruntime that portable and other graphs name, to load them in.
OLDEST := .venv-onnxruntime-1.18.1/ready .venv-onnxruntime-1.21.1/ready
PACKAGES := examples/node/node_modules/ready examples/web/node_modules/ready \
	tests/release/node_modules/ready

optional:
	-@$(MAKE) --no-print-directory --keep-going $(OLDEST) build/native/ready .venv/peers .venv/spacy \
		.venv/clients .venv/docs .venv-release/ready \
		$(if $(shell command -v java),.venv/pyspark) $(if $(shell command -v npm),$(PACKAGES))

# The native engine, in a folder of its own: what is installed in .venv decodes with onnxruntime.
build/native/ready: .venv/ready $(shell find native/engine -type f) \
		$(wildcard native/tfexport_native/*.py) native/CMakeLists.txt native/pyproject.toml
	@rm -rf build/native
	$(BIN)/python -m pip install --disable-pip-version-check --quiet $(PIP_ARGS) --no-deps \
		--target build/native ./native
	@touch $@

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
	$(BIN)/python $(INSTALL) deepl libretranslatepy openai 'tritonclient[http]'
	@touch $@

# Runs the recipe of docs/corpus.md; it needs Java.
.venv/pyspark: .venv/ready
	$(BIN)/python $(INSTALL) pyspark
	@touch $@

# Builds and checks distributions; none of it is what the package needs.
RELEASE := $(subst .venv,.venv-release,$(BIN))
.venv-release/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-release
	$(RELEASE)/python $(INSTALL) build setuptools-scm twine uv pipx
	@touch $@

.venv-optimum/ready:
	$(PYTHON) -m venv .venv-optimum
	$(subst .venv,.venv-optimum,$(BIN))/python -m pip install --disable-pip-version-check --quiet \
		$(PIP_ARGS) optimum-onnx torch==2.13.0 onnxruntime safetensors pillow click
	@touch $@

.venv-faster-whisper/ready:
	$(PYTHON) -m venv .venv-faster-whisper
	$(subst .venv,.venv-faster-whisper,$(BIN))/python $(INSTALL) faster-whisper==1.2.1
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
	rm -rf .venv .venv-* examples/*/node_modules native/wasm/dist native/wasm/node_modules tests/release/node_modules build *.egg-info .mypy_cache .ruff_cache .pytest_cache
