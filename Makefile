# What one wants to do with this repository, each as a first command on a fresh Debian or Ubuntu machine with Rust.
# Every target sets up what it needs and says what it does.
#
# As another user than root, `sudo` is asked for what needs it: packages, and whatever loads programs into the kernel.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

TARGET := $(abspath $(or $(CARGO_TARGET_DIR),target))
SUDO := $(if $(filter 0,$(shell id -u)),,sudo -E env "PATH=$$PATH")
# In this order, as the build scripts look for it.
CLANG = $(or $(RUNNEL_CLANG),$(shell command -v clang-19 || command -v clang))
NF := $(TARGET)/nf/router.bpf.o

comma := ,

define say
	@printf '\033[1m==> %s\033[0m\n' "$(1)"
endef

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' Makefile

.PHONY: setup
setup: ## Install what building and testing needs, if anything is missing
	$(call say,looking for the tools and headers that are needed)
	@ci/setup.sh

.PHONY: nf
nf: setup ## Compile the network functions to eBPF objects, into target/nf
	@$(MAKE) --no-print-directory $(NF)

$(NF): nf/router/router.bpf.c nf/router/router.h
	$(call say,compiling the router to $@)
	@mkdir -p $(@D)
	$(CLANG) -O2 -g -target bpf -Wall -Wextra -Werror -I/usr/include/$$(uname -m)-linux-gnu -c $< -o $@

.PHONY: build
build: nf ## Build the release binary, into target/release
	$(call say,building runnel)
	cargo build --release --locked -p runnel

.PHONY: demo
demo: nf ## Show a router being specialized under traffic, in namespaces of its own; about 20 s
	$(call say,building runnel and the demo)
	cargo build --release --locked -p runnel -p runnel-lab
	$(call say,a router under traffic$(comma) in two network namespaces that go away again; Ctrl-C ends it)
	@$(SUDO) demo/run.sh

.PHONY: test
test: nf ## Run all tests; those that load programs do so as root
	$(call say,running all tests)
	@ci/test.sh

.PHONY: bench
bench: build ## Measure the router, original against optimized; ARGS='--json FILE --plot DIR' are handed on
	$(call say,measuring the router; this takes some minutes)
	$(SUDO) $(TARGET)/release/runnel bench router --object $(NF) $(ARGS)

.PHONY: check
check: setup ## Run the checks that need no root: formatting, lints, dependency edges, licences, paths in the documents
	$(call say,checking)
	@ci/check.sh

.PHONY: clean
clean: ## Remove everything that was built
	cargo clean
