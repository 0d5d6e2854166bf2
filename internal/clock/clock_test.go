// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package clock_test

import (
	"testing"
	"time"

	"seatpool.dev/internal/clock"
)

// hands are the hands of a clock that can be set.
type hands struct {
	wall time.Time
	mono time.Duration
}

func (h *hands) pass(d time.Duration) { h.wall, h.mono = h.wall.Add(d), h.mono+d }

func TestJudge(t *testing.T) {
	const hold = time.Minute
	start := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	tests := map[string]struct {
		happen    func(*hands, *clock.Clock)
		wantAfter time.Duration // of Judge, after the start
		wantHeld  time.Duration
		wantSteps int
	}{
		"time that passes is judged by": {
			happen:    func(h *hands, _ *clock.Clock) { h.pass(time.Hour) },
			wantAfter: time.Hour,
		},
		"a day forward is not believed": {
			happen: func(h *hands, c *clock.Clock) {
				c.Look()
				h.wall = h.wall.Add(24 * time.Hour)
				c.Look()
				h.pass(10 * time.Second)
			},
			wantAfter: 10 * time.Second, wantHeld: hold - 10*time.Second, wantSteps: 1,
		},
		"a day forward is believed after the hold": {
			happen: func(h *hands, c *clock.Clock) {
				h.wall = h.wall.Add(24 * time.Hour)
				c.Look()
				h.pass(hold)
			},
			wantAfter: 24*time.Hour + hold, wantSteps: 1,
		},
		"an hour back is believed at once, since it ends nobody": {
			happen: func(h *hands, c *clock.Clock) {
				h.wall = h.wall.Add(-time.Hour)
				c.Look()
			},
			wantAfter: -time.Hour, wantSteps: 1,
		},
		"forward and back again is no step": {
			happen: func(h *hands, c *clock.Clock) {
				h.wall = h.wall.Add(time.Hour)
				c.Look()
				h.wall = h.wall.Add(-time.Hour)
				c.Look()
			},
			wantSteps: 2,
		},
		"slow drift is no step": {
			happen: func(h *hands, c *clock.Clock) {
				for range 100 {
					h.pass(time.Second)
					h.wall = h.wall.Add(time.Millisecond)
					c.Look()
				}
			},
			wantAfter: 100*time.Second + 100*time.Millisecond,
		},
		"a step that nobody looked at is noticed by judging": {
			happen:    func(h *hands, _ *clock.Clock) { h.wall = h.wall.Add(time.Hour) },
			wantAfter: 0, wantHeld: hold, wantSteps: 1,
		},
		"a clock that is stepped all the time is not believed": {
			happen: func(h *hands, c *clock.Clock) {
				for range 200 {
					h.wall = h.wall.Add(2 * time.Second)
					c.Look()
				}
			},
			wantAfter: 400*time.Second - 64*2*time.Second, wantHeld: hold, wantSteps: 200,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			h := &hands{wall: start}
			c := clock.NewFrom(func() time.Time { return h.wall }, func() time.Duration { return h.mono })
			steps := 0
			c.OnStep(func(clock.Step) { steps++ })
			tc.happen(h, c)
			if got := c.Judge(hold).Sub(start); got != tc.wantAfter {
				t.Errorf("judge is %s after the start, want %s", got, tc.wantAfter)
			}
			if got := c.Held(hold); got != tc.wantHeld {
				t.Errorf("held for %s, want %s", got, tc.wantHeld)
			}
			if steps != tc.wantSteps {
				t.Errorf("%d steps were noticed, want %d", steps, tc.wantSteps)
			}
			if !c.Now().Equal(h.wall) || c.Mono() != h.mono {
				t.Error("now and mono must be what the clocks say")
			}
		})
	}
}
