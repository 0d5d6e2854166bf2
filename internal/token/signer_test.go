// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package token

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	seatpoolv1alpha1 "seatpool.dev/api/v1alpha1"
	"seatpool.dev/seat/leasetoken"
)

// lease returns a lease as it is when it is signed.
func lease() *seatpoolv1alpha1.SeatLease {
	return &seatpoolv1alpha1.SeatLease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "design", Name: "ada-1"},
		Spec: seatpoolv1alpha1.SeatLeaseSpec{
			PoolRef: seatpoolv1alpha1.PoolReference{Namespace: "licences", Name: "acme-pool"},
			Holder:  seatpoolv1alpha1.Holder{User: "ada", Host: "ws-7", InstanceID: "b2c1"},
		},
		Status: seatpoolv1alpha1.SeatLeaseStatus{
			SeatID:     "5ea7",
			AcquiredAt: metav1.NewTime(start.Add(-time.Hour)),
			IssuedAt:   metav1.NewTime(start),
			ExpiresAt:  metav1.NewTime(start.Add(2 * time.Minute)),
			Requester:  "system:serviceaccount:design:studio",
		},
	}
}

func oneKey(tb testing.TB) *Keyring {
	tb.Helper()
	return keyring(tb, map[string][]byte{"k1": keyPEM(tb, privateKey(1))}, nil)
}

func signed(tb testing.TB, ring *Keyring, lease *seatpoolv1alpha1.SeatLease) *seatpoolv1alpha1.SeatLease {
	tb.Helper()
	token, err := ring.Sign(lease, "acme", start)
	if err != nil {
		tb.Fatal(err)
	}
	lease.Status.Token = token
	return lease
}

func TestSign_writesTheTokenThatIsDocumented(t *testing.T) {
	parts := strings.Split(signed(t, oneKey(t), lease()).Status.Token, ".")
	want := []string{
		`{"alg":"EdDSA","kid":"k1","typ":"JWT"}`,
		`{"iss":"seatpool","aud":"acme","sub":"ada","jti":"5ea7","iat":1796126400,"exp":1796126520,` +
			`"seatpool.dev":{"pool":"acme-pool","poolNamespace":"licences","namespace":"design","user":"ada","host":"ws-7","instanceID":"b2c1"}}`,
	}
	for i, text := range want {
		decoded, err := base64.RawURLEncoding.DecodeString(parts[i])
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(text, string(decoded)); diff != "" {
			t.Error(diff)
		}
	}
	// One lease has one token, whoever signs it again.
	if diff := cmp.Diff(signed(t, oneKey(t), lease()).Status.Token, strings.Join(parts, ".")); diff != "" {
		t.Error(diff)
	}
}

func TestSign_namesTheHolder(t *testing.T) {
	for name, tc := range map[string]struct {
		holder seatpoolv1alpha1.Holder
		want   string
	}{
		"by the user":                    {seatpoolv1alpha1.Holder{User: "ada", Host: "ws-7", InstanceID: "b2c1"}, "ada"},
		"by the instance without user":   {seatpoolv1alpha1.Holder{Host: "ws-7", InstanceID: "b2c1"}, "b2c1"},
		"by the host without those":      {seatpoolv1alpha1.Holder{Host: "ws-7"}, "ws-7"},
		"by the requester without all":   {seatpoolv1alpha1.Holder{}, "system:serviceaccount:design:studio"},
		"in letters of any language":     {seatpoolv1alpha1.Holder{User: "Ådä <ada@acme> \"&\" 山田 🪑"}, "Ådä <ada@acme> \"&\" 山田 🪑"},
		"with a line separator":          {seatpoolv1alpha1.Holder{User: "a\u2028b\\u2028"}, "a\u2028b\\u2028"},
		"as JSON could be misread":       {seatpoolv1alpha1.Holder{User: `","exp":9999999999,"x":"`}, `","exp":9999999999,"x":"`},
		"as a token could be misread":    {seatpoolv1alpha1.Holder{User: "a.b.c"}, "a.b.c"},
		"as a format could be misread":   {seatpoolv1alpha1.Holder{User: "%s%n%!"}, "%s%n%!"},
		"as a template could be misread": {seatpoolv1alpha1.Holder{User: "{{.Secret}}"}, "{{.Secret}}"},
	} {
		t.Run(name, func(t *testing.T) {
			ring, l := oneKey(t), lease()
			l.Spec.Holder = tc.holder
			signed(t, ring, l)
			claims, err := leasetoken.Verify(l.Status.Token, ring.KeySet(), leasetoken.Options{Product: "acme", Now: start})
			if err != nil {
				t.Fatal(err)
			}
			want := leasetoken.Claims{
				Product: "acme", Holder: tc.want, SeatID: "5ea7", IssuedAt: start, ExpiresAt: start.Add(2 * time.Minute),
				Lease: leasetoken.Lease{
					Pool: "acme-pool", PoolNamespace: "licences", Namespace: "design",
					User: tc.holder.User, Host: tc.holder.Host, InstanceID: tc.holder.InstanceID,
				},
			}
			if diff := cmp.Diff(want, claims); diff != "" {
				t.Error(diff)
			}
			if err := ring.Verify(l); err != nil {
				t.Error(err)
			}
		})
	}
}

// Whatever a lease says, a program with the published keys reads the same.
func TestSign_isReadWithThePublishedKeys(t *testing.T) {
	data := map[string][]byte{"a": keyPEM(t, privateKey(1)), "b.pem": keyPEM(t, privateKey(2)), "c": keyPEM(t, privateKey(3))}
	ring := keyring(t, data, times(t, map[string]time.Duration{"a": 0, "b": time.Hour, "c": 2 * time.Hour}))
	jwks, err := ring.JWKS()
	if err != nil {
		t.Fatal(err)
	}
	keys, err := leasetoken.ParseJWKS(jwks)
	if err != nil {
		t.Fatal(err)
	}
	name, text := rapid.StringN(1, 40, -1), rapid.StringN(0, 40, -1)
	rapid.Check(t, func(t *rapid.T) {
		now := start.Add(time.Duration(rapid.Int64Range(0, int64(3*time.Hour)).Draw(t, "now")))
		ttl := time.Duration(rapid.Int64Range(5, 31_536_000).Draw(t, "ttl")) * time.Second
		l := lease()
		l.Namespace, l.Spec.PoolRef.Name = name.Draw(t, "namespace"), name.Draw(t, "pool")
		l.Spec.PoolRef.Namespace = text.Draw(t, "poolNamespace")
		l.Spec.Holder = seatpoolv1alpha1.Holder{
			User: text.Draw(t, "user"), Host: text.Draw(t, "host"), InstanceID: text.Draw(t, "instanceID"),
		}
		l.Status.SeatID, l.Status.Requester = name.Draw(t, "seatID"), name.Draw(t, "requester")
		l.Status.IssuedAt, l.Status.ExpiresAt = metav1.NewTime(now), metav1.NewTime(now.Add(ttl))
		product := name.Draw(t, "product")

		token, err := ring.Sign(l, product, now)
		if err != nil {
			t.Fatal(err)
		}
		claims, err := leasetoken.Verify(token, keys, leasetoken.Options{Product: product, Now: now})
		if err != nil {
			t.Fatal(err)
		}
		holder := l.Spec.Holder
		want := leasetoken.Claims{
			Product: product, SeatID: l.Status.SeatID,
			Holder:   claims.Holder, // see TestSign_namesTheHolder
			IssuedAt: now.Truncate(time.Second), ExpiresAt: now.Add(ttl).Truncate(time.Second),
			Lease: leasetoken.Lease{
				Pool: l.Spec.PoolRef.Name, PoolNamespace: l.Pool().Namespace, Namespace: l.Namespace,
				User: holder.User, Host: holder.Host, InstanceID: holder.InstanceID,
			},
		}
		if diff := cmp.Diff(want, claims); diff != "" {
			t.Error(diff)
		}
		if got, want := kidOf(t, token), ring.SigningKeyID(now); got != want {
			t.Errorf("token signed with %q, want %q", got, want)
		}
		l.Status.Token = token
		if err := ring.Verify(l); err != nil {
			t.Error(err)
		}
	})
}

func TestSign_namesThePoolOfTheLeasesOwnNamespace(t *testing.T) {
	ring, l := oneKey(t), lease()
	l.Spec.PoolRef.Namespace = ""
	claims, err := leasetoken.VerifySignature(signed(t, ring, l).Status.Token, ring.KeySet())
	if err != nil {
		t.Fatal(err)
	}
	if claims.Lease.PoolNamespace != "design" {
		t.Errorf("pool in namespace %q, want the lease's", claims.Lease.PoolNamespace)
	}
}

// The limits of the API leave room for every holder there is in practice, and
// what does not fit is not signed.
func TestSign_fitsIntoALease(t *testing.T) {
	fill := func(unit string) *seatpoolv1alpha1.SeatLease {
		l := lease()
		l.Namespace = strings.Repeat("n", 63)
		l.Spec.PoolRef = seatpoolv1alpha1.PoolReference{Namespace: strings.Repeat("p", 63), Name: strings.Repeat("p", 253)}
		l.Spec.Holder = seatpoolv1alpha1.Holder{
			User: strings.Repeat(unit, 253), Host: strings.Repeat(unit, 253), InstanceID: strings.Repeat(unit, 128),
		}
		l.Status.SeatID = strings.Repeat("5", 64)
		return l
	}
	for _, unit := range []string{"a", "<", `"`, "ü", "山", "🪑"} {
		ring, l := oneKey(t), fill(unit)
		token, err := ring.Sign(l, strings.Repeat(unit, 253), start)
		if err != nil {
			t.Errorf("holders of %q: %v", unit, err)
			continue
		}
		l.Status.Token = token
		if err := ring.Verify(l); err != nil {
			t.Errorf("holders of %q: %v", unit, err)
		}
	}
	_, err := oneKey(t).Sign(fill("\u2028"), strings.Repeat("\u2028", 253), start)
	if !errors.Is(err, ErrTooLong) || !strings.Contains(err.Error(), "shorten what spec.holder says") {
		t.Errorf("error %v, want %v", err, ErrTooLong)
	}
}

func TestVerify(t *testing.T) {
	foreign := keyring(t, map[string][]byte{"k1": keyPEM(t, privateKey(9))}, nil)
	elsewhere := keyring(t, map[string][]byte{"k9": keyPEM(t, privateKey(9))}, nil)

	for name, tc := range map[string]struct {
		change func(*seatpoolv1alpha1.SeatLease)
		want   error
	}{
		"accepts the lease as it was signed": {
			change: func(*seatpoolv1alpha1.SeatLease) {},
		},
		"accepts changes that the token says nothing of": {
			change: func(l *seatpoolv1alpha1.SeatLease) {
				l.Labels = map[string]string{"a": "b"}
				l.Status.RenewAfterSeconds = 7
			},
		},
		"accepts times as they are before they have been stored": {
			change: func(l *seatpoolv1alpha1.SeatLease) {
				l.Status.IssuedAt.Time = l.Status.IssuedAt.Add(999 * time.Millisecond).In(time.FixedZone("", 3600))
				l.Status.ExpiresAt.Time = l.Status.ExpiresAt.Local()
			},
		},
		"refuses a lease without a token": {
			change: func(l *seatpoolv1alpha1.SeatLease) { l.Status.Token = "" },
			want:   leasetoken.ErrMalformed,
		},
		"refuses a token that was altered": {
			change: func(l *seatpoolv1alpha1.SeatLease) { l.Status.Token += "A" },
			want:   leasetoken.ErrBadSignature,
		},
		"refuses a token by another key of the same ID": {
			change: func(l *seatpoolv1alpha1.SeatLease) { signed(t, foreign, l) },
			want:   leasetoken.ErrBadSignature,
		},
		"refuses a token by a key from elsewhere": {
			change: func(l *seatpoolv1alpha1.SeatLease) { signed(t, elsewhere, l) },
			want:   leasetoken.ErrUnknownKey,
		},
		"refuses another seat": {
			change: func(l *seatpoolv1alpha1.SeatLease) { l.Status.SeatID = "5ea8" },
			want:   ErrOtherLease,
		},
		"refuses a later expiry": {
			change: func(l *seatpoolv1alpha1.SeatLease) { l.Status.ExpiresAt.Time = l.Status.ExpiresAt.Add(time.Second) },
			want:   ErrOtherLease,
		},
		"refuses an earlier issue": {
			change: func(l *seatpoolv1alpha1.SeatLease) { l.Status.IssuedAt.Time = l.Status.IssuedAt.Add(-time.Second) },
			want:   ErrOtherLease,
		},
		"refuses another pool": {
			change: func(l *seatpoolv1alpha1.SeatLease) { l.Spec.PoolRef.Name = "acme-site" },
			want:   ErrOtherLease,
		},
		"refuses a pool of that name elsewhere": {
			change: func(l *seatpoolv1alpha1.SeatLease) { l.Spec.PoolRef.Namespace = "" },
			want:   ErrOtherLease,
		},
		"refuses another namespace": {
			change: func(l *seatpoolv1alpha1.SeatLease) { l.Namespace = "sales" },
			want:   ErrOtherLease,
		},
		"refuses another user": {
			change: func(l *seatpoolv1alpha1.SeatLease) { l.Spec.Holder.User = "bob" },
			want:   ErrOtherLease,
		},
		"refuses another host": {
			change: func(l *seatpoolv1alpha1.SeatLease) { l.Spec.Holder.Host = "ws-8" },
			want:   ErrOtherLease,
		},
		"refuses another instance": {
			change: func(l *seatpoolv1alpha1.SeatLease) { l.Spec.Holder.InstanceID = "" },
			want:   ErrOtherLease,
		},
	} {
		t.Run(name, func(t *testing.T) {
			ring := oneKey(t)
			l := signed(t, ring, lease())
			tc.change(l)
			if err := ring.Verify(l); !errors.Is(err, tc.want) || (err == nil) != (tc.want == nil) {
				t.Errorf("error %v, want %v", err, tc.want)
			}
		})
	}
}

func TestVerify_refusesAnotherRequesterWhoHolds(t *testing.T) {
	ring, l := oneKey(t), lease()
	l.Spec.Holder = seatpoolv1alpha1.Holder{}
	signed(t, ring, l)
	l.Status.Requester = "mallory"
	if err := ring.Verify(l); !errors.Is(err, ErrOtherLease) {
		t.Errorf("error %v, want %v", err, ErrOtherLease)
	}
}

func TestSigner_knowsNothingAtFirst(t *testing.T) {
	var signer Signer
	if _, err := signer.Sign(lease(), "acme", start); !errors.Is(err, ErrNoKeys) {
		t.Errorf("error %v, want %v", err, ErrNoKeys)
	}
	if err := signer.Verify(lease()); !errors.Is(err, ErrNoKeys) {
		t.Errorf("error %v, want %v", err, ErrNoKeys)
	}
	if ring := signer.Keyring(); ring != nil {
		t.Errorf("keyring %v", ring.KeySet())
	}
	ring := oneKey(t)
	if before := signer.Use(ring); before != nil || signer.Keyring() != ring || signer.Use(ring) != ring {
		t.Error("the keyrings are mixed up")
	}
}

// Run with -race: keys change while leases are being signed and verified.
func TestSigner_changesKeysWhileItSigns(t *testing.T) {
	data := map[string][]byte{}
	var rings []*Keyring
	for i := range byte(8) {
		data[fmt.Sprintf("k%d", i)] = keyPEM(t, privateKey(i))
	}
	// All know all keys, and each signs with another: a rotation in full.
	for i := range 8 {
		rings = append(rings, keyring(t, data, times(t, map[string]time.Duration{fmt.Sprintf("k%d", i): 0})))
	}
	var signer Signer
	signer.Use(rings[0])

	done := make(chan struct{})
	var changing, working sync.WaitGroup
	changing.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			default:
				signer.Use(rings[i%len(rings)])
			}
		}
	})
	for range 4 {
		working.Go(func() {
			for range 50 {
				l := lease()
				token, err := signer.Sign(l, "acme", start)
				if err != nil {
					t.Error(err)
					return
				}
				l.Status.Token = token
				if err := signer.Verify(l); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	working.Wait()
	close(done)
	changing.Wait()
}

func BenchmarkSign(b *testing.B) {
	var signer Signer
	signer.Use(oneKey(b))
	l := lease()
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := signer.Sign(l, "acme", start); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

func BenchmarkVerify(b *testing.B) {
	var signer Signer
	signer.Use(oneKey(b))
	l := signed(b, signer.Keyring(), lease())
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := signer.Verify(l); err != nil {
				b.Error(err)
				return
			}
		}
	})
}
