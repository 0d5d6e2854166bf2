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
	"bytes"
	"cmp"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"

	"seatpool.dev/seat/leasetoken"
)

// KeyTimesAnnotation is the annotation of the Secret that says from when each
// key signs: a JSON object of key IDs and RFC 3339 times. A key without an entry
// verifies, and does not sign while any other key has one.
const KeyTimesAnnotation = "seatpool.dev/key-times"

// keyID is what the name of a key may look like. It is what an entry of a
// Secret may be called, without the leading dots that have a meaning in files.
var keyID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// Keyring holds the keys of the operator. It is immutable.
type Keyring struct {
	turns turns
	// signers are those of the turns, in the same order.
	signers []jose.Signer
	public  leasetoken.KeySet
}

// turn is from when a key signs.
type turn struct {
	kid string
	// from is zero for never.
	from time.Time
}

// turns are the turns of all keys, by their time and then by key ID: those that
// do not sign come first.
type turns []turn

func (t turns) sort() { slices.SortFunc(t, compareTurns) }

func compareTurns(a, b turn) int {
	return cmp.Or(a.from.Compare(b.from), cmp.Compare(a.kid, b.kid))
}

// at returns which of the keys signs at now: the one that was activated last.
// When none is active, it is the one that will be first, since it has been known
// for longest; and when none ever will be, the first by name.
func (t turns) at(now time.Time) int {
	for i, turn := range slices.Backward(t) {
		if !turn.from.IsZero() && !turn.from.After(now) {
			return i
		}
	}
	return max(0, slices.IndexFunc(t, func(t turn) bool { return !t.from.IsZero() }))
}

// ParseKeyring reads the keys of the Secret. Entries that are no keys are
// reported in the error, and do not keep the others from being used: the
// keyring is nil only when there is no key at all.
func ParseKeyring(data map[string][]byte, annotations map[string]string) (*Keyring, error) {
	times, err := parseTimes(annotations)
	errs := []error{err}
	private := map[string]ed25519.PrivateKey{}
	ring := &Keyring{public: leasetoken.KeySet{}}
	for _, name := range slices.Sorted(maps.Keys(data)) {
		kid := strings.TrimSuffix(name, ".pem")
		key, err := parsePrivateKey(kid, data[name])
		if err == nil && private[kid] != nil {
			err = fmt.Errorf("entry %q is the key %q already; remove one of them", kid, kid)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("entry %q of the signing keys is not used: %w", name, err))
			continue
		}
		private[kid] = key
		ring.public[kid] = key.Public().(ed25519.PublicKey)
		ring.turns = append(ring.turns, turn{kid: kid, from: times[kid]})
	}
	if len(ring.turns) == 0 {
		return nil, errors.Join(append(errs, errors.New("there is no signing key; restore the Secret of the signing keys, or delete it to have a new key made"))...)
	}
	ring.turns.sort()
	for _, t := range ring.turns {
		signer, err := newSigner(t.kid, private[t.kid])
		if err != nil {
			return nil, err
		}
		ring.signers = append(ring.signers, signer)
	}
	return ring, errors.Join(errs...)
}

// newSigner cannot fail for a key that could be parsed.
func newSigner(kid string, key ed25519.PrivateKey) (jose.Signer, error) {
	options := (&jose.SignerOptions{}).WithType("JWT").WithHeader("kid", kid)
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.EdDSA, Key: key}, options)
	if err != nil {
		return nil, fmt.Errorf("key %q cannot sign: %w", kid, err)
	}
	return signer, nil
}

// parseTimes returns the times that can be read, and reports the others.
func parseTimes(annotations map[string]string) (map[string]time.Time, error) {
	times := map[string]time.Time{}
	value, ok := annotations[KeyTimesAnnotation]
	if !ok {
		return times, nil
	}
	var texts map[string]any
	if err := json.Unmarshal([]byte(value), &texts); err != nil {
		return times, fmt.Errorf(`annotation %s is ignored: it is not a JSON object like {"key-id": "2030-01-31T12:00:00Z"}: %w`, KeyTimesAnnotation, err)
	}
	var errs []error
	for _, kid := range slices.Sorted(maps.Keys(texts)) {
		text, _ := texts[kid].(string)
		from, err := time.Parse(time.RFC3339, text)
		from = from.UTC()
		// What could not be read back, or would sort before "never", is no time either.
		if err != nil || !from.After(time.Time{}) || from.Year() > 9999 {
			errs = append(errs, fmt.Errorf(`annotation %s is ignored for key %q: %.64q is not a time like "2030-01-31T12:00:00Z"`, KeyTimesAnnotation, kid, text))
			continue
		}
		times[kid] = from
	}
	return times, errors.Join(errs...)
}

// formatTimes is the other way round, and always comes out the same.
func formatTimes(times map[string]time.Time) (string, error) {
	texts := map[string]string{}
	for kid, from := range times {
		texts[kid] = from.UTC().Format(time.RFC3339Nano)
	}
	encoded, err := json.Marshal(texts)
	return string(encoded), err
}

const makeOne = "make one with: openssl genpkey -algorithm ed25519"

func parsePrivateKey(kid string, data []byte) (ed25519.PrivateKey, error) {
	if !keyID.MatchString(kid) {
		return nil, errors.New("its name is no key ID; use up to 63 letters, digits, dots, dashes and underscores, and begin with a letter or digit")
	}
	block, rest := pem.Decode(data)
	if block == nil || block.Type != "PRIVATE KEY" {
		return nil, errors.New("it is not a PEM block of type PRIVATE KEY; " + makeOne)
	}
	if len(bytes.TrimSpace(rest)) > 0 {
		return nil, errors.New("something follows after its PEM block; give every key an entry of its own")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, errors.New("it is not a PKCS #8 key; " + makeOne)
	}
	private, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("it is %T, not Ed25519; %s", parsed, makeOne)
	}
	return private, nil
}

// SigningKeyID returns the ID of the key that signs at now.
func (r *Keyring) SigningKeyID(now time.Time) string { return r.turns[r.turns.at(now)].kid }

// KeySet returns the public keys.
func (r *Keyring) KeySet() leasetoken.KeySet { return maps.Clone(r.public) }

// JWKS returns the public keys as they are published, in an order that does
// not change.
func (r *Keyring) JWKS() ([]byte, error) {
	set := jose.JSONWebKeySet{Keys: []jose.JSONWebKey{}}
	for _, kid := range slices.Sorted(maps.Keys(r.public)) {
		set.Keys = append(set.Keys, jose.JSONWebKey{Key: r.public[kid], KeyID: kid, Algorithm: string(jose.EdDSA), Use: "sig"})
	}
	return json.MarshalIndent(set, "", "  ")
}

// GenerateKey makes a new key, as an entry of the Secret. Its ID begins with
// the time, so that keys are listed by age.
func GenerateKey(now time.Time) (kid string, value []byte, err error) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return "", nil, fmt.Errorf("key cannot be made: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return "", nil, fmt.Errorf("key cannot be written: %w", err)
	}
	// Two replicas that lead at once must not make different keys of one ID.
	suffix := make([]byte, 4)
	_, _ = rand.Read(suffix) // never fails, see crypto/rand
	kid = now.UTC().Format("20060102T150405Z") + "-" + hex.EncodeToString(suffix)
	return kid, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}
