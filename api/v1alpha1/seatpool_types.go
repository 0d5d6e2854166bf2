// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Limits and defaults of a SeatPool. They are repeated in the markers below,
// which the CRD is generated from; a test keeps the two equal.
const (
	// MaxSeats is the most seats one pool may have.
	MaxSeats = 1_000_000

	// DefaultTTLSeconds is the ttlSeconds of a pool that does not set it. Two
	// minutes free a crashed holder's seat soon, and leave a holder that
	// renews at a third of it three tries before it loses the seat.
	DefaultTTLSeconds = 120

	// DefaultSkewSeconds is the skewSeconds of a pool that does not set it.
	// Machines that keep time by NTP are apart by far less.
	DefaultSkewSeconds = 5

	// DefaultReapGraceSeconds is the reapGraceSeconds of a pool that does not
	// set it: three times the default skew.
	DefaultReapGraceSeconds = 15

	// MaxReservations is the most unresolved reservations a pool's status can
	// hold. Checkouts beyond it are answered "busy, try again". A reservation
	// takes about 300 bytes, so that a full list stays well below the 1.5 MiB
	// that etcd takes in one write.
	MaxReservations = 2048
)

// NamespacesFrom says which namespaces may hold leases of a pool.
//
// +kubebuilder:validation:Enum=Same;All;Selector
type NamespacesFrom string

const (
	// NamespacesFromSame allows leases in the pool's own namespace only.
	NamespacesFromSame NamespacesFrom = "Same"

	// NamespacesFromAll allows leases in every namespace.
	NamespacesFromAll NamespacesFrom = "All"

	// NamespacesFromSelector allows leases in the namespaces whose labels the
	// selector matches.
	NamespacesFromSelector NamespacesFrom = "Selector"
)

// AllowedNamespaces says in which namespaces a SeatLease of the pool may be created.
//
// +kubebuilder:validation:XValidation:rule="self.from == 'Selector' ? has(self.selector) : !has(self.selector)",message="selector must be set when from is Selector, and only then"
type AllowedNamespaces struct {
	// from is Same (only the pool's own namespace), All (every namespace) or
	// Selector (the namespaces whose labels match selector). Set by the
	// pool's owner; Same when omitted.
	//
	// +kubebuilder:default=Same
	// +optional
	From NamespacesFrom `json:"from,omitempty"`

	// selector picks namespaces by their labels. Required when from is
	// Selector, refused otherwise. An empty selector matches every namespace.
	//
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
}

// LicenseKeysSecretReference names a Secret in the pool's namespace.
type LicenseKeysSecretReference struct {
	// name of the Secret. It must be in the pool's own namespace.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name,omitempty"`
}

// SeatPoolSpec is what the vendor or licence admin declares: how many seats
// there are, for how long a checkout lasts, and who may take one.
//
// +kubebuilder:validation:XValidation:rule="self.skewSeconds < self.ttlSeconds",message="skewSeconds (5 when omitted) must be less than ttlSeconds: lower skewSeconds or raise ttlSeconds",fieldPath=".skewSeconds"
// +kubebuilder:validation:XValidation:rule="self.reapGraceSeconds > self.skewSeconds",message="reapGraceSeconds (15 when omitted) must be greater than skewSeconds, or the reaper would delete leases that still count: raise reapGraceSeconds or lower skewSeconds",fieldPath=".reapGraceSeconds"
// +kubebuilder:validation:XValidation:rule="!has(self.renewAfterSeconds) || self.renewAfterSeconds < self.ttlSeconds",message="renewAfterSeconds must be less than ttlSeconds, or every lease would expire before it is renewed; leave it out for a third of ttlSeconds",fieldPath=".renewAfterSeconds"
// +kubebuilder:validation:XValidation:rule="!has(self.notBefore) || !has(self.notAfter) || self.notBefore < self.notAfter",message="notAfter must be later than notBefore",fieldPath=".notAfter"
type SeatPoolSpec struct {
	// product is the name that REST clients ask for. Set by the pool's owner;
	// the pool's own name when omitted. Several pools of a namespace may
	// carry the same product.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\x00-\\x1f\\x7f\\x{FFFD}]')",message="must be valid UTF-8 without control characters"
	// +optional
	Product string `json:"product,omitempty"`

	// seats is how many leases may be live at once, 0 to 1,000,000. With 0
	// nothing is granted. Lowering it below the number in use takes no seat
	// away: holders keep theirs and may renew, and nothing new is granted
	// until use has drained below the new number.
	//
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000
	// +required
	Seats *int32 `json:"seats,omitempty"`

	// ttlSeconds is how many seconds a checkout or a renewal lasts, 5 to
	// 31,536,000 (a year), 120 when omitted. A holder that dies keeps its
	// seat from others for at most this long plus skewSeconds. A change
	// counts from each lease's next renewal, and shortens no lease that is
	// already signed.
	//
	// +kubebuilder:validation:Minimum=5
	// +kubebuilder:validation:Maximum=31536000
	// +kubebuilder:default=120
	// +optional
	TTLSeconds int32 `json:"ttlSeconds,omitempty"`

	// renewAfterSeconds is the advice to holders how many seconds after a
	// checkout or renewal to renew again. At least 1 and less than
	// ttlSeconds; a third of ttlSeconds when omitted.
	//
	// +kubebuilder:validation:Minimum=1
	// +optional
	RenewAfterSeconds *int32 `json:"renewAfterSeconds,omitempty"`

	// skewSeconds is for how many seconds after expiresAt a lease still
	// counts and can still be renewed, to make up for clocks that differ. 0
	// or more, less than ttlSeconds, 5 when omitted.
	//
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:default=5
	// +optional
	SkewSeconds *int32 `json:"skewSeconds,omitempty"`

	// reapGraceSeconds is how many seconds after expiresAt an expired lease is
	// deleted. Its seat can be checked out again before that, as soon as
	// skewSeconds have passed. Greater than skewSeconds, at most 31,536,000,
	// 15 when omitted.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=31536000
	// +kubebuilder:default=15
	// +optional
	ReapGraceSeconds int32 `json:"reapGraceSeconds,omitempty"`

	// suspended stops all checkouts and renewals while it is true. Holders run
	// on to the expiresAt they have; releasing always works. False when
	// omitted.
	//
	// +optional
	Suspended *bool `json:"suspended,omitempty"`

	// notBefore is when the licence becomes valid. No checkout or renewal
	// before it. Valid from the beginning of time when omitted.
	//
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]+)?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$`
	// +optional
	NotBefore *metav1.Time `json:"notBefore,omitempty"`

	// notAfter is when the licence ends. No checkout or renewal after it, and
	// no lease is given an expiresAt later than it. Valid forever when
	// omitted.
	//
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]+)?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$`
	// +optional
	NotAfter *metav1.Time `json:"notAfter,omitempty"`

	// allowedNamespaces says in which namespaces leases of this pool may be
	// created. Only the pool's own when omitted.
	//
	// +kubebuilder:default={from: Same}
	// +optional
	AllowedNamespaces *AllowedNamespaces `json:"allowedNamespaces,omitempty"`

	// licenseKeysSecretRef names a Secret in the pool's namespace whose values
	// are the licence keys the gateway accepts for this pool. Without it the
	// gateway serves nobody from this pool; SeatLeases created through the
	// Kubernetes API need no licence key.
	//
	// +optional
	LicenseKeysSecretRef *LicenseKeysSecretReference `json:"licenseKeysSecretRef,omitempty"`
}

// SeatReservation is a seat that has been granted to a lease whose object has
// not yet been seen in the API server. It counts as taken until it has.
type SeatReservation struct {
	// seatID is the seat granted. Set by the operator.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +required
	SeatID string `json:"seatID,omitempty"`

	// namespace of the lease. Set by the operator.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +required
	Namespace string `json:"namespace,omitempty"`

	// name of the lease. Set by the operator.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name,omitempty"`

	// uid of the lease, which tells this create from another of the same name.
	// Set by the operator.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +required
	UID string `json:"uid,omitempty"`

	// instanceID of the lease's holder, empty when the holder gave none. Set
	// by the operator.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +optional
	InstanceID string `json:"instanceID,omitempty"`

	// reservedAt is when the seat was granted, by the operator's clock. It
	// informs people; the operator decides by its own monotonic clock.
	//
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]+)?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$`
	// +required
	ReservedAt metav1.Time `json:"reservedAt,omitempty,omitzero"`
}

// SeatPoolStatus is what the operator last saw of a pool. Nothing here is
// configuration, and no checkout is decided by the figures meant for people.
type SeatPoolStatus struct {
	// conditions are Ready (checkouts are possible), Exhausted (every seat is
	// in use) and OverCommitted (more seats are in use than the pool has).
	// Set by the operator.
	//
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// observedGeneration is the metadata.generation the status was computed
	// for. Set by the operator.
	//
	// +kubebuilder:validation:Minimum=1
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// seatsInUse is how many seats are taken: live leases and reservations.
	// Expired leases do not count, whether reaped yet or not. Set by the
	// operator, at most a second behind.
	//
	// +kubebuilder:validation:Minimum=0
	// +optional
	SeatsInUse *int32 `json:"seatsInUse,omitempty"`

	// seatsFree is how many seats can be checked out now. Never negative: use
	// above spec.seats shows in the OverCommitted condition. Set by the
	// operator, at most a second behind.
	//
	// +kubebuilder:validation:Minimum=0
	// +optional
	SeatsFree *int32 `json:"seatsFree,omitempty"`

	// peakSeatsInUse is the highest seatsInUse ever seen. Set by the operator.
	//
	// +kubebuilder:validation:Minimum=0
	// +optional
	PeakSeatsInUse *int32 `json:"peakSeatsInUse,omitempty"`

	// peakTime is when peakSeatsInUse was first reached. Set by the operator.
	//
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]+)?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$`
	// +optional
	PeakTime *metav1.Time `json:"peakTime,omitempty"`

	// reservations are the grants whose lease has not yet been seen in the API
	// server, usually for a few milliseconds. Set by the operator.
	//
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=2048
	// +optional
	Reservations []SeatReservation `json:"reservations,omitempty"`

	// leaseWatermark is a resourceVersion of SeatLeases. Every lease whose
	// reservation has been resolved was created at or before it, so that only
	// a view of the leases at least this new may be counted with. Set by the
	// operator.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +optional
	LeaseWatermark string `json:"leaseWatermark,omitempty"`
}

// SeatPool declares a number of concurrent ("floating") seats of a product. A
// program checks a seat out by creating a SeatLease that names the pool, keeps
// it by renewing, and gives it back by deleting the lease. At no moment are
// more seats checked out than spec.seats.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=sp,categories=seats
// +kubebuilder:printcolumn:name="Product",type=string,JSONPath=`.spec.product`
// +kubebuilder:printcolumn:name="Seats",type=integer,JSONPath=`.spec.seats`
// +kubebuilder:printcolumn:name="In-Use",type=integer,JSONPath=`.status.seatsInUse`
// +kubebuilder:printcolumn:name="Free",type=integer,JSONPath=`.status.seatsFree`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Peak",type=integer,priority=1,JSONPath=`.status.peakSeatsInUse`
// +kubebuilder:printcolumn:name="TTL",type=integer,priority=1,JSONPath=`.spec.ttlSeconds`
// +kubebuilder:printcolumn:name="Reason",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
type SeatPool struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is standard object metadata.
	//
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what the pool's owner declares.
	//
	// +required
	Spec SeatPoolSpec `json:"spec,omitempty,omitzero"`

	// status is what the operator last saw.
	//
	// +optional
	Status SeatPoolStatus `json:"status,omitempty,omitzero"`
}

// SeatPoolList is a list of SeatPools.
//
// +kubebuilder:object:root=true
type SeatPoolList struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is standard list metadata.
	//
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	// items are the pools.
	//
	// +required
	Items []SeatPool `json:"items"`
}
