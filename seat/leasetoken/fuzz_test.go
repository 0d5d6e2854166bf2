// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package leasetoken_test

import (
	"crypto/sha256"
	"maps"
	"strings"
	"testing"

	"seatpool.dev/seat/leasetoken"
)

// FuzzVerify looks for a token that is accepted though nobody signed it, or
// that is refused without a reason.
func FuzzVerify(f *testing.F) {
	genuine := map[string]bool{
		goodToken(): true,
		compact(strings.Replace(goodHeader, "k1", "k2", 1), goodPayload, with(ourOther)): true,
		leaseToken: true,
	}
	for token := range genuine {
		f.Add(token)
		f.Add(token[:len(token)-1])
		f.Add(token + "\n")
		f.Add(strings.ToUpper(token))
		f.Add(strings.Join(strings.Split(token, ".")[:2], ".") + ".")
	}
	f.Add("")
	f.Add("..")
	f.Add(`{"payload":"","signatures":[]}`)
	f.Add(compact(goodHeader, goodPayload, with(attacker)))
	f.Add(compact(`{"alg":"none","kid":"k1","typ":"JWT"}`, goodPayload, func([]byte) []byte { return nil }))
	f.Add(compact(`{"alg":"HS256","kid":"k1","typ":"JWT"}`, goodPayload, hmacWith(sha256.New, public(ours))))
	f.Add(compact(`{"alg":"EdDSA","kid":"k1","typ":"JWT","crit":["b64"],"b64":false}`, goodPayload, with(ours)))

	keys := ourKeys()
	published, err := leasetoken.ParseJWKS([]byte(publishedKeys))
	if err != nil {
		f.Fatal(err)
	}
	maps.Copy(keys, published)
	f.Fuzz(func(t *testing.T, token string) {
		_, err := leasetoken.VerifySignature(token, keys)
		switch {
		case err == nil && !genuine[token]:
			t.Errorf("token %q is accepted", token)
		case err != nil && kindOf(err) == nil:
			t.Errorf("token %q is refused without a kind: %v", token, err)
		}
	})
}

// FuzzVerify_signed looks for a header or claims that break what reads them.
// Only the operator can sign them, and it may not always be this version of it.
func FuzzVerify_signed(f *testing.F) {
	f.Add(goodHeader, goodPayload)
	f.Add(goodHeader, "{}")
	f.Add(goodHeader, strings.Replace(goodPayload, "1796126520", "1e999", 1))
	f.Add(goodHeader, strings.Replace(goodPayload, `"exp"`, `"exp":1,"exp"`, 1))
	f.Add(`{"alg":"EdDSA","kid":"k1","typ":"JWT","jwk":{"kty":"OKP"}}`, goodPayload)
	f.Fuzz(func(t *testing.T, header, payload string) {
		claims, err := leasetoken.VerifySignature(compact(header, payload, with(ours)), ourKeys())
		if err != nil {
			if kindOf(err) == nil {
				t.Errorf("refused without a kind: %v", err)
			}
			return
		}
		encoded, err := claims.MarshalJSON()
		if err != nil {
			t.Fatalf("claims %v cannot be written: %v", claims, err)
		}
		var again leasetoken.Claims
		if err := again.UnmarshalJSON(encoded); err != nil || again != claims {
			t.Errorf("claims %v are read back as %v: %v", claims, again, err)
		}
		if claims.IssuedAt.After(claims.ExpiresAt) {
			t.Errorf("a lease that ends at %v before it begins at %v", claims.ExpiresAt, claims.IssuedAt)
		}
	})
}
