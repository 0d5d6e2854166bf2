// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package leasetoken_test

import (
	"errors"
	"fmt"
	"time"

	"seatpool.dev/seat/leasetoken"
)

// publishedKeys is what the ConfigMap seatpool-jwks holds. A program embeds the
// file with go:embed.
const publishedKeys = `{
  "keys": [
    {
      "use": "sig",
      "kty": "OKP",
      "kid": "20261201T090000Z-5d41c2aa",
      "crv": "Ed25519",
      "alg": "EdDSA",
      "x": "mlIfH2bGkbbwATNCjc62eq0tQycv67MNpY3mtVsp3t0"
    }
  ]
}`

// leaseToken is the status.token of a SeatLease.
const leaseToken = "eyJhbGciOiJFZERTQSIsImtpZCI6IjIwMjYxMjAxVDA5MDAwMFotNWQ0MWMyYWEiLCJ0eXAiOiJKV1QifQ" +
	".eyJpc3MiOiJzZWF0cG9vbCIsImF1ZCI6ImFjbWUtc3R1ZGlvIiwic3ViIjoiYWRhIiwianRpIjoiN2YzYzBhOWQ1MmU4NGIx" +
	"NmEwY2JlMWY0ZDg5MzdlMjUiLCJpYXQiOjE3OTYxMjY0MDAsImV4cCI6MTc5NjEyNjUyMCwic2VhdHBvb2wuZGV2Ijp7InBv" +
	"b2wiOiJhY21lLXN0dWRpbyIsInBvb2xOYW1lc3BhY2UiOiJsaWNlbmNlcyIsIm5hbWVzcGFjZSI6ImRlc2lnbiIsInVzZXIi" +
	"OiJhZGEiLCJob3N0Ijoid29ya3N0YXRpb24tNyIsImluc3RhbmNlSUQiOiJiMmMxIn19" +
	".LKqVSkoF63AWjRLqWoZXGhx9ca2LE5FPDy-KKofzhPEXLbIaE26xSaVzRexs0kVJ2olhZve7gk9eF0YOfvu4Cg"

// A program checks the lease it has before it starts to work.
func ExampleVerify() {
	keys, err := leasetoken.ParseJWKS([]byte(publishedKeys))
	if err != nil {
		fmt.Println(err)
		return
	}
	claims, err := leasetoken.Verify(leaseToken, keys, leasetoken.Options{
		Product: "acme-studio",
		Now:     time.Date(2026, 12, 1, 12, 1, 0, 0, time.UTC), // leave it out to use the clock
		Skew:    5 * time.Second,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s holds a seat of %s until %s\n", claims.Holder, claims.Product, claims.ExpiresAt.Format(time.TimeOnly))
	// Output: ada holds a seat of acme-studio until 12:02:00
}

// The error says what to do, to people in words and to programs by its kind.
func ExampleVerify_refused() {
	keys, err := leasetoken.ParseJWKS([]byte(publishedKeys))
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = leasetoken.Verify(leaseToken, keys, leasetoken.Options{
		Product: "acme-studio",
		Now:     time.Date(2026, 12, 1, 12, 30, 0, 0, time.UTC),
		Skew:    5 * time.Second,
	})
	if errors.Is(err, leasetoken.ErrExpired) {
		fmt.Println("check out again:", err)
	}
	// Output: check out again: token has expired: at 2026-12-01T12:02:00Z, and here it is 2026-12-01T12:30:00Z; renew the lease or check out again
}

// A program that is built for one operator can embed its public key alone.
func ExampleParsePublicKeyPEM() {
	const publicKey = `-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEAmlIfH2bGkbbwATNCjc62eq0tQycv67MNpY3mtVsp3t0=
-----END PUBLIC KEY-----
`
	keys, err := leasetoken.ParsePublicKeyPEM("20261201T090000Z-5d41c2aa", []byte(publicKey))
	if err != nil {
		fmt.Println(err)
		return
	}
	claims, err := leasetoken.VerifySignature(leaseToken, keys)
	fmt.Println(claims.SeatID, err)
	// Output: 7f3c0a9d52e84b16a0cbe1f4d8937e25 <nil>
}
