// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package checkout

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"

	seatpoolv1alpha1 "seatpool.dev/api/v1alpha1"
	"seatpool.dev/internal/ledger"
	"seatpool.dev/internal/metrics"
)

// EventRegarding returns the pool as the subject of an Event. Without its
// resourceVersion, so that many alike are counted in one Event instead of
// written one by one: a fleet that expires at once must not flood the API server.
func EventRegarding(pool *seatpoolv1alpha1.SeatPool) *seatpoolv1alpha1.SeatPool {
	return &seatpoolv1alpha1.SeatPool{
		TypeMeta:   metav1.TypeMeta{APIVersion: seatpoolv1alpha1.GroupVersion.String(), Kind: "SeatPool"},
		ObjectMeta: metav1.ObjectMeta{Namespace: pool.Namespace, Name: pool.Name, UID: pool.UID},
	}
}

// report turns what committers have done into Events and metrics.
type report struct {
	recorder events.EventRecorder
	clock    Clock
}

// NewReporter returns a Reporter that writes Events with the recorder.
func NewReporter(recorder events.EventRecorder, clock Clock) Reporter {
	return &report{recorder: recorder, clock: clock}
}

// Committed reports the conditions that the update has changed. The update was
// a compare-and-swap, so that of all replicas only one reports each change.
func (r *report) Committed(before, after *seatpoolv1alpha1.SeatPool) {
	regarding := EventRegarding(after)
	if condition := changed(before, after, seatpoolv1alpha1.ConditionExhausted); condition != nil {
		switch condition.Reason {
		case seatpoolv1alpha1.ReasonAllSeatsInUse:
			r.recorder.Eventf(regarding, nil, corev1.EventTypeNormal, condition.Reason, "Checkout",
				"All %d seats are in use", after.Seats())
		case seatpoolv1alpha1.ReasonCheckoutsRefused:
			r.recorder.Eventf(regarding, nil, corev1.EventTypeWarning, condition.Reason, "Checkout",
				"Checkouts are refused: all %d seats are in use", after.Seats())
		case seatpoolv1alpha1.ReasonSeatsFree:
			if wasTrue(before, seatpoolv1alpha1.ConditionExhausted) {
				r.recorder.Eventf(regarding, nil, corev1.EventTypeNormal, condition.Reason, "Checkout", "Seats are available again")
			}
		}
	}
	if condition := changed(before, after, seatpoolv1alpha1.ConditionOverCommitted); condition != nil && condition.Status == metav1.ConditionTrue {
		r.recorder.Eventf(regarding, nil, corev1.EventTypeWarning, condition.Reason, "Count", condition.Message)
	}
	if condition := changed(before, after, seatpoolv1alpha1.ConditionReady); condition != nil && condition.Status == metav1.ConditionFalse {
		r.recorder.Eventf(regarding, nil, corev1.EventTypeNormal, condition.Reason, "Count", condition.Message)
	}
}

// Reclaimed implements Reporter.
func (r *report) Reclaimed(pool *seatpoolv1alpha1.SeatPool, lease ledger.Lease) {
	metrics.Reclaimed.Inc()
	metrics.DeadSeatSeconds.Observe(max(r.clock.Judge(0).Sub(lease.ExpiresAt), 0).Seconds())
	r.recorder.Eventf(EventRegarding(pool), nil, corev1.EventTypeNormal, seatpoolv1alpha1.EventReclaimed, "Checkout",
		"Lease %s expired at %s and its seat was given to another checkout", lease.Key, lease.ExpiresAt.UTC().Format(time.RFC3339))
}

// Batch implements Reporter.
func (r *report) Batch(size int) { metrics.BatchSize.Observe(float64(size)) }

// Conflicted implements Reporter.
func (r *report) Conflicted() { metrics.Conflicts.Inc() }

// WaitedForWatermark implements Reporter.
func (r *report) WaitedForWatermark(d time.Duration, caughtUp bool) {
	result := "listed"
	if caughtUp {
		result = "caught_up"
	}
	metrics.WatermarkWaitSeconds.WithLabelValues(result).Observe(d.Seconds())
}

// Recounted implements Reporter.
func (r *report) Recounted(d time.Duration) { metrics.RecountSeconds.Observe(d.Seconds()) }

// changed returns the condition after the update if its status or reason is
// another than before.
func changed(before, after *seatpoolv1alpha1.SeatPool, conditionType string) *metav1.Condition {
	was := meta.FindStatusCondition(before.Status.Conditions, conditionType)
	is := meta.FindStatusCondition(after.Status.Conditions, conditionType)
	if is == nil || was != nil && was.Status == is.Status && was.Reason == is.Reason {
		return nil
	}
	return is
}

func wasTrue(pool *seatpoolv1alpha1.SeatPool, conditionType string) bool {
	return meta.IsStatusConditionTrue(pool.Status.Conditions, conditionType)
}
