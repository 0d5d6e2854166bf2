// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

// Package token knows how to sign leases, and how to keep the keys.
//
// Keys live in one Secret. Several are valid at once: a key is published and
// verified with from the moment it is there, signs from its activation on, and
// goes only when no lease signed with it is left. So rotation never ends a
// running lease, and no replica ever meets a token signed with a key that it
// cannot know yet.
package token

import (
	"cmp"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"

	seatpoolv1alpha1 "seatpool.dev/api/v1alpha1"
	"seatpool.dev/seat/leasetoken"
)

// KeyTimesAnnotation is the annotation of the Secret that says from when each
// key signs: a JSON object of key IDs and RFC 3339 times. A key without an entry
// verifies, and does not sign.
const KeyTimesAnnotation = "seatpool.dev/key-times"

// keyID is what the name of a key may look like. It is what a key of a Secret's
// data may be, without the leading dots that have a meaning in files.
var keyID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// Keyring holds the keys of the operator. It is immutable.
type Keyring struct {
	keys   []key // by activation, then by ID; those that do not sign first
	public leasetoken.KeySet
}

type key struct {
	id     string
	signer jose.Signer
	// activeFrom is from when the key signs, zero for never.
	activeFrom time.Time
}

// ParseKeyring reads the keys of the Secret. Entries that are no keys are
// reported in the error, and do not keep the others from being used: the
// keyring is nil only when there is no key at all.
func ParseKeyring(data map[string][]byte, annotations map[string]string) (*Keyring, error) {
	times, err := parseTimes(annotations)
	errs := []error{err}
	ring := &Keyring{public: leasetoken.KeySet{}}
	for name, value := range data {
		id := strings.TrimSuffix(name, ".pem")
		private, err := parsePrivateKey(id, value)
		if err != nil {
			errs = append(errs, fmt.Errorf("entry %q of the signing keys: %w", name, err))
			continue
		}
		if _, twice := ring.public[id]; twice {
			errs = append(errs, fmt.Errorf("entry %q of the signing keys: there is another for the same key ID; remove one", name))
			continue
		}
		options := (&jose.SignerOptions{}).WithType("JWT").WithHeader("kid", id)
		signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.EdDSA, Key: private}, options)
		if err != nil {
			errs = append(errs, fmt.Errorf("entry %q of the signing keys: %w", name, err))
			continue
		}
		ring.keys = append(ring.keys, key{id: id, signer: signer, activeFrom: times[id]})
		ring.public[id] = private.Public().(ed25519.PublicKey)
	}
	if len(ring.keys) == 0 {
		return nil, errors.Join(append(errs, errors.New("there is no signing key"))...)
	}
	slices.SortFunc(ring.keys, func(a, b key) int {
		return cmp.Or(a.activeFrom.Compare(b.activeFrom), cmp.Compare(a.id, b.id))
	})
	return ring, errors.Join(errs...)
}

func parseTimes(annotations map[string]string) (map[string]time.Time, error) {
	times := map[string]time.Time{}
	value, ok := annotations[KeyTimesAnnotation]
	if !ok {
		return times, nil
	}
	if err := json.Unmarshal([]byte(value), &times); err != nil {
		return map[string]time.Time{}, fmt.Errorf("annotation %s cannot be read: %w", KeyTimesAnnotation, err)
	}
	return times, nil
}

func parsePrivateKey(id string, data []byte) (ed25519.PrivateKey, error) {
	if !keyID.MatchString(id) {
		return nil, fmt.Errorf("its name is no key ID: use letters, digits, dots, dashes and underscores")
	}
	block, _ := pem.Decode(data)
	if block == nil || block.Type != "PRIVATE KEY" {
		return nil, errors.New("it is not a PEM block of type PRIVATE KEY; make one with: openssl genpkey -algorithm ed25519")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("it cannot be read: %w", err)
	}
	private, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("it is %T, not Ed25519; make one with: openssl genpkey -algorithm ed25519", parsed)
	}
	return private, nil
}

// signing returns the key that signs at now: the one activated last, or, when
// none is active, the first.
func (r *Keyring) signing(now time.Time) key {
	signing := r.keys[0]
	for _, k := range r.keys {
		if !k.activeFrom.IsZero() && !k.activeFrom.After(now) {
			signing = k
		}
	}
	return signing
}

// SigningKeyID returns the ID of the key that signs at now.
func (r *Keyring) SigningKeyID(now time.Time) string { return r.signing(now).id }

// KeySet returns the public keys.
func (r *Keyring) KeySet() leasetoken.KeySet { return r.public }

// JWKS returns the public keys as they are published, in an order that does
// not change.
func (r *Keyring) JWKS() ([]byte, error) {
	set := jose.JSONWebKeySet{Keys: []jose.JSONWebKey{}}
	for id, public := range r.public {
		set.Keys = append(set.Keys, jose.JSONWebKey{Key: public, KeyID: id, Algorithm: string(jose.EdDSA), Use: "sig"})
	}
	slices.SortFunc(set.Keys, func(a, b jose.JSONWebKey) int { return cmp.Compare(a.KeyID, b.KeyID) })
	return json.MarshalIndent(set, "", "  ")
}

// Sign returns the token of a lease as it is. It touches nothing but memory.
func (r *Keyring) Sign(lease *seatpoolv1alpha1.SeatLease, product string, now time.Time) (string, error) {
	payload, err := json.Marshal(claimsOf(lease, product))
	if err != nil {
		return "", fmt.Errorf("claims of the lease cannot be written: %w", err)
	}
	signed, err := r.signing(now).signer.Sign(payload)
	if err != nil {
		return "", fmt.Errorf("lease cannot be signed: %w", err)
	}
	return signed.CompactSerialize()
}

// Verify returns an error unless the token of the lease was signed for it as it
// is. The error wraps one of package leasetoken.
func (r *Keyring) Verify(lease *seatpoolv1alpha1.SeatLease) error {
	claims, err := leasetoken.VerifySignature(lease.Status.Token, r.public)
	if err != nil {
		return err
	}
	if want := claimsOf(lease, claims.Product); claims != want {
		return fmt.Errorf("%w: its claims are not those of the lease", leasetoken.ErrForeign)
	}
	return nil
}

func claimsOf(lease *seatpoolv1alpha1.SeatLease, product string) leasetoken.Claims {
	pool, holder := lease.Pool(), lease.Spec.Holder
	return leasetoken.Claims{
		Product:   product,
		Holder:    cmp.Or(holder.User, holder.InstanceID, holder.Host, lease.Status.Requester),
		SeatID:    lease.Status.SeatID,
		IssuedAt:  lease.Status.IssuedAt.UTC(),
		ExpiresAt: lease.Status.ExpiresAt.UTC(),
		Lease: leasetoken.Lease{
			Pool: pool.Name, PoolNamespace: pool.Namespace, Namespace: lease.Namespace,
			User: holder.User, Host: holder.Host, InstanceID: holder.InstanceID,
		},
	}
}

// GenerateKey makes a new key, as an entry of the Secret.
func GenerateKey(now time.Time) (name string, value []byte, err error) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return "", nil, fmt.Errorf("key cannot be made: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return "", nil, fmt.Errorf("key cannot be written: %w", err)
	}
	suffix := make([]byte, 4)
	_, _ = rand.Read(suffix) // never fails, see crypto/rand
	id := now.UTC().Format("20060102T150405Z") + "-" + hex.EncodeToString(suffix)
	return id, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}
