// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package token

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	seatpoolv1alpha1 "seatpool.dev/api/v1alpha1"
	"seatpool.dev/seat/leasetoken"
)

// world is a cluster under a fake clock, the keeper's: the Secret with its whole
// past, the leases in existence, and those that are signed and not yet stored.
// Its replicas see the Secret as it was at some moment not longer ago than the
// overlap, each at another.
type world struct {
	t      rapid.TB
	policy Policy
	ttl    time.Duration

	now    time.Time
	past   []*version
	leases []*seatpoolv1alpha1.SeatLease
	flying []flight
	// next is when the keeper wants to be woken.
	next time.Time
	// signedBy counts tokens by key.
	signedBy map[string]int
	seats    int
}

// flight is a lease that is signed, and stored only when it lands.
type flight struct {
	lease *seatpoolv1alpha1.SeatLease
	lands time.Time
}

// version is the Secret from a moment on.
type version struct {
	from        time.Time
	data        map[string][]byte
	annotations map[string]string
	ring        *Keyring
	// verified are the keys of which a token was verified here. Neither changes,
	// so that one token of a key stands for all.
	verified map[string]bool
}

func newWorld(t rapid.TB, policy Policy, ttl time.Duration) *world {
	t.Helper()
	w := &world{t: t, policy: policy, ttl: ttl, now: start, signedBy: map[string]int{}}
	w.keep()
	return w
}

// secret returns the Secret as it is.
func (w *world) secret() version {
	if len(w.past) == 0 {
		return version{}
	}
	return *w.past[len(w.past)-1]
}

func (w *world) write(data map[string][]byte, annotations map[string]string) {
	w.t.Helper()
	ring, err := ParseKeyring(data, annotations)
	if err != nil {
		w.t.Fatal(err)
	}
	jwks, err := ring.JWKS()
	if err != nil {
		w.t.Fatal(err)
	}
	published, err := leasetoken.ParseJWKS(jwks)
	if err != nil {
		w.t.Fatal(err)
	}
	// So what a replica verifies, a program does with what was published then.
	if diff := cmp.Diff(ring.KeySet(), published); diff != "" {
		w.t.Fatalf("the published keys: %s", diff)
	}
	w.past = append(w.past, &version{
		from: w.now, data: data, annotations: annotations, ring: ring, verified: map[string]bool{},
	})
}

// keep does what the keeper does when it is woken.
func (w *world) keep() {
	w.t.Helper()
	w.land()
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
	if !reflect.DeepEqual(secret.data, plan.Data) || !maps.Equal(secret.annotations, plan.Annotations) {
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

// view returns the Secret as a replica sees it that is so far behind.
func (w *world) view(behind time.Duration) *version {
	seen := w.past[0]
	for _, v := range w.past {
		if !v.from.After(w.now.Add(-behind)) {
			seen = v
		}
	}
	return seen
}

// checkout signs a lease on a replica whose clock is ahead, and stores it after
// it has been under way for so long.
func (w *world) checkout(v *version, ahead, underWay time.Duration) {
	w.t.Helper()
	w.seats++
	l := &seatpoolv1alpha1.SeatLease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "design", Name: fmt.Sprint("lease-", w.seats)},
		Spec:       seatpoolv1alpha1.SeatLeaseSpec{PoolRef: seatpoolv1alpha1.PoolReference{Name: "acme"}, Holder: seatpoolv1alpha1.Holder{User: "ada"}},
	}
	l.Status.SeatID = fmt.Sprint("seat-", w.seats)
	w.renew(v, l, ahead)
	w.flying = append(w.flying, flight{lease: l, lands: w.now.Add(underWay)})
	w.land()
}

// land stores what was under way.
func (w *world) land() {
	w.flying = slices.DeleteFunc(w.flying, func(f flight) bool {
		if f.lands.After(w.now) {
			return false
		}
		w.leases = append(w.leases, f.lease)
		return true
	})
}

func (w *world) renew(v *version, l *seatpoolv1alpha1.SeatLease, ahead time.Duration) {
	w.t.Helper()
	now := w.now.Add(ahead)
	l.Status.IssuedAt = metav1.NewTime(now.Truncate(time.Second))
	l.Status.ExpiresAt = metav1.NewTime(now.Add(w.ttl).Truncate(time.Second))
	token, err := v.ring.Sign(l, "acme", now)
	if err != nil {
		w.t.Fatal(err)
	}
	l.Status.Token = token
	kid := v.ring.SigningKeyID(now)
	l.Labels = map[string]string{"kid": kid}
	w.signedBy[kid]++
}

// reap removes what has expired.
func (w *world) reap() {
	w.land()
	w.leases = slices.DeleteFunc(w.leases, func(l *seatpoolv1alpha1.SeatLease) bool {
		return !l.LiveAt(w.now, 5*time.Second)
	})
}

// check fails when a replica refuses the token of a lease in existence or under
// way.
func (w *world) check(v *version) {
	w.t.Helper()
	for _, l := range w.leases {
		w.checkLease(v, l)
	}
	for _, f := range w.flying {
		w.checkLease(v, f.lease)
	}
}

func (w *world) checkLease(v *version, l *seatpoolv1alpha1.SeatLease) {
	w.t.Helper()
	if v.verified[l.Labels["kid"]] {
		return
	}
	v.verified[l.Labels["kid"]] = true
	if err := v.ring.Verify(l); err != nil {
		w.t.Fatalf("at %v, lease of %v: %v; the Secret says %v",
			w.now.Sub(start), l.Status.IssuedAt.Sub(start), err, w.secret().annotations)
	}
}

// Half a day of a cluster that rotates by itself and by hand, looked at every
// minute: no replica ever refuses what another has signed.
func TestRotation_hasNoGap(t *testing.T) {
	w := newWorld(t, Policy{Period: time.Hour, Overlap: overlap}, 25*time.Minute)
	behind := []time.Duration{0, overlap / 2, overlap}
	kept := 0

	for minute := range 12 * 60 {
		w.now = start.Add(time.Duration(minute) * time.Minute)
		switch minute {
		case 300:
			w.addByHand("by-hand") // and the keeper is away for a while
			w.next = w.now.Add(13 * time.Minute)
		case 500:
			w.addByHand("0-by-hand.pem")
			w.keep()
		}
		if !w.next.IsZero() && !w.now.Before(w.next) {
			w.keep()
		}
		w.reap()
		var views []*version
		for _, d := range behind {
			views = append(views, w.view(d))
		}
		views = slices.Compact(views) // replicas that see the same do the same
		for _, v := range views {
			w.checkout(v, 0, 0)
		}
		for _, v := range views {
			w.check(v)
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
		t.Errorf("%d keys signed in 12 hours, want one an hour at least: %v", n, w.signedBy)
	}
	if kept > 3 || len(w.secret().data) > 2 {
		t.Errorf("up to %d keys were kept, and %d in the end", kept, len(w.secret().data))
	}
}

// The worst the overlap has to cover, however it is shared out: a replica whose
// clock is ahead signs with the new key first, and one whose clock is behind
// signs with the old key last, of which the keeper hears as late as it can.
func TestRotation_coversAllOfTheOverlap(t *testing.T) {
	for quarters := range 5 {
		apart := overlap * time.Duration(quarters) / 4
		rest := overlap - apart
		t.Run(fmt.Sprintf("clocks %v apart", apart), func(t *testing.T) {
			w := newWorld(t, Policy{Period: time.Hour, Overlap: overlap}, 2*time.Hour)
			first := w.secret().ring.SigningKeyID(w.now)
			w.now = w.next.Add(900 * time.Millisecond)
			w.keep()
			turns := w.secret().ring.turns
			takesOver := turns[len(turns)-1]
			signsWith := func(kid string, ahead, underWay time.Duration) {
				t.Helper()
				before := w.signedBy[kid]
				w.checkout(w.view(0), ahead, underWay)
				if w.signedBy[kid] != before+1 {
					t.Fatalf("key %q does not sign at %v: %v", kid, w.now.Sub(start), w.signedBy)
				}
			}

			w.now = takesOver.from.Add(-apart)
			signsWith(takesOver.kid, apart, 0)
			w.check(w.view(rest))
			w.leases = nil // or it would keep the old key by itself

			w.now = takesOver.from.Add(apart - 1)
			signsWith(first, -apart, rest)
			// The keeper may look for another reason just before it could hear of
			// that lease, and looks by itself when it can.
			for _, now := range []time.Time{w.now.Add(max(0, rest-1)), w.next} {
				w.now = now
				w.keep()
				w.check(w.view(0))
				w.check(w.view(rest))
			}

			w.renew(w.view(0), w.leases[0], 0) // with the new key: nobody needs the old one now
			w.now = w.next
			w.keep()
			if kids := slices.Sorted(maps.Keys(w.secret().data)); !slices.Equal(kids, []string{takesOver.kid}) {
				t.Errorf("keys %q are left, want %q alone", kids, takesOver.kid)
			}
		})
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
	w.checkout(w.view(0), 0, 0)
	w.addByHand("second")
	if got := w.view(0).ring.SigningKeyID(w.now); got != first {
		t.Errorf("%q signs before the keeper has seen it", got)
	}
	w.keep()

	w.now = w.now.Add(overlap - 1)
	if got := w.view(0).ring.SigningKeyID(w.now); got != first {
		t.Errorf("%q signs before the overlap is over", got)
	}
	w.now = w.now.Add(1)
	for _, behind := range []time.Duration{0, overlap} {
		if got := w.view(behind).ring.SigningKeyID(w.now); got != "second" {
			t.Errorf("%q signs after the overlap, in a view of %v ago", got, behind)
		}
		w.checkout(w.view(behind), 0, 0)
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
		// Together these are what the overlap has to cover.
		upTo := func(most time.Duration, label string) time.Duration {
			return time.Duration(rapid.Int64Range(0, int64(most)).Draw(t, label))
		}
		apart := upTo(policy.Overlap, "clocks apart")
		slowest := -upTo(apart, "slowest clock")
		maxBehind := upTo(policy.Overlap-apart, "most behind")
		longest := upTo(policy.Overlap-apart, "longest under way")

		w := newWorld(t, policy, ttl)
		view := func() *version { return w.view(upTo(maxBehind, "behind")) }
		ahead := func() time.Duration { return slowest + upTo(apart, "ahead of the slowest") }
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
				if byHand == 3 {
					t.Skip("three make the point, and reading many keys takes long")
				}
				byHand++
				w.addByHand(rapid.SampledFrom([]string{"0", "z"}).Draw(t, "name") + fmt.Sprint(byHand))
			},
			"a seat is checked out": func(*rapid.T) { w.checkout(view(), ahead(), upTo(longest, "under way")) },
			"a lease is renewed": func(t *rapid.T) {
				if len(w.leases) > 0 {
					w.renew(view(), rapid.SampledFrom(w.leases).Draw(t, "lease"), ahead())
				}
			},
			"": func(*rapid.T) {
				w.reap()
				w.check(w.view(0))
				w.check(w.view(maxBehind))
				w.check(view())
			},
		})
	})
}
