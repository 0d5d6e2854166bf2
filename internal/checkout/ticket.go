// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package checkout

import (
	"context"
	"sync/atomic"
	"time"

	"seatpool.dev/internal/ledger"
)

// ticket is somebody who waits for a pool's committer.
type ticket struct {
	ctx context.Context
	// req is the checkout, nil for a refresh.
	req *ledger.Request
	// answered takes the answer; it has room for one.
	answered chan error
	// next is set before the answer to a refresh: in how long to refresh again.
	next time.Duration

	state atomic.Int32
	// granted is set by the committer when the answer was a grant.
	granted bool
}

const (
	ticketWaiting int32 = iota
	ticketAnswered
	ticketAbandoned
)

// answer gives the answer, and reports false when nobody waits for it any
// more. A grant that nobody heard of is answered with a refusal by whoever gave
// up waiting, so that its create is known to be dead.
func (t *ticket) answer(err error) bool {
	if !t.state.CompareAndSwap(ticketWaiting, ticketAnswered) {
		return false
	}
	t.granted = err == nil
	t.answered <- err
	return true
}

// abandon gives up waiting, and reports false when the answer is there already.
func (t *ticket) abandon() bool {
	return t.state.CompareAndSwap(ticketWaiting, ticketAbandoned)
}

// waiting reports whether an answer is still wanted.
func (t *ticket) waiting() bool {
	return t.state.Load() == ticketWaiting && t.ctx.Err() == nil
}

// refuseAll answers with a refusal unless nobody waits.
func refuseAll(tickets []*ticket, refusal *ledger.Refusal) {
	for _, t := range tickets {
		t.answer(refusal)
	}
}
