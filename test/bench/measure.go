// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	seatpoolv1alpha1 "seatpool.dev/api/v1alpha1"
	"seatpool.dev/test/cluster"
)

// The variants that are compared.
const (
	noWebhooks = "(a) no webhooks"
	noDecision = "(b) no decision"
	seatpool   = "(c) seatpool"
)

// The calls that are measured.
const (
	checkout = "checkout"
	renewal  = "renewal"
	release  = "release"
	refusal  = "refusal"
)

// The pools, and how long their leases live.
const (
	hot    = "hot"   // the one that is measured
	beside = "small" // one with few leases beside it
	forAll = time.Hour
)

// bench is a control plane that is measured on.
type bench struct {
	settings
	cluster *cluster.Cluster
	client  client.Client
	api     *api
	noop    *noop
	// webhooks is what the API server calls in variant (c).
	webhooks string
	// processes are those whose processor time is measured.
	processes []process
	serial    int
}

// process is one of a control plane, which took part in a call.
type process struct {
	name, part string
}

// The parts that a call's processor time is told of.
const (
	server = "server" // kube-apiserver and etcd
	mgr    = "managers"
)

func newBench(ctx context.Context, s settings, managers int) (*bench, func() error, error) {
	c, stop, err := cluster.StartMain(cluster.Options{Replicas: managers})
	if err != nil {
		return nil, nil, err
	}
	b := &bench{settings: s, cluster: c, client: c.Client(), webhooks: c.Endpoints().Balancer}
	b.processes = []process{{"etcd", server}, {"kube-apiserver-0", server}}
	for _, manager := range c.Endpoints().Managers {
		b.processes = append(b.processes, process{manager.Name, mgr})
	}
	if managers == 1 {
		// Without the balancer, whose work a Service does in the kernel.
		b.webhooks = c.Endpoints().Managers[0].Webhook
	}
	if b.api, err = newAPI(c.Config()); err != nil {
		return nil, nil, errors.Join(err, stop())
	}
	if b.noop, err = startNoop(c.WebhookCertDir()); err != nil {
		return nil, nil, errors.Join(err, stop())
	}
	for _, object := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		poolNamed(hot, seatpoolv1alpha1.MaxSeats),
		poolNamed(beside, seatpoolv1alpha1.MaxSeats),
	} {
		if err := b.client.Create(ctx, object); err != nil {
			return nil, nil, errors.Join(err, stop())
		}
	}
	return b, stop, nil
}

func poolNamed(name string, seats int32) *seatpoolv1alpha1.SeatPool {
	return &seatpoolv1alpha1.SeatPool{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       seatpoolv1alpha1.SeatPoolSpec{Seats: &seats, TTLSeconds: int32(forAll.Seconds())},
	}
}

// use switches to a variant and waits until the API server has noticed.
func (b *bench) use(ctx context.Context, variant string) error {
	var err error
	switch variant {
	case noWebhooks:
		err = b.cluster.RemoveWebhooks()
	case noDecision:
		err = b.cluster.InstallWebhooks(b.noop.url)
	case seatpool:
		err = b.cluster.InstallWebhooks(b.webhooks)
	}
	if err != nil {
		return err
	}
	deadline := time.Now().Add(30 * time.Second)
	for noticed := 0; noticed < 3; {
		if time.Now().After(deadline) {
			return fmt.Errorf("the API server did not switch to %s", variant)
		}
		ok, err := b.noticed(ctx, variant)
		switch {
		case err != nil:
			return err
		case ok:
			noticed++
		default:
			noticed = 0
			<-time.After(50 * time.Millisecond)
		}
	}
	return nil
}

// noticed makes a lease and sees who was asked about it.
func (b *bench) noticed(ctx context.Context, variant string) (bool, error) {
	b.serial++
	before := b.noop.asked.Load()
	lease := &seatpoolv1alpha1.SeatLease{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprint("probe-", b.serial)},
		Spec:       seatpoolv1alpha1.SeatLeaseSpec{PoolRef: seatpoolv1alpha1.PoolReference{Name: hot}},
	}
	err := b.client.Create(ctx, lease)
	if apierrors.ReasonForError(err) == seatpoolv1alpha1.ReasonNoGrant {
		return false, nil // one configuration has been noticed and the other not yet
	}
	if err != nil {
		return false, err
	}
	asked := b.noop.asked.Load() - before
	granted := lease.Status.Token != ""
	// A lease without a grant may be reaped before it is deleted here.
	if err := b.client.Delete(ctx, lease); client.IgnoreNotFound(err) != nil {
		return false, err
	}
	switch variant {
	case noWebhooks:
		return asked == 0 && !granted, nil
	case noDecision:
		return asked == 2, nil
	default:
		return granted, nil
	}
}

// callsFor returns how many calls a number of clients makes in a round.
func (b *bench) callsFor(clients int) int { return min(b.calls, 100+25*clients) }

// compare measures checkouts, renewals and releases of the variants in turn, and
// refusals.
func (b *bench) compare(ctx context.Context, clients int, variants ...string) (map[string]map[string]*figures, error) {
	results := map[string]map[string]*figures{}
	for _, variant := range variants {
		results[variant] = noFigures()
	}
	for round := range b.rounds {
		// Another variant begins each round, so that none always has the same place.
		order := append(slices.Clone(variants[round%len(variants):]), variants[:round%len(variants)]...)
		for _, variant := range order {
			if err := b.use(ctx, variant); err != nil {
				return nil, err
			}
			if err := b.cycle(ctx, hot, clients, variant != seatpool, results[variant]); err != nil {
				return nil, fmt.Errorf("%s with %d clients: %w", variant, clients, err)
			}
			if variant != seatpool {
				continue
			}
			f, err := b.refuse(ctx, clients)
			if err != nil {
				return nil, fmt.Errorf("refusals with %d clients: %w", clients, err)
			}
			results[variant][refusal].add(f)
		}
	}
	return results, nil
}

func noFigures() map[string]*figures {
	return map[string]*figures{checkout: {}, renewal: {}, release: {}, refusal: {}}
}

// cycle makes leases of a pool, renews them and releases them. With granted they
// bring a status along, since nobody stamps one.
func (b *bench) cycle(ctx context.Context, pool string, clients int, granted bool, into map[string]*figures) error {
	b.serial++
	prefix := fmt.Sprintf("l%d-", b.serial)
	n := b.callsFor(clients)
	name := func(i int) string { return prefix + strconv.Itoa(i) }
	bodies := make([][]byte, n)
	for i := range bodies {
		bodies[i] = manifest(pool, name(i), forAll, granted)
	}
	for _, step := range []struct {
		kind string
		call func(i int) error
	}{
		{checkout, func(i int) error { return b.api.create(ctx, bodies[i]) }},
		{renewal, func(i int) error { return b.api.renew(ctx, name(i)) }},
		{release, func(i int) error { return b.api.release(ctx, name(i)) }},
	} {
		f, err := b.run(clients, n, step.call)
		if err != nil {
			return fmt.Errorf("%s: %w", step.kind, err)
		}
		into[step.kind].add(f)
	}
	return nil
}

// run makes calls and also measures the processor time they take.
func (b *bench) run(clients, n int, call func(i int) error) (*figures, error) {
	before, err := b.processorTime()
	if err != nil {
		return nil, err
	}
	f, err := run(clients, n, call)
	if err != nil {
		return nil, err
	}
	after, err := b.processorTime()
	f.server, f.managers = after[server]-before[server], after[mgr]-before[mgr]
	return f, err
}

// processorTime returns how long the parts have run so far.
func (b *bench) processorTime() (map[string]time.Duration, error) {
	times := map[string]time.Duration{}
	for _, p := range b.processes {
		pid, err := b.cluster.Pid(p.name)
		if err != nil {
			return nil, err
		}
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return nil, err
		}
		ticks, err := ticksOf(string(stat))
		if err != nil {
			return nil, fmt.Errorf("processor time of %s: %w", p.name, err)
		}
		times[p.part] += time.Duration(ticks) * tick
	}
	return times, nil
}

// tick is the unit of processor time in /proc, on every architecture of Linux.
const tick = 10 * time.Millisecond

// ticksOf adds the user and the system time in /proc/PID/stat. The name of the
// program comes before them, in parentheses, and may hold anything.
func ticksOf(stat string) (int64, error) {
	fields := strings.Fields(stat[strings.LastIndex(stat, ")")+1:])
	const userTime, systemTime = 11, 12 // counted from the state, which follows the name
	if len(fields) <= systemTime {
		return 0, errors.New("the line is too short")
	}
	user, err := strconv.ParseInt(fields[userTime], 10, 64)
	if err != nil {
		return 0, err
	}
	system, err := strconv.ParseInt(fields[systemTime], 10, 64)
	return user + system, err
}

// refuse measures the refusals of the hot pool by seatpool, made full for that
// time.
func (b *bench) refuse(ctx context.Context, clients int) (*figures, error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(seatpoolv1alpha1.GroupVersion.WithKind("SeatLeaseList"))
	if err := b.client.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return nil, err
	}
	if err := b.setSeats(ctx, len(list.Items)); err != nil {
		return nil, err
	}
	b.serial++
	n := b.callsFor(clients)
	f, err := b.run(clients, n, func(i int) error {
		return mustBeRefused(b.api.create(ctx, manifest(hot, fmt.Sprintf("no%d-%d", b.serial, i), forAll, false)))
	})
	return f, errors.Join(err, b.setSeats(ctx, seatpoolv1alpha1.MaxSeats))
}

func (b *bench) setSeats(ctx context.Context, seats int) error {
	pool := poolNamed(hot, 0)
	return b.client.Patch(ctx, pool, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"seats":%d}}`, seats)))
}

// fill makes live leases until the pool has that many.
func (b *bench) fill(ctx context.Context, pool string, have, want int) error {
	if err := b.use(ctx, noWebhooks); err != nil {
		return err
	}
	_, err := run(32, want-have, func(i int) error {
		return b.api.create(ctx, manifest(pool, fmt.Sprint(pool, "-base-", have+i), 24*forAll, true))
	})
	return err
}

// memory returns the resident set of a manager in MiB.
func (b *bench) memory(name string) (float64, error) {
	pid, err := b.cluster.Pid(name)
	if err != nil {
		return 0, err
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	match := regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindSubmatch(status)
	if match == nil {
		return 0, errors.New("the resident set is not told")
	}
	kib, err := strconv.ParseFloat(string(match[1]), 64)
	return kib / 1024, err
}

// reapResult is what a mass expiry came to.
type reapResult struct {
	reaped, deleted float64 // a second
	checkouts       int64
	refused         int64
}

// reap has many leases expire in the same second and measures how fast they are
// reaped, beside deletes of as many by as many clients as the reaper has, while
// somebody checks out of another pool.
func (b *bench) reap(ctx context.Context, n int) (*reapResult, error) {
	if err := b.use(ctx, noWebhooks); err != nil {
		return nil, err
	}
	result := &reapResult{}
	if _, err := run(32, n, func(i int) error {
		return b.api.create(ctx, manifest(hot, fmt.Sprint("plain-", i), forAll, true))
	}); err != nil {
		return nil, err
	}
	plain, err := run(16, n, func(i int) error { return b.api.release(ctx, fmt.Sprint("plain-", i)) })
	if err != nil {
		return nil, err
	}
	result.deleted = plain.rate()

	dying := poolNamed("dying", seatpoolv1alpha1.MaxSeats)
	dying.Spec.SkewSeconds, dying.Spec.ReapGraceSeconds = new(int32(0)), 1
	if err := b.client.Create(ctx, dying); err != nil {
		return nil, err
	}
	end := time.Now().Add(time.Duration(n/150+10) * time.Second).Truncate(time.Second)
	if _, err := run(32, n, func(i int) error {
		return b.api.create(ctx, manifest("dying", fmt.Sprint("dying-", i), time.Until(end), true))
	}); err != nil {
		return nil, err
	}
	if time.Now().After(end) {
		return nil, errors.New("the leases could not be made before they expire")
	}
	if err := b.use(ctx, seatpool); err != nil {
		return nil, err
	}
	return result, b.watchReaping(ctx, end, n, result)
}

func (b *bench) watchReaping(ctx context.Context, end time.Time, n int, result *reapResult) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	withWatch, err := client.NewWithWatch(b.cluster.Config(), client.Options{Scheme: b.client.Scheme()})
	if err != nil {
		return err
	}
	list := &seatpoolv1alpha1.SeatLeaseList{}
	watching, err := withWatch.Watch(ctx, list, client.InNamespace(namespace), client.MatchingFields{"spec.poolRef.name": "dying"})
	if err != nil {
		return err
	}
	defer watching.Stop()
	<-time.After(time.Until(end))
	var asked, refused atomic.Int64
	asking := make(chan struct{})
	go func() {
		defer close(asking)
		for i := 0; ctx.Err() == nil; i++ {
			err := b.api.create(ctx, manifest(hot, fmt.Sprint("during-", i), forAll, false))
			if ctx.Err() != nil {
				return
			}
			asked.Add(1)
			if err != nil {
				refused.Add(1)
			}
		}
	}()
	var first, last time.Time
	for gone := 0; gone < n; {
		select {
		case event, ok := <-watching.ResultChan():
			if !ok {
				return errors.New("the watch ended")
			}
			if event.Type != "DELETED" {
				continue
			}
			if gone++; gone == 1 {
				first = time.Now()
			}
			last = time.Now()
		case <-time.After(time.Minute):
			return fmt.Errorf("%d of %d leases were reaped", gone, n)
		}
	}
	cancel()
	<-asking
	result.reaped = float64(n-1) / last.Sub(first).Seconds()
	result.checkouts, result.refused = asked.Load(), refused.Load()
	return nil
}
