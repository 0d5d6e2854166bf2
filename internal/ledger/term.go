// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	seatpoolv1alpha1 "seatpool.dev/api/v1alpha1"
)

// Term is the time a checkout or a renewal gives. Times are whole seconds, as
// they are in the stored lease and in the signed token.
type Term struct {
	IssuedAt          time.Time
	ExpiresAt         time.Time
	RenewAfterSeconds int32
}

// NewTerm returns the term that the pool gives at now: its TTL, cut at its
// notAfter.
//
// It never ends before signedUntil, the expiry the lease has already: the
// holder has that in writing and may use the seat until then, so taking it
// back would give one seat to two. A lowered TTL or notAfter therefore shows as
// a renewal that does not extend.
func NewTerm(pool *seatpoolv1alpha1.SeatPool, now, signedUntil time.Time) Term {
	issued := now.UTC().Truncate(time.Second)
	expires := issued.Add(pool.TTL())
	if notAfter := pool.Spec.NotAfter; notAfter != nil && expires.After(notAfter.Time) {
		expires = notAfter.UTC()
	}
	if expires.Before(signedUntil) {
		expires = signedUntil.UTC()
	}
	return Term{IssuedAt: issued, ExpiresAt: expires, RenewAfterSeconds: pool.RenewAfterSeconds()}
}

// Renewable returns why the lease cannot be renewed, or nil. judge is the time
// by which liveness is judged, now the time of the renewal; they differ only
// while the operator distrusts its own wall clock.
func Renewable(lease *seatpoolv1alpha1.SeatLease, pool *seatpoolv1alpha1.SeatPool, judge, now time.Time) *Refusal {
	key := types.NamespacedName{Namespace: lease.Namespace, Name: lease.Name}
	if !lease.LiveAt(judge, pool.Skew()) {
		return SeatLost(key, lease.Status.ExpiresAt.Time, lease.DeletionTimestamp != nil)
	}
	return Usable(pool, now)
}

// AllowsNamespace returns why leases of the pool may not be in the namespace
// with those labels, or nil.
func AllowsNamespace(pool *seatpoolv1alpha1.SeatPool, namespace string, namespaceLabels map[string]string) *Refusal {
	from := seatpoolv1alpha1.NamespacesFromSame
	if pool.Spec.AllowedNamespaces != nil {
		from = pool.Spec.AllowedNamespaces.From
	}
	switch from {
	case seatpoolv1alpha1.NamespacesFromAll:
		return nil
	case seatpoolv1alpha1.NamespacesFromSelector:
		selector, err := metav1.LabelSelectorAsSelector(pool.Spec.AllowedNamespaces.Selector)
		if err != nil {
			break // a selector that cannot be read selects nothing
		}
		if selector.Matches(labels.Set(namespaceLabels)) {
			return nil
		}
	default: // Same, and omitted
		if namespace == pool.Namespace {
			return nil
		}
	}
	return NamespaceNotAllowed(types.NamespacedName{Namespace: pool.Namespace, Name: pool.Name}, namespace)
}
