// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package checkout

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	seatpoolv1alpha1 "seatpool.dev/api/v1alpha1"
	"seatpool.dev/internal/ledger"
)

// poolNameField is the selectable field of SeatLease that carries the name of
// its pool.
const poolNameField = "spec.poolRef.name"

// direct is the API over a client that reads from the API server itself.
type direct struct {
	client client.Client
}

// NewAPI returns the API over a client, which must not read from a cache.
func NewAPI(c client.Client) API { return direct{client: c} }

func (d direct) GetPool(ctx context.Context, key types.NamespacedName) (*seatpoolv1alpha1.SeatPool, error) {
	pool := &seatpoolv1alpha1.SeatPool{}
	if err := d.client.Get(ctx, key, pool); err != nil {
		return nil, err
	}
	return pool, nil
}

func (d direct) UpdatePoolStatus(ctx context.Context, pool *seatpoolv1alpha1.SeatPool) (*seatpoolv1alpha1.SeatPool, error) {
	// The client decodes the answer into what it is given, and the pool may be
	// a cache's. The API server keeps the managed fields that are not sent.
	updated := pool.DeepCopy()
	updated.ManagedFields = nil
	if err := d.client.Status().Update(ctx, updated); err != nil {
		return nil, err
	}
	return updated, nil
}

func (d direct) ListLeases(ctx context.Context, pool types.NamespacedName) ([]ledger.Lease, string, error) {
	list := &seatpoolv1alpha1.SeatLeaseList{}
	if err := d.client.List(ctx, list, client.MatchingFields{poolNameField: pool.Name}); err != nil {
		return nil, "", err
	}
	leases := make([]ledger.Lease, 0, len(list.Items))
	for i := range list.Items {
		if list.Items[i].Pool() == pool {
			leases = append(leases, ledger.LeaseOf(&list.Items[i]))
		}
	}
	return leases, list.ResourceVersion, nil
}

func (d direct) DeleteLease(ctx context.Context, lease ledger.Lease) error {
	object := &seatpoolv1alpha1.SeatLease{}
	object.Namespace, object.Name = lease.Key.Namespace, lease.Key.Name
	return d.client.Delete(ctx, object, client.Preconditions{UID: &lease.UID, ResourceVersion: &lease.ResourceVersion})
}
