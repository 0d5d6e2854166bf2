// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	seatpoolv1alpha1 "seatpool.dev/api/v1alpha1"
	"seatpool.dev/internal/ledger"
	"seatpool.dev/internal/metrics"
)

const (
	// maxGrantAge is how long before or after this replica's clock a grant may
	// have been stamped. The validating step follows the mutating one within
	// milliseconds, on another replica's clock perhaps; the API server gives
	// the whole request up after a minute.
	maxGrantAge = time.Minute

	// decideWithin is how long a checkout may take. The webhook configuration
	// gives it 10 s, and an answer of ours says more than a timeout.
	decideWithin = 8 * time.Second
)

// Committers record checkouts. It is implemented by checkout.Committers.
type Committers interface {
	Checkout(ctx context.Context, pool types.NamespacedName, req ledger.Request) error
}

// Namespaces knows the labels of namespaces.
type Namespaces interface {
	Labels(ctx context.Context, namespace string) (map[string]string, error)
}

// Checkout is the validating step for SeatLeases that are being created. It
// runs after the schema has been checked, when name and UID are known, right
// before the object is stored: reserving any earlier would let invalid
// manifests take seats.
type Checkout struct {
	Decoder    admission.Decoder
	Clock      Clock
	Signer     Signer
	Committers Committers
	Namespaces Namespaces
	// Synced reports whether this replica knows all leases.
	Synced func() bool
}

// Handle implements admission.Handler.
func (c *Checkout) Handle(ctx context.Context, req admission.Request) admission.Response {
	begun := c.Clock.Now()
	response := admission.Allowed("")
	if err := c.checkout(ctx, req); err != nil {
		response = refused(err)
	}
	if req.DryRun == nil || !*req.DryRun {
		metrics.Checkouts.WithLabelValues(outcomeOf(response), reasonOf(response)).Inc()
		metrics.CheckoutSeconds.WithLabelValues(outcomeOf(response)).Observe(max(c.Clock.Now().Sub(begun), 0).Seconds())
	}
	return response
}

func (c *Checkout) checkout(ctx context.Context, req admission.Request) error {
	lease, err := decode(c.Decoder, req.Object)
	if err != nil {
		return unreadable(req.Name, err)
	}
	lease.Namespace, lease.Name = req.Namespace, req.Name
	pool := lease.Pool()
	dryRun := req.DryRun != nil && *req.DryRun
	if err := c.checkGrant(ctx, req, lease, dryRun); err != nil {
		return err
	}
	if !c.Synced() {
		return ledger.Busy(pool, errNotSynced.Error())
	}
	labels, err := c.Namespaces.Labels(ctx, lease.Namespace)
	if err != nil {
		return ledger.Busy(pool, "the labels of namespace "+lease.Namespace+" could not be read")
	}

	ctx, cancel := context.WithTimeout(ctx, decideWithin)
	defer cancel()
	return c.Committers.Checkout(ctx, pool, ledger.Request{
		Key:             types.NamespacedName{Namespace: lease.Namespace, Name: lease.Name},
		UID:             lease.UID,
		SeatID:          lease.Status.SeatID,
		InstanceID:      lease.Spec.Holder.InstanceID,
		ExpiresAt:       lease.Status.ExpiresAt.Time,
		NamespaceLabels: labels,
		DryRun:          dryRun,
	})
}

// checkGrant makes sure that the lease carries a grant which this operator
// stamped for this very request.
func (c *Checkout) checkGrant(ctx context.Context, req admission.Request, lease *seatpoolv1alpha1.SeatLease, dryRun bool) error {
	switch age := c.Clock.Now().Sub(lease.Status.IssuedAt.Time); {
	case lease.Status.SeatID == "":
		return ledger.NoGrant("status.seatID is empty")
	case lease.Status.Requester != req.UserInfo.Username:
		return ledger.NoGrant("it was granted to another user")
	case age.Abs() > maxGrantAge:
		return ledger.NoGrant("it was not granted just now; the clocks of the operator's replicas may be apart")
	case dryRun:
		return nil // which is given no token
	}
	if err := c.Signer.Verify(ctx, lease); err != nil {
		return ledger.NoGrant(err.Error())
	}
	return nil
}
