// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	seatpoolv1alpha1 "seatpool.dev/api/v1alpha1"
	"seatpool.dev/internal/ledger"
)

// market is a pool with its leases, seen with perfect sight: what the ledger
// decides is carried out at once. Creates may be lost, holders may die, an admin
// may change the seats; the ledger must never grant too much nor refuse too soon.
type market struct {
	pool   *seatpoolv1alpha1.SeatPool
	now    time.Time
	leases map[types.NamespacedName]ledger.Lease
	// creates are granted and not yet stored.
	creates map[types.UID]ledger.Request
	// dead are granted and will never be stored, which nobody knows yet.
	dead map[types.UID]bool
	// allowance is how many seats may be taken: the seats, or after they were
	// lowered what was taken then, until it has drained.
	allowance int
	serial    int
}

func (m *market) book() *ledger.Register {
	return ledger.NewRegister(slices.Collect(maps.Values(m.leases))...)
}

func (m *market) skew() time.Duration { return m.pool.Skew() }

// taken counts every name that a lease or a grant under way occupies.
func (m *market) taken() int {
	names := map[types.NamespacedName]bool{}
	for key, lease := range m.leases {
		if !lease.Terminating {
			names[key] = true
		}
	}
	for _, req := range m.creates {
		names[req.Key] = true
	}
	return len(names)
}

// checkout decides one request and carries out what was decided.
func (m *market) checkout(rt *rapid.T) {
	m.serial++
	req := ledger.Request{
		Key:        key(rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f"}).Draw(rt, "name")),
		UID:        types.UID(fmt.Sprint("uid-", m.serial)),
		SeatID:     fmt.Sprint("seat-", m.serial),
		InstanceID: rapid.SampledFrom([]string{"", "", "i", "j"}).Draw(rt, "instance"),
		ExpiresAt:  m.now.Add(m.pool.TTL()),
		DryRun:     rapid.IntRange(0, 9).Draw(rt, "dry run") == 0,
		Settled:    rapid.Bool().Draw(rt, "settled"),
	}
	book := m.book()
	tally := ledger.NewTally(m.pool, book, ledger.Knowledge{}, m.now)
	before := tally.Used()
	d := tally.Decide(req)
	if req.DryRun {
		if tally.Used() != before {
			rt.Fatal("a dry run was counted")
		}
		return
	}

	switch d.Verdict {
	case ledger.Granted:
		for _, lease := range d.Reclaim {
			if lease.LiveAt(m.now, m.skew()) {
				rt.Fatalf("live lease %s was to be reclaimed", lease.Key)
			}
			delete(m.leases, lease.Key)
		}
		m.pool.Status.Reservations = tally.Pending()
		m.creates[req.UID] = req
		if got := tally.Used(); got > m.pool.Seats() {
			rt.Fatalf("granted with %d seats used of %d", got, m.pool.Seats())
		}
	case ledger.Refused:
		if d.Refusal.Reason() != seatpoolv1alpha1.ReasonSeatsExhausted {
			return
		}
		// No seat may be free: live leases and reservations fill the pool.
		held := map[types.NamespacedName]bool{}
		for lease := range book.All() {
			if lease.LiveAt(m.now, m.skew()) {
				held[lease.Key] = true
			}
		}
		for _, r := range m.pool.Status.Reservations {
			held[types.NamespacedName{Namespace: r.Namespace, Name: r.Name}] = true
		}
		if len(held) < m.pool.Seats() {
			rt.Fatalf("refused with %d seats held of %d", len(held), m.pool.Seats())
		}
	case ledger.Replayed:
		rt.Fatal("a new create was taken for an old one")
	case ledger.Unsettled:
		if req.Settled {
			rt.Fatal("a settled request was told to settle")
		}
	}
}

func (m *market) drawCreate(rt *rapid.T) (ledger.Request, bool) {
	uids := slices.Sorted(maps.Keys(m.creates))
	if len(uids) == 0 {
		return ledger.Request{}, false
	}
	return m.creates[rapid.SampledFrom(uids).Draw(rt, "create")], true
}

func (m *market) drawLease(rt *rapid.T) (ledger.Lease, bool) {
	keys := slices.SortedFunc(maps.Keys(m.leases), func(a, b types.NamespacedName) int { return cmp.Compare(a.Name, b.Name) })
	if len(keys) == 0 {
		return ledger.Lease{}, false
	}
	return m.leases[rapid.SampledFrom(keys).Draw(rt, "lease")], true
}

func (m *market) resolve(uid types.UID) {
	m.pool.Status.Reservations = slices.DeleteFunc(slices.Clone(m.pool.Status.Reservations), func(r seatpoolv1alpha1.SeatReservation) bool {
		return types.UID(r.UID) == uid
	})
}

func TestLedgerNeverOversellsNorRefusesTooSoon(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := &market{
			pool: poolOf(rapid.IntRange(0, 4).Draw(rt, "seats")), now: now,
			leases:  map[types.NamespacedName]ledger.Lease{},
			creates: map[types.UID]ledger.Request{}, dead: map[types.UID]bool{},
		}
		m.allowance = m.pool.Seats()
		rt.Repeat(map[string]func(*rapid.T){
			"checkout": m.checkout,
			"store": func(rt *rapid.T) {
				req, ok := m.drawCreate(rt)
				if !ok {
					rt.Skip()
				}
				delete(m.creates, req.UID)
				if _, exists := m.leases[req.Key]; exists {
					m.dead[req.UID] = true // AlreadyExists
					return
				}
				m.serial++
				m.leases[req.Key] = ledger.Lease{
					Key: req.Key, UID: req.UID, SeatID: req.SeatID, InstanceID: req.InstanceID,
					ResourceVersion: fmt.Sprint(m.serial), ExpiresAt: req.ExpiresAt,
				}
			},
			"lose": func(rt *rapid.T) {
				req, ok := m.drawCreate(rt)
				if !ok {
					rt.Skip()
				}
				delete(m.creates, req.UID)
				m.dead[req.UID] = true
			},
			"see stored": func(*rapid.T) {
				for _, lease := range m.leases {
					m.resolve(lease.UID)
				}
			},
			"find dead": func(*rapid.T) {
				for uid := range m.dead {
					m.resolve(uid)
				}
				clear(m.dead)
			},
			"release": func(rt *rapid.T) {
				lease, ok := m.drawLease(rt)
				if !ok {
					rt.Skip()
				}
				delete(m.leases, lease.Key)
				m.resolve(lease.UID)
			},
			"begin deletion": func(rt *rapid.T) {
				lease, ok := m.drawLease(rt)
				if !ok {
					rt.Skip()
				}
				lease.Terminating = true
				m.leases[lease.Key] = lease
				m.resolve(lease.UID)
			},
			"renew": func(rt *rapid.T) {
				lease, ok := m.drawLease(rt)
				if !ok || !lease.LiveAt(m.now, m.skew()) {
					rt.Skip()
				}
				term := ledger.NewTerm(m.pool, m.now, lease.ExpiresAt)
				if term.ExpiresAt.Before(lease.ExpiresAt) {
					rt.Fatal("a renewal took time away")
				}
				lease.ExpiresAt = term.ExpiresAt
				m.leases[lease.Key] = lease
			},
			"pass time": func(rt *rapid.T) {
				m.now = m.now.Add(time.Duration(rapid.IntRange(1, 90).Draw(rt, "seconds")) * time.Second)
			},
			"change ttl": func(rt *rapid.T) {
				m.pool.Spec.TTLSeconds = int32(rapid.IntRange(6, 120).Draw(rt, "ttl"))
			},
			"change seats": func(rt *rapid.T) {
				seats := int32(rapid.IntRange(0, 4).Draw(rt, "seats"))
				m.pool.Spec.Seats = &seats
				m.allowance = max(int(seats), m.taken())
			},
			"": func(rt *rapid.T) {
				taken := m.taken()
				if taken > m.allowance {
					rt.Fatalf("%d seats are taken, %d allowed", taken, m.allowance)
				}
				m.allowance = max(min(m.allowance, taken), m.pool.Seats())

				status := ledger.NewTally(m.pool, m.book(), ledger.Knowledge{}, m.now).Status("1", false)
				if *status.SeatsFree < 0 || *status.SeatsInUse < 0 {
					rt.Fatalf("negative figures: %d in use, %d free", *status.SeatsInUse, *status.SeatsFree)
				}
				if *status.PeakSeatsInUse < *status.SeatsInUse {
					rt.Fatal("the peak is below the use")
				}
				reservations := m.pool.Status.Reservations
				m.pool.Status = status
				m.pool.Status.Reservations = reservations
			},
		})
	})
}

// TestRegisterAgreesWithAList checks the index structures against a plain list.
func TestRegisterAgreesWithAList(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		register := &ledger.Register{}
		list := map[types.NamespacedName]ledger.Lease{}
		rt.Repeat(map[string]func(*rapid.T){
			"put": func(rt *rapid.T) {
				name := rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}).Draw(rt, "name")
				l := lease(name, time.Duration(rapid.IntRange(-60, 60).Draw(rt, "expiry"))*time.Second)
				l.UID = types.UID(rapid.SampledFrom([]string{"u", "v"}).Draw(rt, "uid"))
				l.SeatID = name + string(l.UID)
				l.InstanceID = rapid.SampledFrom([]string{"", "i", "j"}).Draw(rt, "instance")
				l.Terminating = rapid.Bool().Draw(rt, "terminating")
				register.Put(l)
				list[l.Key] = l
			},
			"remove": func(rt *rapid.T) {
				k := key(rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}).Draw(rt, "name"))
				register.Remove(k)
				delete(list, k)
			},
			"": func(rt *rapid.T) {
				live, before := 0, now
				expired, soonest := map[types.NamespacedName]bool{}, time.Time{}
				held := map[string]int{}
				for _, l := range list {
					if got, ok := register.Seat(l.SeatID); !ok || got != l {
						rt.Fatalf("seat %s: got %v, want %v", l.SeatID, got, l)
					}
					if l.Terminating {
						continue
					}
					live++
					held[l.InstanceID]++
					if l.ExpiresAt.Before(before) {
						expired[l.Key] = true
					} else if soonest.IsZero() || l.ExpiresAt.Before(soonest) {
						soonest = l.ExpiresAt
					}
				}
				if register.Len() != live || register.Size() != len(list) {
					rt.Fatalf("len %d of %d, size %d of %d", register.Len(), live, register.Size(), len(list))
				}
				for l := range register.Expired(before) {
					if !expired[l.Key] {
						rt.Fatalf("lease %s is not expired, or was yielded twice", l.Key)
					}
					delete(expired, l.Key)
				}
				if len(expired) > 0 {
					rt.Fatalf("expired leases were not yielded: %v", expired)
				}
				if got, _ := register.Soonest(before); !got.Equal(soonest) {
					rt.Fatalf("soonest = %s, want %s", got, soonest)
				}
				for _, id := range []string{"i", "j"} {
					if got := len(register.HeldBy(id)); got != held[id] {
						rt.Fatalf("instance %s holds %d, want %d", id, got, held[id])
					}
				}
			},
		})
	})
}
