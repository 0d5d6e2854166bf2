// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	seatpoolv1alpha1 "seatpool.dev/api/v1alpha1"
)

// Lease is what counting needs to know of a lease in existence.
type Lease struct {
	// Key is the namespace and name of the lease.
	Key types.NamespacedName
	// UID tells this lease from an earlier one of the same name.
	UID types.UID
	// ResourceVersion is the version these facts were read at. Deleting with
	// it as a precondition fails when the lease has been renewed since.
	ResourceVersion string
	// SeatID is the seat granted, empty when the lease carries no grant.
	SeatID string
	// InstanceID is the installation that holds the seat, empty when the
	// holder did not say.
	InstanceID string
	// IssuedAt is when the lease was last extended.
	IssuedAt time.Time
	// ExpiresAt is the lease's signed expiry.
	ExpiresAt time.Time
	// AcquiredAt is when the seat was checked out.
	AcquiredAt time.Time
	// Terminating is true when the lease carries a deletionTimestamp.
	Terminating bool
}

// LiveAt is the predicate of [seatpoolv1alpha1.Live] for this lease.
func (l Lease) LiveAt(now time.Time, skew time.Duration) bool {
	return l.SeatID != "" && seatpoolv1alpha1.Live(l.ExpiresAt, l.Terminating, now, skew)
}

// LeaseOf extracts from a SeatLease what counting needs.
func LeaseOf(lease *seatpoolv1alpha1.SeatLease) Lease {
	return Lease{
		Key:             types.NamespacedName{Namespace: lease.Namespace, Name: lease.Name},
		UID:             lease.UID,
		ResourceVersion: lease.ResourceVersion,
		SeatID:          lease.Status.SeatID,
		InstanceID:      lease.Spec.Holder.InstanceID,
		IssuedAt:        lease.Status.IssuedAt.Time,
		ExpiresAt:       lease.Status.ExpiresAt.Time,
		AcquiredAt:      lease.Status.AcquiredAt.Time,
		Terminating:     lease.DeletionTimestamp != nil,
	}
}
