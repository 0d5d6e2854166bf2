# seatpool. "make help" lists the targets; the two gates are "make verify" and
# "make test", and .ci/run calls both.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

GO ?= go
BIN := $(CURDIR)/bin
TOOLS := $(BIN)/tools

# What "bin/manager --version" and the image say. In a build context without
# .git they are given from outside.
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
COMMIT ?= $(shell git rev-parse --quiet --verify HEAD 2>/dev/null || echo unknown)
LDFLAGS = -s -w \
	-X seatpool.dev/internal/version.Version=$(VERSION) \
	-X seatpool.dev/internal/version.Commit=$(COMMIT)

# -buildvcs=false: the two variables above say it, and a checkout that belongs
# to another user, as in many containers, would fail the build.
BUILD_FLAGS = -trimpath -buildvcs=false -ldflags '$(LDFLAGS)'

# Tools are pinned, with checksums, in the go.mod files under hack/tools and
# nowhere else. A binary lies in a directory of its version, so that it is built
# once and never used stale. The binary's own name is plain, because generators
# write it into what they generate.
pinned = $(shell awk '$$1 == "$(2)" && $$2 ~ /^v/ { print $$2 }' $(1)/go.mod)
CONTROLLER_GEN := $(TOOLS)/controller-gen-$(call pinned,hack/tools,sigs.k8s.io/controller-tools)/controller-gen
CRD_REF_DOCS := $(TOOLS)/crd-ref-docs-$(call pinned,hack/tools,github.com/elastic/crd-ref-docs)/crd-ref-docs
REASONDOC := $(TOOLS)/reasondoc/reasondoc
GOLANGCI_LINT := $(TOOLS)/golangci-lint-$(call pinned,hack/tools/golangci,github.com/golangci/golangci-lint/v2)-kal-$(call pinned,hack/tools/golangci,sigs.k8s.io/kube-api-linter)/golangci-lint

# Every module, and those with Go code of our own: hack/k8s only pins what the
# control plane is built from.
MODULES = $(patsubst %/,%,$(dir $(shell find . -name go.mod -not -path './bin/*' | sort)))
CODE_MODULES = $(filter-out ./hack/k8s,$(MODULES))

# Static and without cgo, also while linting and generating: neither then
# depends on a C compiler, and all share one build cache.
STATIC := CGO_ENABLED=0

# -count=1: the suites start bin/manager, whose changes go's test cache does not
# see. Waiting is part of what suites test, so they run one package at a time.
# A package that takes longer than TEST_TIMEOUT hangs.
TEST_TIMEOUT ?= 20m
TEST_FLAGS ?=
RACE = CGO_ENABLED=1 $(GO) test
RACE_FLAGS = -race -count=1 -timeout=$(TEST_TIMEOUT) $(TEST_FLAGS)

BENCH_FLAGS ?=
DEMO ?=

CONTAINER_TOOL ?= docker
IMG ?= seatpool/manager:$(VERSION)

say = @printf '==> %s\n'

##@ Start here

.PHONY: help
help: ## Explain every target.
	@awk 'BEGIN { FS = ":.*## "; print "Usage: make TARGET [VARIABLE=value]" } \
		/^##@ / { printf "\n%s\n", substr($$0, 5) } \
		/^[a-z0-9-]+:.*## / { printf "  %-18s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@printf '\nVariables\n'
	@printf '  %-18s %s\n' \
		'DEMO=once' 'run: exit after the demo, with 0 only if every step showed what it must' \
		'TEST_FLAGS=...' 'test, test-unit: more flags for go test, as in TEST_FLAGS="-run C23 -v"' \
		'TEST_TIMEOUT=...' 'test, test-unit: when a package counts as hanging (now $(TEST_TIMEOUT))' \
		'BENCH_FLAGS=...' 'bench: flags for test/bench, as in BENCH_FLAGS=-help' \
		'IMG=...' 'image: its name (now $(IMG))' \
		'CONTAINER_TOOL=...' 'image: what builds it (now $(CONTAINER_TOOL))' \
		'KUBEBUILDER_ASSETS' 'in the environment: a directory with etcd, kube-apiserver and kubectl to use instead of building them'

.PHONY: run
run: build assets ## Start a control plane with the operator, walk through a demo, stay up. DEMO=once exits.
	DEMO='$(DEMO)' hack/demo.sh

##@ Build

.PHONY: build
build: ## Build every binary: bin/manager (static) and bin/devcluster.
	$(say) 'Building bin/manager and bin/devcluster (about two minutes the first time, then seconds)'
	$(STATIC) $(GO) build $(BUILD_FLAGS) -o $(BIN)/manager ./cmd/manager
	$(STATIC) $(GO) build -C hack/devcluster $(BUILD_FLAGS) -o $(BIN)/devcluster .

.PHONY: assets
assets: ## Build etcd, kube-apiserver and kubectl from their Go modules under bin/k8s, once.
	$(say) 'Control plane binaries (about ten minutes the first time, then nothing to do)'
	hack/k8s/build.sh

.PHONY: image
image: ## Build the container image of the manager from the Dockerfile.
	$(say) 'Building $(IMG) (a few minutes the first time)'
	$(CONTAINER_TOOL) build --build-arg VERSION='$(VERSION)' --build-arg COMMIT='$(COMMIT)' --tag '$(IMG)' .

.PHONY: clean
clean: ## Delete what was built. Keeps bin/k8s and bin/tools, which take minutes to build.
	rm -rf $(BIN)/manager $(BIN)/devcluster .devcluster

.PHONY: distclean
distclean: ## Delete everything that was built.
	rm -rf $(BIN) .devcluster

##@ Develop

.PHONY: generate
generate: $(CONTROLLER_GEN) $(CRD_REF_DOCS) $(REASONDOC) ## Regenerate deep copies, CRDs, apply configurations, RBAC and docs/api.md.
	$(say) 'Generating code, CRDs, RBAC and docs/api.md (half a minute)'
	@touch $(TOOLS)/.generate-started
	$(STATIC) $(CONTROLLER_GEN) paths=./api/... \
		object:headerFile=hack/boilerplate.go.txt \
		applyconfiguration:headerFile=hack/boilerplate.go.txt \
		crd output:crd:artifacts:config=config/crd/bases
	$(STATIC) $(CONTROLLER_GEN) paths=./controllers/... paths=./internal/... paths=./cmd/... \
		rbac:roleName=seatpool-manager-role output:rbac:artifacts:config=config/rbac
	@# What a generator did not write again belongs to a type that is gone.
	@find api/v1alpha1/applyconfiguration config/crd/bases -type f ! -newer $(TOOLS)/.generate-started -print -delete
	@mkdir -p docs
	$(STATIC) $(CRD_REF_DOCS) --log-level=ERROR --source-path=api --renderer=markdown --output-path=docs/api.md \
		--config=hack/tools/apidoc/config.yaml --templates-dir=hack/tools/apidoc/templates
	$(REASONDOC) api/v1alpha1/conditions.go >> docs/api.md

.PHONY: lint
lint: $(GOLANGCI_LINT) ## Run golangci-lint on every module, and kube-api-linter on api/.
	$(say) 'Linting (about three minutes the first time, then half a minute)'
	@failed=0; \
	for module in $(CODE_MODULES); do \
		echo "    $$module"; \
		(cd "$$module" && $(STATIC) $(GOLANGCI_LINT) run --config=$(CURDIR)/.golangci.yml ./...) || failed=1; \
	done; \
	echo '    ./api, with kube-api-linter'; \
	$(STATIC) $(GOLANGCI_LINT) run --config=.golangci-kal.yml ./api/... || failed=1; \
	exit $$failed

.PHONY: fmt
fmt: $(GOLANGCI_LINT) ## Format the code and order its imports as lint wants them.
	@for module in $(CODE_MODULES); do \
		(cd "$$module" && $(GOLANGCI_LINT) fmt --config=$(CURDIR)/.golangci.yml ./...); \
	done

.PHONY: tidy
tidy: ## Tidy the go.mod of every module.
	@for module in $(MODULES); do echo "    $$module"; $(GO) mod tidy -C "$$module"; done

##@ Check

.PHONY: verify
verify: ## The gate: regenerate, lint, tidy, headers, formatting; fails on a dirty or untracked tree.
	MAKE='$(MAKE)' GO='$(GO)' hack/verify.sh

.PHONY: test
test: test-unit build assets ## Unit tests, then the suites on a real API server, with the race detector.
	$(say) 'Suites on a real API server, with the race detector (several minutes)'
	$(RACE) $(RACE_FLAGS) -p=1 ./test/...
	$(RACE) -C hack/devcluster $(RACE_FLAGS) ./...

.PHONY: test-unit
test-unit: c-compiler ## Unit tests only, no cluster, with the race detector.
	$(say) 'Unit tests, with the race detector (about two minutes the first time)'
	$(RACE) $(RACE_FLAGS) $$($(GO) list ./... | grep -v '^seatpool\.dev/test/')
	$(RACE) -C hack/tools $(RACE_FLAGS) ./...

.PHONY: bench
bench: build assets ## Measure create, renew and release with and without the operator; writes docs/benchmarks.md.
	$(say) 'Measuring on an otherwise idle machine (how long depends on BENCH_FLAGS)'
	$(GO) run ./test/bench $(BENCH_FLAGS)

# Not meant to be called by hand.

.PHONY: c-compiler
c-compiler:
	@cc="$$($(GO) env CC)"; \
	if echo 'int main(void) { return 0; }' | $$cc -x c -o /dev/null - 2>/dev/null; then exit 0; fi; \
	echo "==> go test -race needs a C compiler and the C library's headers, and '$$cc' cannot build a program here."; \
	if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
		echo 'Install them and try again; on Debian or Ubuntu: apt-get install gcc libc6-dev' >&2; exit 1; \
	fi; \
	echo '==> Installing gcc and libc6-dev with apt-get (about a minute)'; \
	apt-get update -qq; \
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends gcc libc6-dev

$(CONTROLLER_GEN): hack/tools/go.mod hack/tools/go.sum
	$(say) 'Building $(notdir $(@D)) (half a minute)'
	@$(STATIC) $(GO) build -C hack/tools -o $@ sigs.k8s.io/controller-tools/cmd/controller-gen
	@touch $@

$(CRD_REF_DOCS): hack/tools/go.mod hack/tools/go.sum
	$(say) 'Building $(notdir $(@D)) (half a minute)'
	@$(STATIC) $(GO) build -C hack/tools -o $@ github.com/elastic/crd-ref-docs
	@touch $@

$(REASONDOC): hack/tools/go.mod $(wildcard hack/tools/reasondoc/*.go)
	@$(STATIC) $(GO) build -C hack/tools -buildvcs=false -o $@ ./reasondoc
	@touch $@

$(GOLANGCI_LINT): hack/tools/golangci/go.mod hack/tools/golangci/go.sum hack/tools/golangci/main.go
	$(say) 'Building $(notdir $(@D)) (about three minutes, once)'
	@$(STATIC) $(GO) build -C hack/tools/golangci -trimpath -buildvcs=false -ldflags='-s -w' -o $@ .
	@touch $@
