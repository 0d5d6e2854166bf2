// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"time"

	"gomodules.xyz/jsonpatch/v2"
	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	seatpoolv1alpha1 "seatpool.dev/api/v1alpha1"
	"seatpool.dev/internal/ledger"
	"seatpool.dev/internal/metrics"
	"seatpool.dev/internal/token"
)

// Clock tells the time. It is implemented by clock.Clock.
type Clock interface {
	Now() time.Time
	Judge(hold time.Duration) time.Time
}

// Pools reads pools.
type Pools interface {
	// Cached returns a pool out of memory, or nil when it is not there.
	Cached(key types.NamespacedName) *seatpoolv1alpha1.SeatPool
	// Read reads a pool from the API server. It fails with a not-found error
	// when there is none.
	Read(ctx context.Context, key types.NamespacedName) (*seatpoolv1alpha1.SeatPool, error)
}

// Signer signs leases and checks its own signature.
type Signer interface {
	// Sign returns the token for the lease as it is.
	Sign(lease *seatpoolv1alpha1.SeatLease, product string) (string, error)
	// Verify returns an error, fit for people, unless the lease carries a token
	// that was signed for it as it is.
	Verify(ctx context.Context, lease *seatpoolv1alpha1.SeatLease) error
}

// Managers knows who may renew the leases of others.
type Managers interface {
	// MayManage reports whether the user holds the verb manage on the lease.
	MayManage(ctx context.Context, user UserInfo, lease types.NamespacedName) (bool, error)
}

// Grant is the mutating step for SeatLeases. On create it stamps the grant that
// the validating step will check out; on update it renews. It touches nothing
// but memory, so that an invalid manifest costs nothing and a heartbeat little:
// only a pool this replica has not heard of yet is read from the API server, and
// only a user who renews somebody else's lease is asked about.
type Grant struct {
	Decoder  admission.Decoder
	Clock    Clock
	Pools    Pools
	Signer   Signer
	Managers Managers
}

// Handle implements admission.Handler.
func (g *Grant) Handle(ctx context.Context, req admission.Request) admission.Response {
	switch req.Operation {
	case admissionv1.Create:
		return g.stamp(ctx, req)
	case admissionv1.Update:
		return g.update(ctx, req)
	default:
		return admission.Allowed("")
	}
}

// stamp writes the grant on a lease that is being created.
func (g *Grant) stamp(ctx context.Context, req admission.Request) admission.Response {
	lease, err := decode(g.Decoder, req.Object)
	if err != nil || lease.Spec.PoolRef.Name == "" {
		// What cannot be read, or names no pool, is what the schema refuses in
		// the next step, with the field and the rule. Without a stamp the
		// checkout would refuse it too.
		return admission.Allowed("")
	}
	lease.Namespace = req.Namespace
	if violations := handSet(lease.Status, seatpoolv1alpha1.SeatLeaseStatus{}); len(violations) > 0 {
		return invalid(types.NamespacedName{Namespace: req.Namespace, Name: lease.Name}, violations)
	}
	pool, err := g.pool(ctx, lease.Pool())
	if err != nil {
		return refused(err)
	}

	now := g.Clock.Now()
	if notAfter := pool.Spec.NotAfter; notAfter != nil && !now.Before(notAfter.Time) {
		// There is no term to stamp, unless the licence has just been renewed.
		if pool, err = g.read(ctx, lease.Pool()); err != nil {
			return refused(err)
		}
		if refusal := ledger.Usable(pool, now); refusal != nil {
			return refused(refusal)
		}
	}
	term := ledger.NewTerm(pool, now, time.Time{})
	lease.Status = seatpoolv1alpha1.SeatLeaseStatus{
		SeatID:     newSeatID(),
		AcquiredAt: metav1.NewTime(term.IssuedAt),
		Requester:  req.UserInfo.Username,
	}
	return g.grant(req, lease, pool, term, now)
}

// update renews a lease whose heartbeat has changed, and keeps the status from
// being written by anybody else.
func (g *Grant) update(ctx context.Context, req admission.Request) admission.Response {
	// No later step keeps an update away that cannot be read, and with it the
	// status that somebody may have written there.
	lease, err := decode(g.Decoder, req.Object)
	if err != nil {
		return refused(unreadable(req.Name, err))
	}
	old, err := decode(g.Decoder, req.OldObject)
	if err != nil {
		return refused(unreadable(req.Name, err))
	}
	key := types.NamespacedName{Namespace: req.Namespace, Name: req.Name}
	if violations := handSet(lease.Status, old.Status); len(violations) > 0 {
		return invalid(key, violations)
	}
	if sameHeartbeat(lease.Spec.RenewTime, old.Spec.RenewTime) {
		return restored(lease, old)
	}

	begun := g.Clock.Now()
	response := g.renew(ctx, req, key, lease, old)
	if req.DryRun == nil || !*req.DryRun {
		metrics.Renewals.WithLabelValues(outcomeOf(response), reasonOf(response)).Inc()
		metrics.RenewalSeconds.WithLabelValues(outcomeOf(response)).Observe(max(g.Clock.Now().Sub(begun), 0).Seconds())
	}
	return response
}

func (g *Grant) renew(ctx context.Context, req admission.Request, key types.NamespacedName, lease, old *seatpoolv1alpha1.SeatLease) admission.Response {
	if err := g.mayRenew(ctx, req, key, old); err != nil {
		return refused(err)
	}
	if old.DeletionTimestamp != nil {
		return refused(ledger.SeatLost(key, old.Status.ExpiresAt.Time, true))
	}
	pool, err := g.pool(ctx, old.Pool())
	if err != nil {
		return refused(err)
	}
	now := g.Clock.Now()
	if refusal := ledger.Renewable(old, pool, g.Clock.Judge(pool.TTL()), now); refusal != nil {
		return refused(refusal)
	}
	lease.Status = old.Status
	return g.grant(req, lease, pool, ledger.NewTerm(pool, now, old.Status.ExpiresAt.Time), now)
}

func (g *Grant) mayRenew(ctx context.Context, req admission.Request, key types.NamespacedName, old *seatpoolv1alpha1.SeatLease) error {
	if req.UserInfo.Username == old.Status.Requester || old.Status.Requester == "" {
		return nil
	}
	allowed, err := g.Managers.MayManage(ctx, UserInfo(req.UserInfo), key)
	if err != nil {
		return ledger.Busy(old.Pool(), "the API server did not say whether you may manage leases")
	}
	if !allowed {
		return ledger.NotRequester(key, req.UserInfo.Username)
	}
	return nil
}

// grant writes the term and its signature on the lease. A dry run is given no
// token, because a token is good wherever it is shown.
func (g *Grant) grant(req admission.Request, lease *seatpoolv1alpha1.SeatLease, pool *seatpoolv1alpha1.SeatPool, term ledger.Term, now time.Time) admission.Response {
	renewTime := metav1.NewMicroTime(now)
	lease.Spec.RenewTime = &renewTime
	lease.Status.IssuedAt = metav1.NewTime(term.IssuedAt)
	lease.Status.ExpiresAt = metav1.NewTime(term.ExpiresAt)
	lease.Status.RenewAfterSeconds = term.RenewAfterSeconds
	lease.Status.Token = ""
	if req.DryRun == nil || !*req.DryRun {
		signed, err := g.Signer.Sign(lease, pool.ProductName())
		switch {
		case errors.Is(err, token.ErrTooLong) && req.Operation == admissionv1.Create:
			return admission.Allowed("") // a name is longer than the schema allows, which refuses it
		case err != nil:
			return refused(ledger.Busy(lease.Pool(), "the lease could not be signed"))
		}
		lease.Status.Token = signed
	}
	return admission.Patched("",
		jsonpatch.NewOperation("add", "/spec/renewTime", lease.Spec.RenewTime),
		jsonpatch.NewOperation("add", "/status", lease.Status),
	)
}

// pool returns the pool out of memory. One that is not there may have been
// created a moment ago, so the API server is asked before anybody is told that
// it does not exist.
func (g *Grant) pool(ctx context.Context, key types.NamespacedName) (*seatpoolv1alpha1.SeatPool, error) {
	if pool := g.Pools.Cached(key); pool != nil {
		return pool, nil
	}
	return g.read(ctx, key)
}

func (g *Grant) read(ctx context.Context, key types.NamespacedName) (*seatpoolv1alpha1.SeatPool, error) {
	pool, err := g.Pools.Read(ctx, key)
	switch {
	case apierrors.IsNotFound(err):
		return nil, ledger.PoolNotFound(key)
	case err != nil:
		return nil, ledger.Busy(key, "the API server did not answer")
	}
	return pool, nil
}

// restored puts back what an update dropped of the status.
func restored(lease, old *seatpoolv1alpha1.SeatLease) admission.Response {
	if equality.Semantic.DeepEqual(lease.Status, old.Status) {
		return admission.Allowed("")
	}
	return admission.Patched("", jsonpatch.NewOperation("add", "/status", old.Status))
}

// handSet returns the fields of the status that somebody has set to another
// value than they have. A client that drops fields it does not know is
// forgiven, and they are put back; one that writes them is told.
func handSet(status, old seatpoolv1alpha1.SeatLeaseStatus) field.ErrorList {
	path := field.NewPath("status")
	var violations field.ErrorList
	check := func(name string, set, same bool) {
		if set && !same {
			violations = append(violations, field.Forbidden(path.Child(name),
				"it is set by the operator only: leave out status; to renew, change spec.renewTime"))
		}
	}
	check("seatID", status.SeatID != "", status.SeatID == old.SeatID)
	check("acquiredAt", !status.AcquiredAt.IsZero(), status.AcquiredAt.Equal(&old.AcquiredAt))
	check("issuedAt", !status.IssuedAt.IsZero(), status.IssuedAt.Equal(&old.IssuedAt))
	check("expiresAt", !status.ExpiresAt.IsZero(), status.ExpiresAt.Equal(&old.ExpiresAt))
	check("renewAfterSeconds", status.RenewAfterSeconds != 0, status.RenewAfterSeconds == old.RenewAfterSeconds)
	check("requester", status.Requester != "", status.Requester == old.Requester)
	check("token", status.Token != "", status.Token == old.Token)
	return violations
}

func sameHeartbeat(a, b *metav1.MicroTime) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Equal(b)
}

// newSeatID returns 128 random bits in hex.
func newSeatID() string {
	var id [16]byte
	// crypto/rand never fails: it ends the process when the system has no
	// randomness.
	_, _ = rand.Read(id[:])
	return hex.EncodeToString(id[:])
}

// errNotSynced is why a replica that has just started decides nothing.
var errNotSynced = errors.New("this replica has just started and does not know all leases yet")
