// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package checkout

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	seatpoolv1alpha1 "seatpool.dev/api/v1alpha1"
	"seatpool.dev/internal/ledger"
)

// committer decides and records the checkouts of one pool, for one replica.
type committer struct {
	*Committers
	key types.NamespacedName

	mu      sync.Mutex
	queue   []*ticket
	running bool
	// latest is the newest version of the pool known, nil when none is.
	latest *seatpoolv1alpha1.SeatPool
	// dead holds the leases whose create this replica has answered with a
	// refusal after it had recorded the grant.
	dead map[types.UID]bool

	turn turn

	// What follows is used by the running goroutine alone.

	// firstSeen is when each reservation was first seen.
	firstSeen map[types.UID]time.Duration
	// gone and touched are what was learnt from deleting leases; see
	// ledger.Knowledge.
	gone    map[types.UID]types.NamespacedName
	touched map[types.UID]ledger.Lease
}

func (p *committer) enqueue(t *ticket) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue = append(p.queue, t)
	if !p.running {
		p.running = true
		p.wg.Add(1)
		go p.run()
	}
}

// run serves batches until nobody waits. All who come while a batch is served
// are the next batch: the busier the pool, the bigger the batches.
func (p *committer) run() {
	defer p.wg.Done()
	for {
		if p.queued() {
			p.turn.await(p.Clock.Mono())
		}
		tickets, more := p.take()
		if !more {
			return
		}
		begun := p.Clock.Mono()
		b := &batch{committer: p, tickets: tickets, suspects: map[types.UID]*ticket{}}
		b.serve()
		ended := p.Clock.Mono()
		p.turn.served(b.size, ended-begun, ended)
	}
}

// queued reports whether anybody waits.
func (p *committer) queued() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.queue) > 0
}

// take returns all who wait. When nobody does, the goroutine that asked has
// ended its work.
func (p *committer) take() (tickets []*ticket, more bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	tickets, p.queue = p.queue, nil
	p.running = len(tickets) > 0
	return tickets, p.running
}

// join returns all who have come since the batch in hand was taken.
func (p *committer) join() []*ticket {
	p.mu.Lock()
	defer p.mu.Unlock()
	tickets := p.queue
	p.queue = nil
	return tickets
}

func (p *committer) idle() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.running && len(p.queue) == 0
}

func (p *committer) observe(pool *seatpoolv1alpha1.SeatPool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.latest != nil && p.latest.UID == pool.UID && reached(p.latest.ResourceVersion, pool.ResourceVersion) {
		return
	}
	p.latest = pool
	p.turn.hear(pool.ResourceVersion)
}

// knowsNewer reports whether a newer version of the pool than this one has been
// heard of.
func (p *committer) knowsNewer(pool *seatpoolv1alpha1.SeatPool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.latest != nil && p.latest.UID == pool.UID && !reached(pool.ResourceVersion, p.latest.ResourceVersion)
}

// pool returns the newest version of the pool known, or reads it.
func (p *committer) pool(ctx context.Context, read bool) (*seatpoolv1alpha1.SeatPool, error) {
	p.mu.Lock()
	latest := p.latest
	p.mu.Unlock()
	if latest != nil && !read {
		return latest, nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	pool, err := p.API.GetPool(ctx, p.key)
	if err != nil {
		pool = nil
	}
	p.mu.Lock()
	p.latest = pool
	p.mu.Unlock()
	return pool, err
}

// markDead notes that a create whose grant may be recorded has been answered
// with a refusal, and has the reservation dropped.
func (p *committer) markDead(uid types.UID) {
	p.mu.Lock()
	p.dead[uid] = true
	p.mu.Unlock()
	p.enqueue(&ticket{ctx: context.Background(), answered: make(chan error, 1)})
}

func (p *committer) isDead(uid types.UID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dead[uid]
}

// snapshot is the result of a consistent list.
type snapshot struct {
	book            *ledger.Register
	resourceVersion string
	// at is when the list was begun.
	at time.Duration
	// newest is the highest resourceVersion of its leases, "1" without any:
	// every index reaches it by an event of its own watch.
	newest string
	// rewoundFrom is the watermark that this list does not reach, because the
	// store was restored from a backup since; empty as a rule.
	rewoundFrom string
}

// usableFor reports whether the list may be counted with for that version of
// the pool.
func (s *snapshot) usableFor(pool *seatpoolv1alpha1.SeatPool) bool {
	watermark := pool.Status.LeaseWatermark
	return watermark == "" || watermark == s.rewoundFrom || reached(s.resourceVersion, watermark)
}

func (p *committer) list(ctx context.Context) (*snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	begun := p.Clock.Mono()
	leases, resourceVersion, err := p.API.ListLeases(ctx, p.key)
	if err != nil {
		return nil, err
	}
	p.Reporter.Recounted(p.Clock.Mono() - begun)
	s := &snapshot{book: ledger.NewRegister(leases...), resourceVersion: resourceVersion, at: begun, newest: "1"}
	for _, lease := range leases {
		if reached(lease.ResourceVersion, s.newest) {
			s.newest = lease.ResourceVersion
		}
	}
	return s, nil
}
