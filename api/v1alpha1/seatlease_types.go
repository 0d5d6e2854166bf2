// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// VerbManage is the RBAC verb on seatleases that lets somebody other than its
// requester renew a lease.
const VerbManage = "manage"

// PoolReference names a SeatPool.
type PoolReference struct {
	// name of the SeatPool. Set by the client, immutable.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name,omitempty"`

	// namespace of the SeatPool; the lease's own namespace when omitted. A
	// pool in another namespace must allow this one in its
	// spec.allowedNamespaces. Set by the client, immutable.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Namespace string `json:"namespace,omitempty"`
}

// Holder says who holds the seat. Nothing here is authenticated: it is shown
// to people, and instanceID lets an installation find its seat again. Who may
// renew is decided by status.requester.
//
// +kubebuilder:validation:MinProperties=1
type Holder struct {
	// user is the person who holds the seat, for display. Up to 253
	// characters. Set by the client, immutable.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\x00-\\x1f\\x7f\\x{FFFD}]')",message="must be valid UTF-8 without control characters"
	// +optional
	User string `json:"user,omitempty"`

	// host is the machine the seat is used on, for display. Up to 253
	// characters. Set by the client, immutable.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\x00-\\x1f\\x7f\\x{FFFD}]')",message="must be valid UTF-8 without control characters"
	// +optional
	Host string `json:"host,omitempty"`

	// instanceID is the same for every run of one installation, and different
	// for every other. One instanceID holds at most one live seat of a pool: a
	// second checkout is answered with reason AlreadyHeld and the name of the
	// lease it has. Up to 128 characters. Without it every checkout takes a
	// seat of its own. Set by the client, immutable.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\x00-\\x1f\\x7f\\x{FFFD}]')",message="must be valid UTF-8 without control characters"
	// +optional
	InstanceID string `json:"instanceID,omitempty"`
}

// SeatLeaseSpec is what the client asks for.
//
// +kubebuilder:validation:XValidation:rule="self.poolRef == oldSelf.poolRef",message="poolRef is immutable: delete this lease and create another",fieldPath=".poolRef"
// +kubebuilder:validation:XValidation:rule="has(self.holder) == has(oldSelf.holder) && (!has(self.holder) || self.holder == oldSelf.holder)",message="holder is immutable: delete this lease and create another"
type SeatLeaseSpec struct {
	// poolRef names the SeatPool to take a seat of. Required, set by the
	// client, immutable.
	//
	// +required
	PoolRef PoolReference `json:"poolRef,omitempty,omitzero"`

	// holder says who holds the seat. Set by the client, immutable.
	//
	// +optional
	Holder Holder `json:"holder,omitempty,omitzero"`

	// renewTime is the heartbeat: any change of it is a renewal. The value
	// itself does not matter, the operator replaces it with its own time. Set
	// by the client to renew.
	//
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}[.][0-9]{6}(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$`
	// +optional
	RenewTime *metav1.MicroTime `json:"renewTime,omitempty"`
}

// SeatLeaseStatus is the grant. The operator writes it in the very request
// that creates or renews the lease, by its own clock; nobody else can.
//
// +kubebuilder:validation:XValidation:rule="self.seatID == oldSelf.seatID && self.acquiredAt == oldSelf.acquiredAt && self.requester == oldSelf.requester",message="seatID, acquiredAt and requester are immutable"
// +kubebuilder:validation:XValidation:rule="self.expiresAt >= oldSelf.expiresAt",message="expiresAt only moves forward",fieldPath=".expiresAt"
type SeatLeaseStatus struct {
	// seatID is the seat: 128 random bits in hex, never the same for two
	// leases. Set by the operator.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +required
	SeatID string `json:"seatID,omitempty"`

	// acquiredAt is when the seat was checked out. Set by the operator.
	//
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]+)?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$`
	// +required
	AcquiredAt metav1.Time `json:"acquiredAt,omitempty,omitzero"`

	// issuedAt is when the lease was last extended: at checkout or at the
	// newest renewal. Set by the operator.
	//
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]+)?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$`
	// +required
	IssuedAt metav1.Time `json:"issuedAt,omitempty,omitzero"`

	// expiresAt is until when the holder may use the seat without renewing.
	// The lease counts for the pool's skewSeconds longer. Moves only forward.
	// Set by the operator.
	//
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]+)?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$`
	// +required
	ExpiresAt metav1.Time `json:"expiresAt,omitempty,omitzero"`

	// renewAfterSeconds is how many seconds after issuedAt the holder should
	// renew. Set by the operator from the pool.
	//
	// +kubebuilder:validation:Minimum=1
	// +required
	RenewAfterSeconds int32 `json:"renewAfterSeconds,omitempty"`

	// requester is the authenticated user who created the lease. Only that
	// user, or one who holds the verb manage on seatleases, may renew it. Set
	// by the operator.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +required
	Requester string `json:"requester,omitempty"`

	// token is the lease, signed: a compact JWS (EdDSA) that a program can
	// verify without a network against the operator's public keys. Set by the
	// operator; empty only in answers to dry runs.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=8192
	// +optional
	Token string `json:"token,omitempty"`
}

// SeatLease is one seat of a SeatPool, checked out. Creating it is the
// checkout: the answer to the create already carries the granted, signed seat,
// or is a refusal. Changing spec.renewTime renews it; deleting it gives the
// seat back. A lease that is not renewed expires, and its seat is free again.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=sl,categories=seats
// +kubebuilder:selectablefield:JSONPath=`.spec.poolRef.name`
// +kubebuilder:printcolumn:name="Pool",type=string,JSONPath=`.spec.poolRef.name`
// +kubebuilder:printcolumn:name="User",type=string,JSONPath=`.spec.holder.user`
// +kubebuilder:printcolumn:name="Host",type=string,JSONPath=`.spec.holder.host`
// +kubebuilder:printcolumn:name="Expires-At",type=string,JSONPath=`.status.expiresAt`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Seat",type=string,priority=1,JSONPath=`.status.seatID`
// +kubebuilder:printcolumn:name="Instance",type=string,priority=1,JSONPath=`.spec.holder.instanceID`
// +kubebuilder:printcolumn:name="Requester",type=string,priority=1,JSONPath=`.status.requester`
// +kubebuilder:printcolumn:name="Renewed-At",type=string,priority=1,JSONPath=`.status.issuedAt`
type SeatLease struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is standard object metadata.
	//
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what the client asks for.
	//
	// +required
	Spec SeatLeaseSpec `json:"spec,omitempty,omitzero"`

	// status is the grant. It is set by the operator only, and there is no
	// status subresource on purpose: it is stored by the request that creates
	// or renews the lease.
	//
	// +optional
	Status SeatLeaseStatus `json:"status,omitempty,omitzero"`
}

// SeatLeaseList is a list of SeatLeases.
//
// +kubebuilder:object:root=true
type SeatLeaseList struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is standard list metadata.
	//
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	// items are the leases.
	//
	// +required
	Items []SeatLease `json:"items"`
}
