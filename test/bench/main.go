// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

// Command bench measures what the operator costs: checkouts, renewals and
// releases of the same kind (a) without webhooks, (b) with both webhooks
// answering at once without deciding anything, and (c) with seatpool. All three
// are measured in one run on one control plane, in turn, because figures of
// different runs or machines say nothing about each other; what is claimed are
// the ratios. It runs bin/devcluster and shares the machine with it.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"
)

// settings are what the flags say.
type settings struct {
	clients []int
	leases  []int
	calls   int
	rounds  int
	reaped  int
	output  string
}

func main() {
	ctrl.SetLogger(logr.Discard())
	s := settings{clients: []int{1, 8, 32, 128}, leases: []int{100, 20000}}
	flag.Func("clients", "numbers of clients at once, separated by commas (default 1,8,32,128)", numbers(&s.clients))
	flag.Func("leases", "numbers of live leases in the pool, separated by commas, rising (default 100,20000)", numbers(&s.leases))
	flag.IntVar(&s.calls, "calls", 800, "calls of each kind in a round; fewer with few clients")
	flag.IntVar(&s.rounds, "rounds", 3, "rounds of each comparison")
	flag.IntVar(&s.reaped, "reaped", 2000, "leases that expire in the same second; 0 skips that comparison")
	flag.StringVar(&s.output, "output", "docs/benchmarks.md", "file for the tables; none when empty")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := measure(ctx, s)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}

func numbers(into *[]int) func(string) error {
	return func(value string) error {
		*into = nil
		for field := range strings.SplitSeq(value, ",") {
			n, err := strconv.Atoi(field)
			if err != nil || n < 1 {
				return fmt.Errorf("%q is no number of at least 1", field)
			}
			*into = append(*into, n)
		}
		return nil
	}
}
