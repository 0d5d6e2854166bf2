// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package checkout

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestTurn(t *testing.T) {
	const took = 10 * time.Millisecond
	// round is one of this replica's, in which so many versions by others came
	// before its own.
	round := func(t *turn, number, others int) {
		for i := range others {
			t.hear(fmt.Sprint(number, "-", i))
		}
		t.wrote(fmt.Sprint(number))
	}
	tests := map[string]struct {
		before func(*turn)
		// idle is how long ago the last batch ended.
		idle time.Duration
		// hears is when others write from then on.
		hears []time.Duration
		want  time.Duration
	}{
		"the first of a pool does not wait": {},
		"a client that comes alone does not wait": {
			before: func(t *turn) { round(t, 1, 0); t.served(1, took, 0) },
		},
		"a replica that writes alone waits half a batch for more to come": {
			before: func(t *turn) { round(t, 1, 0); round(t, 2, 0); t.served(5, took, 0) },
			want:   took / 2,
		},
		"a slow batch makes nobody wait for longer than an update takes": {
			before: func(t *turn) { round(t, 1, 0); t.served(5, time.Second, 0) },
			want:   maxLinger,
		},
		"one that was busy a while ago does not wait": {
			before: func(t *turn) { round(t, 1, 3); t.served(5, took, 0) },
			idle:   maxTurn + 1,
		},
		"one that writes beside others goes after as many of them as the last time": {
			before: func(t *turn) { round(t, 1, 2); t.served(5, took, 0) },
			hears:  []time.Duration{3 * time.Millisecond, 4 * time.Millisecond, time.Millisecond},
			want:   7 * time.Millisecond,
		},
		"those who have written already are not waited for": {
			before: func(t *turn) { round(t, 1, 1); t.served(5, took, 0); t.hear("other") },
		},
		"one that has nothing to write any more is not waited for longer than a write takes": {
			before: func(t *turn) { round(t, 1, 2); t.served(5, took, 0) },
			hears:  []time.Duration{time.Millisecond},
			want:   3 * took,
		},
		"however many there are, nobody waits for long": {
			before: func(t *turn) { round(t, 1, 1000); t.served(5, took, 0) },
			want:   maxTurn,
		},
		"its own version is not another's, heard of before the write returned": {
			before: func(t *turn) { t.hear("1"); t.wrote("1"); t.served(5, took, 0) },
			want:   took / 2,
		},
		"what another wrote upon its own version counts for the next round": {
			before: func(t *turn) {
				t.hear("other 1")
				t.hear("1")
				t.hear("other 2")
				t.wrote("1")
				t.served(5, took, 0)
			},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var turn turn
				if tc.before != nil {
					tc.before(&turn)
				}
				var others sync.WaitGroup
				others.Go(func() {
					for _, in := range tc.hears {
						time.Sleep(in)
						turn.hear("another")
					}
				})
				begun := time.Now()
				turn.await(tc.idle)
				if got := time.Since(begun); got != tc.want {
					t.Errorf("waited %v, want %v", got, tc.want)
				}
				others.Wait()
			})
		})
	}
}
