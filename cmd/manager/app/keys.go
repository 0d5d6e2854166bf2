// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	seatpoolv1alpha1 "seatpool.dev/api/v1alpha1"
	"seatpool.dev/controllers"
	"seatpool.dev/internal/clock"
	seatmetrics "seatpool.dev/internal/metrics"
	"seatpool.dev/internal/token"
	"seatpool.dev/seat/leasetoken"
)

// keyStore holds this replica's view of the signing keys.
type keyStore struct {
	reader    client.Reader
	clock     *clock.Clock
	namespace string
	signer    token.Signer
	// rereads limits how often an unknown key has the Secret read again.
	rereads *rate.Limiter
}

func newKeyStore(reader client.Reader, clk *clock.Clock, namespace string) *keyStore {
	return &keyStore{reader: reader, clock: clk, namespace: namespace, rereads: rate.NewLimiter(rate.Every(time.Second), 5)}
}

// Sign implements admission.Signer.
func (s *keyStore) Sign(lease *seatpoolv1alpha1.SeatLease, product string) (string, error) {
	return s.signer.Sign(lease, product, s.clock.Now())
}

// Verify implements admission.Signer. A key that is not known may have come
// into use a moment ago: then the Secret is read again.
func (s *keyStore) Verify(ctx context.Context, lease *seatpoolv1alpha1.SeatLease) error {
	err := s.signer.Verify(lease)
	if errors.Is(err, leasetoken.ErrUnknownKey) && s.rereads.Allow() {
		if s.read(ctx) != nil {
			return err
		}
		err = s.signer.Verify(lease)
	}
	return err
}

func (s *keyStore) loaded() bool { return s.signer.Keyring() != nil }

func (s *keyStore) read(ctx context.Context) error {
	secret := &corev1.Secret{}
	if err := s.reader.Get(ctx, types.NamespacedName{Namespace: s.namespace, Name: controllers.SigningKeysSecret}, secret); err != nil {
		return err
	}
	s.load(secret)
	return nil
}

// observe is told of every version of the Secret.
func (s *keyStore) observe(obj any) {
	if secret, ok := obj.(*corev1.Secret); ok && secret.Name == controllers.SigningKeysSecret {
		s.load(secret)
	}
}

// load takes the keys of the Secret. Without any, those known before stay in
// use: they signed what is running.
func (s *keyStore) load(secret *corev1.Secret) {
	log := ctrl.Log.WithName("keys")
	ring, err := token.ParseKeyring(secret.Data, secret.Annotations)
	if err != nil {
		log.Error(err, "Signing keys have entries that cannot be used")
	}
	if ring == nil {
		return
	}
	if before := s.signer.Use(ring); before == nil {
		log.Info("Loaded the signing keys", "signing", ring.SigningKeyID(s.clock.Now()))
	}
}

// run notices when another key begins to sign, which time alone brings about.
func (s *keyStore) run(ctx context.Context) error {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	var signing string
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		ring := s.signer.Keyring()
		if ring == nil {
			continue
		}
		id := ring.SigningKeyID(s.clock.Now())
		if signing != "" && id != signing {
			ctrl.Log.WithName("keys").Info("Began to sign with another key", "before", signing, "now", id)
			seatmetrics.SigningKeyActivations.Inc()
		}
		signing = id
	}
}
