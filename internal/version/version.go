// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

// Package version knows what was built. Every binary of the repository reports
// the same two facts, which "make build" links in.
package version

// Version and Commit are set by the linker (-X), which is why they are
// variables. A binary built without make says "unknown".
var (
	// Version is the release, as "git describe" names it.
	Version = "unknown"
	// Commit is the full hash of the commit.
	Commit = "unknown"
)
