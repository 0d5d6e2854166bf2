// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	seatpoolv1alpha1 "seatpool.dev/api/v1alpha1"
	"seatpool.dev/internal/checkout"
)

// A key is retired by when the oldest lease was signed: one that was never
// signed must not hide those that were.
func TestTheOldestSignedLeaseIsFoundBesideUnsignedOnes(t *testing.T) {
	oldest := time.Unix(1_000, 0)
	for range 50 { // maps have no order
		index := checkout.NewIndex(func() time.Duration { return 0 })
		keeper := &KeyKeeper{Index: index}
		if got := keeper.oldestIssued(); !got.IsZero() {
			t.Fatalf("without leases: got %v, want zero", got)
		}
		for i := range 12 {
			lease := &seatpoolv1alpha1.SeatLease{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: "ns", Name: fmt.Sprint("lease-", i), UID: types.UID(fmt.Sprint(i)), ResourceVersion: fmt.Sprint(i + 1),
				},
				Spec: seatpoolv1alpha1.SeatLeaseSpec{PoolRef: seatpoolv1alpha1.PoolReference{Name: fmt.Sprint("pool-", i%3)}},
			}
			if i%2 == 0 {
				lease.Status.SeatID = fmt.Sprint(i)
				lease.Status.IssuedAt = metav1.NewTime(oldest.Add(time.Duration(i) * time.Minute))
			}
			if err := index.Add(lease); err != nil {
				t.Fatal(err)
			}
		}
		if got := keeper.oldestIssued(); !got.Equal(oldest) {
			t.Fatalf("got %v, want %v", got, oldest)
		}
	}
}
