// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"container/heap"
	"iter"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Book answers what a decision asks about the leases in existence of one pool.
// No answer takes longer for a bigger pool; Expired and Soonest take time for
// the expired leases they pass.
type Book interface {
	// Len returns how many leases there are that are not being deleted.
	Len() int
	// Get returns the lease of that name, one that is being deleted included.
	Get(key types.NamespacedName) (Lease, bool)
	// Seat returns the lease that carries the seat.
	Seat(seatID string) (Lease, bool)
	// HeldBy returns the leases of an installation that are not being deleted.
	HeldBy(instanceID string) []Lease
	// Soonest returns the earliest expiry, not before the given time, of the
	// leases that are not being deleted.
	Soonest(notBefore time.Time) (time.Time, bool)
	// Expired yields, in no order, the leases that are not being deleted and
	// whose expiry lies before the given time.
	Expired(before time.Time) iter.Seq[Lease]
}

// Register is a Book that can be written. It is not safe for concurrent use.
// The zero value is an empty register.
type Register struct {
	entries   map[types.NamespacedName]*entry
	seats     map[string]*entry
	instances map[string][]*entry
	expiry    expiryHeap
}

type entry struct {
	Lease
	// pos is the place in the expiry heap, -1 while the lease is terminating.
	pos int
}

var _ Book = &Register{}

// NewRegister returns a register of the given leases.
func NewRegister(leases ...Lease) *Register {
	r := &Register{}
	for _, l := range leases {
		r.Put(l)
	}
	return r
}

// Put records a lease, in place of any other of its name.
func (r *Register) Put(lease Lease) {
	if old, ok := r.entries[lease.Key]; ok {
		if old.UID == lease.UID && old.SeatID == lease.SeatID &&
			old.InstanceID == lease.InstanceID && old.Terminating == lease.Terminating {
			// A renewal, by far the most frequent change.
			old.Lease = lease
			if old.pos >= 0 {
				heap.Fix(&r.expiry, old.pos)
			}
			return
		}
		r.remove(old)
	}
	if r.entries == nil {
		r.entries = map[types.NamespacedName]*entry{}
		r.seats = map[string]*entry{}
		r.instances = map[string][]*entry{}
	}
	e := &entry{Lease: lease, pos: -1}
	r.entries[lease.Key] = e
	if lease.SeatID != "" {
		r.seats[lease.SeatID] = e
	}
	if lease.Terminating {
		return
	}
	heap.Push(&r.expiry, e)
	if lease.InstanceID != "" {
		r.instances[lease.InstanceID] = append(r.instances[lease.InstanceID], e)
	}
}

// Remove forgets the lease of that name and returns it.
func (r *Register) Remove(key types.NamespacedName) (Lease, bool) {
	e, ok := r.entries[key]
	if !ok {
		return Lease{}, false
	}
	r.remove(e)
	return e.Lease, true
}

func (r *Register) remove(e *entry) {
	delete(r.entries, e.Key)
	if r.seats[e.SeatID] == e {
		delete(r.seats, e.SeatID)
	}
	if e.pos >= 0 {
		heap.Remove(&r.expiry, e.pos)
	}
	if e.Terminating || e.InstanceID == "" {
		return
	}
	held := r.instances[e.InstanceID]
	for i, h := range held {
		if h == e {
			held = append(held[:i:i], held[i+1:]...)
			break
		}
	}
	if len(held) == 0 {
		delete(r.instances, e.InstanceID)
	} else {
		r.instances[e.InstanceID] = held
	}
}

// Len implements Book.
func (r *Register) Len() int { return len(r.expiry) }

// Size returns how many leases there are, those being deleted included.
func (r *Register) Size() int { return len(r.entries) }

// Get implements Book.
func (r *Register) Get(key types.NamespacedName) (Lease, bool) {
	e, ok := r.entries[key]
	if !ok {
		return Lease{}, false
	}
	return e.Lease, true
}

// Seat implements Book.
func (r *Register) Seat(seatID string) (Lease, bool) {
	e, ok := r.seats[seatID]
	if !ok {
		return Lease{}, false
	}
	return e.Lease, true
}

// HeldBy implements Book.
func (r *Register) HeldBy(instanceID string) []Lease {
	if instanceID == "" {
		return nil
	}
	var leases []Lease
	for _, e := range r.instances[instanceID] {
		leases = append(leases, e.Lease)
	}
	return leases
}

// Soonest implements Book.
func (r *Register) Soonest(notBefore time.Time) (time.Time, bool) {
	var soonest time.Time
	var visit func(i int)
	visit = func(i int) {
		switch {
		case i >= len(r.expiry):
		case r.expiry[i].ExpiresAt.Before(notBefore):
			visit(2*i + 1)
			visit(2*i + 2)
		case soonest.IsZero() || r.expiry[i].ExpiresAt.Before(soonest):
			soonest = r.expiry[i].ExpiresAt
		}
	}
	visit(0)
	return soonest, !soonest.IsZero()
}

// Expired implements Book.
func (r *Register) Expired(before time.Time) iter.Seq[Lease] {
	return func(yield func(Lease) bool) {
		// In a heap no entry expires before its parent, so that only the
		// branches that may hold an expired one are looked at.
		var visit func(i int) bool
		visit = func(i int) bool {
			if i >= len(r.expiry) || !r.expiry[i].ExpiresAt.Before(before) {
				return true
			}
			return yield(r.expiry[i].Lease) && visit(2*i+1) && visit(2*i+2)
		}
		visit(0)
	}
}

// All yields every lease in no order, those being deleted included.
func (r *Register) All() iter.Seq[Lease] {
	return func(yield func(Lease) bool) {
		for _, e := range r.entries {
			if !yield(e.Lease) {
				return
			}
		}
	}
}

// expiryHeap orders leases by expiry for container/heap.
type expiryHeap []*entry

func (h expiryHeap) Len() int           { return len(h) }
func (h expiryHeap) Less(i, j int) bool { return h[i].ExpiresAt.Before(h[j].ExpiresAt) }
func (h expiryHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].pos, h[j].pos = i, j
}

func (h *expiryHeap) Push(x any) {
	e := x.(*entry)
	e.pos = len(*h)
	*h = append(*h, e)
}

func (h *expiryHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	e.pos = -1
	return e
}
