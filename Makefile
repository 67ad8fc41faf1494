# What there is to do here. The work is done by scripts that can be called by themselves.

.DEFAULT_GOAL := help
.PHONY: help demo demo-down test test-all generate image fmt clippy unit services fuzz e2e chaos bench tools cluster-up cluster-down test-cluster

help: ## list what there is to do
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F '|' '{ printf "%-20s %s\n", $$1, $$2 }'

demo: ## from nothing to a Git push that arrives as a Pulumi update, on a real cluster (root; 35 minutes the first time)
	@tests/demo/demo

demo-down: ## end the demo and take its cluster down
	@tests/demo/demo down

test: ## the tests for every change: format, clippy, unit tests, end-to-end tests on a real cluster (root)
	@tests/run

test-all: ## the same, and the long ones: restarts, upgrades, overlays, crowds, two minutes of faults, a fleet repository (root)
	@tests/run --all

generate: ## write generated files anew: resource definitions, RPC code
	REGENERATE=1 cargo test --locked --quiet --test generated

image: ## build the controller's image: target/image/pulumi-controller.tar
	@deploy/image/build --archive "$${CARGO_TARGET_DIR:-target}/image/pulumi-controller.tar"

fmt: ## format the code
	cargo fmt

clippy: ## lint the code, warnings as errors
	@tests/run clippy

unit: ## unit tests, and that generated files and rooms are in order
	@tests/run unit

services: ## tests of the Git server, the provider log and the test provider
	@tests/run services

fuzz: ## fuzz what comes from outside, a minute for each target (nightly Rust and cargo-fuzz)
	@tests/fuzz/run

e2e: ## end-to-end tests only, on a cluster of their own (root)
	@tests/run install e2e exclusive

chaos: ## ten minutes of faults, and the proof that nothing was lost and nothing came twice (root); CHAOS_SEED, CHAOS_SECONDS
	@CHAOS_SECONDS=$${CHAOS_SECONDS:-600} tests/run install chaos

bench: ## measure speed, memory and size against their budgets (root); BENCH="path cold" measures these only
	@tests/bench/run $(BENCH)

tools: ## build the programs of the test cluster into the cache
	@tests/cluster/cluster tools

cluster-up: ## bring the test cluster up (root)
	@tests/cluster/cluster up

cluster-down: ## take the test cluster down; only the cache stays
	@tests/cluster/cluster down

test-cluster: ## prove that the test cluster comes up, works and leaves nothing behind (root; a running one is taken down)
	@tests/cluster/selftest
