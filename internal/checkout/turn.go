// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package checkout

import (
	"slices"
	"sync"
	"time"
)

const (
	// maxLinger bounds how long a batch waits for others to join it. It is what
	// an update takes on a busy machine.
	maxLinger = 20 * time.Millisecond

	// maxTurn bounds how long a replica waits for the writes of others. One
	// that has nothing to write any more, or has died, holds up the rest once,
	// and for no longer than this.
	maxTurn = 100 * time.Millisecond

	// maxAhead bounds how many writes by others are kept in mind: more than
	// there are replicas in any installation.
	maxAhead = 32
)

// turn is when a replica takes its next batch of a busy pool.
//
// What a commit costs is nearly all the update, so that fewer and bigger batches
// serve a busy pool faster than they make anybody wait. And two replicas that
// write at once write in vain: one of them conflicts, and does all its work
// again. So a replica that writes alone waits a moment for more checkouts to
// come, and one that writes beside others lets them write first, as many of them
// as came between its own last two writes. Each then writes once a round, upon
// the version that it has just heard of.
//
// This is only about speed: nothing is ever decided by whose turn it is. Who
// comes alone to a pool that was not busy a moment ago never waits.
type turn struct {
	// took is how long the last batch took, zero when it was one client's.
	took time.Duration
	// until is when the last batch ended.
	until time.Duration

	mu sync.Mutex
	// ahead is how many versions by others came between the last two of this
	// replica.
	ahead int
	// heard are the versions that came since this replica's last.
	heard []string
	// enough is closed once as many have been heard as are ahead; nil when
	// nobody waits for that.
	enough chan struct{}
}

// hear notes that there is a new version of the pool.
func (t *turn) hear(version string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.heard) == maxAhead {
		t.heard = t.heard[1:]
	}
	t.heard = append(t.heard, version)
	if t.enough != nil && len(t.heard) >= t.ahead {
		close(t.enough)
		t.enough = nil
	}
}

// wrote notes which version this replica has written. It may have heard of it
// before it was told that the write succeeded.
func (t *turn) wrote(version string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	own := slices.Index(t.heard, version)
	if own < 0 {
		t.ahead, t.heard = len(t.heard), nil
		return
	}
	t.ahead, t.heard = own, slices.Clone(t.heard[own+1:])
}

// served notes when a batch ended, how long it took, and how many it was for.
func (t *turn) served(tickets int, took, now time.Duration) {
	t.took, t.until = 0, now
	if tickets > 1 {
		t.took = took
	}
}

// await returns when the next batch should be taken.
func (t *turn) await(now time.Duration) {
	if t.took == 0 || now-t.until > maxTurn {
		return
	}
	patience, enough := t.next()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-enough:
	}
}

// next returns how long to wait at most, and a channel that is closed before if
// all those ahead have written by then.
func (t *turn) next() (patience time.Duration, enough <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ahead == 0 {
		return min(t.took/2, maxLinger), nil
	}
	t.enough = make(chan struct{})
	enough = t.enough
	if len(t.heard) >= t.ahead {
		close(t.enough)
		t.enough = nil
	}
	// Each of the others takes about as long as this one did.
	return min(t.took*time.Duration(t.ahead+1), maxTurn), enough
}
