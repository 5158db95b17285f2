# SPDX-License-Identifier: Apache-2.0
#
# A thin front for meson and ninja: `make help` lists what there is.

PREFIX    ?= /usr/local
BUILD     ?= build

.DEFAULT_GOAL := build
.PHONY: build run test bench install format deps clean help

build: ## build build/stint (installs nothing)
	@scripts/build $(BUILD)

run: ## install what is missing, build, run the example jobs (ARGS=--once: end when they are done)
	@scripts/deps build
	@scripts/build $(BUILD)
	@echo "run: $(BUILD)/stint dev --config examples/stint.yaml $(ARGS)"
	@env -u DATABASE_URL -u REDIS_URL $(BUILD)/stint dev --config examples/stint.yaml $(ARGS)

test: ## install what is missing, build, run every test (SUITE=name: one part, see scripts/test --list)
	@scripts/deps build test
	@scripts/test $(SUITE)

bench: ## install what is missing, build a release, measure everything, print a report (ARGS=--quick: small)
	@scripts/deps build bench
	@bench/run $(ARGS)

install: ## install program, library, header and pkg-config file under PREFIX (DESTDIR honoured)
	@scripts/build $(BUILD) "$(PREFIX)"
	@meson install -C $(BUILD) --no-rebuild --quiet $(if $(DESTDIR),--destdir "$(abspath $(DESTDIR))")
	@echo "install: installed under $(DESTDIR)$(PREFIX)"

format: ## put the C files into the house format
	@scripts/format

deps: ## install what building and testing need (apt)
	@scripts/deps build test

clean: ## remove everything that was built
	rm -rf build build-asan build-tsan build-fuzz build-release

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
