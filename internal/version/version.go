// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

// Package version knows what was built. Every binary of the product reports the
// same facts: with --version to people, and in seatpool_build_info to a
// monitoring system.
package version

import (
	"fmt"
	"runtime"
)

// Version and Commit are set by the linker (-X), which is why they are
// variables. A binary built without make says "unknown".
var (
	// Version is the release, as "git describe" names it.
	Version = "unknown"
	// Commit is the full hash of the commit.
	Commit = "unknown"
)

// String returns one line that tells what was built, with what and for what.
func String() string {
	return fmt.Sprintf("%s (commit %s, %s, %s/%s)", Version, Commit, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
