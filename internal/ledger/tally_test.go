// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	seatpoolv1alpha1 "seatpool.dev/api/v1alpha1"
	"seatpool.dev/internal/ledger"
)

var now = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// poolOf returns a pool of that many seats with a TTL of 60 s and a skew of 5 s.
func poolOf(seats int, edits ...func(*seatpoolv1alpha1.SeatPool)) *seatpoolv1alpha1.SeatPool {
	pool := &seatpoolv1alpha1.SeatPool{
		ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: "cad", Generation: 1},
		Spec:       seatpoolv1alpha1.SeatPoolSpec{Seats: new(int32(seats)), TTLSeconds: 60, SkewSeconds: new(int32(5))},
	}
	for _, edit := range edits {
		edit(pool)
	}
	return pool
}

func key(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "demo", Name: name}
}

// lease returns a lease that expires the given time from now.
func lease(name string, expiresIn time.Duration, edits ...func(*ledger.Lease)) ledger.Lease {
	l := ledger.Lease{
		Key: key(name), UID: types.UID("uid-" + name), ResourceVersion: "7", SeatID: "seat-" + name,
		ExpiresAt: now.Add(expiresIn), IssuedAt: now.Add(expiresIn - time.Minute),
	}
	for _, edit := range edits {
		edit(&l)
	}
	return l
}

func request(name string, edits ...func(*ledger.Request)) ledger.Request {
	r := ledger.Request{Key: key(name), UID: types.UID("new-" + name), SeatID: "new-seat-" + name, ExpiresAt: now.Add(time.Minute)}
	for _, edit := range edits {
		edit(&r)
	}
	return r
}

func reservation(name string) seatpoolv1alpha1.SeatReservation {
	return seatpoolv1alpha1.SeatReservation{
		SeatID: "new-seat-" + name, Namespace: "demo", Name: name, UID: "new-" + name, ReservedAt: metav1.NewTime(now),
	}
}

func reserved(names ...string) func(*seatpoolv1alpha1.SeatPool) {
	return func(p *seatpoolv1alpha1.SeatPool) {
		for _, name := range names {
			p.Status.Reservations = append(p.Status.Reservations, reservation(name))
		}
	}
}

func instance(id string) func(*ledger.Request)    { return func(r *ledger.Request) { r.InstanceID = id } }
func leaseInstance(id string) func(*ledger.Lease) { return func(l *ledger.Lease) { l.InstanceID = id } }
func settled(r *ledger.Request)                   { r.Settled = true }
func terminating(l *ledger.Lease)                 { l.Terminating = true }
func suspended(p *seatpoolv1alpha1.SeatPool)      { p.Spec.Suspended = new(true) }

func TestTallyDecide(t *testing.T) {
	tests := map[string]struct {
		pool        *seatpoolv1alpha1.SeatPool
		leases      []ledger.Lease
		known       ledger.Knowledge
		req         ledger.Request
		wantVerdict ledger.Verdict
		wantReason  string
		wantReclaim []string
		wantUsed    int
		wantByBook  bool
	}{
		"a free seat is granted": {
			pool: poolOf(2), leases: []ledger.Lease{lease("a", time.Minute)}, req: request("b"),
			wantVerdict: ledger.Granted, wantUsed: 2,
		},
		"a full pool refuses, for the caller to check": {
			pool: poolOf(1), leases: []ledger.Lease{lease("a", time.Minute)}, req: request("b"),
			wantReason: "SeatsExhausted", wantUsed: 1, wantByBook: true,
		},
		"a pool without seats refuses": {
			pool: poolOf(0), req: request("b"), wantReason: "SeatsExhausted", wantByBook: true,
		},
		"a reservation takes a seat": {
			pool: poolOf(1, reserved("a")), req: request("b"), wantReason: "SeatsExhausted", wantUsed: 1, wantByBook: true,
		},
		"a lease and its own reservation are one seat": {
			pool: poolOf(2, reserved("a")), leases: []ledger.Lease{lease("a", time.Minute)}, req: request("b"),
			wantVerdict: ledger.Granted, wantUsed: 2,
		},
		"a resolved reservation takes no seat": {
			pool: poolOf(1, reserved("a")), known: ledger.Knowledge{Resolved: map[types.UID]bool{"new-a": true}}, req: request("b"),
			wantVerdict: ledger.Granted, wantUsed: 1,
		},
		"a lease at the very end of its skew still holds its seat": {
			pool: poolOf(1), leases: []ledger.Lease{lease("a", -5*time.Second)}, req: request("b"),
			wantReason: "SeatsExhausted", wantUsed: 1, wantByBook: true,
		},
		"an expired lease is reclaimed when its seat is needed": {
			pool: poolOf(1), leases: []ledger.Lease{lease("a", -5*time.Second-1)}, req: request("b"),
			wantVerdict: ledger.Granted, wantReclaim: []string{"a"}, wantUsed: 1,
		},
		"an expired lease is left alone while there are other seats": {
			pool: poolOf(2), leases: []ledger.Lease{lease("a", -time.Hour)}, req: request("b"),
			wantVerdict: ledger.Granted, wantUsed: 2,
		},
		"an expired lease that has been touched is not reclaimed": {
			pool: poolOf(1), leases: []ledger.Lease{lease("a", -time.Hour)},
			known: ledger.Knowledge{Touched: map[types.UID]ledger.Lease{"uid-a": lease("a", -time.Hour)}}, req: request("b"),
			wantReason: "SeatsExhausted", wantUsed: 1, wantByBook: true,
		},
		"a lease known to be gone takes no seat": {
			pool: poolOf(1), leases: []ledger.Lease{lease("a", time.Minute)},
			known: ledger.Knowledge{Gone: map[types.UID]types.NamespacedName{"uid-a": key("a")}}, req: request("b"),
			wantVerdict: ledger.Granted, wantUsed: 1,
		},
		"a lease that is being deleted takes no seat": {
			pool: poolOf(1), leases: []ledger.Lease{lease("a", time.Minute, terminating)}, req: request("b"),
			wantVerdict: ledger.Granted, wantUsed: 1,
		},
		"nothing is reclaimed when that does not make a seat free": {
			pool: poolOf(1), leases: []ledger.Lease{lease("a", time.Minute), lease("b", -time.Hour)}, req: request("c"),
			wantReason: "SeatsExhausted", wantUsed: 2, wantByBook: true,
		},
		"lowered seats grant nothing until use is below them": {
			pool:   poolOf(1),
			leases: []ledger.Lease{lease("a", time.Minute), lease("b", time.Minute), lease("c", time.Minute)}, req: request("d"),
			wantReason: "SeatsExhausted", wantUsed: 3, wantByBook: true,
		},
		"a name that is taken is refused before anything is counted": {
			pool: poolOf(5), leases: []ledger.Lease{lease("a", time.Minute)}, req: request("a"),
			wantReason: "AlreadyExists", wantUsed: 1, wantByBook: true,
		},
		"the name of a lease that is being deleted is taken": {
			pool: poolOf(5), leases: []ledger.Lease{lease("a", time.Minute, terminating)}, req: request("a"),
			wantReason: "AlreadyExists", wantByBook: true,
		},
		"C7: an expired lease of the same name makes way": {
			pool: poolOf(1), leases: []ledger.Lease{lease("a", -time.Hour)}, req: request("a"),
			wantVerdict: ledger.Granted, wantReclaim: []string{"a"}, wantUsed: 1,
		},
		"C7: an expired lease of the same installation makes way": {
			pool: poolOf(5), leases: []ledger.Lease{lease("a", -time.Hour, leaseInstance("i"))}, req: request("b", instance("i")),
			wantVerdict: ledger.Granted, wantReclaim: []string{"a"}, wantUsed: 1,
		},
		"an installation that holds a seat gets no second": {
			pool: poolOf(5), leases: []ledger.Lease{lease("a", time.Minute, leaseInstance("i"))}, req: request("b", instance("i")),
			wantReason: "AlreadyHeld", wantUsed: 1, wantByBook: true,
		},
		"the same create asked again is granted again": {
			pool: poolOf(1, reserved("a")), req: request("a"), wantVerdict: ledger.Replayed, wantUsed: 1,
		},
		"a second create of a name under way waits": {
			pool: poolOf(1, reserved("a")), req: request("a", func(r *ledger.Request) { r.UID, r.SeatID = "other", "other" }),
			wantVerdict: ledger.Unsettled, wantUsed: 1,
		},
		"a settled create of a name under way shares its seat": {
			pool: poolOf(1, reserved("a")), req: request("a", settled, func(r *ledger.Request) { r.UID, r.SeatID = "other", "other" }),
			wantVerdict: ledger.Granted, wantUsed: 1,
		},
		"a generated name tried again takes the seat along": {
			pool: poolOf(1, reserved("a")), req: request("b", func(r *ledger.Request) { r.SeatID = "new-seat-a" }),
			wantVerdict: ledger.Granted, wantUsed: 1,
		},
		"a generated name that collided with a lease frees nothing": {
			pool: poolOf(1, reserved("a")), leases: []ledger.Lease{lease("a", time.Minute)},
			req:        request("b", func(r *ledger.Request) { r.SeatID = "new-seat-a" }),
			wantReason: "SeatsExhausted", wantUsed: 1, wantByBook: true,
		},
		"the seat of another lease cannot be brought along": {
			pool: poolOf(5), leases: []ledger.Lease{lease("a", time.Minute)}, req: request("b", func(r *ledger.Request) { r.SeatID = "seat-a" }),
			wantReason: "NoGrant", wantUsed: 1,
		},
		"a suspended pool grants nothing": {
			pool: poolOf(1, suspended), req: request("a"), wantReason: "PoolSuspended",
		},
		"a pool grants nothing before it is valid": {
			pool: poolOf(1, func(p *seatpoolv1alpha1.SeatPool) { p.Spec.NotBefore = new(metav1.NewTime(now.Add(time.Second))) }),
			req:  request("a"), wantReason: "PoolSuspended",
		},
		"a pool grants nothing from its end on": {
			pool: poolOf(1, func(p *seatpoolv1alpha1.SeatPool) { p.Spec.NotAfter = new(metav1.NewTime(now)) }),
			req:  request("a"), wantReason: "PoolExpired",
		},
		"a grant stamped beyond a notAfter that has just been set is tried again": {
			pool: poolOf(1, func(p *seatpoolv1alpha1.SeatPool) { p.Spec.NotAfter = new(metav1.NewTime(now.Add(time.Second))) }),
			req:  request("a"), wantReason: "Busy",
		},
		"another namespace is not allowed by default": {
			pool: poolOf(1), req: request("a", func(r *ledger.Request) { r.Key.Namespace = "other" }), wantReason: "NamespaceNotAllowed",
		},
		"a dry run is decided and not counted": {
			pool: poolOf(1), req: request("a", func(r *ledger.Request) { r.DryRun = true }), wantVerdict: ledger.Granted,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			tally := ledger.NewTally(tc.pool, ledger.NewRegister(tc.leases...), tc.known, now)
			got := tally.Decide(tc.req)
			if got.Verdict != tc.wantVerdict {
				t.Errorf("verdict = %v, want %v (refusal %v)", got.Verdict, tc.wantVerdict, got.Refusal)
			}
			reason := ""
			if got.Refusal != nil {
				reason = got.Refusal.Reason()
			}
			if reason != tc.wantReason {
				t.Errorf("reason = %q, want %q", reason, tc.wantReason)
			}
			var reclaim []string
			for _, l := range got.Reclaim {
				reclaim = append(reclaim, l.Key.Name)
			}
			if diff := cmp.Diff(tc.wantReclaim, reclaim); diff != "" {
				t.Errorf("reclaim (-want +got):\n%s", diff)
			}
			if tally.Used() != tc.wantUsed {
				t.Errorf("used = %d, want %d", tally.Used(), tc.wantUsed)
			}
			if got.ByBook != tc.wantByBook {
				t.Errorf("by book = %t, want %t", got.ByBook, tc.wantByBook)
			}
		})
	}
}

func TestTallyGrantsInOrderUntilFull(t *testing.T) {
	tally := ledger.NewTally(poolOf(25), &ledger.Register{}, ledger.Knowledge{}, now)
	granted := 0
	for i := range 500 {
		d := tally.Decide(request(fmt.Sprint(i)))
		if (d.Verdict == ledger.Granted) != (i < 25) {
			t.Fatalf("request %d: verdict %v", i, d.Verdict)
		}
		if d.Verdict == ledger.Granted {
			granted++
		}
	}
	if granted != 25 || tally.Used() != 25 || len(tally.Pending()) != 25 {
		t.Errorf("granted %d, used %d, pending %d, want 25 each", granted, tally.Used(), len(tally.Pending()))
	}
}

func TestSeatsExhaustedTellsWhenToAskAgain(t *testing.T) {
	tally := ledger.NewTally(poolOf(1), ledger.NewRegister(lease("a", 4*time.Second)), ledger.Knowledge{}, now)
	d := tally.Decide(request("b"))
	if d.Refusal == nil {
		t.Fatal("want a refusal")
	}
	var status interface{ Status() metav1.Status }
	if !errors.As(error(d.Refusal), &status) {
		t.Fatal("a refusal must carry a status")
	}
	got := status.Status()
	want := metav1.Status{
		Status: metav1.StatusFailure, Code: 409, Reason: "SeatsExhausted",
		Message: "the only seat of pool demo/cad is in use; try again in 9 s",
		Details: &metav1.StatusDetails{
			Group: "seatpool.dev", Kind: "seatpools", Name: "cad", RetryAfterSeconds: 9,
			Causes: []metav1.StatusCause{
				{Type: "SeatsInUse", Message: "1"},
				{Type: "MaxSeats", Message: "1"},
				{Type: "SoonestExpiry", Message: "2026-01-01T12:00:04Z"},
			},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
}
