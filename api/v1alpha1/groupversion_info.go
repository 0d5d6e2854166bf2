// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupName is the API group of every kind in this package.
const GroupName = "seatpool.dev"

var (
	// GroupVersion is the group and version of the kinds in this package.
	GroupVersion = schema.GroupVersion{Group: GroupName, Version: "v1alpha1"}

	// SchemeGroupVersion is GroupVersion under the name that generated apply
	// configurations expect.
	SchemeGroupVersion = GroupVersion

	// SeatPoolResource names the resource the API server serves SeatPools under.
	SeatPoolResource = GroupVersion.WithResource("seatpools")

	// SeatLeaseResource names the resource the API server serves SeatLeases under.
	SeatLeaseResource = GroupVersion.WithResource("seatleases")

	// SchemeBuilder collects what AddToScheme registers.
	SchemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)

	// AddToScheme registers the kinds of this package with a scheme.
	AddToScheme = SchemeBuilder.AddToScheme
)

func addKnownTypes(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion,
		&SeatPool{}, &SeatPoolList{},
		&SeatLease{}, &SeatLeaseList{},
	)
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
