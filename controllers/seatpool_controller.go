// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

// Package controllers holds what time and events demand: the reaper, the status
// of pools, the safety net and the keeping of keys. They run on the leader;
// leader election promises no fencing, so that each is harmless when two
// replicas run it at once.
package controllers

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	seatpoolv1alpha1 "seatpool.dev/api/v1alpha1"
	"seatpool.dev/internal/checkout"
)

// statusDelay is how long a change of a pool's leases waits for others like it
// before the status is brought up to date: half of the second it may be behind,
// which leaves the other half for the work.
const statusDelay = 500 * time.Millisecond

// Refresher brings the status of a pool up to date. It is implemented by
// checkout.Committers.
type Refresher interface {
	Observe(pool *seatpoolv1alpha1.SeatPool)
	Refresh(ctx context.Context, pool types.NamespacedName) (time.Duration, error)
}

// SeatPoolReconciler keeps the status of pools up to date when leases come, end
// or expire and when the pool itself is changed. Heartbeats do not concern it.
type SeatPoolReconciler struct {
	// Pools reads pools out of memory.
	Pools      client.Reader
	Committers Refresher
	Index      *checkout.Index
}

// +kubebuilder:rbac:groups=seatpool.dev,resources=seatpools,verbs=get;list;watch
// +kubebuilder:rbac:groups=seatpool.dev,resources=seatpools/status,verbs=get;update;patch
// +kubebuilder:rbac:groups=seatpool.dev,resources=seatleases,verbs=get;list;watch;delete
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch
// +kubebuilder:rbac:groups="",resources=events,verbs=create;patch

// SetupWithManager registers the reconciler.
func (r *SeatPoolReconciler) SetupWithManager(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("seatpool").
		For(&seatpoolv1alpha1.SeatPool{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		// A reservation whose create fails is followed by no event of a lease.
		Watches(&seatpoolv1alpha1.SeatPool{}, handler.Funcs{UpdateFunc: refreshReserved}).
		WatchesRawSource(leaseEvents(r.Index, func(queue queue, event checkout.Event) {
			if event.Kind != checkout.LeaseRenewed {
				queue.AddAfter(reconcile.Request{NamespacedName: event.Pool}, statusDelay)
			}
		})).
		WithOptions(controller.Options{MaxConcurrentReconciles: 4}).
		Complete(r)
}

// Reconcile brings the status of one pool up to date. It comes back when the
// status changes by time alone.
func (r *SeatPoolReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	pool := &seatpoolv1alpha1.SeatPool{}
	if err := r.Pools.Get(ctx, req.NamespacedName, pool); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err) // its leases run out and are reaped
	}
	// The committer must not take an older version for the newest than the one
	// this call is about.
	r.Committers.Observe(pool)
	next, err := r.Committers.Refresh(ctx, req.NamespacedName)
	if err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: next}, nil
}

// refreshReserved has a pool looked at while it has reservations to resolve.
func refreshReserved(_ context.Context, e event.UpdateEvent, queue queue) {
	pool, ok := e.ObjectNew.(*seatpoolv1alpha1.SeatPool)
	if ok && len(pool.Status.Reservations) > 0 {
		queue.AddAfter(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(pool)}, statusDelay)
	}
}

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// leaseEvents is a source of the index's events. What was in the index before
// the controller started comes first, as found.
func leaseEvents(index *checkout.Index, handle func(queue, checkout.Event)) source.Source {
	return source.Func(func(ctx context.Context, queue queue) error {
		index.Follow(ctx, func(event checkout.Event) { handle(queue, event) })
		return nil
	})
}
