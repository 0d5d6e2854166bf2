// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

// Command golangci is golangci-lint with kube-api-linter compiled in.
//
// golangci-lint's own way of adding a plugin ("golangci-lint custom") clones
// its repository and tidies a go.mod that nobody keeps. Here the versions of
// both are pinned, with checksums, in this module's go.mod. The module is
// separate from the other tools so that a linter never decides which
// dependencies the generators are built with.
package main

import (
	"fmt"
	"os"
	"runtime/debug"
	"strings"

	"github.com/golangci/golangci-lint/v2/pkg/commands"
	"github.com/golangci/golangci-lint/v2/pkg/exitcodes"
	_ "sigs.k8s.io/kube-api-linter" // registers the linter "kubeapilinter"
)

const (
	golangciModule = "github.com/golangci/golangci-lint/v2"
	kalModule      = "sigs.k8s.io/kube-api-linter"
)

func main() {
	if err := commands.Execute(buildInfo()); err != nil {
		fmt.Fprintf(os.Stderr, "golangci-lint stopped before it could lint: %v\n", err)
		os.Exit(exitcodes.Failure)
	}
}

// buildInfo reports the versions pinned in go.mod, which "golangci-lint
// version" shows and which the lint cache is keyed by.
func buildInfo() commands.BuildInfo {
	info := commands.BuildInfo{Version: "unknown", Commit: "unknown", Date: "unknown", GoVersion: "unknown"}

	build, ok := debug.ReadBuildInfo()
	if !ok {
		return info
	}
	info.GoVersion = build.GoVersion
	for _, dep := range build.Deps {
		switch dep.Path {
		case golangciModule:
			info.Version = strings.TrimPrefix(dep.Version, "v")
		case kalModule:
			info.Commit = "with kube-api-linter " + dep.Version
		}
	}
	return info
}
