// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

// Package metrics knows every metric the operator exposes. All of them are in
// this file, so that a reader finds them in one place. Labels are bounded: they
// carry names of pools and values from short fixed lists, never names of
// leases, users, hosts or seats.
package metrics

import (
	"runtime"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"seatpool.dev/internal/version"
)

// Values of the label outcome.
const (
	OutcomeGranted = "granted"
	OutcomeRefused = "refused"
)

// Values of the label end of LeasesEnded.
const (
	// EndReleased is a lease that was deleted while it was live.
	EndReleased = "released"
	// EndExpired is a lease that was deleted after it had expired.
	EndExpired = "expired"
)

// decisionBuckets span from a decision out of memory to the 10 s after which
// the API server gives up on a webhook.
var decisionBuckets = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}

var (
	// Checkouts counts decided checkouts. reason is empty for grants.
	Checkouts = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "seatpool_checkouts_total",
		Help: "Checkouts decided by this replica, by outcome (granted, refused) and, for refusals, reason. Dry runs are not counted.",
	}, []string{"outcome", "reason"})

	// Renewals counts decided renewals. reason is empty for grants.
	Renewals = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "seatpool_renewals_total",
		Help: "Renewals decided by this replica, by outcome (granted, refused) and, for refusals, reason.",
	}, []string{"outcome", "reason"})

	// LeasesEnded counts leases that are gone.
	LeasesEnded = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "seatpool_leases_ended_total",
		Help: "Leases that are gone, by end (released while live, expired) and whether they were ever renewed. Counted by the leader.",
	}, []string{"end", "renewed"})

	// CheckoutSeconds is the time to decide a checkout, the commit included.
	CheckoutSeconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "seatpool_checkout_decision_seconds",
		Help:    "Time from a checkout's arrival at the validating step to its answer, by outcome.",
		Buckets: decisionBuckets,
	}, []string{"outcome"})

	// RenewalSeconds is the time to decide a renewal.
	RenewalSeconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "seatpool_renewal_decision_seconds",
		Help:    "Time to decide a renewal, by outcome.",
		Buckets: decisionBuckets,
	}, []string{"outcome"})

	// BatchSize is how many checkouts were decided together.
	BatchSize = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "seatpool_checkout_batch_size",
		Help:    "Number of checkouts decided together in one batch.",
		Buckets: prometheus.ExponentialBuckets(1, 2, 10),
	})

	// Conflicts counts commits that came too late.
	Conflicts = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "seatpool_commit_conflicts_total",
		Help: "Updates of a pool's status that conflicted with another writer and were decided again.",
	})

	// WatermarkWaitSeconds is the time batches waited for the index.
	WatermarkWaitSeconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "seatpool_watermark_wait_seconds",
		Help:    "Time batches waited for the index of leases to reach the pool's watermark, by result (caught_up, listed).",
		Buckets: prometheus.ExponentialBuckets(.0005, 2, 10),
	}, []string{"result"})

	// RecountSeconds is the time of consistent lists.
	RecountSeconds = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "seatpool_recount_seconds",
		Help:    "Time of the consistent lists of a pool's leases, made before refusals and when the index is behind.",
		Buckets: prometheus.ExponentialBuckets(.001, 2, 12),
	})

	// Reclaimed counts expired leases deleted because their seat was needed.
	Reclaimed = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "seatpool_leases_reclaimed_total",
		Help: "Expired leases deleted by a checkout that needed their seat.",
	})

	// Reaped counts expired leases deleted by the reaper.
	Reaped = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "seatpool_leases_reaped_total",
		Help: "Expired leases deleted by the reaper.",
	})

	// Revoked counts leases deleted by the safety net.
	Revoked = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "seatpool_leases_revoked_total",
		Help: "Leases without a grant deleted because their pool was over its seats. Expected to stay 0.",
	})

	// DeadSeatSeconds is how long the seats of expired leases were not used.
	DeadSeatSeconds = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "seatpool_dead_seat_seconds",
		Help:    "Seconds from a lease's expiry until its deletion freed the seat, whether by the reaper or by a checkout.",
		Buckets: []float64{1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 3600},
	})

	// ClockSteps counts steps of the operator's wall clock.
	ClockSteps = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "seatpool_clock_steps_total",
		Help: "Steps of this replica's wall clock against its monotonic clock, by direction (forward, backward).",
	}, []string{"direction"})

	// SigningKeyActivations counts changes of the signing key.
	SigningKeyActivations = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "seatpool_signing_key_activations_total",
		Help: "Times this replica began to sign with another key.",
	})

	// BuildInfo is always 1; its labels tell what runs.
	BuildInfo = prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "seatpool_build_info",
		Help: "Always 1; the labels tell which version of the operator runs, of which commit, built with which Go.",
		ConstLabels: prometheus.Labels{
			"version": version.Version, "commit": version.Commit, "goversion": runtime.Version(),
		},
	}, func() float64 { return 1 })
)

func init() {
	metrics.Registry.MustRegister(
		Checkouts, Renewals, LeasesEnded, CheckoutSeconds, RenewalSeconds, BatchSize, Conflicts,
		WatermarkWaitSeconds, RecountSeconds, Reclaimed, Reaped, Revoked, DeadSeatSeconds, ClockSteps,
		SigningKeyActivations, BuildInfo, pools,
	)
}

// PoolFigures are the figures of one pool at the time of a scrape.
type PoolFigures struct {
	Namespace, Name                    string
	Seats, InUse, Free, Reserved, Over int
	// NeverRenewed is how many live leases have not been renewed yet.
	NeverRenewed int
}

// SetPools sets where the gauges of every pool come from at each scrape.
func SetPools(figures func() []PoolFigures) { pools.figures.Store(&figures) }

var pools = &poolCollector{}

func poolDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, []string{"namespace", "pool"}, nil)
}

var (
	seatsDesc        = poolDesc("seatpool_seats", "Seats a pool has (spec.seats).")
	inUseDesc        = poolDesc("seatpool_seats_in_use", "Seats in use: live leases and reservations.")
	freeDesc         = poolDesc("seatpool_seats_free", "Seats that can be checked out.")
	reservedDesc     = poolDesc("seatpool_seats_reserved", "Seats granted whose lease has not been seen stored yet.")
	overDesc         = poolDesc("seatpool_seats_over", "Seats in use beyond what the pool has.")
	neverRenewedDesc = poolDesc("seatpool_leases_never_renewed", "Live leases that have not been renewed since their checkout.")
)

type poolCollector struct {
	figures atomic.Pointer[func() []PoolFigures]
}

func (c *poolCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{seatsDesc, inUseDesc, freeDesc, reservedDesc, overDesc, neverRenewedDesc} {
		ch <- desc
	}
}

func (c *poolCollector) Collect(ch chan<- prometheus.Metric) {
	figures := c.figures.Load()
	if figures == nil {
		return
	}
	for _, f := range (*figures)() {
		gauge := func(desc *prometheus.Desc, value int) {
			ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(value), f.Namespace, f.Name)
		}
		gauge(seatsDesc, f.Seats)
		gauge(inUseDesc, f.InUse)
		gauge(freeDesc, f.Free)
		gauge(reservedDesc, f.Reserved)
		gauge(overDesc, f.Over)
		gauge(neverRenewedDesc, f.NeverRenewed)
	}
}
