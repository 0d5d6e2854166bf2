// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"maps"
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	seatpoolv1alpha1 "seatpool.dev/api/v1alpha1"
	"seatpool.dev/internal/checkout"
	"seatpool.dev/internal/clock"
	"seatpool.dev/internal/token"
)

const (
	// SigningKeysSecret is the Secret of the signing keys, in the operator's
	// namespace.
	SigningKeysSecret = "seatpool-signing-keys"

	// JWKSConfigMap is the ConfigMap that publishes the public keys.
	JWKSConfigMap = "seatpool-jwks"

	// JWKSKey is the entry of the ConfigMap that holds the JWKS.
	JWKSKey = "jwks.json"
)

// KeyKeeper keeps the Secret of the signing keys and the ConfigMap with their
// public halves.
type KeyKeeper struct {
	// Client reads out of memory and writes.
	Client client.Client
	// Reader reads from the API server itself.
	Reader         client.Reader
	Namespace      string
	Index          *checkout.Index
	Clock          *clock.Clock
	Recorder       events.EventRecorder
	RotationPeriod time.Duration
	Overlap        time.Duration
}

// +kubebuilder:rbac:groups="",namespace=seatpool-system,resources=secrets,verbs=create
// +kubebuilder:rbac:groups="",namespace=seatpool-system,resources=secrets,resourceNames=seatpool-signing-keys,verbs=get;list;watch;update
// +kubebuilder:rbac:groups="",namespace=seatpool-system,resources=configmaps,verbs=create
// +kubebuilder:rbac:groups="",namespace=seatpool-system,resources=configmaps,resourceNames=seatpool-jwks,verbs=get;list;watch;update

// SetupWithManager registers the keeper.
func (k *KeyKeeper) SetupWithManager(mgr ctrl.Manager) error {
	keys := reconcile.Request{NamespacedName: types.NamespacedName{Namespace: k.Namespace, Name: SigningKeysSecret}}
	toKeys := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{keys}
	})
	return ctrl.NewControllerManagedBy(mgr).
		Named("keys").
		Watches(&corev1.Secret{}, toKeys).
		Watches(&corev1.ConfigMap{}, toKeys).
		// At the begin there may be nothing to hear of.
		WatchesRawSource(source.Func(func(_ context.Context, queue queue) error {
			queue.Add(keys)
			return nil
		})).
		Complete(k)
}

// Reconcile brings the Secret in line with its plan, and publishes the keys.
func (k *KeyKeeper) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if !k.Index.Synced() {
		// Without knowing all leases a key that is still needed could be retired.
		return ctrl.Result{RequeueAfter: time.Second}, nil
	}
	secret := &corev1.Secret{}
	if err := k.Reader.Get(ctx, req.NamespacedName, secret); client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, err
	}
	if secret.DeletionTimestamp != nil {
		return ctrl.Result{}, nil // we hear when it is gone
	}
	plan, err := token.NewPlan(secret.Data, secret.Annotations, k.Clock.Now(),
		token.Policy{Period: k.RotationPeriod, Overlap: k.Overlap}, k.oldestIssued())
	if err != nil {
		return ctrl.Result{}, err
	}
	secret, err = k.writeSecret(ctx, secret, plan)
	if err != nil {
		return ctrl.Result{}, err
	}
	if err := k.publish(ctx, secret); err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: plan.Next}, nil
}

// oldestIssued returns when the oldest lease in existence was signed, zero when
// there is none. A lease without a grant, created while there were no webhooks,
// was never signed.
func (k *KeyKeeper) oldestIssued() time.Time {
	var oldest time.Time
	for _, pool := range k.Index.Pools() {
		for _, lease := range k.Index.Leases(pool) {
			if !lease.IssuedAt.IsZero() && (oldest.IsZero() || lease.IssuedAt.Before(oldest)) {
				oldest = lease.IssuedAt
			}
		}
	}
	return oldest
}

func (k *KeyKeeper) writeSecret(ctx context.Context, secret *corev1.Secret, plan *token.Plan) (*corev1.Secret, error) {
	if secret.UID == "" {
		secret = &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace, Name: SigningKeysSecret, Annotations: plan.Annotations},
			Data:       plan.Data,
		}
		if err := k.Client.Create(ctx, secret); err != nil {
			return nil, err
		}
		k.report(ctx, secret, plan)
		return secret, nil
	}
	if reflect.DeepEqual(secret.Data, plan.Data) && maps.Equal(secret.Annotations, plan.Annotations) {
		return secret, nil
	}
	secret.Data, secret.Annotations = plan.Data, plan.Annotations
	if err := k.Client.Update(ctx, secret); err != nil {
		return nil, err
	}
	k.report(ctx, secret, plan)
	return secret, nil
}

func (k *KeyKeeper) report(ctx context.Context, secret *corev1.Secret, plan *token.Plan) {
	if len(plan.Changes) == 0 {
		return
	}
	ctrl.LoggerFrom(ctx).Info("Changed the signing keys", "changes", plan.Changes)
	k.Recorder.Eventf(secret, nil, corev1.EventTypeNormal, seatpoolv1alpha1.EventKeysRotated, "Rotate", "Signing keys: %s", plan.Summary())
}

// publish writes the public keys into the ConfigMap.
func (k *KeyKeeper) publish(ctx context.Context, secret *corev1.Secret) error {
	ring, err := token.ParseKeyring(secret.Data, secret.Annotations)
	if ring == nil {
		return err
	}
	jwks, err := ring.JWKS()
	if err != nil {
		return err
	}
	want := map[string]string{JWKSKey: string(jwks)}
	config := &corev1.ConfigMap{}
	err = k.Reader.Get(ctx, types.NamespacedName{Namespace: k.Namespace, Name: JWKSConfigMap}, config)
	switch {
	case apierrors.IsNotFound(err):
		return k.Client.Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace, Name: JWKSConfigMap}, Data: want,
		})
	case err != nil:
		return err
	case maps.Equal(config.Data, want):
		return nil
	}
	config.Data = want
	return k.Client.Update(ctx, config)
}
