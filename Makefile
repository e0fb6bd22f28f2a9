# make demo   install what is missing, build, simulate scenarios/gpt2_pp4.json, execute a small schedule on the CPU, compare
# make test   the same set-up, then every test (unit, property, golden, conformance, cli, fuzz, tsan)
# make bench  speed: ratios and rates, printed, never asserted in tests
JOBS ?= $(shell nproc)
.PHONY: demo test bench build steptwin configure deps fuzz tsan clean

deps:
	@scripts/install-deps.sh

configure: deps
	@mkdir -p build
	@cmake --preset release >build/configure.log 2>&1 || { cat build/configure.log; exit 1; }

steptwin: configure
	@cmake --build --preset release -j $(JOBS) --target steptwin

build: configure
	@cmake --build --preset release -j $(JOBS)

demo: steptwin
	@scripts/demo.sh build/steptwin

test: build fuzz tsan
	ctest --test-dir build --output-on-failure -j $(JOBS)

# Short fuzzing of the three readers under ASan + UBSan: FUZZ_SECONDS in all (default 60).
fuzz: deps
	@scripts/fuzz.sh

# The executor's threads under ThreadSanitizer.
tsan: deps
	@scripts/tsan.sh

bench: build
	@scripts/bench.sh build

clean:
	rm -rf build build-*
