// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

// Package checker watches an API server and asserts what seatpool promises, at
// every resourceVersion there is:
//
//   - no grant is recorded that brings the leases in existence and the
//     reservations of a pool above its seats, and no lease comes into existence
//     without such a grant;
//   - no seat is given to two leases;
//   - the expiry of a lease moves only forward, and every lease carries a token
//     that the operator signed for it as it is.
//
// It orders the events of pools and leases by their resourceVersions. These may
// be compared across kinds only because the control planes it is used with keep
// both in one etcd.
package checker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	seatpoolv1alpha1 "seatpool.dev/api/v1alpha1"
	"seatpool.dev/seat/leasetoken"
)

// Options say what to check.
type Options struct {
	// Keys are the operator's public keys. Tokens are not checked without.
	Keys func(context.Context) (leasetoken.KeySet, error)
	// AllowUngranted tolerates leases without a grant: those a test creates on
	// purpose while there is no webhook configuration.
	AllowUngranted bool
}

// Checker collects what happens and checks it.
type Checker struct {
	options Options
	cancel  context.CancelFunc
	client  client.WithWatch
	wg      sync.WaitGroup

	mu     sync.Mutex
	events []change
	err    error
}

// change is one event of a watch.
type change struct {
	revision uint64
	deleted  bool
	// found is true for what was there when the checker began.
	found bool
	pool  *seatpoolv1alpha1.SeatPool
	lease *seatpoolv1alpha1.SeatLease
}

// Start begins to watch.
func Start(ctx context.Context, c client.WithWatch, options Options) (*Checker, error) {
	ctx, cancel := context.WithCancel(ctx)
	checker := &Checker{options: options, cancel: cancel, client: c}
	for _, list := range []client.ObjectList{&seatpoolv1alpha1.SeatPoolList{}, &seatpoolv1alpha1.SeatLeaseList{}} {
		if err := checker.follow(ctx, list); err != nil {
			cancel()
			return nil, err
		}
	}
	return checker, nil
}

// follow takes what there is of a kind, and then every change of it.
func (c *Checker) follow(ctx context.Context, list client.ObjectList) error {
	if err := c.client.List(ctx, list); err != nil {
		return err
	}
	switch list := list.(type) {
	case *seatpoolv1alpha1.SeatPoolList:
		for i := range list.Items {
			c.record(watch.Event{Type: watch.Added, Object: &list.Items[i]}, true)
		}
	case *seatpoolv1alpha1.SeatLeaseList:
		for i := range list.Items {
			c.record(watch.Event{Type: watch.Added, Object: &list.Items[i]}, true)
		}
	}
	fresh := func() client.ObjectList {
		if _, ok := list.(*seatpoolv1alpha1.SeatPoolList); ok {
			return &seatpoolv1alpha1.SeatPoolList{}
		}
		return &seatpoolv1alpha1.SeatLeaseList{}
	}
	watcher, err := watchtools.NewRetryWatcherWithContext(ctx, list.GetResourceVersion(), &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return c.client.Watch(ctx, fresh(), &client.ListOptions{Raw: &options})
		},
	})
	if err != nil {
		return err
	}
	c.wg.Go(func() {
		defer watcher.Stop()
		for event := range watcher.ResultChan() {
			c.record(event, false)
		}
	})
	return nil
}

func (c *Checker) record(event watch.Event, found bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := change{deleted: event.Type == watch.Deleted, found: found}
	switch object := event.Object.(type) {
	case *seatpoolv1alpha1.SeatPool:
		e.pool = object
		e.revision, c.err = revision(object, c.err)
	case *seatpoolv1alpha1.SeatLease:
		e.lease = object
		e.revision, c.err = revision(object, c.err)
	case *metav1.Status:
		c.err = errors.Join(c.err, fmt.Errorf("watch ended: %s", object.Message))
		return
	default:
		return
	}
	if event.Type == watch.Bookmark {
		return
	}
	c.events = append(c.events, e)
}

func revision(object metav1.Object, before error) (uint64, error) {
	n, err := strconv.ParseUint(object.GetResourceVersion(), 10, 64)
	return n, errors.Join(before, err)
}

// Stop waits until all that has happened so far is in, and returns everything
// that broke a promise.
func (c *Checker) Stop(ctx context.Context) error {
	defer c.wg.Wait()
	defer c.cancel()
	if err := c.catchUp(ctx); err != nil {
		return err
	}
	keys := leasetoken.KeySet(nil)
	if c.options.Keys != nil {
		var err error
		if keys, err = c.options.Keys(ctx); err != nil {
			return fmt.Errorf("operator's public keys could not be read: %w", err)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return c.err
	}
	return replay(slices.Clone(c.events), c.options, keys)
}

// catchUp waits until the watches have delivered what lists show.
func (c *Checker) catchUp(ctx context.Context) error {
	newest := map[string]uint64{}
	pools, leases := &seatpoolv1alpha1.SeatPoolList{}, &seatpoolv1alpha1.SeatLeaseList{}
	if err := errors.Join(c.client.List(ctx, pools), c.client.List(ctx, leases)); err != nil {
		return err
	}
	note := func(kind string, object metav1.Object) {
		if n, err := revision(object, nil); err == nil {
			newest[kind] = max(newest[kind], n)
		}
	}
	for i := range pools.Items {
		note("pool", &pools.Items[i])
	}
	for i := range leases.Items {
		note("lease", &leases.Items[i])
	}
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		c.mu.Lock()
		var pool, lease uint64
		for _, e := range c.events {
			if e.pool != nil {
				pool = max(pool, e.revision)
			} else {
				lease = max(lease, e.revision)
			}
		}
		failed := c.err
		c.mu.Unlock()
		if failed != nil {
			return failed
		}
		if pool >= newest["pool"] && lease >= newest["lease"] {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("watches did not catch up: %w", ctx.Err())
		case <-ticker.C:
		}
	}
}

// world is what exists at one revision.
type world struct {
	options Options
	keys    leasetoken.KeySet
	pools   map[types.NamespacedName]*seatpoolv1alpha1.SeatPool
	leases  map[types.NamespacedName]*seatpoolv1alpha1.SeatLease
	// granted holds every lease that was ever reserved.
	granted map[types.UID]bool
	seats   map[string]types.UID
	broken  []error
}

// replay lets everything happen again in order.
func replay(events []change, options Options, keys leasetoken.KeySet) error {
	slices.SortStableFunc(events, func(a, b change) int { return int(int64(a.revision) - int64(b.revision)) })
	w := &world{
		options: options, keys: keys,
		pools:   map[types.NamespacedName]*seatpoolv1alpha1.SeatPool{},
		leases:  map[types.NamespacedName]*seatpoolv1alpha1.SeatLease{},
		granted: map[types.UID]bool{},
		seats:   map[string]types.UID{},
	}
	for _, e := range events {
		if e.pool != nil {
			w.changePool(e)
		} else {
			w.changeLease(e)
		}
	}
	return errors.Join(w.broken...)
}

func (w *world) breaks(e change, format string, args ...any) {
	w.broken = append(w.broken, fmt.Errorf("at revision %d: %s", e.revision, fmt.Sprintf(format, args...)))
}

func (w *world) changePool(e change) {
	key := client.ObjectKeyFromObject(e.pool)
	if e.deleted {
		delete(w.pools, key)
		return
	}
	w.pools[key] = e.pool
	newGrants := false
	names := w.existing(key)
	for _, r := range e.pool.Status.Reservations {
		names[types.NamespacedName{Namespace: r.Namespace, Name: r.Name}] = true
		if uid := types.UID(r.UID); !w.granted[uid] {
			w.granted[uid] = true
			newGrants = true
		}
	}
	if newGrants && !e.found && len(names) > e.pool.Seats() {
		w.breaks(e, "pool %s: a grant brought %d leases and reservations into a pool of %d seats", key, len(names), e.pool.Seats())
	}
	if free := e.pool.Status.SeatsFree; free != nil && *free < 0 {
		w.breaks(e, "pool %s: seatsFree is %d", key, *free)
	}
}

// existing returns the names of the leases of a pool that exist and are not
// being deleted.
func (w *world) existing(pool types.NamespacedName) map[types.NamespacedName]bool {
	names := map[types.NamespacedName]bool{}
	for key, lease := range w.leases {
		if lease.Pool() == pool && lease.DeletionTimestamp == nil {
			names[key] = true
		}
	}
	return names
}

func (w *world) changeLease(e change) {
	key := client.ObjectKeyFromObject(e.lease)
	if e.deleted {
		delete(w.leases, key)
		return
	}
	old := w.leases[key]
	w.leases[key] = e.lease
	status := &e.lease.Status
	if old == nil {
		w.created(e, key)
	} else if status.ExpiresAt.Before(&old.Status.ExpiresAt) {
		w.breaks(e, "lease %s: expiresAt moved back from %s to %s", key, old.Status.ExpiresAt.UTC(), status.ExpiresAt.UTC())
	}
	if w.keys != nil && status.Token != "" {
		claims, err := leasetoken.VerifySignature(status.Token, w.keys)
		switch {
		case err != nil:
			w.breaks(e, "lease %s: %v", key, err)
		case claims.SeatID != status.SeatID || !claims.ExpiresAt.Equal(status.ExpiresAt.Time):
			w.breaks(e, "lease %s: its token is for another seat or time", key)
		}
	}
}

func (w *world) created(e change, key types.NamespacedName) {
	status := &e.lease.Status
	if !w.granted[e.lease.UID] && !e.found && !w.options.AllowUngranted {
		w.breaks(e, "lease %s exists without a grant", key)
	}
	if status.SeatID == "" {
		return
	}
	if other, taken := w.seats[status.SeatID]; taken && other != e.lease.UID {
		w.breaks(e, "lease %s: seat %s was given before", key, status.SeatID)
	}
	w.seats[status.SeatID] = e.lease.UID
}

// PublishedKeys reads the operator's public keys from where it publishes them.
func PublishedKeys(c client.Reader, namespace string) func(context.Context) (leasetoken.KeySet, error) {
	return func(ctx context.Context) (leasetoken.KeySet, error) {
		config := &corev1.ConfigMap{}
		key := types.NamespacedName{Namespace: namespace, Name: "seatpool-jwks"}
		if err := c.Get(ctx, key, config); err != nil {
			return nil, err
		}
		return leasetoken.ParseJWKS([]byte(config.Data["jwks.json"]))
	}
}
