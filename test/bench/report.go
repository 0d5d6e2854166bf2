// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// measure makes every comparison, and prints and writes the tables.
func measure(ctx context.Context, s settings) error {
	out := &tables{}
	heading(out)
	if err := measureOne(ctx, s, out); err != nil {
		return err
	}
	if err := measureReplicas(ctx, s, out); err != nil {
		return err
	}
	out.summary()
	if s.output == "" {
		return nil
	}
	return os.WriteFile(s.output, out.text.Bytes(), 0o600)
}

// tables is the text for the file, which is shown while it grows.
type tables struct {
	text    bytes.Buffer
	targets []string // rows of the last table
}

func (t *tables) printf(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	fmt.Print(line)
	t.text.WriteString(line)
}

// aim is what a figure should come to.
type aim struct {
	text string
	met  func(float64) bool
}

func atLeast(want float64) aim {
	return aim{fmt.Sprintf("at least %g", want), func(got float64) bool { return got >= want }}
}

func atMost(want float64) aim {
	return aim{fmt.Sprintf("at most %g", want), func(got float64) bool { return got <= want }}
}

// target notes a figure for the summary.
func (t *tables) target(what string, got float64, want aim) {
	verdict := "met"
	if !want.met(got) {
		verdict = "**missed**"
	}
	t.targets = append(t.targets, fmt.Sprintf("| %s | %s | %.2f | %s |\n", what, want.text, got, verdict))
}

func (t *tables) summary() {
	t.printf("## Targets\n\n| | target | measured | |\n|---|---:|---:|---|\n%s", strings.Join(t.targets, ""))
}

func heading(out *tables) {
	out.printf(`# Benchmarks

Written by "make bench" on %s: %s, %d processors, %s. The control plane (etcd
without fsync, one kube-apiserver), the managers and the clients share the
machine. Rates are calls a second, times are in milliseconds. Within a table all
variants were measured in turn in one run; figures of different tables are not
to be compared.

(a) has no webhook configuration; in (b) both webhooks are called and allow
everything at once, while the manager runs and watches; (c) is seatpool. All
store objects of the same size. A single manager is called directly, several
through a balancer that copies every byte, which a Service would do in the kernel.

"server" and "managers" are the processor time that one call costs etcd with
kube-apiserver, and the managers together; the rest is the clients' and, in (b),
the webhooks'. With the processors all busy, that is what decides the rate.

`, time.Now().UTC().Format("2006-01-02"), processor(), runtime.NumCPU(), runtime.Version())
}

// processor returns the name of the machine's processor.
func processor() string {
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	for line := range strings.Lines(string(info)) {
		if name, ok := strings.CutPrefix(line, "model name"); ok {
			return strings.TrimSpace(strings.TrimLeft(name, "\t :"))
		}
	}
	return runtime.GOARCH
}

// measureOne measures with one manager: all variants, refusals, memory, a large
// pool beside a small one, reaping.
func measureOne(ctx context.Context, s settings, out *tables) (err error) {
	b, stop, err := newBench(ctx, s, 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	have := 0
	for _, leases := range s.leases {
		if err := b.fill(ctx, hot, have, leases); err != nil {
			return err
		}
		have = leases
		out.printf("## One pool with %d live leases, one manager\n\n", leases)
		out.printf("| clients | call | variant | rate | p50 | p99 | server | managers | rate to (b) | p99 to (b) |\n")
		out.printf("|---:|---|---|---:|---:|---:|---:|---:|---:|---:|\n")
		for _, clients := range s.clients {
			if err := b.table(ctx, leases, clients, out); err != nil {
				return err
			}
		}
		mib, err := b.memory("manager-0")
		if err != nil {
			return err
		}
		out.printf("\nThe manager's resident set: %.0f MiB.\n\n", mib)
		out.target(fmt.Sprintf("resident set of the manager with %d leases, MiB", leases), mib, atMost(150))
	}
	if len(s.leases) > 1 {
		if err := b.measureSizes(ctx, out); err != nil {
			return err
		}
	}
	if s.reaped == 0 {
		return nil
	}
	r, err := b.reap(ctx, s.reaped)
	if err != nil {
		return err
	}
	out.printf(`## %d leases that expire in the same second

| | rate | to plain deletes |
|---|---:|---:|
| plain deletes, 16 clients | %.0f | |
| reaped | %.0f | %.2f |

Meanwhile somebody checked out of another pool: %d checkouts, %d refused.

`, s.reaped, r.deleted, r.reaped, r.reaped/r.deleted, r.checkouts, r.refused)
	out.target(fmt.Sprintf("reaping %d leases, rate to plain deletes", s.reaped), r.reaped/r.deleted, atLeast(0.7))
	out.target("checkouts refused meanwhile", float64(r.refused), atMost(0))
	return nil
}

// usual is the number of clients for which targets are set.
const usual = 32

// table measures one number of clients.
func (b *bench) table(ctx context.Context, leases, clients int, out *tables) error {
	results, err := b.compare(ctx, clients, noWebhooks, noDecision, seatpool)
	if err != nil {
		return err
	}
	toBase := map[string]float64{}
	for _, kind := range []string{checkout, renewal, release} {
		base := results[noDecision][kind]
		for _, variant := range []string{noWebhooks, noDecision, seatpool} {
			f := results[variant][kind]
			out.printf("| %d | %s | %s | %s | %.2f | %.2f |\n", clients, kind, variant, f, f.rate()/base.rate(), f.tail()/base.tail())
		}
		toBase[kind] = results[seatpool][kind].rate() / base.rate()
	}
	grants, refusals := results[seatpool][checkout], results[seatpool][refusal]
	out.printf("| %d | %s | %s | %s | %.2f of grants | |\n", clients, refusal, seatpool, refusals, refusals.rate()/grants.rate())
	if clients != usual {
		return nil
	}
	with := fmt.Sprintf(" with %d leases and %d clients", leases, clients)
	out.target("checkout, rate to (b)"+with, toBase[checkout], atLeast(0.8))
	out.target("checkout, p99 to (b)"+with, grants.tail()/results[noDecision][checkout].tail(), atMost(2))
	out.target("renewal, rate to (b)"+with, toBase[renewal], atLeast(0.9))
	out.target("refusal, rate to grants"+with, refusals.rate()/grants.rate(), atLeast(1))
	return nil
}

// measureSizes compares the hot pool, once it is full, with a small one on the
// same control plane.
func (b *bench) measureSizes(ctx context.Context, out *tables) error {
	few, many := b.leases[0], b.leases[len(b.leases)-1]
	if err := b.fill(ctx, beside, 0, few); err != nil {
		return err
	}
	if err := b.use(ctx, seatpool); err != nil {
		return err
	}
	sides := []side{
		{strconv.Itoa(few), func(clients int, into map[string]*figures) error { return b.cycle(ctx, beside, clients, false, into) }},
		{strconv.Itoa(many), func(clients int, into map[string]*figures) error { return b.cycle(ctx, hot, clients, false, into) }},
	}
	out.printf("## A pool with %d live leases beside one with %d\n\n", many, few)
	return b.measureSides(out, "leases", sides, func(kind string) string {
		return fmt.Sprintf("%s, rate of a pool with %d leases to one with %d", kind, many, few)
	}, 0.8)
}

// measureReplicas compares one manager with three, on a control plane each.
func measureReplicas(ctx context.Context, s settings, out *tables) (err error) {
	var sides []side
	var last *bench
	var stops []func() error
	defer func() {
		for _, stop := range stops {
			err = errors.Join(err, stop())
		}
	}()
	for _, managers := range []int{1, 3} {
		b, stop, err := newBench(ctx, s, managers)
		if err != nil {
			return err
		}
		stops = append(stops, stop)
		b.webhooks = b.cluster.Endpoints().Balancer // for one as for three
		if err := b.fill(ctx, hot, 0, s.leases[0]); err != nil {
			return err
		}
		if err := b.use(ctx, seatpool); err != nil {
			return err
		}
		sides = append(sides, side{strconv.Itoa(managers), func(clients int, into map[string]*figures) error {
			return b.cycle(ctx, hot, clients, false, into)
		}})
		last = b
	}
	out.printf("## Three managers beside one, one pool with %d live leases\n\n", s.leases[0])
	return last.measureSides(out, "replicas", sides, func(kind string) string {
		return kind + ", rate of three managers to one"
	}, 0.9)
}

// side is one of two things that are compared.
type side struct {
	name  string
	cycle func(clients int, into map[string]*figures) error
}

// measureSides measures two sides in turn and sets the second against the first.
func (b *bench) measureSides(out *tables, what string, sides []side, target func(kind string) string, want float64) error {
	out.printf("| clients | call | %s | rate | p50 | p99 | server | managers | rate to %s |\n", what, sides[0].name)
	out.printf("|---:|---|---:|---:|---:|---:|---:|---:|---:|\n")
	for _, clients := range b.clients {
		results := make([]map[string]*figures, len(sides))
		for i := range sides {
			results[i] = noFigures()
		}
		for round := range b.rounds {
			for i := range sides {
				// The other side begins each round.
				i = (i + round) % len(sides)
				if err := sides[i].cycle(clients, results[i]); err != nil {
					return err
				}
			}
		}
		for _, kind := range []string{checkout, renewal} {
			base := results[0][kind].rate()
			for i, side := range sides {
				f := results[i][kind]
				out.printf("| %d | %s | %s | %s | %.2f |\n", clients, kind, side.name, f, f.rate()/base)
			}
			if clients == usual {
				out.target(target(kind), results[1][kind].rate()/base, atLeast(want))
			}
		}
	}
	out.printf("\n")
	return nil
}

// String returns the cells that every table has.
func (f *figures) String() string {
	calls := time.Duration(f.calls)
	return fmt.Sprintf("%.0f | %s | %s | %s | %s", f.rate(), ms(f.quantile(.5)), ms(f.quantile(.99)), ms(f.server/calls), ms(f.managers/calls))
}

// tail is the 99th percentile.
func (f *figures) tail() float64 { return float64(f.quantile(.99)) }

func ms(d time.Duration) string { return fmt.Sprintf("%.2f", float64(d)/float64(time.Millisecond)) }
