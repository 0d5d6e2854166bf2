// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package token

import (
	"fmt"
	"maps"
	"strings"
	"time"
)

// Policy says how keys are rotated.
type Policy struct {
	// Period is how long a key signs before another takes over; no key is made
	// or retired by itself when it is 0.
	Period time.Duration
	// Overlap is how long a key is known everywhere before it signs, and how
	// long after its successor has taken over it is kept at least. It must
	// cover how far a replica's view of the Secret may lag behind, how far the
	// replicas' clocks may be apart, and how long a request may be under way
	// between being signed and being stored.
	Overlap time.Duration
}

// Plan is what the Secret of the keys should be.
type Plan struct {
	// Data and Annotations are those of the Secret.
	Data        map[string][]byte
	Annotations map[string]string
	// Changes says, in words, what happens to the keys. It may be empty though
	// the Secret is to be written, as when the time of a key that is gone is
	// forgotten: compare data and annotations to know that.
	Changes []string
	// Next is in how long to plan again, 0 for not until the Secret changes.
	Next time.Duration
}

// NewPlan plans the Secret from what it is now. oldestIssued is when the oldest
// of the leases in existence was signed, zero when there are none: never guess
// that, or running leases lose their key.
//
// A first key signs at once, since there is no token yet that anybody could
// fail to verify. Any other key, made here or added to the Secret by hand, signs
// after the overlap: by then every replica has heard of it, and whoever embeds
// the published keys has had time to fetch it. An old key goes once its
// successor has been active for the overlap and no lease is left from the time
// before.
//
// Entries that are no keys stay as they are, and so does the whole Secret, with
// an error, when it has no other entries: what a person broke is not made worse.
func NewPlan(data map[string][]byte, annotations map[string]string, now time.Time, policy Policy, oldestIssued time.Time) (*Plan, error) {
	p := &planner{
		Plan:   Plan{Data: maps.Clone(data), Annotations: maps.Clone(annotations)},
		now:    now.Round(0).UTC(),
		policy: policy,
	}
	if p.Data == nil {
		p.Data = map[string][]byte{}
	}
	if p.Annotations == nil {
		p.Annotations = map[string]string{}
	}
	if len(data) == 0 {
		if err := p.add(p.now.Truncate(time.Second), "made the first key %s"); err != nil {
			return nil, err
		}
	} else {
		ring, err := ParseKeyring(data, annotations)
		if ring == nil {
			return nil, err
		}
		p.turns = ring.turns // of a keyring that nobody else has
	}
	p.schedule()
	if policy.Period > 0 {
		if err := p.rotate(); err != nil {
			return nil, err
		}
		p.retire(oldestIssued)
	}
	if err := p.writeTimes(); err != nil {
		return nil, err
	}
	return &p.Plan, nil
}

// Summary returns what the plan changes, in a sentence.
func (p *Plan) Summary() string { return strings.Join(p.Changes, "; ") }

// planner is a Plan in the making.
type planner struct {
	Plan
	turns  turns
	now    time.Time
	policy Policy
}

// schedule gives every key a time from which it signs.
func (p *planner) schedule() {
	// A key that signs only because no other does goes on signing: what comes
	// in between must not make it stop before all know the other.
	signing := &p.turns[p.turns.at(p.now)]
	switch {
	case signing.from.IsZero():
		signing.from = p.now.Truncate(time.Second)
		p.change("took up key %s, which was added by hand", signing.kid)
	case signing.from.After(p.now):
		signing.from = p.now.Truncate(time.Second)
		p.change("brought key %s forward, as no other is left to sign", signing.kid)
	}
	for i := range p.turns {
		if p.turns[i].from.IsZero() {
			p.turns[i].from = p.afterOverlap()
			p.change("scheduled key %s, which was added by hand", p.turns[i].kid)
		}
	}
	p.turns.sort()
}

// rotate makes a new key in time to take over from the newest when that has
// signed for the period.
func (p *planner) rotate() error {
	newest := p.turns[len(p.turns)-1].from
	due := newest.Add(p.policy.Period - p.policy.Overlap)
	if p.now.Before(due) {
		p.next(due)
		return nil
	}
	from := p.afterOverlap()
	p.next(from.Add(p.policy.Period - p.policy.Overlap))
	return p.add(from, "made key %s to take over")
}

// retire removes the keys that nobody needs any more. Each is judged by the key
// that took over from it, so that keys go one by one however fast they follow
// each other.
func (p *planner) retire(oldestIssued time.Time) {
	signing := p.turns.at(p.now)
	kept := turns{}
	for i, t := range p.turns {
		if i >= signing {
			kept = append(kept, t)
			if i > signing {
				// Then this key's predecessor may go.
				p.next(t.from.Add(p.policy.Overlap))
			}
			continue
		}
		// Until then a replica may have signed with the old key: its clock may
		// be behind.
		safe := p.turns[i+1].from.Add(p.policy.Overlap)
		switch {
		case p.now.Before(safe):
			p.next(safe)
			kept = append(kept, t)
		case !oldestIssued.IsZero() && oldestIssued.Before(safe):
			// Renewals and releases are not foreseen, so look again.
			p.next(p.now.Add(max(p.policy.Overlap, time.Second)))
			kept = append(kept, t)
		case p.isContested(t.kid):
			// A person has to say which of the two it is; if one went now, the
			// other would come in its place.
			kept = append(kept, t)
		default:
			delete(p.Data, t.kid)
			delete(p.Data, t.kid+".pem")
			p.change("retired key %s", t.kid)
		}
	}
	p.turns = kept
}

// isContested reports whether two entries of the Secret claim the key ID.
func (p *planner) isContested(kid string) bool {
	_, plain := p.Data[kid]
	_, suffixed := p.Data[kid+".pem"]
	return plain && suffixed
}

func (p *planner) add(from time.Time, change string) error {
	kid, value, err := GenerateKey(p.now)
	if err != nil {
		return err
	}
	p.Data[kid] = value
	p.turns = append(p.turns, turn{kid: kid, from: from})
	p.turns.sort()
	p.change(change, kid)
	return nil
}

// afterOverlap returns the whole second from which a key signs that is known
// from now on: not before the overlap is over.
func (p *planner) afterOverlap() time.Time {
	from := p.now.Add(p.policy.Overlap)
	if whole := from.Truncate(time.Second); whole.Before(from) {
		return whole.Add(time.Second)
	}
	return from
}

// writeTimes writes the annotation. It forgets the times of keys that are gone
// or cannot be read: one that comes back is new to everybody.
func (p *planner) writeTimes() error {
	times := map[string]time.Time{}
	for _, t := range p.turns {
		times[t.kid] = t.from
	}
	encoded, err := formatTimes(times)
	if err != nil {
		return fmt.Errorf("annotation %s cannot be written: %w", KeyTimesAnnotation, err)
	}
	p.Annotations[KeyTimesAnnotation] = encoded
	return nil
}

func (p *planner) change(format, kid string) {
	p.Changes = append(p.Changes, fmt.Sprintf(format, kid))
}

// next asks for another plan at the time, unless one is asked for earlier.
func (p *planner) next(at time.Time) {
	if in := at.Sub(p.now); p.Next == 0 || in < p.Next {
		p.Next = in
	}
}
