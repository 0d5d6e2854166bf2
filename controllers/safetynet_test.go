// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	seatpoolv1alpha1 "seatpool.dev/api/v1alpha1"
)

func TestOnlyWhatNobodyGrantedIsUnfounded(t *testing.T) {
	const forged, uncovered = true, true
	at := func(name string, second int64, seat string, marks ...bool) suspect {
		return suspect{
			SeatLease: seatpoolv1alpha1.SeatLease{
				ObjectMeta: metav1.ObjectMeta{UID: types.UID(name), CreationTimestamp: metav1.NewTime(time.Unix(second, 0))},
				Status:     seatpoolv1alpha1.SeatLeaseStatus{SeatID: seat},
			},
			forged:    marks[0],
			uncovered: marks[1],
		}
	}
	tests := []struct {
		name   string
		leases []suspect
		want   []string
	}{
		{"nothing", nil, nil},
		{
			"granted leases, however old, are left alone",
			[]suspect{at("a", 1, "s1", false, false), at("b", 2, "s2", false, false)},
			nil,
		},
		{
			"forged before uncovered, the newest first",
			[]suspect{
				at("old-uncovered", 1, "s1", false, uncovered), at("new-uncovered", 9, "s2", false, uncovered),
				at("old-forged", 2, "s3", forged, false), at("new-forged", 3, "s4", forged, uncovered), at("granted", 9, "s5", false, false),
			},
			[]string{"new-forged", "old-forged", "new-uncovered", "old-uncovered"},
		},
		{
			"a copy goes, its original stays",
			[]suspect{at("original", 1, "s", false, false), at("copy", 2, "s", false, uncovered)},
			[]string{"copy"},
		},
		{
			"the original stays when a copy is as old and has a smaller UID",
			[]suspect{at("original", 1, "s", false, false), at("copy", 1, "s", false, uncovered)},
			[]string{"copy"},
		},
		{
			"a forgery of its seat does not make the original a copy, even when it is older",
			[]suspect{at("original", 2, "s", false, false), at("forgery", 1, "s", forged, uncovered)},
			[]string{"forgery"},
		},
		{
			"after a restart nobody knows what was reserved, and the oldest counts as the original",
			[]suspect{at("copy", 2, "s", false, false), at("original", 1, "s", false, false), at("another", 3, "s", false, false)},
			[]string{"another", "copy"},
		},
		{
			"a grant that nobody reserved goes after its copies",
			[]suspect{at("first", 1, "s", false, uncovered), at("copy", 2, "s", false, uncovered)},
			[]string{"copy", "first"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			for range 20 { // the order of a list means nothing
				rand.Shuffle(len(test.leases), func(i, j int) {
					test.leases[i], test.leases[j] = test.leases[j], test.leases[i]
				})
				var got []string
				for _, lease := range unfounded(slices.Clone(test.leases)) {
					got = append(got, string(lease.UID))
				}
				if !slices.Equal(got, test.want) {
					t.Fatalf("got %v, want %v", got, test.want)
				}
			}
		})
	}
}
