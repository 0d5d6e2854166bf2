// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package checkout

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	seatpoolv1alpha1 "seatpool.dev/api/v1alpha1"
	"seatpool.dev/internal/ledger"
)

// batch is a number of tickets that are served together.
type batch struct {
	*committer
	tickets []*ticket
	// size is how many there have been.
	size int
	// conflicts is how often somebody else was faster.
	conflicts int
	// beaten is the version of the pool that turned out not to be the newest, at
	// the last attempt; nil when it is not known to be old.
	beaten *seatpoolv1alpha1.SeatPool
	// recount is the newest consistent list made for this batch.
	recount *snapshot
	// reread is the version of the pool that was read to check refusals.
	reread *seatpoolv1alpha1.SeatPool
	// recounted is true when recount was made after reread was. Only from the
	// two together may anybody be refused by what the leases say: a version
	// read after the list could hold grants of seats that the list shows as
	// taken.
	recounted bool
	// suspects are tickets whose grant was part of a write that had no clear end.
	suspects map[types.UID]*ticket
}

// outcome is what an attempt to serve a batch came to.
type outcome int

const (
	// served means that every ticket has its answer, or waits elsewhere.
	served outcome = iota
	// decideAgain means that more is known now than when it was decided.
	decideAgain
	// readAgain means that the version of the pool was not the newest.
	readAgain
)

// serve decides, records and answers, as often as it takes.
func (b *batch) serve() {
	defer b.buryRefused()
	// A batch in hand is finished also when the operator is told to stop; its
	// calls have their own time limits.
	ctx := context.Background()
	b.size = len(b.tickets)
	read := false
	for {
		if b.dropAbandoned(); len(b.tickets) == 0 {
			return
		}
		result, err := b.attempt(ctx, read)
		switch {
		case apierrors.IsNotFound(err):
			refuseAll(b.tickets, ledger.PoolNotFound(b.key))
			return
		case err != nil:
			refuseAll(b.tickets, ledger.Busy(b.key, "the API server did not answer as it should"))
			return
		case result == served:
			return
		}
		read = result == readAgain
		if read {
			read = b.fallBehind()
		}
	}
}

// fallBehind prepares another attempt after somebody else was faster, and
// reports whether the pool must be read for it: the watch may have brought the
// version that won by then. Whoever has come meanwhile joins, so that a fight
// for the pool ends in fewer and bigger batches.
func (b *batch) fallBehind() (read bool) {
	b.reread, b.recounted = nil, false
	b.conflicts++
	backOff(b.conflicts)
	joined := b.join()
	b.tickets = append(b.tickets, joined...)
	b.size += len(joined)
	read = b.beaten == nil || !b.knowsNewer(b.beaten)
	b.beaten = nil
	return read
}

// backOff waits for a moment that grows with the number of conflicts, so that
// replicas that fight for a pool take turns and commit bigger batches.
func backOff(conflicts int) {
	longest := min(time.Millisecond<<min(conflicts, 6), 50*time.Millisecond)
	timer := time.NewTimer(rand.N(longest))
	defer timer.Stop()
	<-timer.C
}

// dropAbandoned drops the tickets that nobody waits for. Whoever gave up
// waiting has answered with a refusal.
func (b *batch) dropAbandoned() {
	waiting := make([]*ticket, 0, len(b.tickets))
	for _, t := range b.tickets {
		if t.waiting() {
			waiting = append(waiting, t)
		}
	}
	b.tickets = waiting
}

// buryRefused marks the creates dead whose grant may have been recorded but
// which were not answered with it.
func (b *batch) buryRefused() {
	for uid, t := range b.suspects {
		if !t.granted {
			b.markDead(uid)
		}
	}
}

// attempt serves the batch once, from one version of the pool.
func (b *batch) attempt(ctx context.Context, read bool) (outcome, error) {
	pool := b.reread
	if pool == nil {
		var err error
		if pool, err = b.pool(ctx, read); err != nil {
			return served, err
		}
	}
	b.meet(pool)
	p, err := b.plan(ctx, pool)
	if err != nil {
		return served, err
	}
	if p == nil {
		return decideAgain, nil
	}

	// Nobody is refused by what may be out of date, nor for grants that are only
	// now about to be made: what the view shows as taken may be free again by
	// the time they are. The grants are made first, and then looked again.
	doubtful := b.takeDoubtful(p)
	if len(doubtful) > 0 && !p.mustWrite(pool) {
		b.answer(p)
		return b.lookAgain(ctx, doubtful)
	}
	touched, err := b.reclaim(ctx, pool, p)
	if err != nil {
		return served, err
	}
	if touched {
		return decideAgain, nil
	}
	if p.mustWrite(pool) {
		if result, err := b.commit(ctx, pool, p); result != served || err != nil {
			return result, err
		}
	}
	b.answer(p)
	if len(doubtful) > 0 {
		return b.lookAgain(ctx, doubtful)
	}
	return served, nil
}

// meet notes which reservations are new, and forgets those that are gone.
func (b *batch) meet(pool *seatpoolv1alpha1.SeatPool) {
	now := b.Clock.Mono()
	pending := make(map[types.UID]bool, len(pool.Status.Reservations))
	for _, r := range pool.Status.Reservations {
		uid := types.UID(r.UID)
		pending[uid] = true
		if _, ok := b.firstSeen[uid]; !ok {
			b.firstSeen[uid] = now
		}
	}
	maps.DeleteFunc(b.firstSeen, func(uid types.UID, _ time.Duration) bool { return !pending[uid] })
	b.mu.Lock()
	maps.DeleteFunc(b.dead, func(uid types.UID, _ bool) bool { return !pending[uid] })
	b.mu.Unlock()
}

// plan decides every ticket: with the list that was made for the batch if it
// is new enough, else with the index if that is, else it makes a list. It
// returns nil when it has just made one and the pool must be looked at again.
func (b *batch) plan(ctx context.Context, pool *seatpoolv1alpha1.SeatPool) (*plan, error) {
	watermark := pool.Status.LeaseWatermark
	if b.recount != nil && b.recount.usableFor(pool) {
		return b.planWithRecount(pool), nil
	}
	if watermark != "" && !b.overdue(pool) {
		var p *plan
		count := func(v View) bool {
			if !v.Reached(watermark) {
				return false
			}
			p = b.decide(pool, v.Book, watermark, v.Seen)
			return true
		}
		if b.Leases.Read(b.key, func(v View) { count(v) }); p != nil {
			return p, nil
		}
		begun := b.Clock.Mono()
		waitCtx, cancel := context.WithTimeout(ctx, watermarkPatience)
		caughtUp := b.Leases.Await(waitCtx, b.key, count)
		cancel()
		b.Reporter.WaitedForWatermark(b.Clock.Mono()-begun, caughtUp)
		if caughtUp {
			return p, nil
		}
	}

	recount, err := b.list(ctx)
	if err != nil {
		return nil, err
	}
	if watermark != "" && !reached(recount.resourceVersion, watermark) {
		// No list is older than a watermark of its own store: it was restored
		// from a backup, and the watermark is of a time that has not been.
		recount.rewoundFrom = watermark
	}
	b.recount, b.reread, b.recounted = recount, nil, false
	return b.planWithRecount(pool), nil
}

func (b *batch) planWithRecount(pool *seatpoolv1alpha1.SeatPool) *plan {
	watermark := pool.Status.LeaseWatermark
	if watermark == "" || watermark == b.recount.rewoundFrom {
		watermark = b.recount.newest
	}
	var p *plan
	b.Leases.Read(b.key, func(v View) {
		p = b.decide(pool, b.recount.book, watermark, func(key types.NamespacedName, uid types.UID) (string, bool) {
			at, ok := v.Seen(key, uid)
			// What was seen only after the list is not in the list.
			return at, ok && reached(b.recount.resourceVersion, at)
		})
	})
	return p
}

// decide lets the ledger decide every ticket in turn.
func (b *batch) decide(
	pool *seatpoolv1alpha1.SeatPool, book ledger.Book, watermark string,
	seen func(types.NamespacedName, types.UID) (string, bool),
) *plan {
	known := ledger.Knowledge{Gone: b.gone, Touched: b.touched, Resolved: map[types.UID]bool{}}
	for _, r := range pool.Status.Reservations {
		key, uid := keyOf(r)
		if at, ok := seen(key, uid); ok {
			known.Resolved[uid] = true
			if !reached(watermark, at) {
				watermark = at
			}
		} else if b.isDead(uid) || b.proveDead(key, uid) {
			known.Resolved[uid] = true
		}
	}

	now := b.Clock.Judge(pool.TTL())
	tally := ledger.NewTally(pool, book, known, now)
	p := &plan{}
	refused := false
	for _, t := range b.tickets {
		d := decided{ticket: t}
		if t.req != nil {
			d.Decision = tally.Decide(*t.req)
			refused = refused || d.exhausted() && b.recounted
		}
		p.decisions = append(p.decisions, d)
	}
	p.status = tally.Status(watermark, refused)
	p.next = b.nextLook(pool, tally, book, now)
	return p
}

// nextLook returns in how long the pool has to be looked at again though
// nothing happens: its status changes by itself, or a reservation comes of age.
func (b *batch) nextLook(pool *seatpoolv1alpha1.SeatPool, tally *ledger.Tally, book ledger.Book, now time.Time) time.Duration {
	var next time.Duration
	consider := func(in time.Duration) {
		if in = max(in, time.Millisecond); next == 0 || in < next {
			next = in
		}
	}
	if at := ledger.NextChange(pool, book, now); !at.IsZero() {
		consider(at.Sub(now))
	}
	mono := b.Clock.Mono()
	for _, r := range tally.Pending() {
		if since, ok := b.firstSeen[types.UID(r.UID)]; ok {
			consider(since + b.deadline() - mono)
		} else {
			consider(b.deadline())
		}
	}
	return next
}

// deadline is how old a reservation must be for its create to be surely over.
func (b *batch) deadline() time.Duration { return b.RequestTimeout + requestMargin }

// proveDead reports whether the create of a reservation is known to have
// failed: no request lives that long, and the list made after that does not
// have its lease.
func (b *batch) proveDead(key types.NamespacedName, uid types.UID) bool {
	since, ok := b.firstSeen[uid]
	if !ok || b.recount == nil || b.recount.at-since < b.deadline() {
		return false
	}
	lease, ok := b.recount.book.Get(key)
	return !ok || lease.UID != uid
}

// overdue reports whether a reservation that the index has not seen resolved is
// old enough that a list could prove its create dead.
func (b *batch) overdue(pool *seatpoolv1alpha1.SeatPool) bool {
	now := b.Clock.Mono()
	overdue := false
	b.Leases.Read(b.key, func(v View) {
		for _, r := range pool.Status.Reservations {
			key, uid := keyOf(r)
			if now-b.firstSeen[uid] < b.deadline() || b.isDead(uid) {
				continue
			}
			if _, seen := v.Seen(key, uid); !seen {
				overdue = true
			}
		}
	})
	return overdue
}

// lookAgain reads the pool, and lists its leases if any refusal rests on them,
// before the doubtful are decided again.
func (b *batch) lookAgain(ctx context.Context, doubtful []decided) (outcome, error) {
	b.tickets = b.tickets[:0:0]
	byBook := false
	for _, d := range doubtful {
		b.tickets = append(b.tickets, d.ticket)
		byBook = byBook || d.ByBook
	}
	b.reread, b.recounted = nil, false
	pool, err := b.pool(ctx, true)
	if err != nil {
		return served, err
	}
	b.meet(pool)
	if byBook {
		b.awaitYoung(ctx, pool)
		if b.recount, err = b.list(ctx); err != nil {
			return served, err
		}
	}
	b.reread, b.recounted = pool, byBook
	return decideAgain, nil
}

// awaitYoung waits until the index has seen the lease of every reservation that
// is young enough to have been stored without the index knowing.
func (b *batch) awaitYoung(ctx context.Context, pool *seatpoolv1alpha1.SeatPool) {
	var young []seatpoolv1alpha1.SeatReservation
	youngest := youngReservation
	now := b.Clock.Mono()
	for _, r := range pool.Status.Reservations {
		_, uid := keyOf(r)
		if age := now - b.firstSeen[uid]; age < youngReservation && !b.isDead(uid) {
			young = append(young, r)
			youngest = min(youngest, age)
		}
	}
	if len(young) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, youngReservation-youngest)
	defer cancel()
	b.Leases.Await(ctx, b.key, func(v View) bool {
		for len(young) > 0 {
			if _, seen := v.Seen(keyOf(young[0])); !seen {
				return false
			}
			young = young[1:]
		}
		return true
	})
}

// reclaim deletes the expired leases whose seats have been promised, and
// reports whether any of them turned out to have been changed meanwhile.
func (b *batch) reclaim(ctx context.Context, pool *seatpoolv1alpha1.SeatPool, p *plan) (touched bool, err error) {
	var leases []ledger.Lease
	for _, d := range p.decisions {
		if d.grants() {
			leases = append(leases, d.Reclaim...)
		}
	}
	if len(leases) == 0 {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	errs := make([]error, len(leases))
	slots := make(chan struct{}, parallelDeletes)
	var wg sync.WaitGroup
	for i, lease := range leases {
		slots <- struct{}{}
		wg.Go(func() {
			errs[i] = b.API.DeleteLease(ctx, lease)
			<-slots
		})
	}
	wg.Wait()
	for i, lease := range leases {
		switch {
		case errs[i] == nil:
			b.gone[lease.UID] = lease.Key
			b.Reporter.Reclaimed(pool, lease)
		case apierrors.IsNotFound(errs[i]):
			b.gone[lease.UID] = lease.Key
		case apierrors.IsConflict(errs[i]):
			// Somebody was faster, most likely a renewal: the seat stays taken.
			b.touched[lease.UID] = lease
			touched = true
		default:
			err = errs[i]
		}
	}
	return touched, err
}

// commit records the plan in one compare-and-swap.
func (b *batch) commit(ctx context.Context, pool *seatpoolv1alpha1.SeatPool, p *plan) (outcome, error) {
	// A new value, so that nothing known is changed before the write is known
	// to have succeeded.
	next := *pool
	next.Status = p.status
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	updated, err := b.API.UpdatePoolStatus(ctx, &next)
	switch {
	case err == nil:
	case apierrors.IsConflict(err):
		b.Reporter.Conflicted()
		b.beaten = pool
		return readAgain, nil
	case apierrors.IsNotFound(err):
		return readAgain, nil
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsUnauthorized(err):
		return served, err
	default:
		// The write may have been made or not. The newest version tells: who
		// has a reservation there is granted as replayed.
		for _, d := range p.decisions {
			if d.grants() {
				b.suspects[d.req.UID] = d.ticket
			}
		}
		return readAgain, nil
	}
	b.mu.Lock()
	b.latest = updated
	b.mu.Unlock()
	b.turn.wrote(updated.ResourceVersion)
	b.Reporter.Committed(pool, updated)
	return served, nil
}

// answer tells everybody what was decided about them.
func (b *batch) answer(p *plan) {
	checkouts := 0
	for _, d := range p.decisions {
		if d.req == nil {
			d.next = p.next
			d.answer(nil)
			continue
		}
		checkouts++
		switch d.Verdict {
		case ledger.Refused:
			d.answer(d.Refusal)
		case ledger.Unsettled:
			b.settle(d)
		case ledger.Granted, ledger.Replayed:
			if !d.answer(nil) && !d.req.DryRun {
				b.markDead(d.req.UID)
			}
		}
	}
	if checkouts > 0 {
		b.Reporter.Batch(checkouts)
	}
	b.tidy()
}

// settle lets a checkout wait for an earlier one of its name or installation,
// and then come again.
func (b *batch) settle(d decided) {
	p := b.committer
	p.wg.Go(func() {
		ctx, cancel := context.WithTimeout(d.ctx, settlePatience)
		defer cancel()
		p.Leases.Await(ctx, p.key, func(v View) bool {
			_, seen := v.Seen(d.Pending.Key, d.Pending.UID)
			return seen
		})
		again := *d.req
		again.Settled = true
		d.req = &again
		p.enqueue(d.ticket)
	})
}

// tidy forgets what has been learnt of leases that the index has caught up with.
func (b *batch) tidy() {
	if len(b.gone) == 0 && len(b.touched) == 0 {
		return
	}
	b.Leases.Read(b.key, func(v View) {
		maps.DeleteFunc(b.gone, func(uid types.UID, key types.NamespacedName) bool {
			lease, ok := v.Book.Get(key)
			return !ok || lease.UID != uid
		})
		maps.DeleteFunc(b.touched, func(uid types.UID, old ledger.Lease) bool {
			lease, ok := v.Book.Get(old.Key)
			return !ok || lease.UID != uid || lease.ResourceVersion != old.ResourceVersion
		})
	})
}

// plan is what one look at the pool and its leases led to.
type plan struct {
	decisions []decided
	status    seatpoolv1alpha1.SeatPoolStatus
	// next is in how long the pool has to be looked at again, zero for never.
	next time.Duration
}

// decided is a ticket with what was decided about it.
type decided struct {
	*ticket
	ledger.Decision
}

// grants reports whether the decision must be recorded.
func (d *decided) grants() bool {
	return d.req != nil && d.Verdict == ledger.Granted && !d.req.DryRun
}

// exhausted reports whether a checkout is refused because every seat is in use.
func (d *decided) exhausted() bool {
	return d.req != nil && !d.req.DryRun && d.Verdict == ledger.Refused &&
		d.Refusal.Reason() == seatpoolv1alpha1.ReasonSeatsExhausted
}

// grants reports whether anybody is granted a seat.
func (p *plan) grants() bool {
	return slices.ContainsFunc(p.decisions, func(d decided) bool { return d.grants() })
}

// takeDoubtful removes from the plan, and returns, the decisions that refuse by
// what may be out of date.
func (b *batch) takeDoubtful(p *plan) []decided {
	sureOfBook := b.recounted && !p.grants()
	var sure, doubtful []decided
	for _, d := range p.decisions {
		if d.ByBook && !sureOfBook || d.ByPool && b.reread == nil {
			doubtful = append(doubtful, d)
		} else {
			sure = append(sure, d)
		}
	}
	p.decisions = sure
	return doubtful
}

// mustWrite reports whether anything has to be recorded. A batch of nothing but
// refusals writes only to say so once.
func (p *plan) mustWrite(pool *seatpoolv1alpha1.SeatPool) bool {
	for _, d := range p.decisions {
		switch {
		case d.req == nil:
			if !equality.Semantic.DeepEqual(pool.Status, p.status) {
				return true
			}
		case d.grants():
			return true
		case d.exhausted():
			if _, refused := ledger.Exhausted(pool); !refused {
				return true
			}
		}
	}
	return false
}

// keyOf returns the name and UID of the lease of a reservation.
func keyOf(r seatpoolv1alpha1.SeatReservation) (types.NamespacedName, types.UID) {
	return types.NamespacedName{Namespace: r.Namespace, Name: r.Name}, types.UID(r.UID)
}
