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
	if s.output == "" {
		return nil
	}
	return os.WriteFile(s.output, out.text.Bytes(), 0o600)
}

// tables is the text for the file, which is shown while it grows.
type tables struct{ text bytes.Buffer }

func (t *tables) printf(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	fmt.Print(line)
	t.text.WriteString(line)
}

func heading(out *tables) {
	out.printf(`# Benchmarks

Written by "make bench" on %s: %s, %d processors, %s. The control plane (etcd
without fsync, one kube-apiserver), the managers and the clients share the
machine. Rates are calls a second, times are in milliseconds. Within a table all
variants were measured in turn in one run; figures of different tables are not
to be compared.

(a) has no webhook configuration; in (b) both webhooks are called and allow
everything at once; (c) is seatpool. All store objects of the same size.

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

// measureOne measures with one manager: all variants, refusals, memory, reaping.
func measureOne(ctx context.Context, s settings, out *tables) (err error) {
	b, stop, err := newBench(ctx, s, 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	have := 0
	for _, leases := range s.leases {
		if err := b.fill(ctx, have, leases); err != nil {
			return err
		}
		have = leases
		out.printf("## One pool with %d live leases, one manager\n\n", leases)
		out.printf("| clients | call | variant | rate | p50 | p99 | rate to (b) | p99 to (b) |\n")
		out.printf("|---:|---|---|---:|---:|---:|---:|---:|\n")
		for _, clients := range s.clients {
			if err := b.table(ctx, clients, out); err != nil {
				return err
			}
		}
		mib, err := b.memory("manager-0")
		if err != nil {
			return err
		}
		out.printf("\nThe manager's resident set: %.0f MiB.\n\n", mib)
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
	return nil
}

// table measures one number of clients.
func (b *bench) table(ctx context.Context, clients int, out *tables) error {
	results, err := b.compare(ctx, clients, noWebhooks, noDecision, seatpool)
	if err != nil {
		return err
	}
	for _, kind := range []string{checkout, renewal, release} {
		base := results[noDecision][kind]
		for _, variant := range []string{noWebhooks, noDecision, seatpool} {
			f := results[variant][kind]
			out.printf("| %d | %s | %s | %.0f | %s | %s | %.2f | %.2f |\n", clients, kind, variant, f.rate(),
				ms(f.quantile(.5)), ms(f.quantile(.99)), f.rate()/base.rate(), float64(f.quantile(.99))/float64(base.quantile(.99)))
		}
	}
	refusals := &figures{}
	for range b.rounds {
		f, err := b.refuse(ctx, clients)
		if err != nil {
			return err
		}
		refusals.add(f)
	}
	grants := results[seatpool][checkout]
	out.printf("| %d | %s | %s | %.0f | %s | %s | %.2f of grants | |\n", clients, refusal, seatpool, refusals.rate(),
		ms(refusals.quantile(.5)), ms(refusals.quantile(.99)), refusals.rate()/grants.rate())
	return nil
}

// measureReplicas compares one manager with three, on a control plane each.
func measureReplicas(ctx context.Context, s settings, out *tables) (err error) {
	benches := map[int]*bench{}
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
		if err := b.fill(ctx, 0, s.leases[0]); err != nil {
			return err
		}
		if err := b.use(ctx, seatpool); err != nil {
			return err
		}
		benches[managers] = b
	}
	out.printf("## One manager and three, one pool with %d live leases\n\n", s.leases[0])
	out.printf("| clients | call | managers | rate | p50 | p99 | rate to one |\n")
	out.printf("|---:|---|---:|---:|---:|---:|---:|\n")
	for _, clients := range s.clients {
		results := map[int]map[string]*figures{}
		for _, managers := range []int{1, 3} {
			results[managers] = map[string]*figures{checkout: {}, renewal: {}, release: {}}
		}
		for range s.rounds {
			for _, managers := range []int{1, 3} {
				if err := benches[managers].cycle(ctx, clients, seatpool, results[managers]); err != nil {
					return err
				}
			}
		}
		for _, kind := range []string{checkout, renewal} {
			for _, managers := range []int{1, 3} {
				f := results[managers][kind]
				out.printf("| %d | %s | %d | %.0f | %s | %s | %.2f |\n", clients, kind, managers, f.rate(),
					ms(f.quantile(.5)), ms(f.quantile(.99)), f.rate()/results[1][kind].rate())
			}
		}
	}
	return nil
}

func ms(d time.Duration) string { return fmt.Sprintf("%.1f", float64(d)/float64(time.Millisecond)) }
