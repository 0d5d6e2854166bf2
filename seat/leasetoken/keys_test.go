// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package leasetoken_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"seatpool.dev/seat/leasetoken"
)

func jwk(kid string, key ed25519.PublicKey, more string) string {
	return `{"kty":"OKP","crv":"Ed25519","kid":"` + kid + `","x":"` + b64(key) + `"` + more + `}`
}

func TestParseJWKS(t *testing.T) {
	k1, k2 := public(ours), public(ourOther)
	rsa := `{"kty":"RSA","kid":"r1","n":"` + b64(bytes.Repeat([]byte{0xff}, 256)) + `","e":"AQAB"}`

	for name, tc := range map[string]struct {
		jwks    string
		want    leasetoken.KeySet
		wantErr string
	}{
		"reads several keys": {
			jwks: `{"keys":[` + jwk("k1", k1, `,"alg":"EdDSA","use":"sig"`) + `,` + jwk("k2", k2, "") + `]}`,
			want: leasetoken.KeySet{"k1": k1, "k2": k2},
		},
		"skips what is not for verifying leases": {
			jwks: `{"keys":[` + rsa + `,{"kty":"new"},{"kty":"OKP","crv":"X25519","kid":"x","x":"AAAA"},` +
				jwk("enc", k2, `,"use":"enc"`) + `,` + jwk("other", k2, `,"alg":"ES256"`) + `,` + jwk("k1", k1, "") + `]}`,
			want: leasetoken.KeySet{"k1": k1},
		},
		"does not know what to do with nothing": {
			jwks:    ``,
			wantErr: "not a JWKS",
		},
		"does not take a single key for a set": {
			jwks:    jwk("k1", k1, ""),
			wantErr: "no Ed25519 key",
		},
		"refuses a set without keys": {
			jwks:    `{"keys":[]}`,
			wantErr: "no Ed25519 key",
		},
		"refuses a set with other keys only": {
			jwks:    `{"keys":[` + rsa + `]}`,
			wantErr: "no Ed25519 key",
		},
		"refuses a key without a key ID": {
			jwks:    `{"keys":[` + jwk("", k1, "") + `]}`,
			wantErr: "has no kid",
		},
		"refuses two keys of one key ID": {
			jwks:    `{"keys":[` + jwk("k1", k1, "") + `,` + jwk("k1", k2, "") + `]}`,
			wantErr: `two keys of the JWKS have the kid "k1"`,
		},
		"refuses two lists of keys": {
			jwks:    `{"keys":[` + jwk("k1", k1, "") + `],"keys":[` + jwk("k2", k2, "") + `]}`,
			wantErr: "not a JWKS",
		},
		"refuses a private key, which no program should have": {
			jwks:    `{"keys":[` + jwk("k1", k1, `,"d":"`+b64(ours.Seed())+`"`) + `]}`,
			wantErr: "not a public key",
		},
		"refuses a shared secret": {
			jwks:    `{"keys":[` + jwk("k1", k1, "") + `,{"kty":"oct","kid":"k1","k":"` + b64(k1) + `"}]}`,
			wantErr: "not a public key",
		},
		"refuses half a key": {
			jwks:    `{"keys":[` + jwk("k1", k1[:16], "") + `]}`,
			wantErr: "key 1 of the JWKS cannot be read",
		},
		"refuses a key that anybody can sign for": {
			jwks:    `{"keys":[` + jwk("k1", k1, "") + `,` + jwk("k2", append([]byte{1}, make([]byte, 31)...), "") + `]}`,
			wantErr: "key 2 of the JWKS cannot be read",
		},
		"refuses text after the set": {
			jwks:    `{"keys":[` + jwk("k1", k1, "") + `]}]`,
			wantErr: "not a JWKS",
		},
	} {
		t.Run(name, func(t *testing.T) {
			keys, err := leasetoken.ParseJWKS([]byte(tc.jwks))
			wantKeys(t, keys, err, tc.want, tc.wantErr)
		})
	}
}

func TestParsePublicKeyPEM(t *testing.T) {
	ecKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	good := publicPEM(t, public(ours))

	for name, tc := range map[string]struct {
		kid     string
		pem     []byte
		want    leasetoken.KeySet
		wantErr string
	}{
		"reads a public key": {
			kid: "k1", pem: good,
			want: leasetoken.KeySet{"k1": public(ours)},
		},
		"needs a key ID": {
			pem:     good,
			wantErr: "needs a key ID",
		},
		"refuses what is no PEM": {
			kid: "k1", pem: public(ours),
			wantErr: "not a PEM block",
		},
		"refuses a private key": {
			kid: "k1", pem: bytes.ReplaceAll(good, []byte("PUBLIC"), []byte("PRIVATE")),
			wantErr: "not a PEM block of type PUBLIC KEY",
		},
		"refuses a key that breaks off": {
			kid: "k1", pem: []byte("-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA\n-----END PUBLIC KEY-----\n"),
			wantErr: "cannot be read",
		},
		"refuses a key of another kind": {
			kid: "k1", pem: publicPEM(t, ecKey.Public()),
			wantErr: "Ed25519 only",
		},
		"refuses a key that anybody can sign for": {
			kid: "k1", pem: publicPEM(t, ed25519.PublicKey(append([]byte{1}, make([]byte, 31)...))),
			wantErr: "cannot be used",
		},
	} {
		t.Run(name, func(t *testing.T) {
			keys, err := leasetoken.ParsePublicKeyPEM(tc.kid, tc.pem)
			wantKeys(t, keys, err, tc.want, tc.wantErr)
		})
	}
}

func wantKeys(t *testing.T, keys leasetoken.KeySet, err error, want leasetoken.KeySet, wantErr string) {
	t.Helper()
	switch {
	case wantErr == "" && err != nil:
		t.Fatal(err)
	case wantErr != "" && (err == nil || !strings.Contains(err.Error(), wantErr)):
		t.Fatalf("error %v, want %q", err, wantErr)
	}
	if diff := cmp.Diff(want, keys); diff != "" {
		t.Error(diff)
	}
}
