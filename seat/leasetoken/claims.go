// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package leasetoken

import (
	"bytes"
	stdjson "encoding/json"
	"fmt"
	"time"

	"github.com/go-jose/go-jose/v4/json"
)

// Issuer is the iss claim of every token.
const Issuer = "seatpool"

// maxTime is the last second of the year 9999: the last that RFC 3339, and so
// the API server, can write.
const maxTime = 253402300799

// Lease is the private claim "seatpool.dev" of a token: which lease it is of.
type Lease struct {
	// Pool and PoolNamespace name the SeatPool.
	Pool          string `json:"pool"`
	PoolNamespace string `json:"poolNamespace"`
	// Namespace is the lease's own.
	Namespace string `json:"namespace"`
	// User, Host and InstanceID are the holder, as the client gave it. Nobody
	// has checked them.
	User       string `json:"user,omitempty"`
	Host       string `json:"host,omitempty"`
	InstanceID string `json:"instanceID,omitempty"`
}

// Claims are what a token says. Times are whole seconds.
type Claims struct {
	// Product is what the seat is of (aud).
	Product string
	// Holder is who holds it (sub): the first that is known of the user, the
	// instance ID, the host, and who asked the API server.
	Holder string
	// SeatID is the seat (jti).
	SeatID string
	// IssuedAt is when the lease was extended last (iat).
	IssuedAt time.Time
	// ExpiresAt is when it runs out (exp).
	ExpiresAt time.Time
	// Lease says which lease it is of (seatpool.dev).
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

// MarshalJSON writes the claims as in the payload of a token.
func (c Claims) MarshalJSON() ([]byte, error) {
	var out bytes.Buffer
	encoder := stdjson.NewEncoder(&out)
	// Escaping <, > and & would make the names of some holders six times as
	// long, and a token has a limit.
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(wire{
		Issuer: Issuer, Audience: c.Product, Subject: c.Holder, ID: c.SeatID,
		IssuedAt: c.IssuedAt.Unix(), ExpiresAt: c.ExpiresAt.Unix(), Lease: &c.Lease,
	})
	return bytes.TrimRight(out.Bytes(), "\n"), err
}

// UnmarshalJSON reads the claims out of the payload of a token. Claims it does
// not know are left alone, so that programs in the field understand the tokens
// of later operators; those it knows must be there, once each.
func (c *Claims) UnmarshalJSON(payload []byte) error {
	// This decoder, unlike the standard one, refuses names that come twice and
	// does not take IAT for iat.
	var w wire
	if err := json.Unmarshal(payload, &w); err != nil {
		return malformed("its claims cannot be read")
	}
	if w.Issuer != Issuer {
		return fmt.Errorf("%w: by %.64q; take status.token of the SeatLease", ErrIssuer, w.Issuer)
	}
	if w.Lease == nil {
		return malformed("its claims lack seatpool.dev")
	}
	for _, claim := range []struct{ name, value string }{
		{"aud", w.Audience},
		{"sub", w.Subject},
		{"jti", w.ID},
		{"seatpool.dev pool", w.Lease.Pool},
		{"seatpool.dev poolNamespace", w.Lease.PoolNamespace},
		{"seatpool.dev namespace", w.Lease.Namespace},
	} {
		if claim.value == "" {
			return malformed("its claims lack %s", claim.name)
		}
	}
	if w.IssuedAt <= 0 || w.ExpiresAt < w.IssuedAt || w.ExpiresAt > maxTime {
		return malformed("its iat and exp are not times of a lease")
	}
	*c = Claims{
		Product: w.Audience, Holder: w.Subject, SeatID: w.ID,
		IssuedAt: time.Unix(w.IssuedAt, 0).UTC(), ExpiresAt: time.Unix(w.ExpiresAt, 0).UTC(),
		Lease: *w.Lease,
	}
	return nil
}
