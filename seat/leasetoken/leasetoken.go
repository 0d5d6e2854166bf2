// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

// Package leasetoken verifies the signed leases of seatpool offline.
//
// A SeatLease carries in status.token a compact JWS that the operator has
// signed with Ed25519. A program that embeds the operator's public keys can
// check it without a network, and so cannot be fooled by whoever stands between
// it and the operator.
//
// # Getting the keys
//
// The operator publishes its public keys as a JWKS in the ConfigMap
// seatpool-jwks of its namespace:
//
//	kubectl -n seatpool-system get configmap seatpool-jwks -o jsonpath='{.data.jwks\.json}' > jwks.json
//
// Embed that file and read it with [ParseJWKS]. It may hold several keys: while
// keys are rotated, the next one is published well before leases are signed
// with it, and the last one stays until no lease needs it. A program that lives
// longer than a key fetches the file now and then, from where nobody else can
// write to; one that embeds a single key for good reads it with
// [ParsePublicKeyPEM].
//
// # Checking a token
//
//	keys, err := leasetoken.ParseJWKS(embedded)
//	...
//	claims, err := leasetoken.Verify(token, keys, leasetoken.Options{
//		Product: "acme-studio",
//		Now:     time.Now(),
//		Skew:    5 * time.Second,
//	})
//
// A token is good exactly as long as its lease counts for the pool: while now
// is not later than its expiry plus the skew. It is not a secret to be kept from
// the holder, but whoever has it can show it: a program that must know that it
// runs on the machine the seat was given to compares Claims.Lease.InstanceID
// with its own.
//
// # When a token is refused
//
// The error says what is wrong and what to do, and can be told apart with
// [errors.Is]: [ErrExpired] asks for a renewal or another checkout,
// [ErrNotYetValid] for a look at the machine's clock, [ErrUnknownKey] for newer
// keys, [ErrAudience] for a seat of the right product. [ErrMalformed],
// [ErrAlgorithm], [ErrBadSignature] and [ErrIssuer] mean that this is no lease
// of the operator's at all.
//
// The package needs nothing of Kubernetes.
package leasetoken

import (
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/json"
)

// MaxLength is the longest token that is looked at, in bytes. It is the most
// that status.token of a SeatLease can hold.
const MaxLength = 8192

// Errors of Verify. Each is wrapped in a sentence that says more.
var (
	// ErrMalformed means that this is no token of seatpool at all.
	ErrMalformed = errors.New("token is malformed")
	// ErrAlgorithm means that the token is not signed the one way that is
	// accepted, EdDSA with Ed25519.
	ErrAlgorithm = errors.New("token is signed with an algorithm that is not accepted")
	// ErrUnknownKey means that the token is signed with a key that is not
	// among the keys given: it comes from elsewhere, or the keys are old.
	ErrUnknownKey = errors.New("token is signed with an unknown key")
	// ErrBadSignature means that the token was altered, or not signed with the
	// key it names.
	ErrBadSignature = errors.New("token does not carry a valid signature")
	// ErrIssuer means that the token is genuine, and not a lease of seatpool.
	ErrIssuer = errors.New("token was issued by something else than seatpool")
	// ErrAudience means that the lease is of another product.
	ErrAudience = errors.New("token is for another product")
	// ErrNotYetValid means that the token was issued later than now.
	ErrNotYetValid = errors.New("token is not valid yet")
	// ErrExpired means that the lease has run out.
	ErrExpired = errors.New("token has expired")
)

// Options say what a token must be for.
type Options struct {
	// Product is the product the token must be for; any when empty.
	Product string
	// Now is the time to judge by; time.Now() when zero.
	Now time.Time
	// Skew is by how much the clocks of the operator and this machine may be
	// apart: the skewSeconds of the pool.
	Skew time.Duration
}

// Verify returns what the token says, if it was signed with one of the keys, is
// for the product and has not run out. Otherwise the error wraps one of the
// errors of this package.
func Verify(token string, keys KeySet, options Options) (Claims, error) {
	claims, err := VerifySignature(token, keys)
	if err != nil {
		return Claims{}, err
	}
	if options.Product != "" && claims.Product != options.Product {
		return Claims{}, fmt.Errorf("%w: it is for %q, not for %q; check out a seat of that product", ErrAudience, claims.Product, options.Product)
	}
	now := options.Now
	if now.IsZero() {
		now = time.Now()
	}
	if now.Add(options.Skew).Before(claims.IssuedAt) {
		return Claims{}, fmt.Errorf("%w: it was issued at %s, and here it is %s; set this machine's clock",
			ErrNotYetValid, format(claims.IssuedAt), format(now))
	}
	// This is v1alpha1.Live, spelled out so that a program which verifies a
	// token does not link Kubernetes. A test holds the two together.
	if now.After(claims.ExpiresAt.Add(options.Skew)) {
		return Claims{}, fmt.Errorf("%w: at %s, and here it is %s; renew the lease or check out again",
			ErrExpired, format(claims.ExpiresAt), format(now))
	}
	return claims, nil
}

// VerifySignature returns what the token says, if it was signed with one of the
// keys, whatever it is for and however old it is. It is for tools that look at
// leases; a program that wants to know whether it may run calls [Verify].
func VerifySignature(token string, keys KeySet) (Claims, error) {
	kid, err := parseHeader(token)
	if err != nil {
		return Claims{}, err
	}
	key, ok := keys[kid]
	if !ok {
		return Claims{}, fmt.Errorf("%w: %.64q is not among the %d known here; if the token is genuine, fetch the keys again", ErrUnknownKey, kid, len(keys))
	}
	if len(key) != ed25519.PublicKeySize {
		return Claims{}, fmt.Errorf("%w: the key known here as %.64q is no Ed25519 key; read keys with ParseJWKS", ErrUnknownKey, kid)
	}
	signed, err := jose.ParseSignedCompact(token, []jose.SignatureAlgorithm{jose.EdDSA})
	if err != nil {
		return Claims{}, malformed("it is not a compact JWS")
	}
	payload, err := signed.Verify(key)
	if err != nil {
		return Claims{}, fmt.Errorf("%w of key %.64q: it was altered, or comes from elsewhere; take status.token of the SeatLease as it is", ErrBadSignature, kid)
	}
	var claims Claims
	if err := claims.UnmarshalJSON(payload); err != nil {
		return Claims{}, err
	}
	return claims, nil
}

// parseHeader checks everything about a token that can be checked without a
// key, and returns the ID of the key it names.
//
// It is stricter than JOSE on purpose. There is one way to write a lease, so
// that no two different strings are the same token, and nothing in a header can
// bring a key along, name a place to fetch one from, or change how the
// signature is computed.
func parseHeader(token string) (kid string, err error) {
	switch {
	case token == "":
		return "", malformed("it is empty, as in the answer to a dry run")
	case len(token) > MaxLength:
		return "", malformed("it is longer than %d bytes", MaxLength)
	case strings.HasPrefix(token, "{"):
		return "", malformed("it is JSON, and only the compact form is accepted")
	}
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return "", malformed("it has %d parts instead of 3", len(parts))
	}
	var header []byte
	for i, part := range parts {
		decoded, err := base64.RawURLEncoding.DecodeString(part)
		// Decoding forgives line breaks and stray bits at the end.
		if err != nil || base64.RawURLEncoding.EncodeToString(decoded) != part {
			return "", malformed("part %d of 3 is not base64url", i+1)
		}
		if i == 0 {
			header = decoded
		}
	}
	return parseFields(header)
}

func parseFields(header []byte) (kid string, err error) {
	// This decoder, unlike the standard one, refuses names that come twice.
	var fields map[string]any
	if err := json.Unmarshal(header, &fields); err != nil {
		return "", malformed("its header cannot be read")
	}
	if alg, _ := fields["alg"].(string); alg != string(jose.EdDSA) {
		return "", fmt.Errorf("%w: %.64q, and only %s is; take status.token of the SeatLease as it is", ErrAlgorithm, alg, jose.EdDSA)
	}
	for name := range fields {
		switch name {
		case "alg", "kid", "typ":
		default:
			return "", malformed("its header has %.64q, which no lease has", name)
		}
	}
	if fields["typ"] != "JWT" {
		return "", malformed("its type is not JWT")
	}
	if kid, _ = fields["kid"].(string); kid == "" {
		return "", malformed("it does not name the key it is signed with")
	}
	return kid, nil
}

// malformed returns ErrMalformed with what is wrong.
func malformed(what string, args ...any) error {
	return fmt.Errorf("%w: %s; take status.token of the SeatLease as it is", ErrMalformed, fmt.Sprintf(what, args...))
}

func format(t time.Time) string { return t.UTC().Format(time.RFC3339) }
