// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

// Package checkout knows how to record who gets a seat, so that no two replicas
// of the operator ever hand out the same one.
//
// It owns the compare-and-swap on a pool's status: nobody else writes
// reservations. Each replica has one committer per pool. It takes every
// checkout that waits, decides them together with package ledger, and records
// all the grants in one update that carries the pool's resourceVersion. When
// that conflicts, another replica or an admin was faster: the pool is read
// again and everything decided again. All replicas do this at once, and
// correctness never rests on there being only one.
//
// # The watermark
//
// A view of the leases lags behind the store. A grant therefore stays in the
// pool's reservations until its lease has been seen; the update that drops it
// raises the pool's leaseWatermark to the resourceVersion the lease was seen
// at, and only a view that has reached the watermark of the very version of the
// pool that is updated may be counted with. So every grant is counted by
// everybody at every moment, either as a reservation or as a lease.
//
// A reservation whose lease never comes is dropped only once its create is
// known to be dead: this replica itself answered it with a refusal, or it is
// older than the API server lets any request live and a consistent list does
// not have it. Age is measured by this process's monotonic clock from when it
// first saw the reservation, so that no wall clock can drop one too early.
package checkout

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	seatpoolv1alpha1 "seatpool.dev/api/v1alpha1"
	"seatpool.dev/internal/ledger"
)

const (
	// watermarkPatience is how long a batch waits for the index to reach the
	// pool's watermark before it counts with a consistent list instead. A
	// healthy watch is some milliseconds behind; a list of a big pool takes
	// longer than this.
	watermarkPatience = 100 * time.Millisecond

	// settlePatience is how long a checkout waits for an earlier create of the
	// same name or installation to show up. Storing an object takes some
	// milliseconds; what has not come by then has most likely failed.
	settlePatience = 500 * time.Millisecond

	// youngReservation is the age up to which a reservation may well belong to
	// a lease that was stored, and perhaps released again, without this
	// replica having heard of it yet. Nobody is refused for one before it has
	// been waited for: a release a moment ago must not be answered "full".
	youngReservation = 2 * time.Second

	// requestMargin is added to the API server's request timeout before a
	// create counts as dead: the time an answer of ours may take to get there.
	requestMargin = 15 * time.Second

	// callTimeout bounds a single call to the API server. It is shorter than
	// the 10 s the API server waits for a webhook.
	callTimeout = 5 * time.Second

	// parallelDeletes bounds the deletes of expired leases under way at once
	// for one pool.
	parallelDeletes = 16
)

// API is what a committer asks of the API server. Every read must be
// consistent: at least as new as the moment it is asked.
type API interface {
	// GetPool reads a pool.
	GetPool(ctx context.Context, key types.NamespacedName) (*seatpoolv1alpha1.SeatPool, error)
	// UpdatePoolStatus writes the status of the version of the pool given, and
	// fails with a conflict when there is a newer one.
	UpdatePoolStatus(ctx context.Context, pool *seatpoolv1alpha1.SeatPool) (*seatpoolv1alpha1.SeatPool, error)
	// ListLeases lists the leases that name the pool, and returns the
	// resourceVersion of the list.
	ListLeases(ctx context.Context, pool types.NamespacedName) ([]ledger.Lease, string, error)
	// DeleteLease deletes exactly the version of the lease given, and fails
	// with a conflict when there is a newer one.
	DeleteLease(ctx context.Context, lease ledger.Lease) error
}

// Leases is the view of leases to count with. It is implemented by Index.
type Leases interface {
	Read(pool types.NamespacedName, f func(View))
	Await(ctx context.Context, pool types.NamespacedName, condition func(View) bool) bool
}

// Clock tells the time. It is implemented by clock.Clock.
type Clock interface {
	// Judge is the wall time by which leases are judged; see clock.Clock.
	Judge(hold time.Duration) time.Time
	// Mono is a monotonic time.
	Mono() time.Duration
}

// Reporter is told what has been done, after it has been done. Its methods must
// not block.
type Reporter interface {
	// Committed follows an update of a pool's status.
	Committed(before, after *seatpoolv1alpha1.SeatPool)
	// Reclaimed follows the deletion of an expired lease whose seat was needed.
	Reclaimed(pool *seatpoolv1alpha1.SeatPool, lease ledger.Lease)
	// Batch follows a decision about that many checkouts.
	Batch(size int)
	// Conflicted follows an update that came too late.
	Conflicted()
	// WaitedForWatermark follows a wait for the index; caughtUp says whether
	// the index got there or a list was made instead.
	WaitedForWatermark(d time.Duration, caughtUp bool)
	// Recounted follows a consistent list.
	Recounted(d time.Duration)
}

// Options are what Committers are made of. All are required.
type Options struct {
	API      API
	Leases   Leases
	Clock    Clock
	Reporter Reporter
	// RequestTimeout is the API server's --request-timeout: no create is under
	// way for longer.
	RequestTimeout time.Duration
}

// Committers are the committers of a replica, one per pool.
type Committers struct {
	Options

	mu    sync.Mutex
	pools map[types.NamespacedName]*committer
	wg    sync.WaitGroup
}

// New returns committers for every pool there will be.
func New(options Options) *Committers {
	return &Committers{Options: options, pools: map[types.NamespacedName]*committer{}}
}

// Checkout asks for a seat and returns when it has been decided: nil when the
// seat is the request's, a *ledger.Refusal otherwise. After a refusal the
// caller must not let the lease be stored, because its seat may be given to
// another.
func (c *Committers) Checkout(ctx context.Context, pool types.NamespacedName, req ledger.Request) error {
	t := &ticket{ctx: ctx, req: &req, answered: make(chan error, 1)}
	c.committer(pool).enqueue(t)
	return c.wait(ctx, pool, t)
}

// Refresh brings the pool's status up to date, resolves reservations, and
// returns when to do so again though nothing is heard of the pool; zero means
// never. It returns nil when there is no such pool.
func (c *Committers) Refresh(ctx context.Context, pool types.NamespacedName) (time.Duration, error) {
	t := &ticket{ctx: ctx, answered: make(chan error, 1)}
	c.committer(pool).enqueue(t)
	err := c.wait(ctx, pool, t)
	var refusal *ledger.Refusal
	if errors.As(err, &refusal) && refusal.Reason() == seatpoolv1alpha1.ReasonPoolNotFound {
		return 0, nil
	}
	return t.next, err
}

func (c *Committers) wait(ctx context.Context, pool types.NamespacedName, t *ticket) error {
	select {
	case err := <-t.answered:
		return err
	case <-ctx.Done():
	}
	if t.abandon() {
		return ledger.Busy(pool, "the request was given up before it could be decided")
	}
	return <-t.answered
}

// Observe tells of a version of a pool that was read elsewhere, so that the
// next commit need not conflict to learn of it.
func (c *Committers) Observe(pool *seatpoolv1alpha1.SeatPool) {
	c.committer(types.NamespacedName{Namespace: pool.Namespace, Name: pool.Name}).observe(pool)
}

// Forget drops what is remembered of a pool that is gone.
func (c *Committers) Forget(pool types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.pools[pool]; p != nil && p.idle() {
		delete(c.pools, pool)
	}
}

// Drain returns when no batch is in hand. Nothing must be asked any more.
func (c *Committers) Drain() { c.wg.Wait() }

func (c *Committers) committer(pool types.NamespacedName) *committer {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pools[pool]
	if p == nil {
		p = &committer{
			Committers: c,
			key:        pool,
			firstSeen:  map[types.UID]time.Duration{},
			dead:       map[types.UID]bool{},
			gone:       map[types.UID]types.NamespacedName{},
			touched:    map[types.UID]ledger.Lease{},
		}
		c.pools[pool] = p
	}
	return p
}
