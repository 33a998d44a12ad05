# Everything that a developer does, by name. `make` alone lists it.

CARGO ?= cargo
# Where cargo puts its output: .cargo/config.toml says build, because target/ is a crate.
OUT := $(or $(CARGO_TARGET_DIR),build)

.DEFAULT_GOAL := help
.PHONY: help setup setup-demo setup-test setup-lab cargo build install uninstall deb demo test lab lab-long bench fmt lint doc clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: setup-test ## install the system packages that are missing (as root, or with sudo)

setup-demo:
	@scripts/setup demo

setup-test:
	@scripts/setup test

setup-lab:
	@scripts/setup lab

cargo:
	@command -v $(CARGO) >/dev/null || { echo "cargo is missing: install Rust as https://rustup.rs tells" >&2; exit 1; }

# Optimised across crates: a tenth less processor time an I/O, for minutes of linking, which tests do without.
build: cargo ## build both programs, optimised
	CARGO_PROFILE_RELEASE_LTO=fat CARGO_PROFILE_RELEASE_CODEGEN_UNITS=1 $(CARGO) build --locked --release -p godwit -p godwit-target

export PREFIX SYSCONFDIR DESTDIR

install: ## install what was built: programs, units, manual pages, completions, samples (PREFIX=/usr/local, DESTDIR=)
	@scripts/install install $(OUT)/release

uninstall: ## remove what `make install` installed; configurations stay
	@scripts/install uninstall $(OUT)/release

deb: build ## build a Debian package of each program, in build/debian
	@scripts/deb $(OUT)

demo: setup-demo build ## run target, initiator and fio on this machine (ARGS="..." goes to godwit demo)
	$(OUT)/release/godwit demo $(ARGS)

# Tests that need root say so and are ignored otherwise.
AS_ROOT := $(if $(filter 0,$(shell id -u)),-- --include-ignored)

# How many guests run at a time. One has two processors, and mostly uses one of them.
LAB_GUESTS ?= 3
# What of the lab every change has to pass; the rest takes as long again, and is for `make lab`. So are the cells of the matrix where siw is the target's device:
# it misses first messages there (see common/rdma/src/nudge.rs), and what wakes it comes late on a machine whose guests wait for each other.
LAB_GATE := driver:: provider:: matrix:: durability:: attach::a_volume_is_a_disk
LAB_GATE += $(addprefix --skip ,on_siw_uses_our_rdma uses_linux_target_on_siw uses_linux_6_1_target_on_siw uses_our_rdma_target_on_siw from_our_iwarp_to_siw)
LAB = RUST_TEST_THREADS=$(LAB_GUESTS) $(CARGO) test --locked --no-fail-fast --release -p godwit-tests --test lab
OTHER_TESTS := $(patsubst tests/tests/%.rs,--test %,$(patsubst %/main.rs,%.rs,$(filter-out %/lab/main.rs,$(wildcard tests/tests/*.rs tests/tests/*/main.rs))))

# The crates with overflow checks and debug assertions; the programs as they ship, one test at a time, for each has the machine's timing; then the kernel lab,
# whose cases are ignored where it cannot be set up.
test: setup-test build ## run every test
	$(CARGO) test --locked --no-fail-fast --workspace --exclude godwit-tests $(AS_ROOT)
	RUST_TEST_THREADS=1 $(CARGO) test --locked --no-fail-fast --release -p godwit-tests --lib --bins $(OTHER_TESTS) $(AS_ROOT)
	@if [ -z '$(AS_ROOT)' ]; then echo "SKIPPED: the kernel lab: it needs root"; $(LAB); \
	elif scripts/setup lab; then $(LAB) $(AS_ROOT) $(LAB_GATE); \
	else echo "SKIPPED: the kernel lab: what it needs cannot be had on this machine, as said above"; $(LAB); fi

# Tests of many minutes, and those whose guests boot more than once or wait for what is held back.
LAB_LONG := long:: systemd:: fencing::

lab: setup-lab build ## run the tests that boot a Linux kernel of their own in QEMU (as root), but for the longest
	$(LAB) $(or $(AS_ROOT),--) $(addprefix --skip ,$(LAB_LONG))

# One guest at a time: each has much to write.
lab-long: LAB_GUESTS = 1
lab-long: setup-lab build ## run the longest of them: power cuts, memory pressure, systemd, fencing
	$(LAB) $(or $(AS_ROOT),--) $(LAB_LONG)

# Peers are measured where they are installed.
bench: setup-demo build ## measure this machine, beside nbdkit, qemu and SPDK (SPDK_DIR=) where they are there (ARGS="--help" lists options)
	$(CARGO) build --locked --release -p godwit-tests --bin bench
	$(OUT)/release/bench --json $(OUT)/bench.json $(ARGS)

fmt: cargo ## format the code
	$(CARGO) fmt --all

lint: cargo ## run clippy; a warning is an error
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings

doc: cargo ## build the documentation; a warning is an error
	RUSTDOCFLAGS=-Dwarnings $(CARGO) doc --locked --workspace --no-deps

clean: cargo ## remove what was built
	$(CARGO) clean
