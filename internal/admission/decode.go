// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	seatpoolv1alpha1 "seatpool.dev/api/v1alpha1"
)

// decode reads a lease. The heartbeat may be any time of RFC 3339, as the
// schema's date-time may: a client that is not written in Go sends whole
// seconds, or thousandths, and Go reads nothing but millionths.
func decode(decoder admission.Decoder, raw runtime.RawExtension) (*seatpoolv1alpha1.SeatLease, error) {
	lease := &seatpoolv1alpha1.SeatLease{}
	err := decoder.DecodeRaw(raw, lease)
	if err == nil {
		return lease, nil
	}
	normal, ok := withMicroseconds(raw.Raw)
	if !ok {
		return nil, err
	}
	lease = &seatpoolv1alpha1.SeatLease{}
	return lease, decoder.DecodeRaw(runtime.RawExtension{Raw: normal}, lease)
}

// withMicroseconds returns the object with its heartbeat written as Go reads
// it, and false when that is not what keeps it from being read.
func withMicroseconds(raw []byte) ([]byte, bool) {
	var object map[string]any
	if err := json.Unmarshal(raw, &object); err != nil {
		return nil, false
	}
	spec, _ := object["spec"].(map[string]any)
	text, _ := spec["renewTime"].(string)
	// RFC 3339 lets T and Z be lower case.
	renewTime, err := time.Parse(time.RFC3339Nano, strings.ToUpper(text))
	if err != nil {
		return nil, false
	}
	spec["renewTime"] = metav1.NewMicroTime(renewTime)
	normal, err := json.Marshal(object)
	return normal, err == nil
}

// unreadable is the answer to a lease that cannot be read.
func unreadable(name string, err error) error {
	return apierrors.NewBadRequest(fmt.Sprintf(
		"the lease %q cannot be read, nothing was granted or changed: %v; correct the field and send it again, times as in 2006-01-02T15:04:05Z", name, err))
}
