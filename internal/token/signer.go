// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package token

import (
	"cmp"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	seatpoolv1alpha1 "seatpool.dev/api/v1alpha1"
	"seatpool.dev/seat/leasetoken"
)

var (
	// ErrNoKeys means that no keyring has been loaded yet. It passes by itself.
	ErrNoKeys = errors.New("the signing keys are not loaded yet; try again")
	// ErrTooLong means that the names in a lease make its token longer than a
	// SeatLease can hold. Trying again does not help.
	ErrTooLong = errors.New("the token of the lease would be too long")
	// ErrOtherLease means that a token is genuine, and of another lease or of
	// an earlier state of this one.
	ErrOtherLease = errors.New("the token is of another lease or another time")
)

// Sign returns the token of a lease as it is. It touches nothing but memory.
func (r *Keyring) Sign(lease *seatpoolv1alpha1.SeatLease, product string, now time.Time) (string, error) {
	payload, err := claimsOf(lease, product).MarshalJSON()
	if err != nil {
		return "", fmt.Errorf("claims of the lease cannot be written: %w", err)
	}
	signed, err := r.signers[r.turns.at(now)].Sign(payload)
	if err != nil {
		return "", fmt.Errorf("lease cannot be signed: %w", err)
	}
	token, err := signed.CompactSerialize()
	if err != nil {
		return "", fmt.Errorf("token of the lease cannot be written: %w", err)
	}
	if len(token) > leasetoken.MaxLength {
		return "", fmt.Errorf("%w: %d bytes, and the limit is %d; shorten what spec.holder says", ErrTooLong, len(token), leasetoken.MaxLength)
	}
	return token, nil
}

// Verify returns an error unless the token of the lease was signed for it as it
// is. The error wraps ErrOtherLease or one of package leasetoken.
func (r *Keyring) Verify(lease *seatpoolv1alpha1.SeatLease) error {
	claims, err := leasetoken.VerifySignature(lease.Status.Token, r.public)
	if err != nil {
		return err
	}
	if want := claimsOf(lease, claims.Product); claims != want {
		return fmt.Errorf("%w: its claims are not those of the lease", ErrOtherLease)
	}
	return nil
}

func claimsOf(lease *seatpoolv1alpha1.SeatLease, product string) leasetoken.Claims {
	pool, holder := lease.Pool(), lease.Spec.Holder
	return leasetoken.Claims{
		Product:   product,
		Holder:    cmp.Or(holder.User, holder.InstanceID, holder.Host, lease.Status.Requester),
		SeatID:    lease.Status.SeatID,
		IssuedAt:  seconds(lease.Status.IssuedAt.Time),
		ExpiresAt: seconds(lease.Status.ExpiresAt.Time),
		Lease: leasetoken.Lease{
			Pool: pool.Name, PoolNamespace: pool.Namespace, Namespace: lease.Namespace,
			User: holder.User, Host: holder.Host, InstanceID: holder.InstanceID,
		},
	}
}

// seconds returns the time as it is stored in a lease and in a token, so that
// times compare equal whether or not they have been there.
func seconds(t time.Time) time.Time { return time.Unix(t.Unix(), 0).UTC() }

// Signer signs and verifies with the keyring it was given last. Any number of
// goroutines may use it while another gives it a new one: there is no lock to
// wait for. Its zero value knows no key yet.
type Signer struct {
	ring atomic.Pointer[Keyring]
}

// Use gives the Signer a keyring, and returns the one it had; nil for none.
func (s *Signer) Use(ring *Keyring) (before *Keyring) { return s.ring.Swap(ring) }

// Keyring returns the keyring in use; nil for none.
func (s *Signer) Keyring() *Keyring { return s.ring.Load() }

// Sign is [Keyring.Sign] with the keyring in use.
func (s *Signer) Sign(lease *seatpoolv1alpha1.SeatLease, product string, now time.Time) (string, error) {
	ring := s.ring.Load()
	if ring == nil {
		return "", ErrNoKeys
	}
	return ring.Sign(lease, product, now)
}

// Verify is [Keyring.Verify] with the keyring in use.
func (s *Signer) Verify(lease *seatpoolv1alpha1.SeatLease) error {
	ring := s.ring.Load()
	if ring == nil {
		return ErrNoKeys
	}
	return ring.Verify(lease)
}
