// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

// Package clock knows what time it is, and when not to believe it.
//
// Leases carry wall-clock times, and a wall clock can be set. When the clock of
// a machine jumps a day ahead, every lease looks expired at once, and an
// operator that believed it would end every holder's seat. The monotonic clock
// does not jump: when the two disagree, the wall clock has been stepped. For a
// while after a step forward, [Clock.Judge] tells the time as it would be
// without it.
package clock

import (
	"context"
	"sync"
	"time"
)

const (
	// stepThreshold is how far the wall clock must move against the monotonic
	// clock between two looks to count as a step. Clock discipline slews by at
	// most 0.5 ms a second, and two looks are at most a second or so apart;
	// the default skew of a pool absorbs what is below.
	stepThreshold = time.Second

	// lookEvery is how often Run looks.
	lookEvery = time.Second

	// maxSteps bounds the memory for steps. A clock that is stepped more often
	// within one TTL is broken beyond what can be helped here.
	maxSteps = 64
)

// Step is a jump of the wall clock.
type Step struct {
	// Size is how far the wall clock jumped, negative for backwards.
	Size time.Duration
	// At is when the step was noticed, on the monotonic clock.
	At time.Duration
}

// Clock tells wall and monotonic time and remembers steps of the former. All
// its methods are safe for concurrent use.
type Clock struct {
	wall   func() time.Time
	mono   func() time.Duration
	onStep func(Step)

	mu sync.Mutex
	// offset is wall minus monotonic time when last looked at.
	offset time.Duration
	base   time.Time
	steps  []Step
}

// New returns a clock over the machine's own.
func New() *Clock {
	start := time.Now()
	return NewFrom(
		func() time.Time { return time.Now().Round(0) }, // without the monotonic reading
		func() time.Duration { return time.Since(start) },
	)
}

// NewFrom returns a clock over the given readings, for tests.
func NewFrom(wall func() time.Time, mono func() time.Duration) *Clock {
	c := &Clock{wall: wall, mono: mono, base: wall()}
	c.offset = -mono()
	return c
}

// OnStep sets what is called after a step has been noticed. It must be set
// before the clock is used, and must not block.
func (c *Clock) OnStep(f func(Step)) { c.onStep = f }

// Now returns the wall time.
func (c *Clock) Now() time.Time { return c.wall() }

// Mono returns the time since some fixed moment, which no step can change.
func (c *Clock) Mono() time.Duration { return c.mono() }

// Look compares the two clocks and notices a step.
func (c *Clock) Look() {
	if step, stepped := c.look(); stepped && c.onStep != nil {
		c.onStep(step)
	}
}

func (c *Clock) look() (Step, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	mono := c.mono()
	offset := c.wall().Sub(c.base) - mono
	size := offset - c.offset
	c.offset = offset
	if size.Abs() < stepThreshold {
		return Step{}, false
	}
	if len(c.steps) == maxSteps {
		c.steps = append(c.steps[:0], c.steps[1:]...)
	}
	step := Step{Size: size, At: mono}
	c.steps = append(c.steps, step)
	return step, true
}

// Judge returns the time by which to judge whether a lease is live: the wall
// time, less what it has been stepped forward by within the last hold.
func (c *Clock) Judge(hold time.Duration) time.Time {
	c.Look()
	c.mu.Lock()
	defer c.mu.Unlock()
	now, mono := c.wall(), c.mono()
	var forward time.Duration
	for _, s := range c.steps {
		if mono-s.At < hold {
			forward += s.Size
		}
	}
	return now.Add(-max(forward, 0))
}

// Held returns for how long Judge will still differ from the wall time, given
// the hold; 0 when it does not.
func (c *Clock) Held(hold time.Duration) time.Duration {
	c.Look()
	c.mu.Lock()
	defer c.mu.Unlock()
	var forward, until time.Duration
	mono := c.mono()
	for _, s := range c.steps {
		if left := hold - (mono - s.At); left > 0 {
			forward += s.Size
			until = max(until, left)
		}
	}
	if forward <= 0 {
		return 0
	}
	return until
}

// Run looks at the clocks every second until the context ends.
func (c *Clock) Run(ctx context.Context) error {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			c.Look()
		}
	}
}
