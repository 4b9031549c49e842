# The two commands of the README, and further ones for CI. Everything is installed into VENV.
VENV ?= .venv
PYTHON ?= python3
DEMO_INDEX ?= demo-index
PRESET ?= release
# Two processes take two thirds of the time of one.
PYTEST_ARGS ?= -n 2 --dist worksteal
PACKAGE ?= .

SOURCES = $(shell find csrc tests/cpp -name '*.cc' -o -name '*.h')
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(shell nproc)

.PHONY: demo test test-cpp test-aarch64 test-python lint lint-python lint-core sanitize docs pages readme clean

# Install, index the sample corpus, ask three questions.
demo: $(VENV)/bin/python
	$(VENV)/bin/pip install -q '.[cpu]'
	$(VENV)/bin/embedkit-index build examples/corpus.jsonl -o $(DEMO_INDEX) --overwrite
	$(VENV)/bin/embedkit-index query $(DEMO_INDEX) \
	    "largest animal on earth" "I cannot log in to my account" "what to cook with lentils" -k 3

# Install with the test dependencies and run every test that needs no GPU.
test: $(VENV)/bin/python
	$(VENV)/bin/pip install -q -c constraints.txt '.[cpu,dev,train]'
	$(MAKE) test-cpp
	$(MAKE) test-python

test-cpp:
	PATH="$(abspath $(VENV))/bin:$$PATH"; \
	cmake --fresh --preset $(PRESET) -G Ninja && cmake --build --preset $(PRESET) && ctest --preset $(PRESET)

# The C++ tests for aarch64 under qemu, if a cross-compiler and qemu are installed (Debian: g++-aarch64-linux-gnu,
# qemu-user-static). They also check the code that the compiler generates for the NEON kernels.
test-aarch64:
	@if command -v aarch64-linux-gnu-g++ > /dev/null && \
	    command -v qemu-aarch64-static > /dev/null; then \
	  $(MAKE) test-cpp PRESET=aarch64; \
	else \
	  echo "aarch64: skipped, aarch64-linux-gnu-g++ or qemu-aarch64-static is not installed"; \
	fi

test-python:
	$(VENV)/bin/pytest $(PYTEST_ARGS)

lint: lint-python lint-core

lint-python:
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	mkdir -p build/lint/embedkit && ln -sfn $(abspath $(wildcard embedkit/*) training kernels) build/lint/embedkit/
	cd build/lint && $(abspath $(VENV))/bin/mypy --config-file ../../pyproject.toml -p embedkit
	cd build/lint && $(abspath $(VENV))/bin/mypy --config-file ../../pyproject.toml ../../tests/typing/user.py

lint-core:
	$(VENV)/bin/clang-format --dry-run -Werror $(SOURCES)
	$(VENV)/bin/python csrc/text/generate_traits.py --check
	$(VENV)/bin/python csrc/text/generate_tables.py --check

# The C++ tests under the address and undefined-behavior sanitizers, and those that start threads under the thread
# sanitizer. gcc's cannot start where the kernel randomizes addresses by many bits, so randomization is turned off for
# it where that is allowed.
sanitize:
	UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 $(MAKE) test-cpp PRESET=asan
	$$(setarch -R true 2> /dev/null && echo setarch -R) $(MAKE) test-cpp PRESET=tsan

# The site, in build/site. With PACKAGE=WHEEL the docstrings come from an existing wheel instead of a new build.
docs: $(VENV)/bin/python
	$(VENV)/bin/pip install -q -c constraints.txt '$(PACKAGE)[docs]'
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build -q --strict

# Rewrite the generated parts of the pages that hold them: PAGES of docs/hooks.py.
pages:
	$(VENV)/bin/python docs/hooks.py

# Rewrite the tables of the README from benchmarks/results.
readme:
	$(VENV)/bin/python benchmarks/readme.py

clean:
	rm -rf build $(DEMO_INDEX)

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
