// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package token

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	seatpoolv1alpha1 "seatpool.dev/api/v1alpha1"
)

// world is a cluster under a fake clock: the Secret with its whole past, the
// keeper, and the leases in existence. Its replicas see the Secret as it was at
// some moment not longer ago than the overlap, each at another.
type world struct {
	t      rapid.TB
	policy Policy
	ttl    time.Duration

	now    time.Time
	past   []version
	leases []*seatpoolv1alpha1.SeatLease
	// next is when the keeper wants to be woken.
	next time.Time
	// signedBy counts tokens by key.
	signedBy map[string]int
	// verified are the keys of which a token was verified with a keyring. Both
	// do not change, so that one token of a key stands for all.
	verified map[keyInRing]bool
	seats    int
}

type keyInRing struct {
	ring *Keyring
	kid  string
}

// version is the Secret from a moment on.
type version struct {
	from        time.Time
	data        map[string][]byte
	annotations map[string]string
	ring        *Keyring
}

func newWorld(t rapid.TB, policy Policy, ttl time.Duration) *world {
	t.Helper()
	w := &world{t: t, policy: policy, ttl: ttl, now: start, signedBy: map[string]int{}, verified: map[keyInRing]bool{}}
	w.keep()
	return w
}

// secret returns the Secret as it is.
func (w *world) secret() version {
	if len(w.past) == 0 {
		return version{}
	}
	return w.past[len(w.past)-1]
}

func (w *world) write(data map[string][]byte, annotations map[string]string) {
	w.t.Helper()
	ring, err := ParseKeyring(data, annotations)
	if err != nil {
		w.t.Fatal(err)
	}
	w.past = append(w.past, version{from: w.now, data: data, annotations: annotations, ring: ring})
}

// keep does what the keeper does when it is woken.
func (w *world) keep() {
	w.t.Helper()
	oldest := time.Time{}
	for _, l := range w.leases {
		if issued := l.Status.IssuedAt.Time; oldest.IsZero() || issued.Before(oldest) {
			oldest = issued
		}
	}
	secret := w.secret()
	plan, err := NewPlan(secret.data, secret.annotations, w.now, w.policy, oldest)
	if err != nil {
		w.t.Fatal(err)
	}
	w.next = time.Time{}
	if plan.Next > 0 {
		w.next = w.now.Add(plan.Next)
	}
	if len(plan.Changes) > 0 {
		w.write(plan.Data, plan.Annotations)
	}
}

// addByHand is what a person does with openssl and kubectl.
func (w *world) addByHand(kid string) {
	w.t.Helper()
	_, value, err := GenerateKey(w.now)
	if err != nil {
		w.t.Fatal(err)
	}
	secret := w.secret()
	data := maps.Clone(secret.data)
	data[kid] = value
	w.write(data, secret.annotations)
}

// view returns the keys as a replica sees them that is so far behind.
func (w *world) view(behind time.Duration) *Keyring {
	seen := w.past[0]
	for _, v := range w.past {
		if !v.from.After(w.now.Add(-behind)) {
			seen = v
		}
	}
	return seen.ring
}

// checkout signs a lease on a replica.
func (w *world) checkout(ring *Keyring) {
	w.t.Helper()
	w.seats++
	l := &seatpoolv1alpha1.SeatLease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "design", Name: fmt.Sprint("lease-", w.seats)},
		Spec:       seatpoolv1alpha1.SeatLeaseSpec{PoolRef: seatpoolv1alpha1.PoolReference{Name: "acme"}, Holder: seatpoolv1alpha1.Holder{User: "ada"}},
	}
	l.Status.SeatID = fmt.Sprint("seat-", w.seats)
	w.renew(ring, l)
	w.leases = append(w.leases, l)
}

func (w *world) renew(ring *Keyring, l *seatpoolv1alpha1.SeatLease) {
	w.t.Helper()
	l.Status.IssuedAt = metav1.NewTime(w.now.Truncate(time.Second))
	l.Status.ExpiresAt = metav1.NewTime(w.now.Add(w.ttl).Truncate(time.Second))
	token, err := ring.Sign(l, "acme", w.now)
	if err != nil {
		w.t.Fatal(err)
	}
	l.Status.Token = token
	kid := ring.SigningKeyID(w.now)
	l.Labels = map[string]string{"kid": kid}
	w.signedBy[kid]++
}

// reap removes what has expired.
func (w *world) reap() {
	w.leases = slices.DeleteFunc(w.leases, func(l *seatpoolv1alpha1.SeatLease) bool {
		return !l.LiveAt(w.now, 5*time.Second)
	})
}

// check fails when a replica refuses the token of a lease in existence.
func (w *world) check(ring *Keyring) {
	w.t.Helper()
	for _, l := range w.leases {
		key := keyInRing{ring, l.Labels["kid"]}
		if w.verified[key] {
			continue
		}
		w.verified[key] = true
		if err := ring.Verify(l); err != nil {
			w.t.Fatalf("at %v, lease of %v: %v; the Secret says %v",
				w.now.Sub(start), l.Status.IssuedAt.Sub(start), err, w.secret().annotations)
		}
	}
}

// A day of a cluster that rotates by itself and by hand, looked at every minute:
// no replica ever refuses what another has signed.
func TestRotation_hasNoGap(t *testing.T) {
	w := newWorld(t, Policy{Period: 2 * time.Hour, Overlap: overlap}, 25*time.Minute)
	behind := []time.Duration{0, overlap / 2, overlap}
	kept := 0

	for minute := range 24 * 60 {
		w.now = start.Add(time.Duration(minute) * time.Minute)
		switch minute {
		case 300:
			w.addByHand("by-hand") // and the keeper is away for a while
			w.next = w.now.Add(13 * time.Minute)
		case 700:
			w.addByHand("0-by-hand.pem")
			w.keep()
		}
		if !w.next.IsZero() && !w.now.Before(w.next) {
			w.keep()
		}
		w.reap()
		for _, d := range behind {
			w.checkout(w.view(d))
		}
		for _, d := range behind {
			w.check(w.view(d))
		}
		kept = max(kept, len(w.secret().data))
	}

	// It was worth looking: keys came, signed, and went.
	for kid, n := range w.signedBy {
		if n < 10 {
			t.Errorf("key %q signed %d tokens only", kid, n)
		}
	}
	if w.signedBy["by-hand"] == 0 || w.signedBy["0-by-hand"] == 0 {
		t.Errorf("a key that was added by hand never signed: %v", w.signedBy)
	}
	if n := len(w.signedBy); n < 12 {
		t.Errorf("%d keys signed in 24 hours, want one every 2 hours at least: %v", n, w.signedBy)
	}
	if kept > 3 || len(w.secret().data) > 2 {
		t.Errorf("up to %d keys were kept, and %d in the end", kept, len(w.secret().data))
	}
}

// Without a period a person rotates, and nothing else happens by itself.
func TestRotation_byHandAlone(t *testing.T) {
	w := newWorld(t, Policy{Overlap: overlap}, time.Hour)
	first := w.secret().ring.SigningKeyID(w.now)
	if !w.next.IsZero() {
		t.Errorf("the keeper wants to be woken at %v", w.next)
	}

	w.now = start.Add(time.Hour)
	w.checkout(w.view(0))
	w.addByHand("second")
	if got := w.view(0).SigningKeyID(w.now); got != first {
		t.Errorf("%q signs before the keeper has seen it", got)
	}
	w.keep()

	w.now = w.now.Add(overlap - 1)
	if got := w.view(0).SigningKeyID(w.now); got != first {
		t.Errorf("%q signs before the overlap is over", got)
	}
	w.now = w.now.Add(1)
	for _, behind := range []time.Duration{0, overlap} {
		if got := w.view(behind).SigningKeyID(w.now); got != "second" {
			t.Errorf("%q signs after the overlap, in a view of %v ago", got, behind)
		}
		w.checkout(w.view(behind))
		w.check(w.view(overlap))
	}

	w.now = w.now.AddDate(10, 0, 0)
	w.keep()
	if got := slices.Sorted(maps.Keys(w.secret().data)); !slices.Contains(got, first) || len(got) != 2 {
		t.Errorf("keys %v, though nothing is to be retired", got)
	}
}

// Whatever a person and the keeper do, and whenever.
func TestRotation_hasNoGapInAnyOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ttl := time.Duration(rapid.Int64Range(5, 7200).Draw(t, "ttl")) * time.Second
		policy := Policy{
			Period:  time.Duration(rapid.Int64Range(0, 3600).Draw(t, "period")) * time.Second,
			Overlap: time.Duration(rapid.Int64Range(1, 900).Draw(t, "overlap")) * time.Second,
		}
		w := newWorld(t, policy, ttl)
		view := func() *Keyring {
			return w.view(time.Duration(rapid.Int64Range(0, int64(policy.Overlap)).Draw(t, "behind")))
		}
		byHand := 0
		t.Repeat(map[string]func(*rapid.T){
			"a moment passes": func(t *rapid.T) {
				w.now = w.now.Add(time.Duration(rapid.Int64Range(1, int64(2*time.Second)).Draw(t, "moment")))
			},
			"time passes": func(t *rapid.T) {
				w.now = w.now.Add(time.Duration(rapid.Int64Range(1, int64(2*policy.Overlap+policy.Period)).Draw(t, "time")))
			},
			"a key is activated": func(*rapid.T) {
				turns := w.secret().ring.turns
				if from := turns[len(turns)-1].from; from.After(w.now) {
					w.now = from
				}
			},
			"the keeper is woken": func(*rapid.T) {
				if w.next.After(w.now) {
					w.now = w.next
				}
				w.keep()
			},
			"the keeper looks for no reason": func(*rapid.T) { w.keep() },
			"a key is added by hand": func(t *rapid.T) {
				byHand++
				w.addByHand(rapid.SampledFrom([]string{"0", "z"}).Draw(t, "name") + fmt.Sprint(byHand))
			},
			"a seat is checked out": func(*rapid.T) { w.checkout(view()) },
			"a lease is renewed": func(t *rapid.T) {
				if len(w.leases) > 0 {
					w.renew(view(), rapid.SampledFrom(w.leases).Draw(t, "lease"))
				}
			},
			"": func(*rapid.T) {
				w.reap()
				w.check(w.view(0))
				w.check(w.view(policy.Overlap))
				w.check(view())
			},
		})
	})
}
