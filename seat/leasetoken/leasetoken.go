// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

// Package leasetoken verifies the signed leases of seatpool offline.
//
// A SeatLease carries in status.token a compact JWS, signed with Ed25519 by the
// operator. A program that embeds the operator's public keys can check it
// without a network, and so cannot be fooled by whoever stands between it and
// the operator:
//
//	keys, err := leasetoken.ParseJWKS(embedded)
//	...
//	claims, err := leasetoken.Verify(token, keys, leasetoken.Options{
//		Product: "acme-studio",
//		Now:     time.Now(),
//		Skew:    5 * time.Second,
//	})
//
// A token is good exactly as long as its lease counts: while now is not later
// than its expiry plus the skew. What is wrong with a token that is refused can
// be told apart with [errors.Is].
//
// The package needs nothing of Kubernetes.
package leasetoken

import (
	"bytes"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-jose/go-jose/v4"
)

const (
	// Issuer is the iss claim of every token.
	Issuer = "seatpool"

	// MaxLength is the longest token that is looked at, in bytes. It is the
	// most that status.token of a SeatLease can hold.
	MaxLength = 8192
)

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
	// ErrForeign means that the token is genuine, and for something else.
	ErrForeign = errors.New("token is for something else")
	// ErrNotYetValid means that the token was issued later than now.
	ErrNotYetValid = errors.New("token is not valid yet")
	// ErrExpired means that the lease has run out.
	ErrExpired = errors.New("token has expired")
)

// Lease is the private claim of a token: which lease it is of.
type Lease struct {
	// Pool and PoolNamespace name the SeatPool.
	Pool          string `json:"pool"`
	PoolNamespace string `json:"poolNamespace"`
	// Namespace is the lease's own.
	Namespace string `json:"namespace"`
	// User, Host and InstanceID are the holder, as the client gave it.
	User       string `json:"user,omitempty"`
	Host       string `json:"host,omitempty"`
	InstanceID string `json:"instanceID,omitempty"`
}

// Claims are what a token says. Times are whole seconds.
type Claims struct {
	// Product is what the seat is of (aud).
	Product string
	// Holder is who holds it (sub).
	Holder string
	// SeatID is the seat (jti).
	SeatID string
	// IssuedAt is when the lease was extended last (iat).
	IssuedAt time.Time
	// ExpiresAt is when it runs out (exp).
	ExpiresAt time.Time
	// Lease says which lease it is of.
	Lease Lease
}

// wire is the JSON of the claims.
type wire struct {
	Issuer    string `json:"iss"`
	Audience  string `json:"aud"`
	Subject   string `json:"sub"`
	ID        string `json:"jti"`
	IssuedAt  int64  `json:"iat"`
	ExpiresAt int64  `json:"exp"`
	Lease     *Lease `json:"seatpool.dev"`
}

// MarshalJSON implements json.Marshaler.
func (c Claims) MarshalJSON() ([]byte, error) {
	return json.Marshal(wire{
		Issuer: Issuer, Audience: c.Product, Subject: c.Holder, ID: c.SeatID,
		IssuedAt: c.IssuedAt.Unix(), ExpiresAt: c.ExpiresAt.Unix(), Lease: &c.Lease,
	})
}

// KeySet holds public keys by their IDs.
type KeySet map[string]ed25519.PublicKey

// ParseJWKS reads the keys that the operator publishes, in the ConfigMap
// seatpool-jwks. Keys of other kinds than Ed25519 are skipped.
func ParseJWKS(data []byte) (KeySet, error) {
	var set jose.JSONWebKeySet
	if err := json.Unmarshal(data, &set); err != nil {
		return nil, fmt.Errorf("keys are not a JWKS: %w", err)
	}
	keys := KeySet{}
	for _, key := range set.Keys {
		if public, ok := key.Key.(ed25519.PublicKey); ok && key.KeyID != "" {
			keys[key.KeyID] = public
		}
	}
	if len(keys) == 0 {
		return nil, errors.New("the JWKS has no Ed25519 key with a kid")
	}
	return keys, nil
}

// ParsePublicKey reads one public key in PEM (SPKI), as for embedding it in a
// program, and gives it the key ID.
func ParsePublicKey(kid string, data []byte) (KeySet, error) {
	block, _ := pem.Decode(data)
	if block == nil || block.Type != "PUBLIC KEY" {
		return nil, errors.New("the key is not a PEM block of type PUBLIC KEY")
	}
	key, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("the public key cannot be read: %w", err)
	}
	public, ok := key.(ed25519.PublicKey)
	if !ok {
		return nil, fmt.Errorf("the public key is %T, not Ed25519", key)
	}
	return KeySet{kid: public}, nil
}

// Options say what a token must be for.
type Options struct {
	// Product is the product the token must be for; any when empty.
	Product string
	// Now is the time to judge by.
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
		return Claims{}, fmt.Errorf("%w: it is for product %q, not %q", ErrForeign, claims.Product, options.Product)
	}
	if options.Now.Add(options.Skew).Before(claims.IssuedAt) {
		return Claims{}, fmt.Errorf("%w: it was issued at %s; check this machine's clock", ErrNotYetValid, claims.IssuedAt.UTC().Format(time.RFC3339))
	}
	if options.Now.After(claims.ExpiresAt.Add(options.Skew)) {
		return Claims{}, fmt.Errorf("%w: at %s; renew the lease, or check out again", ErrExpired, claims.ExpiresAt.UTC().Format(time.RFC3339))
	}
	return claims, nil
}

// VerifySignature returns what the token says, if it was signed with one of the
// keys, whatever it is for and however old it is.
func VerifySignature(token string, keys KeySet) (Claims, error) {
	if len(token) > MaxLength {
		return Claims{}, fmt.Errorf("%w: it is longer than %d bytes", ErrMalformed, MaxLength)
	}
	signature, err := jose.ParseSignedCompact(token, []jose.SignatureAlgorithm{jose.EdDSA})
	if unexpected := (*jose.ErrUnexpectedSignatureAlgorithm)(nil); errors.As(err, &unexpected) {
		return Claims{}, fmt.Errorf("%w: only EdDSA is", ErrAlgorithm)
	}
	if err != nil {
		return Claims{}, fmt.Errorf("%w: it is not a compact JWS", ErrMalformed)
	}
	header := signature.Signatures[0].Protected
	// Nothing in a header can bring its own key along; what tries to is refused.
	if header.JSONWebKey != nil {
		return Claims{}, fmt.Errorf("%w: its header carries a key of its own", ErrMalformed)
	}
	for name := range header.ExtraHeaders {
		if name != jose.HeaderType {
			return Claims{}, fmt.Errorf("%w: its header carries %q, which is not expected", ErrMalformed, name)
		}
	}
	key, ok := keys[header.KeyID]
	if !ok {
		return Claims{}, fmt.Errorf("%w: %.64q is not among the %d known ones; update the keys if the token is new", ErrUnknownKey, header.KeyID, len(keys))
	}
	payload, err := signature.Verify(key)
	if err != nil {
		return Claims{}, ErrBadSignature
	}
	return parseClaims(payload)
}

func parseClaims(payload []byte) (Claims, error) {
	var w wire
	decoder := json.NewDecoder(bytes.NewReader(payload))
	if err := decoder.Decode(&w); err != nil || decoder.More() {
		return Claims{}, fmt.Errorf("%w: its claims cannot be read", ErrMalformed)
	}
	if w.Issuer != Issuer {
		return Claims{}, fmt.Errorf("%w: it was issued by %.64q, not %q", ErrForeign, w.Issuer, Issuer)
	}
	if w.Lease == nil || slices.Contains([]string{w.Audience, w.ID, w.Lease.Pool}, "") || w.IssuedAt <= 0 || w.ExpiresAt <= 0 {
		return Claims{}, fmt.Errorf("%w: it lacks claims that every lease has", ErrMalformed)
	}
	return Claims{
		Product: w.Audience, Holder: w.Subject, SeatID: w.ID,
		IssuedAt: time.Unix(w.IssuedAt, 0).UTC(), ExpiresAt: time.Unix(w.ExpiresAt, 0).UTC(),
		Lease: *w.Lease,
	}, nil
}
