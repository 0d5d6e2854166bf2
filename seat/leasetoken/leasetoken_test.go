// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package leasetoken_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"hash"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	seatpoolv1alpha1 "seatpool.dev/api/v1alpha1"
	"seatpool.dev/seat/leasetoken"
)

// The tokens of these tests are put together by hand, so that they do not
// inherit the opinions of whatever library signs the real ones.

const (
	goodHeader = `{"alg":"EdDSA","kid":"k1","typ":"JWT"}`

	goodPayload = `{"iss":"seatpool","aud":"acme","sub":"ada","jti":"5ea7","iat":1796126400,"exp":1796126520,` +
		`"seatpool.dev":{"pool":"acme-pool","poolNamespace":"licences","namespace":"design","user":"ada","host":"ws-7","instanceID":"b2c1"}}`

	skew = 5 * time.Second
)

var (
	issuedAt  = time.Unix(1796126400, 0).UTC()
	expiresAt = time.Unix(1796126520, 0).UTC()

	goodClaims = leasetoken.Claims{
		Product: "acme", Holder: "ada", SeatID: "5ea7", IssuedAt: issuedAt, ExpiresAt: expiresAt,
		Lease: leasetoken.Lease{
			Pool: "acme-pool", PoolNamespace: "licences", Namespace: "design",
			User: "ada", Host: "ws-7", InstanceID: "b2c1",
		},
	}

	ours     = newKey(1)
	ourOther = newKey(2)
	attacker = newKey(66)
)

func newKey(seed byte) ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, ed25519.SeedSize))
}

func public(key ed25519.PrivateKey) ed25519.PublicKey { return key.Public().(ed25519.PublicKey) }

func ourKeys() leasetoken.KeySet {
	return leasetoken.KeySet{"k1": public(ours), "k2": public(ourOther)}
}

func goodOptions() leasetoken.Options {
	return leasetoken.Options{Product: "acme", Now: issuedAt.Add(time.Minute), Skew: skew}
}

func b64(data []byte) string { return base64.RawURLEncoding.EncodeToString(data) }

func compact(header, payload string, sign func(input []byte) []byte) string {
	input := b64([]byte(header)) + "." + b64([]byte(payload))
	return input + "." + b64(sign([]byte(input)))
}

func with(key ed25519.PrivateKey) func([]byte) []byte {
	return func(input []byte) []byte { return ed25519.Sign(key, input) }
}

func hmacWith(h func() hash.Hash, secret []byte) func([]byte) []byte {
	return func(input []byte) []byte {
		mac := hmac.New(h, secret)
		mac.Write(input)
		return mac.Sum(nil)
	}
}

func goodToken() string { return compact(goodHeader, goodPayload, with(ours)) }

// edit replaces exactly one place, so that no case tests the good token.
func edit(tb testing.TB, text, before, after string) string {
	tb.Helper()
	if strings.Count(text, before) != 1 {
		tb.Fatalf("%q is not in %q exactly once", before, text)
	}
	return strings.Replace(text, before, after, 1)
}

// upTo returns the good payload up to a part of it.
func upTo(part string) string {
	before, _, _ := strings.Cut(goodPayload, part)
	return before
}

func publicPEM(tb testing.TB, key any) []byte {
	tb.Helper()
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		tb.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
}

func TestVerify_returnsWhatAGoodTokenSays(t *testing.T) {
	claims, err := leasetoken.Verify(goodToken(), ourKeys(), goodOptions())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(goodClaims, claims); diff != "" {
		t.Error(diff)
	}
}

func TestVerify_accepts(t *testing.T) {
	for name, tc := range map[string]struct {
		header, payload string
		key             ed25519.PrivateKey
		options         func(*leasetoken.Options)
	}{
		"a token signed with another of the keys": {
			header: edit(t, goodHeader, "k1", "k2"), key: ourOther,
		},
		"claims that a later operator may add": {
			payload: edit(t, goodPayload, `{"iss"`, `{"weight":2,"features":["a","b"],"iss"`),
		},
		"more about the lease that a later operator may add": {
			payload: edit(t, goodPayload, `{"pool"`, `{"sharedWith":{"user":"bob"},"pool"`),
		},
		"a lease without user, host and instance ID": {
			payload: edit(t, goodPayload, `,"user":"ada","host":"ws-7","instanceID":"b2c1"`, ""),
		},
		"header fields in another order and with spaces": {
			header: `{ "typ" : "JWT", "kid" : "k1", "alg" : "EdDSA" }`,
		},
		"any product when none is asked for": {
			options: func(o *leasetoken.Options) { o.Product = "" },
		},
		"the very end of the skew": {
			options: func(o *leasetoken.Options) { o.Now = expiresAt.Add(skew) },
		},
		"the very end of the lease without skew": {
			options: func(o *leasetoken.Options) { o.Now, o.Skew = expiresAt, 0 },
		},
		"a clock that is behind by the skew": {
			options: func(o *leasetoken.Options) { o.Now = issuedAt.Add(-skew) },
		},
		"the clock of the machine when no time is given": {
			payload: edit(t, edit(t, goodPayload, "1796126400", "1"), "1796126520", "253402300799"),
			options: func(o *leasetoken.Options) { o.Now = time.Time{} },
		},
	} {
		t.Run(name, func(t *testing.T) {
			token := compact(or(tc.header, goodHeader), or(tc.payload, goodPayload), with(orKey(tc.key)))
			options := goodOptions()
			if tc.options != nil {
				tc.options(&options)
			}
			claims, err := leasetoken.Verify(token, ourKeys(), options)
			if err != nil {
				t.Fatal(err)
			}
			if claims.SeatID != goodClaims.SeatID {
				t.Errorf("seat %q, want %q", claims.SeatID, goodClaims.SeatID)
			}
		})
	}
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

func orKey(key ed25519.PrivateKey) ed25519.PrivateKey {
	if key == nil {
		return ours
	}
	return key
}

func TestVerify_refusesByTimeAndProduct(t *testing.T) {
	for name, tc := range map[string]struct {
		options func(*leasetoken.Options)
		want    error
	}{
		"a lease that ran out before the skew": {
			options: func(o *leasetoken.Options) { o.Now = expiresAt.Add(skew + 1) },
			want:    leasetoken.ErrExpired,
		},
		"a lease that ran out long ago": {
			options: func(o *leasetoken.Options) { o.Now = expiresAt.AddDate(100, 0, 0) },
			want:    leasetoken.ErrExpired,
		},
		"a lease that ran out when there is no skew": {
			options: func(o *leasetoken.Options) { o.Now, o.Skew = expiresAt.Add(1), 0 },
			want:    leasetoken.ErrExpired,
		},
		"a lease from the future": {
			options: func(o *leasetoken.Options) { o.Now = issuedAt.Add(-skew - 1) },
			want:    leasetoken.ErrNotYetValid,
		},
		"a seat of another product": {
			options: func(o *leasetoken.Options) { o.Product = "apex" },
			want:    leasetoken.ErrAudience,
		},
		"a product in other letters": {
			options: func(o *leasetoken.Options) { o.Product = "ACME" },
			want:    leasetoken.ErrAudience,
		},
		"a product that begins the same": {
			options: func(o *leasetoken.Options) { o.Product = "acme-pool" },
			want:    leasetoken.ErrAudience,
		},
	} {
		t.Run(name, func(t *testing.T) {
			options := goodOptions()
			tc.options(&options)
			wantRefused(t, goodToken(), ourKeys(), options, tc.want)
		})
	}
}

func TestVerify_refusesOtherAlgorithms(t *testing.T) {
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	ecKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	none := func([]byte) []byte { return nil }
	alg := func(value string) string { return edit(t, goodHeader, `"EdDSA"`, value) }

	for name, tc := range map[string]struct {
		header string
		sign   func([]byte) []byte
		want   error
	}{
		"no algorithm and no signature":             {alg(`"none"`), none, leasetoken.ErrAlgorithm},
		"no algorithm and a genuine signature":      {alg(`"none"`), with(ours), leasetoken.ErrAlgorithm},
		"no algorithm in mixed case":                {alg(`"nOnE"`), none, leasetoken.ErrAlgorithm},
		"an empty algorithm":                        {alg(`""`), with(ours), leasetoken.ErrAlgorithm},
		"a header without an algorithm":             {edit(t, goodHeader, `"alg":"EdDSA",`, ""), with(ours), leasetoken.ErrAlgorithm},
		"a null algorithm":                          {alg(`null`), with(ours), leasetoken.ErrAlgorithm},
		"a list of algorithms":                      {alg(`["EdDSA"]`), with(ours), leasetoken.ErrAlgorithm},
		"a list of nothing":                         {alg(`[]`), none, leasetoken.ErrAlgorithm},
		"the algorithm in small letters":            {alg(`"eddsa"`), with(ours), leasetoken.ErrAlgorithm},
		"the algorithm under another name":          {alg(`"Ed25519"`), with(ours), leasetoken.ErrAlgorithm},
		"the algorithm's field in capitals":         {edit(t, goodHeader, `"alg"`, `"ALG"`), with(ours), leasetoken.ErrAlgorithm},
		"an HMAC with the public key as its secret": {alg(`"HS256"`), hmacWith(sha256.New, public(ours)), leasetoken.ErrAlgorithm},
		"an HMAC with the PEM as its secret":        {alg(`"HS256"`), hmacWith(sha256.New, publicPEM(t, public(ours))), leasetoken.ErrAlgorithm},
		"a long HMAC with the public key":           {alg(`"HS512"`), hmacWith(sha512.New, public(ours)), leasetoken.ErrAlgorithm},
		"RSA": {alg(`"RS256"`), func(input []byte) []byte {
			digest := sha256.Sum256(input)
			signature, _ := rsa.SignPKCS1v15(rand.Reader, rsaKey, crypto.SHA256, digest[:])
			return signature
		}, leasetoken.ErrAlgorithm},
		"ECDSA": {alg(`"ES256"`), func(input []byte) []byte {
			digest := sha256.Sum256(input)
			r, s, _ := ecdsa.Sign(rand.Reader, ecKey, digest[:])
			return append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...)
		}, leasetoken.ErrAlgorithm},
		"two algorithms, the good one first": {alg(`"EdDSA","alg":"none"`), with(ours), leasetoken.ErrMalformed},
		"two algorithms, the good one last":  {alg(`"none","alg":"EdDSA"`), with(ours), leasetoken.ErrMalformed},
		"two algorithms, one escaped":        {alg(`"EdDSA","\u0061lg":"none"`), with(ours), leasetoken.ErrMalformed},

		"the right algorithm and an attacker's key":              {goodHeader, with(attacker), leasetoken.ErrBadSignature},
		"the right algorithm and an HMAC":                        {goodHeader, hmacWith(sha512.New, public(ours)), leasetoken.ErrBadSignature},
		"the right algorithm and no signature":                   {goodHeader, none, leasetoken.ErrBadSignature},
		"the right algorithm and zeros":                          {goodHeader, func([]byte) []byte { return make([]byte, 64) }, leasetoken.ErrBadSignature},
		"the right algorithm and half a signature":               {goodHeader, func(in []byte) []byte { return ed25519.Sign(ours, in)[:32] }, leasetoken.ErrBadSignature},
		"the right algorithm and a longer signature":             {goodHeader, func(in []byte) []byte { return append(ed25519.Sign(ours, in), 0) }, leasetoken.ErrBadSignature},
		"the right algorithm, signed after a hash":               {goodHeader, signedHash, leasetoken.ErrBadSignature},
		"the right algorithm and the signature in a second form": {goodHeader, malleable, leasetoken.ErrBadSignature},
	} {
		t.Run(name, func(t *testing.T) {
			wantRefused(t, compact(tc.header, goodPayload, tc.sign), ourKeys(), goodOptions(), tc.want)
		})
	}
}

// signedHash signs in the variant Ed25519ph.
func signedHash(input []byte) []byte {
	digest := sha512.Sum512(input)
	signature, _ := ours.Sign(rand.Reader, digest[:], &ed25519.Options{Hash: crypto.SHA512})
	return signature
}

// malleable adds the order of the group to the second half of a genuine
// signature, which the equation that is verified does not notice.
func malleable(input []byte) []byte {
	order := []byte{
		0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde, 0x14,
		0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10,
	}
	signature, carry := ed25519.Sign(ours, input), 0
	for i, b := range order {
		sum := int(signature[32+i]) + int(b) + carry
		signature[32+i], carry = byte(sum), sum>>8
	}
	return signature
}

func TestVerify_refusesTricksWithTheKeyID(t *testing.T) {
	kid := func(value string) string { return edit(t, goodHeader, `"k1"`, value) }
	for name, tc := range map[string]struct {
		header string
		key    ed25519.PrivateKey
		want   error
	}{
		"no key ID":                         {edit(t, goodHeader, `"kid":"k1",`, ""), ours, leasetoken.ErrMalformed},
		"an empty key ID":                   {kid(`""`), ours, leasetoken.ErrMalformed},
		"a null key ID":                     {kid(`null`), ours, leasetoken.ErrMalformed},
		"a number":                          {kid(`1`), ours, leasetoken.ErrMalformed},
		"an object":                         {kid(`{"k1":"k1"}`), ours, leasetoken.ErrMalformed},
		"a list":                            {kid(`["k1"]`), ours, leasetoken.ErrMalformed},
		"two key IDs":                       {kid(`"k2","kid":"k1"`), ours, leasetoken.ErrMalformed},
		"the same key ID twice":             {kid(`"k1","kid":"k1"`), ours, leasetoken.ErrMalformed},
		"a key ID that nobody knows":        {kid(`"k3"`), ours, leasetoken.ErrUnknownKey},
		"a key ID in capitals":              {kid(`"K1"`), ours, leasetoken.ErrUnknownKey},
		"a key ID with a space":             {kid(`"k1 "`), ours, leasetoken.ErrUnknownKey},
		"a key ID that goes on after NUL":   {kid(`"k1\u0000"`), ours, leasetoken.ErrUnknownKey},
		"a path":                            {kid(`"../../../../dev/null"`), attacker, leasetoken.ErrUnknownKey},
		"a path to the key":                 {kid(`"./k1"`), ours, leasetoken.ErrUnknownKey},
		"a URL":                             {kid(`"https://evil.example/keys#k1"`), attacker, leasetoken.ErrUnknownKey},
		"SQL":                               {kid(`"x' UNION SELECT 'k1'; --"`), attacker, leasetoken.ErrUnknownKey},
		"a shell command":                   {kid(`"k1|true"`), attacker, leasetoken.ErrUnknownKey},
		"a template":                        {kid(`"{{.k1}}%s%n"`), attacker, leasetoken.ErrUnknownKey},
		"a key ID of 5,000 letters":         {kid(`"` + strings.Repeat("k", 5000) + `"`), ours, leasetoken.ErrUnknownKey},
		"a key ID that is the key":          {kid(`"` + b64(public(attacker)) + `"`), attacker, leasetoken.ErrUnknownKey},
		"a key ID that is no UTF-8":         {kid("\"k1\xff\""), ours, leasetoken.ErrUnknownKey},
		"the key ID of another of the keys": {kid(`"k2"`), ours, leasetoken.ErrBadSignature},
		"our key ID and an attacker's key":  {goodHeader, attacker, leasetoken.ErrBadSignature},
	} {
		t.Run(name, func(t *testing.T) {
			wantRefused(t, compact(tc.header, goodPayload, with(tc.key)), ourKeys(), goodOptions(), tc.want)
		})
	}
}

// What a header must not have is refused even from whoever has the right key,
// so that it cannot be the signature that saved us.
func TestVerify_refusesOtherHeaderFields(t *testing.T) {
	jwk := func(key ed25519.PrivateKey) string {
		return `{"kty":"OKP","crv":"Ed25519","kid":"k1","x":"` + b64(public(key)) + `"}`
	}
	for name, fields := range map[string]string{
		"an attacker's key":                  `"jwk":` + jwk(attacker),
		"our own key":                        `"jwk":` + jwk(ours),
		"a key that is no key":               `"jwk":7`,
		"where to fetch keys":                `"jku":"https://evil.example/jwks.json"`,
		"where to fetch certificates":        `"x5u":"https://evil.example/chain.pem"`,
		"certificates":                       `"x5c":["MIIB"]`,
		"no certificates":                    `"x5c":[]`,
		"a fingerprint":                      `"x5t":"AAAA"`,
		"a long fingerprint":                 `"x5t#S256":"AAAA"`,
		"something critical":                 `"crit":["exp"],"exp":1796126520`,
		"something critical that JOSE knows": `"crit":["b64"],"b64":true`,
		"nothing critical":                   `"crit":[]`,
		"a nonce":                            `"nonce":"AAAA"`,
		"compression":                        `"zip":"DEF"`,
		"a token within":                     `"cty":"JWT"`,
		"claims":                             `"iss":"seatpool"`,
		"something new":                      `"unheard-of":true`,
		"a field without a name":             `"":"k1"`,
	} {
		for who, key := range map[string]ed25519.PrivateKey{"signed by us": ours, "signed by an attacker": attacker} {
			t.Run(name+", "+who, func(t *testing.T) {
				header := edit(t, goodHeader, `"typ":"JWT"`, `"typ":"JWT",`+fields)
				wantRefused(t, compact(header, goodPayload, with(key)), ourKeys(), goodOptions(), leasetoken.ErrMalformed)
			})
		}
	}
	for name, header := range map[string]string{
		"no type":                  edit(t, goodHeader, `,"typ":"JWT"`, ""),
		"another type":             edit(t, goodHeader, `"JWT"`, `"at+jwt"`),
		"a type in small letters":  edit(t, goodHeader, `"JWT"`, `"jwt"`),
		"a type that is a list":    edit(t, goodHeader, `"JWT"`, `["JWT"]`),
		"two types":                edit(t, goodHeader, `"JWT"`, `"JWT","typ":"JWT"`),
		"no JSON":                  "EdDSA",
		"an empty header":          "",
		"null":                     "null",
		"a list as the header":     `["EdDSA","k1","JWT"]`,
		"a string as the header":   `"EdDSA"`,
		"two headers":              goodHeader + goodHeader,
		"a header that breaks off": strings.TrimSuffix(goodHeader, "}"),
		"a deep header":            edit(t, goodHeader, `"k1"`, strings.Repeat("[", 2500)+strings.Repeat("]", 2500)),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := leasetoken.Verify(compact(header, goodPayload, with(ours)), ourKeys(), goodOptions())
			if !errors.Is(err, leasetoken.ErrMalformed) && !errors.Is(err, leasetoken.ErrAlgorithm) {
				t.Errorf("error %v, want malformed", err)
			}
		})
	}

	t.Run("a payload that is not encoded", func(t *testing.T) {
		header := edit(t, goodHeader, `"typ":"JWT"`, `"typ":"JWT","b64":false,"crit":["b64"]`)
		input := b64([]byte(header)) + "." + goodPayload
		token := input + "." + b64(ed25519.Sign(ours, []byte(input)))
		wantRefused(t, token, ourKeys(), goodOptions(), leasetoken.ErrMalformed)
	})
	t.Run("an encoded payload that is signed as if it were not", func(t *testing.T) {
		header := edit(t, goodHeader, `"typ":"JWT"`, `"typ":"JWT","b64":false,"crit":["b64"]`)
		signature := ed25519.Sign(ours, []byte(b64([]byte(header))+"."+goodPayload))
		token := b64([]byte(header)) + "." + b64([]byte(goodPayload)) + "." + b64(signature)
		wantRefused(t, token, ourKeys(), goodOptions(), leasetoken.ErrMalformed)
	})
}

func TestVerify_refusesOtherForms(t *testing.T) {
	token := goodToken()
	parts := strings.Split(token, ".")
	header, payload, signature := parts[0], parts[1], parts[2]

	for name, tc := range map[string]string{
		"nothing":                          "",
		"a word":                           "token",
		"dots":                             "..",
		"one part":                         header,
		"two parts":                        header + "." + payload,
		"four parts":                       token + "." + signature,
		"five parts":                       token + "." + signature + "." + signature,
		"a dot at the end":                 token + ".",
		"a dot at the begin":               "." + token,
		"a line break at the end":          token + "\n",
		"a space at the begin":             " " + token,
		"NUL at the end":                   token + "\x00",
		"a line break in the payload":      header + "." + payload[:20] + "\n" + payload[20:] + "." + signature,
		"a line break in the header":       header[:8] + "\r\n" + header[8:] + "." + payload + "." + signature,
		"a line break in the signature":    header + "." + payload + "." + signature[:40] + "\n" + signature[40:],
		"padding":                          token + "==",
		"a token in quotes":                `"` + token + `"`,
		"an HTTP header":                   "Bearer " + token,
		"two tokens":                       token + " " + token,
		"two tokens without a space":       token + token,
		"no header":                        "." + payload + "." + signature,
		"JSON, flattened":                  fmt.Sprintf(`{"protected":%q,"payload":%q,"signature":%q}`, header, payload, signature),
		"JSON, general":                    fmt.Sprintf(`{"payload":%q,"signatures":[{"protected":%q,"signature":%q}]}`, payload, header, signature),
		"JSON, with an unprotected header": fmt.Sprintf(`{"header":{"kid":"k2"},"protected":%q,"payload":%q,"signature":%q}`, header, payload, signature),
		"JSON, after a space":              fmt.Sprintf(` {"protected":%q,"payload":%q,"signature":%q}`, header, payload, signature),
		"the claims alone":                 goodPayload,
		"10 MB":                            strings.Repeat("A", 10<<20),
		"10 MB of dots":                    strings.Repeat(".", 10<<20),
		"10 MB after a token":              token + strings.Repeat("A", 10<<20),
	} {
		t.Run(name, func(t *testing.T) {
			wantRefused(t, tc, ourKeys(), goodOptions(), leasetoken.ErrMalformed)
		})
	}

	for name, tc := range map[string]string{
		"the payload of another token":  header + "." + b64([]byte(edit(t, goodPayload, "ws-7", "ws-8"))) + "." + signature,
		"an empty payload":              header + ".." + signature,
		"a later expiry":                header + "." + b64([]byte(edit(t, goodPayload, "1796126520", "1896126520"))) + "." + signature,
		"parts in another order":        header + "." + signature + "." + payload,
		"a header that means the same":  b64([]byte(edit(t, goodHeader, `{"alg"`, `{ "alg"`))) + "." + payload + "." + signature,
		"letters at the end":            token + "AAAA",
		"a signature of the empty text": header + "." + payload + "." + b64(ed25519.Sign(ours, nil)),
	} {
		t.Run(name, func(t *testing.T) {
			wantRefused(t, tc, ourKeys(), goodOptions(), leasetoken.ErrBadSignature)
		})
	}
}

func TestVerify_limitsTheLength(t *testing.T) {
	// Of four lengths that follow each other, base64 can make three: the space
	// makes the limit one of those.
	header := edit(t, goodHeader, `,"kid"`, `, "kid"`)
	padded := func(n int) string {
		return edit(t, goodPayload, `{"iss"`, `{"pad":"`+strings.Repeat("x", n)+`","iss"`)
	}
	room := leasetoken.MaxLength - len(compact(header, "", with(ours)))
	n := base64.RawURLEncoding.DecodedLen(room) - len(padded(0))

	longest := compact(header, padded(n), with(ours))
	if len(longest) != leasetoken.MaxLength {
		t.Fatalf("the longest token of this test has %d bytes", len(longest))
	}
	if _, err := leasetoken.Verify(longest, ourKeys(), goodOptions()); err != nil {
		t.Errorf("the longest token is refused: %v", err)
	}
	wantRefused(t, compact(header, padded(n+1), with(ours)), ourKeys(), goodOptions(), leasetoken.ErrMalformed)
}

func TestVerify_refusesClaimsThatNoLeaseHas(t *testing.T) {
	iat := func(value string) string { return edit(t, goodPayload, "1796126400", value) }
	exp := func(value string) string { return edit(t, goodPayload, "1796126520", value) }
	without := func(field string) string { return edit(t, goodPayload, field, "") }

	for name, tc := range map[string]struct {
		payload string
		want    error
	}{
		"no issuer":                {without(`"iss":"seatpool",`), leasetoken.ErrIssuer},
		"another issuer":           {edit(t, goodPayload, `"seatpool"`, `"peatpool"`), leasetoken.ErrIssuer},
		"the issuer in capitals":   {edit(t, goodPayload, `"seatpool"`, `"Seatpool"`), leasetoken.ErrIssuer},
		"a list of issuers":        {edit(t, goodPayload, `"seatpool"`, `["seatpool"]`), leasetoken.ErrMalformed},
		"no audience":              {without(`"aud":"acme",`), leasetoken.ErrMalformed},
		"an empty audience":        {edit(t, goodPayload, `"acme"`, `""`), leasetoken.ErrMalformed},
		"a null audience":          {edit(t, goodPayload, `"acme"`, `null`), leasetoken.ErrMalformed},
		"a list of audiences":      {edit(t, goodPayload, `"acme"`, `["acme"]`), leasetoken.ErrMalformed},
		"several audiences":        {edit(t, goodPayload, `"acme"`, `["acme","apex"]`), leasetoken.ErrMalformed},
		"no subject":               {without(`"sub":"ada",`), leasetoken.ErrMalformed},
		"no seat":                  {without(`"jti":"5ea7",`), leasetoken.ErrMalformed},
		"a seat that is a number":  {edit(t, goodPayload, `"5ea7"`, `7`), leasetoken.ErrMalformed},
		"no issue time":            {without(`"iat":1796126400,`), leasetoken.ErrMalformed},
		"issued at 0":              {iat("0"), leasetoken.ErrMalformed},
		"issued before 1970":       {iat("-1"), leasetoken.ErrMalformed},
		"issued at a text":         {iat(`"1796126400"`), leasetoken.ErrMalformed},
		"issued at a fraction":     {iat("1796126400.5"), leasetoken.ErrMalformed},
		"issued after the expiry":  {iat("1796126521"), leasetoken.ErrMalformed},
		"no expiry":                {without(`"exp":1796126520,`), leasetoken.ErrMalformed},
		"a null expiry":            {exp("null"), leasetoken.ErrMalformed},
		"expiry at 0":              {exp("0"), leasetoken.ErrMalformed},
		"a negative expiry":        {exp("-1796126520"), leasetoken.ErrMalformed},
		"expiry at a text":         {exp(`"1796126520"`), leasetoken.ErrMalformed},
		"expiry at a fraction":     {exp("1796126520.5"), leasetoken.ErrMalformed},
		"expiry at a whole float":  {exp("1796126520.0"), leasetoken.ErrMalformed},
		"expiry with an exponent":  {exp("1.79612652e9"), leasetoken.ErrMalformed},
		"expiry at infinity":       {exp("1e999"), leasetoken.ErrMalformed},
		"expiry at no number":      {exp("NaN"), leasetoken.ErrMalformed},
		"expiry in hex":            {exp("0x6b0ea4f8"), leasetoken.ErrMalformed},
		"expiry with a zero ahead": {exp("01796126520"), leasetoken.ErrMalformed},
		"expiry at true":           {exp("true"), leasetoken.ErrMalformed},
		"expiry in a list":         {exp("[1796126520]"), leasetoken.ErrMalformed},
		"expiry in the year 10000": {exp("253402300800"), leasetoken.ErrMalformed},
		"expiry at the last int64": {exp("9223372036854775807"), leasetoken.ErrMalformed},
		"expiry after all int64":   {exp("9223372036854775808"), leasetoken.ErrMalformed},
		"expiry after all uint64":  {exp("18446744073709551617"), leasetoken.ErrMalformed},
		"expiry of 400 digits":     {exp(strings.Repeat("9", 400)), leasetoken.ErrMalformed},
		"names in capitals":        {edit(t, goodPayload, `"exp"`, `"EXP"`), leasetoken.ErrMalformed},

		"no lease":                        {upTo(`,"seatpool.dev"`) + "}", leasetoken.ErrMalformed},
		"a null lease":                    {upTo(`{"pool"`) + "null}", leasetoken.ErrMalformed},
		"a lease that is a text":          {upTo(`{"pool"`) + `"acme-pool"}`, leasetoken.ErrMalformed},
		"a lease without a pool":          {without(`"pool":"acme-pool",`), leasetoken.ErrMalformed},
		"a pool without a namespace":      {without(`"poolNamespace":"licences",`), leasetoken.ErrMalformed},
		"a lease without a namespace":     {without(`"namespace":"design",`), leasetoken.ErrMalformed},
		"a pool that is a list":           {edit(t, goodPayload, `"acme-pool"`, `["acme-pool"]`), leasetoken.ErrMalformed},
		"two pools":                       {edit(t, goodPayload, `{"pool"`, `{"pool":"x","pool"`), leasetoken.ErrMalformed},
		"two expiries, the good first":    {exp(`1796126520,"exp":1896126520`), leasetoken.ErrMalformed},
		"two expiries, the good last":     {exp(`1896126520,"exp":1796126520`), leasetoken.ErrMalformed},
		"two expiries, one escaped":       {exp(`1796126520,"\u0065xp":1896126520`), leasetoken.ErrMalformed},
		"the same expiry twice":           {exp(`1796126520,"exp":1796126520`), leasetoken.ErrMalformed},
		"two audiences":                   {edit(t, goodPayload, `"acme"`, `"apex","aud":"acme"`), leasetoken.ErrMalformed},
		"two issuers":                     {edit(t, goodPayload, `"seatpool"`, `"x","iss":"seatpool"`), leasetoken.ErrMalformed},
		"a claim that nobody knows twice": {edit(t, goodPayload, `{"iss"`, `{"x":1,"x":2,"iss"`), leasetoken.ErrMalformed},

		"no claims":             {"{}", leasetoken.ErrIssuer},
		"an empty payload":      {"", leasetoken.ErrMalformed},
		"null claims":           {"null", leasetoken.ErrIssuer},
		"claims in a list":      {"[" + goodPayload + "]", leasetoken.ErrMalformed},
		"claims twice":          {goodPayload + goodPayload, leasetoken.ErrMalformed},
		"something after them":  {goodPayload + "x", leasetoken.ErrMalformed},
		"claims that break off": {goodPayload[:len(goodPayload)-1], leasetoken.ErrMalformed},
		"a token within":        {goodToken(), leasetoken.ErrMalformed},
		"a token in quotes":     {`"` + goodToken() + `"`, leasetoken.ErrMalformed},
	} {
		t.Run(name, func(t *testing.T) {
			// The signature is genuine: these are about the claims alone.
			wantRefused(t, compact(goodHeader, tc.payload, with(ours)), ourKeys(), goodOptions(), tc.want)
		})
	}
}

func TestVerify_refusesEverythingWithoutKeys(t *testing.T) {
	for name, keys := range map[string]leasetoken.KeySet{
		"no keys":             nil,
		"an empty set":        {},
		"only other keys":     {"k2": public(ourOther)},
		"a nil key":           {"k1": nil},
		"half a key":          {"k1": public(ours)[:16]},
		"a key and something": {"k1": append(bytes.Clone(public(ours)), 0)},
	} {
		t.Run(name, func(t *testing.T) {
			wantRefused(t, goodToken(), keys, goodOptions(), leasetoken.ErrUnknownKey)
		})
	}
}

// wantRefused checks that the token is refused, that the error is of the kind
// and of no other, and that it says what to do.
func wantRefused(t *testing.T, token string, keys leasetoken.KeySet, options leasetoken.Options, want error) {
	t.Helper()
	claims, err := leasetoken.Verify(token, keys, options)
	if !errors.Is(err, want) {
		t.Fatalf("error %v, want %v", err, want)
	}
	for _, other := range kinds {
		if errors.Is(err, other) && !errors.Is(want, other) {
			t.Errorf("error %v is also %v", err, other)
		}
	}
	if claims != (leasetoken.Claims{}) {
		t.Errorf("claims %v of a token that is refused", claims)
	}
	if text := err.Error(); !strings.Contains(text, "; ") || len(text) > 400 {
		t.Errorf("error does not say what to do, or says too much: %s", text)
	}
}

var kinds = []error{
	leasetoken.ErrMalformed, leasetoken.ErrAlgorithm, leasetoken.ErrUnknownKey, leasetoken.ErrBadSignature,
	leasetoken.ErrIssuer, leasetoken.ErrAudience, leasetoken.ErrNotYetValid, leasetoken.ErrExpired,
}

func kindOf(err error) error {
	for _, kind := range kinds {
		if errors.Is(err, kind) {
			return kind
		}
	}
	return nil
}

// The one predicate of seatpool says how long a token is good.
func TestVerify_agreesWithLive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ttl := rapid.Int64Range(5, 31_536_000).Draw(t, "ttl")
		skew := time.Duration(rapid.Int64Range(0, ttl-1).Draw(t, "skew")) * time.Second
		expires := issuedAt.Add(time.Duration(ttl) * time.Second)
		// Around the end, where it matters, and anywhere after the issue.
		now := rapid.OneOf(
			rapid.Map(rapid.Int64Range(-3e9, 3e9), func(d int64) time.Time { return expires.Add(skew + time.Duration(d)) }),
			rapid.Map(rapid.Int64Range(-2, 2), func(d int64) time.Time { return expires.Add(skew + time.Duration(d)) }),
			rapid.Map(rapid.Int64Range(0, 2*ttl), func(d int64) time.Time { return issuedAt.Add(time.Duration(d) * time.Second) }),
		).Draw(t, "now")
		payload := strings.Replace(goodPayload, "1796126520", fmt.Sprint(expires.Unix()), 1)
		_, err := leasetoken.Verify(compact(goodHeader, payload, with(ours)), ourKeys(), leasetoken.Options{Now: now, Skew: skew})
		if err != nil && !errors.Is(err, leasetoken.ErrExpired) {
			t.Fatal(err)
		}
		if live := seatpoolv1alpha1.Live(expires, false, now, skew); live != (err == nil) {
			t.Errorf("live %v, and the token: %v", live, err)
		}
	})
}

// There is no second way to write a token: whatever is changed in it, be it a
// bit that decoders ignore, it is another token and refused.
func TestVerify_refusesAnyChange(t *testing.T) {
	token := goodToken()
	characters := rapid.OneOf(
		rapid.SampledFrom([]byte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_+/=. \r\n\t")),
		rapid.Byte(),
	)
	rapid.Check(t, func(t *rapid.T) {
		i := rapid.IntRange(0, len(token)-1).Draw(t, "position")
		c := string([]byte{characters.Draw(t, "character")})
		var changed string
		switch rapid.IntRange(0, 3).Draw(t, "change") {
		case 0:
			changed = token[:i] + c + token[i+1:]
		case 1:
			changed = token[:i] + c + token[i:]
		case 2:
			changed = token[:i] + token[i+1:]
		case 3:
			changed = token[:i]
		}
		if changed == token {
			t.Skip("nothing changed")
		}
		if _, err := leasetoken.Verify(changed, ourKeys(), goodOptions()); kindOf(err) == nil {
			t.Fatalf("error %v for %q", err, changed)
		}
	})
	// Every place once, and all characters where a decoder is most likely to look
	// away: at the ends of the parts, where base64 has bits to spare.
	for i := range token {
		characters := []byte{token[i] ^ 1}
		if i == len(token)-1 || token[i+1] == '.' {
			characters = allBytes()
		}
		for _, c := range characters {
			changed := token[:i] + string([]byte{c}) + token[i+1:]
			if _, err := leasetoken.Verify(changed, ourKeys(), goodOptions()); changed != token && kindOf(err) == nil {
				t.Errorf("error %v for %q", err, changed)
			}
		}
	}
}

func allBytes() []byte {
	var all []byte
	for c := range 256 {
		all = append(all, byte(c))
	}
	return all
}

func TestClaims_areReadAsTheyWereWritten(t *testing.T) {
	text := rapid.StringN(1, 40, -1)
	rapid.Check(t, func(t *rapid.T) {
		issued := rapid.Int64Range(1, 253402300799).Draw(t, "iat")
		want := leasetoken.Claims{
			Product: text.Draw(t, "aud"), Holder: text.Draw(t, "sub"), SeatID: text.Draw(t, "jti"),
			IssuedAt:  time.Unix(issued, 0).UTC(),
			ExpiresAt: time.Unix(rapid.Int64Range(issued, 253402300799).Draw(t, "exp"), 0).UTC(),
			Lease: leasetoken.Lease{
				Pool: text.Draw(t, "pool"), PoolNamespace: text.Draw(t, "poolNamespace"), Namespace: text.Draw(t, "namespace"),
				User: rapid.String().Draw(t, "user"), Host: rapid.String().Draw(t, "host"), InstanceID: rapid.String().Draw(t, "instanceID"),
			},
		}
		encoded, err := want.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		var got leasetoken.Claims
		if err := json.Unmarshal(encoded, &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	})
}

func TestClaims_areShort(t *testing.T) {
	claims := goodClaims
	claims.Holder = "Ada <ada@acme.example> & co"
	encoded, err := claims.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	want := edit(t, goodPayload, `"sub":"ada"`, `"sub":"Ada <ada@acme.example> & co"`)
	if diff := cmp.Diff(want, string(encoded)); diff != "" {
		t.Error(diff)
	}
}
