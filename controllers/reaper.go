// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	seatpoolv1alpha1 "seatpool.dev/api/v1alpha1"
	"seatpool.dev/internal/checkout"
	"seatpool.dev/internal/clock"
	"seatpool.dev/internal/ledger"
	"seatpool.dev/internal/metrics"
)

// reapersAtOnce is how many leases are deleted at the same time. A delete is
// nearly all waiting for the store.
const reapersAtOnce = 16

// Reaper deletes leases whose time is long over. Each lease is looked at when
// its grace has passed; a renewal meanwhile is noticed then, and costs nothing
// when it happens.
type Reaper struct {
	// Client reads from the API server itself.
	Client client.Client
	// Pools reads pools out of memory.
	Pools    client.Reader
	Index    *checkout.Index
	Clock    *clock.Clock
	Recorder events.EventRecorder
}

// SetupWithManager registers the reaper.
func (r *Reaper) SetupWithManager(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("reaper").
		WatchesRawSource(leaseEvents(r.Index, func(queue queue, event checkout.Event) {
			switch event.Kind {
			case checkout.LeaseFound, checkout.LeaseCreated:
				queue.Add(reconcile.Request{NamespacedName: event.Lease.Key})
			case checkout.LeaseEnded:
				countEnd(event.Lease, r.Clock.Now())
			case checkout.LeaseRenewed, checkout.LeaseChanged:
			}
		})).
		// A pool's grace may be changed, or the pool deleted.
		Watches(&seatpoolv1alpha1.SeatPool{}, handler.EnqueueRequestsFromMapFunc(r.leasesOf),
			builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WithOptions(controller.Options{MaxConcurrentReconciles: reapersAtOnce}).
		Complete(r)
}

// Reconcile reaps one lease, or comes back when its time has come.
func (r *Reaper) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	lease, poolKey, ok := r.Index.Lease(req.NamespacedName)
	if !ok || lease.Terminating {
		return ctrl.Result{}, nil // gone, or going
	}
	pool, err := r.pool(ctx, poolKey)
	if err != nil {
		return ctrl.Result{}, err
	}
	// The version judged is the version deleted: if the index is behind and the
	// lease has been renewed meanwhile, the delete conflicts and the lease is
	// judged again as it is.
	wait, err := r.reap(ctx, pool, lease)
	if apierrors.IsConflict(err) {
		lease, ok, err = r.read(ctx, req.NamespacedName)
		if err != nil || !ok || lease.Terminating {
			return ctrl.Result{}, err
		}
		wait, err = r.reap(ctx, pool, lease)
	}
	return ctrl.Result{RequeueAfter: wait}, client.IgnoreNotFound(err)
}

// reap deletes exactly the given version of the lease, or returns how long to
// wait for that.
func (r *Reaper) reap(ctx context.Context, pool *seatpoolv1alpha1.SeatPool, lease ledger.Lease) (time.Duration, error) {
	now := r.Clock.Judge(pool.TTL())
	due := lease.ExpiresAt.Add(pool.ReapGrace())
	if wait := due.Sub(now); wait > 0 {
		if held := r.Clock.Held(pool.TTL()); held > 0 && !r.Clock.Now().Before(due) {
			r.Recorder.Eventf(checkout.EventRegarding(pool), nil, corev1.EventTypeWarning, seatpoolv1alpha1.EventReapingHeld, "Reap",
				"The operator's clock jumped forward: expired leases are not reaped for %s", held.Round(time.Second))
			wait = min(wait, held)
		}
		return wait, nil
	}
	if lease.LiveAt(now, pool.Skew()) {
		return pool.Skew(), nil // cannot be, since the grace is longer than the skew
	}
	object := &seatpoolv1alpha1.SeatLease{}
	object.Namespace, object.Name = lease.Key.Namespace, lease.Key.Name
	err := r.Client.Delete(ctx, object, client.Preconditions{UID: &lease.UID, ResourceVersion: &lease.ResourceVersion})
	if err != nil {
		return 0, err
	}
	r.report(pool, lease)
	return 0, nil
}

func (r *Reaper) report(pool *seatpoolv1alpha1.SeatPool, lease ledger.Lease) {
	metrics.Reaped.Inc()
	if lease.SeatID == "" {
		r.Recorder.Eventf(checkout.EventRegarding(pool), nil, corev1.EventTypeWarning, seatpoolv1alpha1.EventReaped, "Reap",
			"Lease %s carried no grant and was deleted", lease.Key)
		return
	}
	metrics.DeadSeatSeconds.Observe(max(r.Clock.Now().Sub(lease.ExpiresAt), 0).Seconds())
	r.Recorder.Eventf(checkout.EventRegarding(pool), nil, corev1.EventTypeNormal, seatpoolv1alpha1.EventReaped, "Reap",
		"Lease %s expired at %s and was deleted", lease.Key, lease.ExpiresAt.UTC().Format(time.RFC3339))
}

// pool returns the pool, or one with the defaults when there is none any more:
// the leases of a deleted pool run out and are reaped like any other.
func (r *Reaper) pool(ctx context.Context, key types.NamespacedName) (*seatpoolv1alpha1.SeatPool, error) {
	pool := &seatpoolv1alpha1.SeatPool{}
	err := r.Pools.Get(ctx, key, pool)
	if apierrors.IsNotFound(err) {
		pool.Namespace, pool.Name = key.Namespace, key.Name
		return pool, nil
	}
	return pool, err
}

// read reads a lease as it is now.
func (r *Reaper) read(ctx context.Context, key types.NamespacedName) (ledger.Lease, bool, error) {
	lease := &seatpoolv1alpha1.SeatLease{}
	if err := r.Client.Get(ctx, key, lease); err != nil {
		return ledger.Lease{}, false, client.IgnoreNotFound(err)
	}
	return ledger.LeaseOf(lease), true, nil
}

func (r *Reaper) leasesOf(_ context.Context, pool client.Object) []reconcile.Request {
	var requests []reconcile.Request
	for _, lease := range r.Index.Leases(client.ObjectKeyFromObject(pool)) {
		requests = append(requests, reconcile.Request{NamespacedName: lease.Key})
	}
	return requests
}

// countEnd counts a lease that is gone.
func countEnd(lease ledger.Lease, now time.Time) {
	end := metrics.EndReleased
	if now.After(lease.ExpiresAt) {
		end = metrics.EndExpired
	}
	renewed := "true"
	if lease.IssuedAt.Equal(lease.AcquiredAt) {
		renewed = "false"
	}
	metrics.LeasesEnded.WithLabelValues(end, renewed).Inc()
}
