// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	seatpoolv1alpha1 "seatpool.dev/api/v1alpha1"
)

// Status computes the whole status of the tallied pool: its reservations as
// they are after the tally's grants, the watermark, and the figures and
// conditions for people. refused says whether a checkout has just been refused
// because every seat is in use.
func (t *Tally) Status(watermark string, refused bool) seatpoolv1alpha1.SeatPoolStatus {
	old := &t.pool.Status
	inUse := int32(max(t.InUse(), 0))
	free := max(int32(t.pool.Seats())-inUse, 0)

	status := seatpoolv1alpha1.SeatPoolStatus{
		ObservedGeneration: t.pool.Generation,
		SeatsInUse:         &inUse,
		SeatsFree:          &free,
		PeakSeatsInUse:     old.PeakSeatsInUse,
		PeakTime:           old.PeakTime,
		Reservations:       t.pending,
		LeaseWatermark:     watermark,
	}
	if old.PeakSeatsInUse == nil || *old.PeakSeatsInUse < inUse {
		status.PeakSeatsInUse = &inUse
		if inUse > 0 {
			now := metav1.NewTime(t.now.UTC().Truncate(time.Second))
			status.PeakTime = &now
		}
	}

	for i := range old.Conditions {
		status.Conditions = append(status.Conditions, *old.Conditions[i].DeepCopy())
	}
	for _, condition := range t.conditions(int(inUse), int(free), refused) {
		condition.ObservedGeneration = t.pool.Generation
		condition.LastTransitionTime = metav1.NewTime(t.now.UTC().Truncate(time.Second))
		meta.SetStatusCondition(&status.Conditions, condition)
	}
	return status
}

func (t *Tally) conditions(inUse, free int, refused bool) []metav1.Condition {
	return []metav1.Condition{t.ready(), t.exhausted(free, refused), t.overCommitted(inUse)}
}

func (t *Tally) ready() metav1.Condition {
	no := func(reason, message string) metav1.Condition {
		return metav1.Condition{Type: seatpoolv1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: reason, Message: message}
	}
	spec := &t.pool.Spec
	switch {
	case t.pool.DeletionTimestamp != nil:
		return no(seatpoolv1alpha1.ReasonDeleting, "The pool is being deleted: nothing is granted or renewed")
	case spec.NotAfter != nil && !t.now.Before(spec.NotAfter.Time):
		return no(seatpoolv1alpha1.ReasonExpired, "The licence has ended (spec.notAfter): nothing is granted or renewed")
	case t.pool.Suspended():
		return no(seatpoolv1alpha1.ReasonSuspended, "The pool is suspended (spec.suspended): nothing is granted or renewed")
	case spec.NotBefore != nil && t.now.Before(spec.NotBefore.Time):
		return no(seatpoolv1alpha1.ReasonNotYetValid, "The licence has not begun (spec.notBefore): nothing is granted or renewed")
	}
	return metav1.Condition{
		Type: seatpoolv1alpha1.ConditionReady, Status: metav1.ConditionTrue,
		Reason: seatpoolv1alpha1.ReasonAccepting, Message: "Seats can be checked out and renewed",
	}
}

func (t *Tally) exhausted(free int, refused bool) metav1.Condition {
	condition := metav1.Condition{Type: seatpoolv1alpha1.ConditionExhausted, Status: metav1.ConditionTrue}
	before := meta.FindStatusCondition(t.pool.Status.Conditions, seatpoolv1alpha1.ConditionExhausted)
	refusedBefore := before != nil && before.Status == metav1.ConditionTrue && before.Reason == seatpoolv1alpha1.ReasonCheckoutsRefused
	switch {
	case free > 0:
		condition.Status = metav1.ConditionFalse
		condition.Reason = seatpoolv1alpha1.ReasonSeatsFree
		condition.Message = "Seats can be checked out"
	case t.pool.Seats() == 0:
		condition.Reason = seatpoolv1alpha1.ReasonNoSeats
		condition.Message = "The pool has no seats (spec.seats is 0)"
	case refused || refusedBefore:
		condition.Reason = seatpoolv1alpha1.ReasonCheckoutsRefused
		condition.Message = "Every seat is in use and checkouts have been refused"
	default:
		condition.Reason = seatpoolv1alpha1.ReasonAllSeatsInUse
		condition.Message = "Every seat is in use"
	}
	return condition
}

func (t *Tally) overCommitted(inUse int) metav1.Condition {
	over := inUse - t.pool.Seats()
	if over <= 0 {
		return metav1.Condition{
			Type: seatpoolv1alpha1.ConditionOverCommitted, Status: metav1.ConditionFalse,
			Reason: seatpoolv1alpha1.ReasonWithinSeats, Message: "No more seats are in use than the pool has",
		}
	}
	return metav1.Condition{
		Type: seatpoolv1alpha1.ConditionOverCommitted, Status: metav1.ConditionTrue,
		Reason:  seatpoolv1alpha1.ReasonSeatsExceeded,
		Message: fmt.Sprintf("%d of %d seats are in use, over by %d: holders keep theirs, nothing is granted until use is below %d", inUse, t.pool.Seats(), over, t.pool.Seats()),
	}
}

// Exhausted reports whether the pool's stored status says that every seat is in
// use, and whether it says that a checkout has been refused since.
func Exhausted(pool *seatpoolv1alpha1.SeatPool) (exhausted, refused bool) {
	condition := meta.FindStatusCondition(pool.Status.Conditions, seatpoolv1alpha1.ConditionExhausted)
	if condition == nil || condition.Status != metav1.ConditionTrue {
		return false, false
	}
	return true, condition.Reason == seatpoolv1alpha1.ReasonCheckoutsRefused || condition.Reason == seatpoolv1alpha1.ReasonNoSeats
}

// NextChange returns when the status of the pool changes next though nothing
// is written: a lease stops to be live, or the licence begins or ends. Zero
// means never.
func NextChange(pool *seatpoolv1alpha1.SeatPool, book Book, now time.Time) time.Time {
	var next time.Time
	consider := func(at time.Time) {
		if at.After(now) && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	if soonest, ok := book.Soonest(now.Add(-pool.Skew())); ok {
		// The first moment later than expiresAt + skew, at which it is not live.
		consider(soonest.Add(pool.Skew() + time.Millisecond))
	}
	if pool.Spec.NotBefore != nil {
		consider(pool.Spec.NotBefore.Time)
	}
	if pool.Spec.NotAfter != nil {
		consider(pool.Spec.NotAfter.Time)
	}
	return next
}
