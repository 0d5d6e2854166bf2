// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Live is the one predicate that everything rests on: whether a lease that
// exists still holds its seat at now. It does exactly when it is not being
// deleted and now is not later than expiresAt plus skew.
//
// Callers that hold a SeatLease use [SeatLease.LiveAt]; this form is for those
// that keep only the two facts it needs.
func Live(expiresAt time.Time, deleting bool, now time.Time, skew time.Duration) bool {
	return !deleting && !now.After(expiresAt.Add(skew))
}

// LiveAt reports whether the lease holds its seat at now, given the skew of
// its pool. A lease that carries no grant is not live.
func (l *SeatLease) LiveAt(now time.Time, skew time.Duration) bool {
	return l.Status.SeatID != "" &&
		Live(l.Status.ExpiresAt.Time, l.DeletionTimestamp != nil, now, skew)
}

// Pool returns the namespace and name of the pool the lease names.
func (l *SeatLease) Pool() types.NamespacedName {
	namespace := l.Spec.PoolRef.Namespace
	if namespace == "" {
		namespace = l.Namespace
	}
	return types.NamespacedName{Namespace: namespace, Name: l.Spec.PoolRef.Name}
}

// ProductName returns spec.product, or the pool's name when it is not set.
func (p *SeatPool) ProductName() string {
	if p.Spec.Product != "" {
		return p.Spec.Product
	}
	return p.Name
}

// Seats returns how many leases may be live at once.
func (p *SeatPool) Seats() int {
	if p.Spec.Seats == nil {
		return 0
	}
	return int(*p.Spec.Seats)
}

// TTL returns how long a checkout or a renewal lasts.
func (p *SeatPool) TTL() time.Duration {
	if p.Spec.TTLSeconds == 0 {
		return DefaultTTLSeconds * time.Second
	}
	return time.Duration(p.Spec.TTLSeconds) * time.Second
}

// RenewAfterSeconds returns after how many seconds holders are advised to
// renew: at least 1, and a third of the TTL when the pool does not say.
func (p *SeatPool) RenewAfterSeconds() int32 {
	if p.Spec.RenewAfterSeconds != nil {
		return *p.Spec.RenewAfterSeconds
	}
	return int32(max(p.TTL()/(3*time.Second), 1))
}

// Skew returns for how long after its expiry a lease still counts.
func (p *SeatPool) Skew() time.Duration {
	if p.Spec.SkewSeconds == nil {
		return DefaultSkewSeconds * time.Second
	}
	return time.Duration(*p.Spec.SkewSeconds) * time.Second
}

// ReapGrace returns how long after its expiry a lease is deleted.
func (p *SeatPool) ReapGrace() time.Duration {
	if p.Spec.ReapGraceSeconds == 0 {
		return DefaultReapGraceSeconds * time.Second
	}
	return time.Duration(p.Spec.ReapGraceSeconds) * time.Second
}

// Suspended reports whether the pool's owner has stopped checkouts and renewals.
func (p *SeatPool) Suspended() bool {
	return p.Spec.Suspended != nil && *p.Spec.Suspended
}
