// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	seatpoolv1alpha1 "seatpool.dev/api/v1alpha1"
	"seatpool.dev/internal/checkout"
	"seatpool.dev/internal/clock"
	"seatpool.dev/internal/metrics"
	"seatpool.dev/internal/token"
	"seatpool.dev/seat/leasetoken"
)

const (
	// coverDelay is how long after a lease was seen created its reservation may
	// still be on its way here: pools and leases come by separate watches.
	coverDelay = 2 * time.Second

	// coverMemory is how long a reservation is remembered. Its lease is created
	// within the API server's request timeout, a minute as a rule.
	coverMemory = 10 * time.Minute
)

// Coverage remembers which leases were seen reserved. All its methods are safe
// for concurrent use.
type Coverage struct {
	mono func() time.Duration

	mu    sync.Mutex
	seen  map[types.UID]time.Duration
	order []types.UID
}

// NewCoverage returns an empty memory. mono is a monotonic clock.
func NewCoverage(mono func() time.Duration) *Coverage {
	return &Coverage{mono: mono, seen: map[types.UID]time.Duration{}}
}

// Observe notes the reservations of a version of a pool.
func (c *Coverage) Observe(pool *seatpoolv1alpha1.SeatPool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.mono()
	for _, r := range pool.Status.Reservations {
		uid := types.UID(r.UID)
		if _, ok := c.seen[uid]; !ok {
			c.seen[uid] = now
			c.order = append(c.order, uid)
		}
	}
	old := 0
	for old < len(c.order) && now-c.seen[c.order[old]] > coverMemory {
		delete(c.seen, c.order[old])
		old++
	}
	c.order = c.order[old:]
}

func (c *Coverage) covers(uid types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.seen[uid]
	return ok
}

// GrantVerifier checks the signature of a lease.
type GrantVerifier interface {
	Verify(ctx context.Context, lease *seatpoolv1alpha1.SeatLease) error
}

// SafetyNet revokes leases that nobody granted when they bring a pool over its
// seats: created while the webhook configuration was absent, or let through by
// a fault. It is expected never to fire. Leases with a grant are never touched:
// when an admin has lowered the seats, holders keep theirs.
type SafetyNet struct {
	// Client reads from the API server itself.
	Client client.Client
	// Pools reads pools out of memory.
	Pools    client.Reader
	Index    *checkout.Index
	Clock    *clock.Clock
	Verifier GrantVerifier
	Coverage *Coverage
	Recorder events.EventRecorder

	mu sync.Mutex
	// uncovered holds leases that were seen created without a reservation, by
	// their UID, with their pool.
	uncovered map[types.UID]types.NamespacedName
}

// SetupWithManager registers the safety net.
func (s *SafetyNet) SetupWithManager(mgr ctrl.Manager) error {
	s.uncovered = map[types.UID]types.NamespacedName{}
	return ctrl.NewControllerManagedBy(mgr).
		Named("safetynet").
		WatchesRawSource(leaseEvents(s.Index, func(queue queue, event checkout.Event) {
			switch event.Kind {
			case checkout.LeaseCreated:
				if !s.Coverage.covers(event.Lease.UID) {
					s.suspect(event)
				}
				queue.AddAfter(reconcile.Request{NamespacedName: event.Pool}, coverDelay)
			case checkout.LeaseFound:
				queue.Add(reconcile.Request{NamespacedName: event.Pool})
			case checkout.LeaseEnded:
				s.clear(event.Lease.UID)
			case checkout.LeaseRenewed, checkout.LeaseChanged:
			}
		})).
		Complete(s)
}

func (s *SafetyNet) suspect(event checkout.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.uncovered[event.Lease.UID] = event.Pool
}

func (s *SafetyNet) clear(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.uncovered, uid)
}

// Reconcile looks at one pool after leases were created in it. The index
// answers whether there is anything to do, nearly always that there is not.
func (s *SafetyNet) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	pool := &seatpoolv1alpha1.SeatPool{}
	if err := s.Pools.Get(ctx, req.NamespacedName, pool); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err) // without a pool nothing can be over
	}
	s.acquit(req.NamespacedName)
	if s.excess(pool) <= 0 {
		return ctrl.Result{}, nil
	}
	ungranted, excess, err := s.ungranted(ctx, pool)
	if err != nil {
		return ctrl.Result{}, err
	}
	for i := range ungranted[:max(min(excess, len(ungranted)), 0)] {
		if err := s.revoke(ctx, pool, &ungranted[i]); err != nil {
			return ctrl.Result{}, err
		}
	}
	return ctrl.Result{}, nil
}

// acquit clears the suspects of a pool whose reservation has come in meanwhile.
func (s *SafetyNet) acquit(pool types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for uid, of := range s.uncovered {
		if of == pool && s.Coverage.covers(uid) {
			delete(s.uncovered, uid)
		}
	}
}

// excess returns by how many live leases the pool is over its seats.
func (s *SafetyNet) excess(pool *seatpoolv1alpha1.SeatPool) int {
	live := 0
	now := s.Clock.Judge(pool.TTL())
	for _, lease := range s.Index.Leases(client.ObjectKeyFromObject(pool)) {
		if lease.LiveAt(now, pool.Skew()) {
			live++
		}
	}
	return live - pool.Seats()
}

// ungranted returns the live leases of the pool that nobody granted, in the
// order they are to be revoked, and by how many live leases the pool is over
// its seats.
func (s *SafetyNet) ungranted(ctx context.Context, pool *seatpoolv1alpha1.SeatPool) (leases []seatpoolv1alpha1.SeatLease, excess int, err error) {
	list := &seatpoolv1alpha1.SeatLeaseList{}
	if err := s.Client.List(ctx, list, client.MatchingFields{"spec.poolRef.name": pool.Name}); err != nil {
		return nil, 0, err
	}
	now := s.Clock.Judge(pool.TTL())
	live := make([]suspect, 0, len(list.Items))
	for _, lease := range list.Items {
		if lease.Pool() == client.ObjectKeyFromObject(pool) && lease.LiveAt(now, pool.Skew()) {
			live = append(live, suspect{SeatLease: lease, forged: s.isForged(ctx, &lease), uncovered: s.isUncovered(lease.UID)})
		}
	}
	return unfounded(live), len(live) - pool.Seats(), nil
}

// suspect is a live lease, with what speaks against it.
type suspect struct {
	seatpoolv1alpha1.SeatLease

	// forged is true when its grant is surely not signed by the operator.
	forged bool
	// uncovered is true when it was seen created without a reservation.
	uncovered bool
}

// unfounded returns the leases that nobody granted: first those without a
// genuine grant, then copies of one, then those that no reservation covered,
// and of each the newest first. A grant is one lease's: of those that carry the
// same, it is the one that was reserved, or else the oldest.
func unfounded(leases []suspect) []seatpoolv1alpha1.SeatLease {
	slices.SortFunc(leases, func(a, b suspect) int {
		return cmp.Or(
			b.CreationTimestamp.Compare(a.CreationTimestamp.Time),
			cmp.Compare(b.UID, a.UID),
		)
	})
	owner := map[string]types.UID{} // of the grant, by its seat
	for _, uncovered := range []bool{true, false} {
		for _, lease := range leases {
			if !lease.forged && lease.uncovered == uncovered {
				owner[lease.Status.SeatID] = lease.UID // the oldest comes last
			}
		}
	}
	var forged, copied, uncovered []seatpoolv1alpha1.SeatLease
	for _, lease := range leases {
		switch {
		case lease.forged:
			forged = append(forged, lease.SeatLease)
		case owner[lease.Status.SeatID] != lease.UID:
			copied = append(copied, lease.SeatLease)
		case lease.uncovered:
			uncovered = append(uncovered, lease.SeatLease)
		}
	}
	return slices.Concat(forged, copied, uncovered)
}

// isForged reports whether the grant of the lease is surely none of the
// operator's. A key that is not known proves nothing: when the Secret of the keys
// has been lost, every running lease is signed with such a one.
func (s *SafetyNet) isForged(ctx context.Context, lease *seatpoolv1alpha1.SeatLease) bool {
	err := s.Verifier.Verify(ctx, lease)
	for _, proof := range []error{
		leasetoken.ErrBadSignature, leasetoken.ErrMalformed, leasetoken.ErrAlgorithm, leasetoken.ErrIssuer, token.ErrOtherLease,
	} {
		if errors.Is(err, proof) {
			return true
		}
	}
	return false
}

func (s *SafetyNet) isUncovered(uid types.UID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.uncovered[uid]
	return ok
}

func (s *SafetyNet) revoke(ctx context.Context, pool *seatpoolv1alpha1.SeatPool, lease *seatpoolv1alpha1.SeatLease) error {
	err := s.Client.Delete(ctx, lease, client.Preconditions{UID: &lease.UID, ResourceVersion: &lease.ResourceVersion})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	metrics.Revoked.Inc()
	s.Recorder.Eventf(checkout.EventRegarding(pool), nil, corev1.EventTypeWarning, seatpoolv1alpha1.EventRevoked, "Revoke",
		"Lease %s/%s was deleted: the pool was over its seats and the operator had not granted it", lease.Namespace, lease.Name)
	ctrl.LoggerFrom(ctx).Info("Revoked a lease that was not granted", "namespace", lease.Namespace, "name", lease.Name)
	return nil
}
