// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"

	"gomodules.xyz/jsonpatch/v2"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	seatpoolv1alpha1 "seatpool.dev/api/v1alpha1"
)

// Product fills in spec.product of a SeatPool that does not set it. Its webhook
// may be skipped: whoever reads a pool calls ProductName, which knows the
// default too.
type Product struct {
	Decoder admission.Decoder
}

// Handle implements admission.Handler.
func (p *Product) Handle(_ context.Context, req admission.Request) admission.Response {
	pool := &seatpoolv1alpha1.SeatPool{}
	// A pool that is given a generated name has none yet.
	if err := p.Decoder.Decode(req, pool); err != nil || pool.Spec.Product != "" || pool.Name == "" || pool.DeletionTimestamp != nil {
		return admission.Allowed("")
	}
	return admission.Patched("", jsonpatch.NewOperation("add", "/spec/product", pool.Name))
}
