// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 is the contract of seatpool: the SeatPool and SeatLease
// kinds, the conditions and reasons they report, and the one predicate that
// says whether a lease holds its seat.
//
// Everything that counts, renews, reaps or displays seats calls the functions
// of this package, so that no two parts can ever disagree about who holds one.
//
// +kubebuilder:object:generate=true
// +kubebuilder:ac:generate=true
// +kubebuilder:ac:output:package=applyconfiguration
// +groupName=seatpool.dev
package v1alpha1
