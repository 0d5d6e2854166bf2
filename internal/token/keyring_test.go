// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package token

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"seatpool.dev/seat/leasetoken"
)

var start = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

// privateKey returns a key that is the same for the same seed.
func privateKey(seed byte) ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, ed25519.SeedSize))
}

// keyPEM returns a key as an entry of the Secret.
func keyPEM(tb testing.TB, key any) []byte {
	tb.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		tb.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// times returns the annotations of the Secret; each key's time is given in
// relation to the start.
func times(tb testing.TB, from map[string]time.Duration) map[string]string {
	tb.Helper()
	at := map[string]time.Time{}
	for kid, d := range from {
		at[kid] = start.Add(d)
	}
	encoded, err := formatTimes(at)
	if err != nil {
		tb.Fatal(err)
	}
	return map[string]string{KeyTimesAnnotation: encoded}
}

func keyring(tb testing.TB, data map[string][]byte, annotations map[string]string) *Keyring {
	tb.Helper()
	ring, err := ParseKeyring(data, annotations)
	if err != nil {
		tb.Fatal(err)
	}
	return ring
}

func TestParseKeyring(t *testing.T) {
	good, other := keyPEM(t, privateKey(1)), keyPEM(t, privateKey(2))
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	ecKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block := func(kind string, der []byte) []byte {
		return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	}

	for name, tc := range map[string]struct {
		data        map[string][]byte
		annotations map[string]string
		// want maps the keys to the seeds they were made of.
		want     map[string]byte
		wantErrs []string
	}{
		"reads keys with and without a suffix": {
			data: map[string][]byte{"a": good, "b.pem": other},
			want: map[string]byte{"a": 1, "b": 2},
		},
		"reads all kinds of good names": {
			data: map[string][]byte{"A.b_c-9": good, strings.Repeat("k", 63): other},
			want: map[string]byte{"A.b_c-9": 1, strings.Repeat("k", 63): 2},
		},
		"forgives blank lines around a key": {
			data: map[string][]byte{"a": slices.Concat([]byte("\n"), good, []byte("\n \n"))},
			want: map[string]byte{"a": 1},
		},
		"has no keyring for no Secret": {
			wantErrs: []string{"there is no signing key; restore the Secret"},
		},
		"has no keyring when nothing is a key": {
			data:     map[string][]byte{"a": []byte("secret"), "b": nil},
			wantErrs: []string{`entry "a" of the signing keys is not used`, `entry "b"`, "there is no signing key"},
		},
		"keeps the good keys beside an RSA key": {
			data:     map[string][]byte{"a": good, "b": keyPEM(t, rsaKey)},
			want:     map[string]byte{"a": 1},
			wantErrs: []string{`entry "b" of the signing keys is not used: it is *rsa.PrivateKey, not Ed25519; make one with: openssl genpkey -algorithm ed25519`},
		},
		"keeps the good keys beside an ECDSA key": {
			data:     map[string][]byte{"a": good, "b": keyPEM(t, ecKey)},
			want:     map[string]byte{"a": 1},
			wantErrs: []string{"not Ed25519"},
		},
		"keeps the good keys beside an encrypted key": {
			data:     map[string][]byte{"a": good, "b": block("ENCRYPTED PRIVATE KEY", []byte("x"))},
			want:     map[string]byte{"a": 1},
			wantErrs: []string{"not a PEM block of type PRIVATE KEY"},
		},
		"keeps the good keys beside a public key": {
			data:     map[string][]byte{"a": good, "b": block("PUBLIC KEY", []byte("x"))},
			want:     map[string]byte{"a": 1},
			wantErrs: []string{"not a PEM block of type PRIVATE KEY"},
		},
		"keeps the good keys beside a key that breaks off": {
			data:     map[string][]byte{"a": good, "b": block("PRIVATE KEY", []byte("x"))},
			want:     map[string]byte{"a": 1},
			wantErrs: []string{"it is not a PKCS #8 key"},
		},
		"keeps the good keys beside two in one entry": {
			data:     map[string][]byte{"a": good, "b": slices.Concat(other, good)},
			want:     map[string]byte{"a": 1},
			wantErrs: []string{"give every key an entry of its own"},
		},
		"reports every entry that is not used": {
			data: map[string][]byte{"a": good, "-b": other, ".c": other, "d": nil},
			want: map[string]byte{"a": 1},
			wantErrs: []string{
				`entry "-b" of the signing keys is not used: its name is no key ID; use up to 63 letters`,
				`entry ".c"`, `entry "d"`,
			},
		},
		"refuses names that are paths, blank or long": {
			data: map[string][]byte{
				"a": good, "../b": other, "b/c": other, "": other, ".pem": other, "b c": other, "b\n": other, "ü": other,
				strings.Repeat("k", 64): other,
			},
			want: map[string]byte{"a": 1},
			wantErrs: []string{
				`entry "../b"`, `entry "b/c"`, `entry ""`, `entry ".pem"`, `entry "b c"`, `entry "b\n"`, `entry "ü"`, `entry "kkkkk`,
			},
		},
		"takes the first by name of two entries for one key ID": {
			data:     map[string][]byte{"a.pem": other, "a": good},
			want:     map[string]byte{"a": 1},
			wantErrs: []string{`entry "a.pem" of the signing keys is not used: entry "a" is the key "a" already; remove one of them`},
		},
		"keeps all keys when their times cannot be read": {
			data:        map[string][]byte{"a": good, "b": other},
			annotations: map[string]string{KeyTimesAnnotation: "yesterday"},
			want:        map[string]byte{"a": 1, "b": 2},
			wantErrs:    []string{"annotation seatpool.dev/key-times is ignored: it is not a JSON object like"},
		},
		"keeps all keys when the time of one cannot be read": {
			data:        map[string][]byte{"a": good, "b": other},
			annotations: map[string]string{KeyTimesAnnotation: `{"a":"2026-12-01T12:00:00Z","b":"2026-13-01T12:00:00Z"}`},
			want:        map[string]byte{"a": 1, "b": 2},
			wantErrs:    []string{`annotation seatpool.dev/key-times is ignored for key "b": "2026-13-01T12:00:00Z" is not a time like`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			ring, err := ParseKeyring(tc.data, tc.annotations)
			wantErrors(t, err, tc.wantErrs)
			if len(tc.want) == 0 {
				if ring != nil {
					t.Fatalf("a keyring of %v", ring.KeySet())
				}
				return
			}
			want := leasetoken.KeySet{}
			for kid, seed := range tc.want {
				want[kid] = privateKey(seed).Public().(ed25519.PublicKey)
			}
			if diff := cmp.Diff(want, ring.KeySet()); diff != "" {
				t.Error(diff)
			}
			// What it reports ends up in logs.
			for _, secret := range []string{base64.StdEncoding.EncodeToString(privateKey(1).Seed())[:20], "MC4CAQ"} {
				if err != nil && strings.Contains(err.Error(), secret) {
					t.Errorf("the error tells a key: %v", err)
				}
			}
		})
	}
}

func wantErrors(t *testing.T, err error, want []string) {
	t.Helper()
	if err == nil {
		if len(want) > 0 {
			t.Errorf("no error, want %q", want)
		}
		return
	}
	lines := strings.Split(err.Error(), "\n")
	for _, text := range want {
		if !slices.ContainsFunc(lines, func(line string) bool { return strings.Contains(line, text) }) {
			t.Errorf("error %v, want %q", err, text)
		}
	}
	if len(lines) != len(want) {
		t.Errorf("error of %d lines, want %d: %v", len(lines), len(want), err)
	}
}

func TestParseTimes(t *testing.T) {
	for name, tc := range map[string]struct {
		annotation string
		want       map[string]time.Time
		wantErrs   int
	}{
		"reads times of all zones and fractions": {
			annotation: `{"a":"2026-12-01T13:00:00+01:00","b":"2026-12-01T12:00:00.5Z"}`,
			want:       map[string]time.Time{"a": start, "b": start.Add(time.Second / 2)},
		},
		"reads an empty object":          {annotation: `{}`},
		"reads null as none":             {annotation: `null`},
		"reports an empty annotation":    {annotation: ``, wantErrs: 1},
		"reports a list":                 {annotation: `["a"]`, wantErrs: 1},
		"reports what is no time":        {annotation: `{"a":null,"b":1796126400,"c":"","d":{},"e":"2026-12-01"}`, wantErrs: 5},
		"reports times at either end":    {annotation: `{"a":"0001-01-01T00:00:00Z","b":"0000-06-01T00:00:00Z","c":"9999-12-31T23:59:59-01:00"}`, wantErrs: 3},
		"keeps the rest of those":        {annotation: `{"a":"2026-12-01T12:00:00Z","b":""}`, want: map[string]time.Time{"a": start}, wantErrs: 1},
		"keeps the last times there are": {annotation: `{"a":"9999-12-31T23:59:59Z"}`, want: map[string]time.Time{"a": time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseTimes(map[string]string{KeyTimesAnnotation: tc.annotation})
			if !maps.Equal(got, tc.want) {
				t.Errorf("times %v, want %v", got, tc.want)
			}
			errs := 0
			if err != nil {
				errs = strings.Count(err.Error(), "\n") + 1
			}
			if errs != tc.wantErrs {
				t.Errorf("%d errors, want %d: %v", errs, tc.wantErrs, err)
			}
			encoded, err := formatTimes(got)
			if err != nil {
				t.Fatal(err)
			}
			again, err := parseTimes(map[string]string{KeyTimesAnnotation: encoded})
			if err != nil || !maps.Equal(again, got) {
				t.Errorf("times %v are read back as %v: %v", got, again, err)
			}
		})
	}
}

func TestKeyring_signingKey(t *testing.T) {
	const never = time.Duration(-1 << 62)
	for name, tc := range map[string]struct {
		// from is when each key is activated, in relation to now.
		from map[string]time.Duration
		want string
	}{
		"the only key signs, though nobody said so":                   {map[string]time.Duration{"a": never}, "a"},
		"the only key signs before its time":                          {map[string]time.Duration{"a": time.Hour}, "a"},
		"the first by name signs when nobody said which":              {map[string]time.Duration{"b": never, "a": never, "c": never}, "a"},
		"the active key signs rather than those without a time":       {map[string]time.Duration{"a": never, "b": -time.Hour, "c": never}, "b"},
		"the key activated last signs":                                {map[string]time.Duration{"a": -time.Hour, "b": -time.Minute, "c": -time.Second * 90}, "b"},
		"a key signs from the very moment of its activation":          {map[string]time.Duration{"a": -time.Hour, "b": 0}, "b"},
		"a key does not sign a moment before":                         {map[string]time.Duration{"a": -time.Hour, "b": 1}, "a"},
		"of two activated at once the last by name signs":             {map[string]time.Duration{"a": -time.Hour, "b": -time.Hour}, "b"},
		"before all times the key that will be first signs":           {map[string]time.Duration{"a": 2 * time.Hour, "b": time.Hour, "c": time.Hour}, "b"},
		"a key without a time does not get in before one with a time": {map[string]time.Duration{"a": never, "b": time.Hour}, "b"},
	} {
		t.Run(name, func(t *testing.T) {
			data, from := map[string][]byte{}, map[string]time.Duration{}
			for i, kid := range slices.Sorted(maps.Keys(tc.from)) {
				data[kid] = keyPEM(t, privateKey(byte(i)))
				if d := tc.from[kid]; d != never {
					from[kid] = d
				}
			}
			ring := keyring(t, data, times(t, from))
			if got := ring.SigningKeyID(start); got != tc.want {
				t.Errorf("key %q signs, want %q", got, tc.want)
			}
			token, err := ring.Sign(lease(), "acme", start)
			if err != nil {
				t.Fatal(err)
			}
			if got := kidOf(t, token); got != tc.want {
				t.Errorf("token signed with %q, want %q", got, tc.want)
			}
		})
	}
}

func kidOf(tb rapid.TB, token string) string {
	tb.Helper()
	decoded, err := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[0])
	if err != nil {
		tb.Fatal(err)
	}
	var header struct{ Kid string }
	if err := json.Unmarshal(decoded, &header); err != nil {
		tb.Fatal(err)
	}
	return header.Kid
}

func TestKeyring_isImmutable(t *testing.T) {
	data := map[string][]byte{"a": keyPEM(t, privateKey(1))}
	ring := keyring(t, data, nil)
	clear(data)
	clear(ring.KeySet())
	if len(ring.KeySet()) != 1 {
		t.Error("whoever looks at the keys can take them away")
	}
}

func TestKeyring_JWKS(t *testing.T) {
	data := map[string][]byte{}
	for seed := range byte(20) {
		data[fmt.Sprintf("key-%02d.pem", 20-seed)] = keyPEM(t, privateKey(seed))
	}
	ring := keyring(t, data, times(t, map[string]time.Duration{"key-05": 0, "key-04": time.Hour}))
	jwks, err := ring.JWKS()
	if err != nil {
		t.Fatal(err)
	}
	keys, err := leasetoken.ParseJWKS(jwks)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(ring.KeySet(), keys); diff != "" {
		t.Error(diff)
	}
	again, err := keyring(t, data, nil).JWKS()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(jwks), string(again)); diff != "" {
		t.Errorf("the order depends on something: %s", diff)
	}

	var set struct{ Keys []map[string]string }
	if err := json.Unmarshal(jwks, &set); err != nil {
		t.Fatal(err)
	}
	var kids []string
	for _, key := range set.Keys {
		kids = append(kids, key["kid"])
		delete(key, "kid")
		delete(key, "x")
		if diff := cmp.Diff(map[string]string{"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "use": "sig"}, key); diff != "" {
			t.Error(diff)
		}
	}
	if !slices.IsSorted(kids) || len(kids) != 20 {
		t.Errorf("keys %v", kids)
	}
}

func TestGenerateKey(t *testing.T) {
	seen := map[string]bool{}
	for range 20 {
		kid, value, err := GenerateKey(start)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(kid, "20261201T120000Z-") {
			t.Errorf("key ID %q", kid)
		}
		if seen[kid] || seen[string(value)] {
			t.Errorf("key %q was made twice", kid)
		}
		seen[kid], seen[string(value)] = true, true
		keyring(t, map[string][]byte{kid: value}, nil)
	}
}
