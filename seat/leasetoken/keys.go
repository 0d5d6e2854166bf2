// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package leasetoken

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/json"
)

// KeySet holds public keys by their IDs.
type KeySet map[string]ed25519.PublicKey

// ParseJWKS reads the keys that the operator publishes, in the ConfigMap
// seatpool-jwks. Keys that are not for verifying Ed25519 signatures are
// skipped; one that is, and cannot be read, makes it fail, and so does a
// private key.
func ParseJWKS(data []byte) (KeySet, error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(data, &set); err != nil {
		return nil, fmt.Errorf("the keys are not a JWKS: %w; take the entry jwks.json of the ConfigMap seatpool-jwks", err)
	}
	keys := KeySet{}
	for i, raw := range set.Keys {
		var key jose.JSONWebKey
		err := key.UnmarshalJSON(raw)
		if errors.Is(err, jose.ErrUnsupportedKeyType) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("key %d of the JWKS cannot be read: %w", i+1, err)
		}
		if !key.IsPublic() {
			return nil, fmt.Errorf("key %d of the JWKS is not a public key: give programs only what the ConfigMap seatpool-jwks holds", i+1)
		}
		public, ok := key.Key.(ed25519.PublicKey)
		if !ok || key.Algorithm != "" && key.Algorithm != string(jose.EdDSA) || key.Use != "" && key.Use != "sig" {
			continue
		}
		if key.KeyID == "" {
			return nil, fmt.Errorf("key %d of the JWKS has no kid, and tokens name their key by it", i+1)
		}
		if _, twice := keys[key.KeyID]; twice {
			return nil, fmt.Errorf("two keys of the JWKS have the kid %.64q; remove the one that is not the operator's", key.KeyID)
		}
		keys[key.KeyID] = public
	}
	if len(keys) == 0 {
		return nil, errors.New("the JWKS has no Ed25519 key to verify with; take the entry jwks.json of the ConfigMap seatpool-jwks")
	}
	return keys, nil
}

// ParsePublicKeyPEM reads one public key, as for embedding it in a program, and
// gives it the key ID. It is what "openssl pkey -pubout" writes of an entry of
// the Secret seatpool-signing-keys; the entry's name is the key ID.
func ParsePublicKeyPEM(kid string, data []byte) (KeySet, error) {
	if kid == "" {
		return nil, errors.New("the public key needs a key ID: the name of its entry in the Secret seatpool-signing-keys")
	}
	block, _ := pem.Decode(data)
	if block == nil || block.Type != "PUBLIC KEY" {
		return nil, errors.New("the public key is not a PEM block of type PUBLIC KEY; make one with: openssl pkey -in key.pem -pubout")
	}
	key, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("the public key cannot be read: %w", err)
	}
	public, ok := key.(ed25519.PublicKey)
	if !ok {
		return nil, fmt.Errorf("the public key is %T, and leases are signed with Ed25519 only", key)
	}
	// JOSE refuses the keys that have signatures nobody needed to make.
	if _, err := (jose.JSONWebKey{Key: public, KeyID: kid}).MarshalJSON(); err != nil {
		return nil, fmt.Errorf("the public key cannot be used: %w", err)
	}
	return KeySet{kid: public}, nil
}
