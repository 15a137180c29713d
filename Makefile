# `make help` lists the targets. Cargo always gets --workspace: a single -p would resolve other features and
# build every dependency a second time.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup build install-plugin generate lint deny test test-local test-cluster test-full coverage bench bench-rails demo demo-down demo-local clean

CARGO ?= cargo
# Cargo's own variable wins, so that binaries are looked for where cargo puts them.
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
# Lines covered in each of the crates jobqueue and jobqueue-worker, in per cent.
COVERAGE_MIN ?= 80
# Where the plugin is installed.
BIN ?= $(HOME)/.local/bin
# Steps of test-full to run again, e.g. make test-full STEPS='cluster rails-7'
STEPS ?=
# Arguments of the benchmark, e.g. make bench ARGS=--quick
ARGS ?=

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | while IFS=$$'\t' read -r name text; do \
		printf '  %-14s %s\n' "$$name" "$$text"; done

setup: ## Install what build and tests need and this machine lacks (Debian packages)
	@scripts/setup

build: ## Build all binaries
	$(CARGO) build --workspace --bins

# Both names on the PATH are what kubectl looks for: the plugin, and who completes its words.
install-plugin: ## Install kubectl jobqueue into BIN (default ~/.local/bin)
	$(CARGO) build --release --workspace --bin kubectl-jobqueue
	install -d "$(BIN)"
	install -m 755 $(TARGET_DIR)/release/kubectl-jobqueue "$(BIN)/kubectl-jobqueue"
	install -m 755 deploy/kubectl/kubectl_complete-jobqueue "$(BIN)/kubectl_complete-jobqueue"
	@case ":$$PATH:" in *":$(BIN):"*) ;; *) echo "add $(BIN) to your PATH" ;; esac

generate: ## Write every generated file anew (CRD, references, chart)
	scripts/generate

lint: ## Check format and lints, warnings are errors
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

# The advisories need a database from a git host: where only package registries can be reached, the check
# cannot run, and CI on the open internet runs it (.github/workflows/ci.yaml).
deny: ## Check licences, banned crates and sources of all dependencies
	"$$(scripts/cargo-tool cargo-deny 0.20.2)" --workspace check --hide-inclusion-graph licenses bans sources

# The binaries first: the end-to-end tests start them, and cargo builds another package's binaries for no test.
# Most tests wait for something (a heartbeat to lapse, a backoff to pass): more of them at once than cores.
export RUST_TEST_THREADS ?= 8

# The tests on Kubernetes find the cluster, the images and the operator through the environment (scripts/e2e); with
# KUBECONFIG set they use that cluster.
test: setup build ## Run all tests but the long ones, on a real Redis and a real cluster
	scripts/chart check
	scripts/rails-spec $(TARGET_DIR)/debug/worker
	cluster=$$(PROFILE=dev scripts/e2e); eval "$$cluster"; $(CARGO) test --workspace

# The two halves of the tests, for who has the cluster elsewhere or none (CI).
test-local: ## Run the tests that need no Kubernetes, those in the documentation too
	$(CARGO) test --workspace --no-fail-fast --lib --bins $$(scripts/test-targets local)
	$(CARGO) test --workspace --doc

test-cluster: ## Run the tests on the Kubernetes that the environment names (scripts/e2e)
	$(CARGO) test --workspace --no-fail-fast $$(scripts/test-targets cluster)

test-full: setup build ## Everything: lints, dependencies, all tests with the long ones; docs/results/test-full
	scripts/test-full $(TARGET_DIR) $(STEPS)

coverage: setup ## Measure line coverage, fail under COVERAGE_MIN per cent
	scripts/coverage $(COVERAGE_MIN)

bench: setup ## Print throughput, latency and round trips (ARGS=...)
	$(CARGO) build --release --workspace --bin worker --bin bench
	$(TARGET_DIR)/release/bench $(ARGS)

bench-rails: setup ## Print no-op jobs a second in a Rails application: Sidekiq's own process, then ours
	$(CARGO) build --release --workspace --bin worker
	scripts/rails-bench $(TARGET_DIR)/release/worker

demo: setup ## A queue on a real cluster, from apply to drained (KUBECONFIG's, or one on this machine)
	scripts/demo

demo-down: ## Remove the demo and the cluster that was started for it
	scripts/demo down

demo-local: setup build ## Watch files become jobs and jobs get done, without Kubernetes
	scripts/demo-local $(TARGET_DIR)/debug/worker

clean: ## Remove what was built
	$(CARGO) clean
