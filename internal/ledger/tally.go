// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"fmt"
	"iter"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	seatpoolv1alpha1 "seatpool.dev/api/v1alpha1"
)

// Request is a checkout that asks for a decision.
type Request struct {
	// Key is the namespace and name of the lease.
	Key types.NamespacedName
	// UID is the lease's, which tells this create from any other.
	UID types.UID
	// SeatID is the seat stamped on the lease.
	SeatID string
	// InstanceID is the installation that asks, empty when it did not say.
	InstanceID string
	// ExpiresAt is the expiry stamped on the lease.
	ExpiresAt time.Time
	// NamespaceLabels are the labels of the lease's namespace.
	NamespaceLabels map[string]string
	// DryRun asks what would be decided; nothing is counted for it.
	DryRun bool
	// Settled is true when the request has already waited for an earlier
	// create of its name or installation to be resolved.
	Settled bool
}

// Knowledge is what the caller has learnt of single leases and reservations
// beyond what the book says. All of it is by UID. The zero value knows nothing.
type Knowledge struct {
	// Gone holds leases that no longer exist though the book may list them,
	// with their names.
	Gone map[types.UID]types.NamespacedName
	// Touched holds versions of leases that are not the newest any more, so
	// that the lease may have been renewed: while the book has that version it
	// is not taken for expired.
	Touched map[types.UID]Lease
	// Resolved holds reservations whose lease was seen stored or is known
	// never to be: they count no more.
	Resolved map[types.UID]bool
}

// Verdict is the kind of a decision.
type Verdict int

const (
	// Refused means that nothing is granted, for the reason in Refusal.
	Refused Verdict = iota
	// Granted means that the seat is the request's once it is recorded.
	Granted
	// Replayed means that the seat is recorded for this very create already.
	Replayed
	// Unsettled means that an earlier create of the same name or installation
	// is still under way: decide again when Pending has been resolved, or with
	// Settled set when that does not happen soon.
	Unsettled
)

// Decision is the answer to a request.
type Decision struct {
	Verdict Verdict
	// Refusal is set when the verdict is Refused.
	Refusal *Refusal
	// Reclaim lists expired leases that must be deleted before the grant.
	Reclaim []Lease
	// Replaces is the reservation this grant takes the place of: the same
	// create, tried again by the API server under another generated name.
	Replaces types.UID
	// Pending is the lease an unsettled request waits for.
	Pending Lease
	// ByBook is true when the refusal rests on what the book says, so that it
	// must be checked against a consistent list before it is given.
	ByBook bool
	// ByPool is true when the refusal rests on the pool's spec, so that it must
	// be checked against the newest version of the pool before it is given.
	ByPool bool
}

// Tally decides requests one after the other, each in sight of the grants
// before it. A tally is used once: for one version of the pool, one view of its
// leases and one moment.
type Tally struct {
	pool  *seatpoolv1alpha1.SeatPool
	key   types.NamespacedName
	book  Book
	known Knowledge
	now   time.Time

	// pending are the unresolved reservations, those of this tally's grants
	// included, oldest first.
	pending []seatpoolv1alpha1.SeatReservation
	// names counts the pending reservations of each name.
	names map[types.NamespacedName]int
	// reclaimed holds the leases that grants of this tally delete.
	reclaimed map[types.UID]bool
	used      int
}

// NewTally starts to count. The book must be a view at least as new as the
// pool's leaseWatermark.
func NewTally(pool *seatpoolv1alpha1.SeatPool, book Book, known Knowledge, now time.Time) *Tally {
	t := &Tally{
		pool:      pool,
		key:       types.NamespacedName{Namespace: pool.Namespace, Name: pool.Name},
		book:      book,
		known:     known,
		now:       now,
		names:     map[types.NamespacedName]int{},
		reclaimed: map[types.UID]bool{},
		used:      book.Len(),
	}
	for uid, key := range known.Gone {
		if lease, ok := book.Get(key); ok && lease.UID == uid && !lease.Terminating {
			t.used--
		}
	}
	for _, r := range pool.Status.Reservations {
		if !known.Resolved[types.UID(r.UID)] {
			key := reservationKey(r)
			t.pending = append(t.pending, r)
			if t.names[key]++; t.names[key] == 1 && !t.covered(key) {
				t.used++
			}
		}
	}
	return t
}

// Used returns how many seats are taken: leases in existence, expired ones
// included, and unresolved reservations.
func (t *Tally) Used() int { return t.used }

// InUse returns how many seats are held: what is taken, less what has expired.
func (t *Tally) InUse() int {
	expired := 0
	for lease := range t.expired() {
		if t.names[lease.Key] == 0 {
			expired++
		}
	}
	return t.used - expired
}

// Pending returns the unresolved reservations, those granted by this tally
// included, oldest first.
func (t *Tally) Pending() []seatpoolv1alpha1.SeatReservation { return t.pending }

// Decide decides one request and, when it is granted and no dry run, counts it.
func (t *Tally) Decide(req Request) Decision {
	d := t.decide(req)
	if d.Verdict == Granted && !req.DryRun {
		t.apply(req, d)
	}
	return d
}

// decide is the list of what a checkout must pass, in order.
func (t *Tally) decide(req Request) Decision {
	if refusal := Usable(t.pool, t.now); refusal != nil {
		return Decision{Refusal: refusal, ByPool: true}
	}
	if refusal := AllowsNamespace(t.pool, req.Key.Namespace, req.NamespaceLabels); refusal != nil {
		return Decision{Refusal: refusal, ByPool: true}
	}
	if notAfter := t.pool.Spec.NotAfter; notAfter != nil && req.ExpiresAt.After(notAfter.Time) {
		return Decision{Refusal: Busy(t.key, "its spec.notAfter has just been changed")}
	}
	if t.recorded(req) {
		return Decision{Verdict: Replayed}
	}
	if lease, ok := t.book.Seat(req.SeatID); ok && lease.UID != req.UID {
		return Decision{Refusal: NoGrant(fmt.Sprintf("its seat belongs to lease %s", lease.Key))}
	}
	d := Decision{Verdict: Granted, Replaces: t.sameSeat(req)}
	if stop := t.checkName(req, &d); stop {
		return d
	}
	if stop := t.checkInstance(req, &d); stop {
		return d
	}
	t.checkCapacity(req, &d)
	return d
}

// recorded reports whether this very create is granted already.
func (t *Tally) recorded(req Request) bool {
	return slices.ContainsFunc(t.pending, func(r seatpoolv1alpha1.SeatReservation) bool {
		return types.UID(r.UID) == req.UID && r.SeatID == req.SeatID
	})
}

// sameSeat returns the reservation of the same seat under another UID. Seats
// are stamped at random, and the API server asks again with a seat it has only
// after storing the object under a generated name has failed for good.
func (t *Tally) sameSeat(req Request) types.UID {
	for _, r := range t.pending {
		if r.SeatID == req.SeatID {
			return types.UID(r.UID)
		}
	}
	return ""
}

// checkName settles what happens to a name that is taken.
func (t *Tally) checkName(req Request, d *Decision) (stop bool) {
	if lease, ok := t.get(req.Key); ok {
		if lease.Terminating || t.live(lease) {
			*d = Decision{Refusal: AlreadyExists(lease), ByBook: true}
			return true
		}
		d.Reclaim = append(d.Reclaim, lease)
	}
	if t.names[req.Key] > 0 && !req.Settled {
		for _, r := range t.pending {
			if reservationKey(r) == req.Key && types.UID(r.UID) != d.Replaces {
				*d = Decision{Verdict: Unsettled, Pending: Lease{Key: reservationKey(r), UID: types.UID(r.UID)}}
				return true
			}
		}
	}
	return false
}

// checkInstance settles what happens to an installation that has a seat.
func (t *Tally) checkInstance(req Request, d *Decision) (stop bool) {
	if req.InstanceID == "" {
		return false
	}
	for _, lease := range t.book.HeldBy(req.InstanceID) {
		if _, ok := t.get(lease.Key); !ok || lease.Key == req.Key {
			continue
		}
		if t.live(lease) {
			*d = Decision{Refusal: AlreadyHeld(t.key, req.InstanceID, lease.Key), ByBook: true}
			return true
		}
		d.Reclaim = append(d.Reclaim, lease)
	}
	for _, r := range t.pending {
		if r.InstanceID != req.InstanceID || reservationKey(r) == req.Key || types.UID(r.UID) == d.Replaces {
			continue
		}
		if req.Settled {
			// The other create may still be stored, and two leases of one
			// installation must not be. Its seat stays counted until it is
			// known dead; this one is answered when it is.
			*d = Decision{Refusal: Busy(t.key, fmt.Sprintf("instance %q has another checkout under way as lease %s", req.InstanceID, reservationKey(r)))}
		} else {
			*d = Decision{Verdict: Unsettled, Pending: Lease{Key: reservationKey(r), UID: types.UID(r.UID)}}
		}
		return true
	}
	return false
}

// checkCapacity sees whether there is a seat, and which expired leases must go
// to make it free.
func (t *Tally) checkCapacity(req Request, d *Decision) {
	missing := t.used + t.effect(req.Key, d) - t.pool.Seats()
	if missing > 0 {
		for lease := range t.expired() {
			if t.names[lease.Key] > 0 || slices.ContainsFunc(d.Reclaim, func(l Lease) bool { return l.UID == lease.UID }) {
				continue
			}
			d.Reclaim = append(d.Reclaim, lease)
			if missing--; missing == 0 {
				break
			}
		}
	}
	if missing > 0 {
		soonest, _ := t.book.Soonest(t.now.Add(-t.pool.Skew()))
		*d = Decision{Refusal: SeatsExhausted(t.pool, t.InUse(), soonest, t.now), ByBook: true}
		return
	}
	if len(t.pending) >= seatpoolv1alpha1.MaxReservations {
		*d = Decision{Refusal: Busy(t.key, fmt.Sprintf("%d checkouts wait to be stored", len(t.pending)))}
	}
}

// effect returns by how many the seats taken change when the decision is
// carried out for a lease of that name.
func (t *Tally) effect(key types.NamespacedName, d *Decision) int {
	reclaimed := map[types.NamespacedName]bool{}
	for _, lease := range d.Reclaim {
		reclaimed[lease.Key] = true
	}
	var replaced types.NamespacedName
	for _, r := range t.pending {
		if types.UID(r.UID) == d.Replaces {
			replaced = reservationKey(r)
		}
	}

	sum := 0
	count := func(name types.NamespacedName) {
		covered := t.covered(name)
		if covered || t.names[name] > 0 {
			sum--
		}
		reservations := t.names[name]
		if d.Replaces != "" && name == replaced {
			reservations--
		}
		if name == key {
			reservations++
		}
		if covered && !reclaimed[name] || reservations > 0 {
			sum++
		}
	}
	count(key)
	if d.Replaces != "" && replaced != key {
		count(replaced)
	}
	for name := range reclaimed {
		if name != key && (d.Replaces == "" || name != replaced) {
			count(name)
		}
	}
	return sum
}

// apply counts a grant.
func (t *Tally) apply(req Request, d Decision) {
	t.used += t.effect(req.Key, &d)
	for _, lease := range d.Reclaim {
		t.reclaimed[lease.UID] = true
	}
	t.pending = slices.DeleteFunc(t.pending, func(r seatpoolv1alpha1.SeatReservation) bool {
		if d.Replaces == "" || types.UID(r.UID) != d.Replaces {
			return false
		}
		t.names[reservationKey(r)]--
		return true
	})
	t.pending = append(t.pending, seatpoolv1alpha1.SeatReservation{
		SeatID:     req.SeatID,
		Namespace:  req.Key.Namespace,
		Name:       req.Key.Name,
		UID:        string(req.UID),
		InstanceID: req.InstanceID,
		ReservedAt: metav1.NewTime(t.now.UTC().Truncate(time.Second)),
	})
	t.names[req.Key]++
}

// covered reports whether the name is counted as a lease in existence.
func (t *Tally) covered(key types.NamespacedName) bool {
	lease, ok := t.get(key)
	return ok && !lease.Terminating
}

// get returns the lease of that name unless it is gone.
func (t *Tally) get(key types.NamespacedName) (Lease, bool) {
	lease, ok := t.book.Get(key)
	if !ok || t.isGone(lease) {
		return Lease{}, false
	}
	return lease, true
}

func (t *Tally) isGone(lease Lease) bool {
	_, gone := t.known.Gone[lease.UID]
	return gone || t.reclaimed[lease.UID]
}

// live reports whether the lease must be taken for live.
func (t *Tally) live(lease Lease) bool {
	if old, touched := t.known.Touched[lease.UID]; touched && old.ResourceVersion == lease.ResourceVersion {
		return true
	}
	return lease.LiveAt(t.now, t.pool.Skew())
}

// expired yields the leases that are in existence and not live any more.
func (t *Tally) expired() iter.Seq[Lease] {
	return func(yield func(Lease) bool) {
		// Live is "now <= expiresAt + skew", so expired is "expiresAt < now - skew".
		for lease := range t.book.Expired(t.now.Add(-t.pool.Skew())) {
			if t.isGone(lease) || t.live(lease) {
				continue
			}
			if !yield(lease) {
				return
			}
		}
	}
}

func reservationKey(r seatpoolv1alpha1.SeatReservation) types.NamespacedName {
	return types.NamespacedName{Namespace: r.Namespace, Name: r.Name}
}
