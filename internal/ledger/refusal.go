// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	seatpoolv1alpha1 "seatpool.dev/api/v1alpha1"
)

// maxRetryAfter bounds the hint when to ask again. The soonest expiry is often
// pushed back by a renewal, and a release can come at any time: somebody who
// waits for a seat should look again every half minute at least.
const maxRetryAfter = 30 * time.Second

// Refusal is the answer to a checkout or renewal that is not granted. Its
// reason is one of the refusal reasons of the API package, or a standard one.
// It is an error that carries a metav1.Status, which is what the client sees.
type Refusal struct {
	status metav1.Status
}

// Error returns the sentence for people.
func (r *Refusal) Error() string { return r.status.Message }

// Status implements k8s.io/apimachinery/pkg/api/errors.APIStatus.
func (r *Refusal) Status() metav1.Status { return r.status }

// Reason returns what a program acts on.
func (r *Refusal) Reason() string { return string(r.status.Reason) }

func refuse(code int32, reason, kind string, key types.NamespacedName, format string, args ...any) *Refusal {
	return &Refusal{status: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    code,
		Reason:  metav1.StatusReason(reason),
		Message: fmt.Sprintf(format, args...),
		Details: &metav1.StatusDetails{Group: seatpoolv1alpha1.GroupName, Kind: kind, Name: key.Name},
	}}
}

const (
	kindPools  = "seatpools"
	kindLeases = "seatleases"
)

// SeatsExhausted says that every seat is in use. soonest is the soonest expiry
// of a lease in use, zero when there is none.
func SeatsExhausted(pool *seatpoolv1alpha1.SeatPool, used int, soonest, now time.Time) *Refusal {
	key := types.NamespacedName{Namespace: pool.Namespace, Name: pool.Name}
	retry := maxRetryAfter
	if !soonest.IsZero() {
		retry = min(max(soonest.Add(pool.Skew()).Sub(now), time.Second), maxRetryAfter)
	}
	seconds := int32(math.Ceil(retry.Seconds()))

	var r *Refusal
	switch seats := pool.Seats(); {
	case seats == 0:
		r = refuse(http.StatusConflict, seatpoolv1alpha1.ReasonSeatsExhausted, kindPools, key,
			"pool %s has no seats: its spec.seats is 0; ask the pool's owner", key)
	case used > seats:
		r = refuse(http.StatusConflict, seatpoolv1alpha1.ReasonSeatsExhausted, kindPools, key,
			"%d seats of pool %s are in use, %d more than the %d it has; try again in %d s", used, key, used-seats, seats, seconds)
	case seats == 1:
		r = refuse(http.StatusConflict, seatpoolv1alpha1.ReasonSeatsExhausted, kindPools, key,
			"the only seat of pool %s is in use; try again in %d s", key, seconds)
	default:
		r = refuse(http.StatusConflict, seatpoolv1alpha1.ReasonSeatsExhausted, kindPools, key,
			"all %d seats of pool %s are in use; try again in %d s", seats, key, seconds)
	}
	r.status.Details.RetryAfterSeconds = seconds
	r.status.Details.Causes = []metav1.StatusCause{
		{Type: seatpoolv1alpha1.CauseSeatsInUse, Message: strconv.Itoa(used)},
		{Type: seatpoolv1alpha1.CauseMaxSeats, Message: strconv.Itoa(pool.Seats())},
	}
	if !soonest.IsZero() {
		r.status.Details.Causes = append(r.status.Details.Causes, metav1.StatusCause{
			Type: seatpoolv1alpha1.CauseSoonestExpiry, Message: soonest.UTC().Format(time.RFC3339),
		})
	}
	return r
}

// AlreadyHeld says that the installation holds a live seat as another lease.
func AlreadyHeld(pool types.NamespacedName, instanceID string, lease types.NamespacedName) *Refusal {
	r := refuse(http.StatusConflict, seatpoolv1alpha1.ReasonAlreadyHeld, kindLeases, lease,
		"instance %q already holds a seat of pool %s as lease %s: renew or release that lease, or use another instanceID",
		instanceID, pool, lease)
	r.status.Details.Causes = []metav1.StatusCause{
		{Type: seatpoolv1alpha1.CauseLeaseNamespace, Message: lease.Namespace},
		{Type: seatpoolv1alpha1.CauseLeaseName, Message: lease.Name},
	}
	return r
}

// AlreadyExists says that a lease of that name is there already.
func AlreadyExists(lease Lease) *Refusal {
	if lease.Terminating {
		return refuse(http.StatusConflict, string(metav1.StatusReasonAlreadyExists), kindLeases, lease.Key,
			"lease %s is being deleted but still exists: wait until it is gone, or use another name", lease.Key)
	}
	return refuse(http.StatusConflict, string(metav1.StatusReasonAlreadyExists), kindLeases, lease.Key,
		"lease %s already exists: renew it, or release it before you check out again under its name", lease.Key)
}

// SeatLost says that a lease is not live any more and cannot be renewed.
func SeatLost(lease types.NamespacedName, expiresAt time.Time, deleting bool) *Refusal {
	switch {
	case deleting:
		return refuse(http.StatusGone, seatpoolv1alpha1.ReasonSeatLost, kindLeases, lease,
			"lease %s is being deleted and cannot be renewed: check out again", lease)
	case expiresAt.IsZero():
		return refuse(http.StatusGone, seatpoolv1alpha1.ReasonSeatLost, kindLeases, lease,
			"lease %s carries no seat and cannot be renewed: delete it and check out again", lease)
	default:
		return refuse(http.StatusGone, seatpoolv1alpha1.ReasonSeatLost, kindLeases, lease,
			"lease %s expired at %s and its seat is lost: check out again", lease, expiresAt.UTC().Format(time.RFC3339))
	}
}

// PoolNotFound says that there is no such pool.
func PoolNotFound(pool types.NamespacedName) *Refusal {
	return refuse(http.StatusNotFound, seatpoolv1alpha1.ReasonPoolNotFound, kindPools, pool,
		"there is no pool %s: check spec.poolRef, or ask the pool's owner", pool)
}

// NamespaceNotAllowed says that the pool does not serve the lease's namespace.
func NamespaceNotAllowed(pool types.NamespacedName, namespace string) *Refusal {
	return refuse(http.StatusForbidden, seatpoolv1alpha1.ReasonNamespaceNotAllowed, kindPools, pool,
		"pool %s does not allow leases in namespace %s: ask the pool's owner to extend spec.allowedNamespaces", pool, namespace)
}

// NotRequester says that somebody else's lease cannot be renewed.
func NotRequester(lease types.NamespacedName, user string) *Refusal {
	return refuse(http.StatusForbidden, seatpoolv1alpha1.ReasonNotRequester, kindLeases, lease,
		"user %q did not create lease %s and may not renew it: renew as its requester, or ask for the verb %q on seatleases",
		user, lease, seatpoolv1alpha1.VerbManage)
}

// NoGrant says that a lease reached the checkout without a usable grant.
func NoGrant(why string) *Refusal {
	return refuse(http.StatusForbidden, seatpoolv1alpha1.ReasonNoGrant, kindLeases, types.NamespacedName{},
		"the lease carries no grant of this operator (%s): ask the cluster's admin whether the mutating webhook configuration seatpool-mutating is in place", why)
}

// Busy says that no decision could be made in time and nothing was granted.
func Busy(pool types.NamespacedName, why string) *Refusal {
	r := refuse(http.StatusTooManyRequests, seatpoolv1alpha1.ReasonBusy, kindPools, pool,
		"pool %s could not decide now, nothing was granted: %s; try again in 1 s", pool, why)
	r.status.Details.RetryAfterSeconds = 1
	return r
}

// Usable returns why nothing can be checked out of or renewed in the pool at
// now, or nil.
func Usable(pool *seatpoolv1alpha1.SeatPool, now time.Time) *Refusal {
	key := types.NamespacedName{Namespace: pool.Namespace, Name: pool.Name}
	spec := &pool.Spec
	switch {
	case pool.DeletionTimestamp != nil:
		return refuse(http.StatusNotFound, seatpoolv1alpha1.ReasonPoolNotFound, kindPools, key,
			"pool %s is being deleted: it grants and renews nothing any more", key)
	case spec.NotAfter != nil && !now.Before(spec.NotAfter.Time):
		return refuse(http.StatusGone, seatpoolv1alpha1.ReasonPoolExpired, kindPools, key,
			"the licence of pool %s ended at %s: ask the pool's owner to renew it", key, spec.NotAfter.UTC().Format(time.RFC3339))
	case pool.Suspended():
		return refuse(http.StatusConflict, seatpoolv1alpha1.ReasonPoolSuspended, kindPools, key,
			"pool %s is suspended: ask the pool's owner", key)
	case spec.NotBefore != nil && now.Before(spec.NotBefore.Time):
		return refuse(http.StatusConflict, seatpoolv1alpha1.ReasonPoolSuspended, kindPools, key,
			"the licence of pool %s begins at %s: try again then", key, spec.NotBefore.UTC().Format(time.RFC3339))
	}
	return nil
}
