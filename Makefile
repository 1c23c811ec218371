# Shortcuts. The scripts do the work; see CONTRIBUTING.md.
GOLANGCI_LINT = go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.6.2
MODULES = . testbed/bench

.PHONY: build test short lint bench docs tidy

build: # the daemons and the CLI, in bin/
	mkdir -p bin
	go build -o bin/ ./root-orchestrator ./cluster-orchestrator ./node-engine ./netmanager
	go build -o bin/treeline ./cli

test: # everything; needs root on Debian
	scripts/test

short: # about five minutes
	scripts/test --short

lint:
	for m in $(MODULES); do (cd $$m && $(GOLANGCI_LINT) run ./...) || exit 1; done

bench: # lists the benchmarks; scripts/bench NAME runs one
	scripts/bench --help

docs: # regenerates the generated pages and API documents
	go generate ./testbed/docsgen
	go test ./root-orchestrator/httpapi ./cluster-orchestrator/httpapi -run OpenAPI -update
	go test ./testbed/docs -run Bounds -update
	go generate ./web

tidy:
	for m in $(MODULES); do (cd $$m && go mod tidy) || exit 1; done
