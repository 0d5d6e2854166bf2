# Copyright The seatpool Authors.
# SPDX-License-Identifier: Apache-2.0
#
# The manager's image. "make image" builds it and hands in what git knows; the
# binary comes out of the same "make build" as everywhere else.

FROM golang:1.26 AS build
WORKDIR /src

# The modules first: they change more rarely than the code, so this layer is
# usually there already.
COPY go.mod go.sum ./
COPY hack/devcluster/go.mod hack/devcluster/go.sum hack/devcluster/
RUN go mod download && go mod download -C hack/devcluster

COPY . .
ARG VERSION=unknown
ARG COMMIT=unknown
# Set by the builder when it builds for another platform, otherwise empty,
# which Go takes for the machine's own.
ARG TARGETOS
ARG TARGETARCH
RUN GOOS=$TARGETOS GOARCH=$TARGETARCH make build VERSION="$VERSION" COMMIT="$COMMIT"

# Nothing but the binary: it is static, and trusts the API server by the
# certificate its ServiceAccount is given.
FROM scratch
LABEL org.opencontainers.image.title="seatpool manager" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /src/bin/manager /manager
# nonroot. A number, so that Kubernetes can check runAsNonRoot.
USER 65532:65532
ENTRYPOINT ["/manager"]
