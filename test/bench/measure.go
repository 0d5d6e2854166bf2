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

const (
	hot    = "hot"
	forAll = time.Hour
)

// bench is a control plane that is measured on.
type bench struct {
	settings
	cluster *cluster.Cluster
	client  client.Client
	api     *api
	noop    *noop
	serial  int
}

func newBench(ctx context.Context, s settings, managers int) (*bench, func() error, error) {
	c, stop, err := cluster.StartMain(cluster.Options{Replicas: managers})
	if err != nil {
		return nil, nil, err
	}
	b := &bench{settings: s, cluster: c, client: c.Client()}
	if b.api, err = newAPI(c.Config()); err != nil {
		return nil, nil, errors.Join(err, stop())
	}
	if b.noop, err = startNoop(c.WebhookCertDir()); err != nil {
		return nil, nil, errors.Join(err, stop())
	}
	for _, object := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		poolNamed(hot, seatpoolv1alpha1.MaxSeats),
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
		err = b.cluster.InstallWebhooks(b.cluster.Endpoints().Balancer)
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

// rounds measures checkouts, renewals and releases of the variants in turn.
func (b *bench) compare(ctx context.Context, clients int, variants ...string) (map[string]map[string]*figures, error) {
	results := map[string]map[string]*figures{}
	for _, variant := range variants {
		results[variant] = map[string]*figures{checkout: {}, renewal: {}, release: {}}
	}
	for round := range b.rounds {
		// Another variant begins each round, so that none always has the same place.
		order := append(slices.Clone(variants[round%len(variants):]), variants[:round%len(variants)]...)
		for _, variant := range order {
			if err := b.use(ctx, variant); err != nil {
				return nil, err
			}
			if err := b.cycle(ctx, clients, variant, results[variant]); err != nil {
				return nil, fmt.Errorf("%s with %d clients: %w", variant, clients, err)
			}
		}
	}
	return results, nil
}

// cycle makes leases, renews them and releases them.
func (b *bench) cycle(ctx context.Context, clients int, variant string, into map[string]*figures) error {
	b.serial++
	prefix := fmt.Sprintf("l%d-", b.serial)
	n := b.callsFor(clients)
	name := func(i int) string { return prefix + strconv.Itoa(i) }
	bodies := make([][]byte, n)
	for i := range bodies {
		bodies[i] = manifest(hot, name(i), forAll, variant != seatpool)
	}
	for _, step := range []struct {
		kind string
		call func(i int) error
	}{
		{checkout, func(i int) error { return b.api.create(ctx, bodies[i]) }},
		{renewal, func(i int) error { return b.api.renew(ctx, name(i)) }},
		{release, func(i int) error { return b.api.release(ctx, name(i)) }},
	} {
		f, err := run(clients, n, step.call)
		if err != nil {
			return fmt.Errorf("%s: %w", step.kind, err)
		}
		into[step.kind].add(f)
	}
	return nil
}

// refuse measures the refusals of the hot pool, made full for that time.
func (b *bench) refuse(ctx context.Context, clients int) (*figures, error) {
	if err := b.use(ctx, seatpool); err != nil {
		return nil, err
	}
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
	f, err := run(clients, n, func(i int) error {
		return mustBeRefused(b.api.create(ctx, manifest(hot, fmt.Sprintf("no%d-%d", b.serial, i), forAll, false)))
	})
	return f, errors.Join(err, b.setSeats(ctx, seatpoolv1alpha1.MaxSeats))
}

func (b *bench) setSeats(ctx context.Context, seats int) error {
	pool := poolNamed(hot, 0)
	return b.client.Patch(ctx, pool, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"seats":%d}}`, seats)))
}

// fill makes live leases until the hot pool has that many.
func (b *bench) fill(ctx context.Context, have, want int) error {
	if err := b.use(ctx, noWebhooks); err != nil {
		return err
	}
	_, err := run(32, want-have, func(i int) error {
		return b.api.create(ctx, manifest(hot, fmt.Sprint("base-", have+i), 24*forAll, true))
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
