// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

// Package admission knows how to answer the API server's admission reviews: it
// decodes, asks the packages that decide, and turns what they say into
// responses. No decision about seats is made here.
package admission

import (
	"errors"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	seatpoolv1alpha1 "seatpool.dev/api/v1alpha1"
	"seatpool.dev/internal/ledger"
	"seatpool.dev/internal/metrics"
)

// refused turns an error into the response the client sees. An error that
// carries a status keeps its code and reason; any other is our own failure, and
// the client may try again.
func refused(err error) admission.Response {
	var carrier apierrors.APIStatus
	var status metav1.Status
	if errors.As(err, &carrier) {
		status = carrier.Status()
	} else {
		status = ledger.Busy(types.NamespacedName{}, "an internal error: "+err.Error()).Status()
	}
	response := admission.Response{}
	response.Result = &status
	return response
}

// invalid turns violations of field rules into a 422 response.
func invalid(lease types.NamespacedName, violations field.ErrorList) admission.Response {
	kind := seatpoolv1alpha1.GroupVersion.WithKind("SeatLease").GroupKind()
	return refused(apierrors.NewInvalid(kind, lease.Name, violations))
}

// reasonOf returns the reason of a refusal as a metric label.
func reasonOf(response admission.Response) string {
	switch {
	case response.Allowed || response.Result == nil:
		return ""
	case response.Result.Reason != "":
		return string(response.Result.Reason)
	default:
		return http.StatusText(int(response.Result.Code))
	}
}

func outcomeOf(response admission.Response) string {
	if response.Allowed {
		return metrics.OutcomeGranted
	}
	return metrics.OutcomeRefused
}
