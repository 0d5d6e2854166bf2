// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

// Command manager is the operator: the admission webhooks on every replica, the
// controllers on the leader.
package main

import (
	"fmt"
	"os"

	"seatpool.dev/cmd/manager/app"
)

func main() {
	if err := app.Main(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "manager: %v\n", err)
		os.Exit(1)
	}
}
