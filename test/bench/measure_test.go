// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"time"
)

func TestTicksOf(t *testing.T) {
	tests := map[string]struct {
		stat string
		want int64
	}{
		"user and system time are added": {"7 (manager) S 1 7 7 0 -1 4194560 100 0 0 0 30 12 0 0 20 0 9 0 55", 42},
		"a name may hold anything":       {"7 (a) b (c) S 1 7 7 0 -1 4194560 100 0 0 0 30 12 0 0 20 0 9 0 55", 42},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got, err := ticksOf(tc.stat); err != nil || got != tc.want {
				t.Errorf("got %d, %v, want %d", got, err, tc.want)
			}
		})
	}
	for _, stat := range []string{"", "7 (manager) S 1", "7 (manager) S 1 7 7 0 -1 4194560 100 0 0 0 thirty 12"} {
		if got, err := ticksOf(stat); err == nil {
			t.Errorf("ticksOf(%q) = %d, want an error", stat, got)
		}
	}
}

func TestFiguresOfRoundsAreOne(t *testing.T) {
	var f figures
	f.add(&figures{calls: 2, elapsed: time.Second, samples: []time.Duration{1, 4}, server: 3, managers: 1})
	f.add(&figures{calls: 2, elapsed: time.Second, samples: []time.Duration{2, 3}, server: 1, managers: 2})
	if got := f.rate(); got != 2 {
		t.Errorf("rate %v, want 2", got)
	}
	if got := f.quantile(.5); got != 3 {
		t.Errorf("median %v, want 3", got)
	}
	if got := f.tail(); got != 4 {
		t.Errorf("tail %v, want 4", got)
	}
	if f.server != 4 || f.managers != 3 {
		t.Errorf("processor time %v and %v, want 4 and 3", f.server, f.managers)
	}
}

func TestTargets(t *testing.T) {
	out := &tables{}
	out.target("rate", 0.8, atLeast(0.8))
	out.target("slow", 0.79, atLeast(0.8))
	out.target("size", 150, atMost(150))
	out.target("large", 151, atMost(150))
	want := []string{
		"| rate | at least 0.8 | 0.80 | met |\n", "| slow | at least 0.8 | 0.79 | **missed** |\n",
		"| size | at most 150 | 150.00 | met |\n", "| large | at most 150 | 151.00 | **missed** |\n",
	}
	for i, row := range out.targets {
		if row != want[i] {
			t.Errorf("got %q, want %q", row, want[i])
		}
	}
}
