# Short names for the scripts of the project. Each script also works without make.

.DEFAULT_GOAL := help
.PHONY: help demo demo-down demo-recording test test-all sim sim-night generate image manifests chart docs release-dry-run fmt clippy unit services deny fuzz e2e chaos bench tools cluster-up cluster-down test-cluster

help: ## list all targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F '|' '{ printf "%-21s %s\n", $$1, $$2 }'

demo: ## show on a test cluster how a Git push starts a Pulumi update (root; 40 minutes the first time)
	@tests/demo/demo

demo-down: ## end the demo and remove its cluster
	@tests/demo/demo down

demo-recording: ## record the demo on its own test cluster: docs/images/demo.svg (root, Python 3)
	@tests/demo/record

test: ## run the tests that every change requires (root); up to 35 minutes, the first time up to 65 minutes
	@tests/run

test-all: ## run all tests, including long tests (root)
	@tests/run --all

sim: ## simulate the controller with faults on virtual time; SEED=7 or CASE='{"scenario":…}' replays a case with its trace
	@CARGO_PROFILE_DEV_OPT_LEVEL=1 cargo test --locked --quiet --test simulation -- $(if $(SEED),--seed $(SEED)) $(if $(CASE),--case '$(CASE)')

sim-night: ## simulate the controller with 10,000 random worlds and all single faults
	@CARGO_PROFILE_DEV_OPT_LEVEL=1 cargo test --locked --quiet --test simulation -- --night

generate: ## regenerate the CRDs, the protocol descriptors and the tables in documents
	REGENERATE=1 cargo test --locked --quiet --test generated

image: ## build the controller image: target/image/pulumi-controller.tar
	@deploy/image/build --archive "$${CARGO_TARGET_DIR:-target}/image/pulumi-controller.tar"

manifests: ## write install.yaml and the content of an OCI artifact to target/manifests (kubectl); IMAGE selects the image
	@deploy/manifests/build $(if $(IMAGE),--image $(IMAGE))

chart: ## package the Helm chart: target/chart (Helm; to build Helm, run tests/cluster/cluster helm)
	@PATH="$$(tests/cluster/cluster path)" helm package deploy/chart --destination "$${CARGO_TARGET_DIR:-target}/chart"

docs: ## check the links of all documents, and build the documentation as a website: target/book
	@docs/build

release-dry-run: ## build a release twice, publish it to the registry of a test cluster, and verify it (root)
	@deploy/release/dry-run

fmt: ## format the code
	cargo fmt

clippy: ## lint the code, with warnings as errors
	@tests/run clippy

unit: ## run the unit tests, and check the generated files and the module imports
	@tests/run unit

services: ## run the tests of the test services (Go)
	@tests/run services

deny: ## check the licenses, security advisories and sources of all dependencies
	@tests/deny

fuzz: ## fuzz each target for a minute (nightly Rust, cargo-fuzz); FUZZ_SECONDS sets the duration
	@tests/fuzz/run

e2e: ## run the end-to-end tests on a test cluster (root)
	@tests/run install e2e exclusive

chaos: ## inject faults for ten minutes and check for lost and repeated runs (root); CHAOS_SEED selects the faults, CHAOS_SECONDS sets the duration
	@CHAOS_SECONDS=$${CHAOS_SECONDS:-600} tests/run install chaos

bench: ## measure speed, memory and size against their budgets (root); BENCH="path cold" selects benchmarks
	@tests/bench/run $(BENCH)

tools: ## build the programs of the test cluster into the cache
	@tests/cluster/cluster tools

cluster-up: ## start the test cluster (root)
	@tests/cluster/cluster up

cluster-down: ## remove the test cluster and keep the cache
	@tests/cluster/cluster down

test-cluster: ## test the scripts of the test cluster; removes a running cluster (root)
	@tests/cluster/selftest
