// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// Condition types of a SeatPool.
const (
	// ConditionReady is True while checkouts are possible at all: the pool is
	// not suspended and its licence is valid now. It stays True when every
	// seat is in use.
	ConditionReady = "Ready"

	// ConditionExhausted is True while every seat is in use.
	ConditionExhausted = "Exhausted"

	// ConditionOverCommitted is True while more seats are in use than the pool
	// has.
	ConditionOverCommitted = "OverCommitted"
)

// Reasons of the condition Ready.
const (
	// ReasonAccepting surfaces when the pool hands out seats.
	ReasonAccepting = "Accepting"

	// ReasonSuspended surfaces when spec.suspended is true.
	ReasonSuspended = "Suspended"

	// ReasonNotYetValid surfaces when spec.notBefore lies ahead.
	ReasonNotYetValid = "NotYetValid"

	// ReasonExpired surfaces when spec.notAfter has passed.
	ReasonExpired = "Expired"

	// ReasonDeleting surfaces when the pool is being deleted.
	ReasonDeleting = "Deleting"
)

// Reasons of the condition Exhausted.
const (
	// ReasonSeatsFree surfaces when at least one seat can be checked out.
	ReasonSeatsFree = "SeatsFree"

	// ReasonAllSeatsInUse surfaces when every seat is in use and nobody has
	// been refused since.
	ReasonAllSeatsInUse = "AllSeatsInUse"

	// ReasonCheckoutsRefused surfaces when every seat is in use and at least
	// one checkout has been refused for it since the pool became full.
	ReasonCheckoutsRefused = "CheckoutsRefused"

	// ReasonNoSeats surfaces when spec.seats is 0.
	ReasonNoSeats = "NoSeats"
)

// Reasons of the condition OverCommitted.
const (
	// ReasonWithinSeats surfaces when no more seats are in use than the pool has.
	ReasonWithinSeats = "WithinSeats"

	// ReasonSeatsExceeded surfaces when more seats are in use than spec.seats,
	// as after spec.seats was lowered. Holders keep their seats; nothing new
	// is granted until use has drained below spec.seats.
	ReasonSeatsExceeded = "SeatsExceeded"
)

// Reasons of refused requests, in the reason field of the metav1.Status that
// answers them.
const (
	// ReasonSeatsExhausted surfaces, with code 409, when a checkout finds every
	// seat in use. The details carry the causes CauseSeatsInUse, CauseMaxSeats
	// and CauseSoonestExpiry, and retryAfterSeconds.
	ReasonSeatsExhausted = "SeatsExhausted"

	// ReasonAlreadyHeld surfaces, with code 409, when a checkout names an
	// instanceID that holds a live seat of the pool already. The details carry
	// the causes CauseLeaseNamespace and CauseLeaseName.
	ReasonAlreadyHeld = "AlreadyHeld"

	// ReasonSeatLost surfaces, with code 410, when a renewal comes too late:
	// the lease is not live any more. Check out again.
	ReasonSeatLost = "SeatLost"

	// ReasonPoolSuspended surfaces, with code 409, when a checkout or renewal
	// names a pool that is suspended or not valid yet.
	ReasonPoolSuspended = "PoolSuspended"

	// ReasonPoolExpired surfaces, with code 410, when a checkout or renewal
	// names a pool whose notAfter has passed.
	ReasonPoolExpired = "PoolExpired"

	// ReasonPoolNotFound surfaces, with code 404, when a checkout or renewal
	// names a pool that does not exist.
	ReasonPoolNotFound = "PoolNotFound"

	// ReasonNamespaceNotAllowed surfaces, with code 403, when a checkout comes
	// from a namespace that the pool does not allow.
	ReasonNamespaceNotAllowed = "NamespaceNotAllowed"

	// ReasonNotRequester surfaces, with code 403, when somebody renews a lease
	// who neither created it nor holds the verb manage on seatleases.
	ReasonNotRequester = "NotRequester"

	// ReasonNoGrant surfaces, with code 403, when a lease reaches the
	// validating step without a grant signed by this operator, which means
	// that the mutating webhook was not asked.
	ReasonNoGrant = "NoGrant"

	// ReasonBusy surfaces, with code 429, when the operator could not decide
	// in time. Nothing was granted; retry after details.retryAfterSeconds.
	ReasonBusy = "Busy"
)

// Types of the causes in the details of a refusal. The cause's message is the
// value alone, for programs; the sentence for people is the status's message.
const (
	// CauseSeatsInUse carries how many seats are in use.
	CauseSeatsInUse = "SeatsInUse"

	// CauseMaxSeats carries how many seats the pool has.
	CauseMaxSeats = "MaxSeats"

	// CauseSoonestExpiry carries, in RFC 3339, the soonest expiresAt of the
	// leases in use.
	CauseSoonestExpiry = "SoonestExpiry"

	// CauseLeaseNamespace carries the namespace of the lease already held.
	CauseLeaseNamespace = "LeaseNamespace"

	// CauseLeaseName carries the name of the lease already held.
	CauseLeaseName = "LeaseName"
)

// Reasons of Events that are not reasons of a condition.
const (
	// EventReclaimed surfaces on a pool when an expired lease was deleted to
	// give its seat to a checkout that was waiting for one.
	EventReclaimed = "SeatReclaimed"

	// EventReaped surfaces on a pool when the reaper deleted an expired lease.
	EventReaped = "LeaseReaped"

	// EventRevoked surfaces on a pool when the safety net deleted a lease that
	// no grant covered while the pool was over its seats.
	EventRevoked = "LeaseRevoked"

	// EventReapingHeld surfaces when the operator's clock jumped forward and
	// reaping is held for a while.
	EventReapingHeld = "ReapingHeld"

	// EventKeysRotated surfaces when the operator began to sign with another key.
	EventKeysRotated = "KeysRotated"
)
