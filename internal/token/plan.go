// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package token

import (
	"encoding/json"
	"errors"
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
	// long after its last signature it is kept at least.
	Overlap time.Duration
}

// Plan is what the Secret of the keys should be.
type Plan struct {
	// Data and Annotations are those of the Secret.
	Data        map[string][]byte
	Annotations map[string]string
	// Changes says, in words, what is different from the Secret as it is;
	// empty when nothing is.
	Changes []string
	// Next is in how long to plan again, 0 for not until the Secret changes.
	Next time.Duration
}

// NewPlan plans the Secret from what it is now. oldestIssued is when the oldest
// of the leases in existence was signed, zero when there are none.
//
// A first key signs at once, since there is no token yet that anybody could
// fail to verify. Any other key, made here or added to the Secret by hand, signs
// after the overlap: by then every replica has heard of it, and whoever embeds
// the published keys has had time to fetch it. An old key goes once its
// successor has signed for longer than the overlap and no lease is left from
// the time before.
func NewPlan(data map[string][]byte, annotations map[string]string, now time.Time, policy Policy, oldestIssued time.Time) (*Plan, error) {
	p := &Plan{Data: maps.Clone(data), Annotations: maps.Clone(annotations)}
	if p.Data == nil {
		p.Data = map[string][]byte{}
	}
	if p.Annotations == nil {
		p.Annotations = map[string]string{}
	}
	times, err := parseTimes(annotations)
	if err != nil {
		return nil, err
	}
	now = now.UTC().Truncate(time.Second)
	if err := p.addFirst(times, now); err != nil {
		return nil, err
	}
	ring, err := ParseKeyring(p.Data, map[string]string{KeyTimesAnnotation: encodeTimes(times)})
	if ring == nil {
		return nil, err
	}
	p.schedule(ring, times, now, policy)
	if policy.Period > 0 {
		if err := p.rotate(times, now, policy); err != nil {
			return nil, err
		}
		p.retire(times, now, policy, oldestIssued)
	}
	p.Annotations[KeyTimesAnnotation] = encodeTimes(times)
	return p, nil
}

// addFirst makes the first key.
func (p *Plan) addFirst(times map[string]time.Time, now time.Time) error {
	if len(p.Data) > 0 {
		return nil
	}
	clear(times)
	return p.add(times, now, now, "made the first key %s")
}

func (p *Plan) add(times map[string]time.Time, now, activeFrom time.Time, change string) error {
	id, value, err := GenerateKey(now)
	if err != nil {
		return err
	}
	p.Data[id] = value
	times[id] = activeFrom
	p.change(change, id)
	return nil
}

// schedule gives every key a time from which it signs, and forgets the times of
// keys that are gone.
func (p *Plan) schedule(ring *Keyring, times map[string]time.Time, now time.Time, policy Policy) {
	present := map[string]bool{}
	for _, k := range ring.keys {
		present[k.id] = true
	}
	maps.DeleteFunc(times, func(id string, _ time.Time) bool { return !present[id] })
	for _, k := range ring.keys {
		if _, ok := times[k.id]; ok {
			continue
		}
		times[k.id] = now.Add(policy.Overlap)
		if len(times) == 1 {
			// Alone it signs already.
			times[k.id] = now
		}
		p.change("scheduled key %s, which was added by hand", k.id)
	}
}

// rotate makes a new key when the newest has signed long enough.
func (p *Plan) rotate(times map[string]time.Time, now time.Time, policy Policy) error {
	due := newest(times).Add(policy.Period - policy.Overlap)
	if now.Before(due) {
		p.next(due.Sub(now))
		return nil
	}
	p.next(policy.Period)
	return p.add(times, now, now.Add(policy.Overlap), "made key %s to take over")
}

// retire removes the keys that nobody needs any more.
func (p *Plan) retire(times map[string]time.Time, now time.Time, policy Policy, oldestIssued time.Time) {
	// The successor that counts is the key that signs now.
	var signing string
	for id, from := range times {
		if !from.After(now) && (signing == "" || from.After(times[signing]) || from.Equal(times[signing]) && id > signing) {
			signing = id
		}
	}
	if signing == "" {
		return
	}
	since := times[signing]
	for id, from := range times {
		if id == signing || from.After(now) {
			continue
		}
		if safe := since.Add(policy.Overlap); now.Before(safe) {
			p.next(safe.Sub(now))
			continue
		}
		if !oldestIssued.IsZero() && oldestIssued.Before(since.Add(policy.Overlap)) {
			p.next(policy.Overlap) // a lease from then is left
			continue
		}
		delete(times, id)
		delete(p.Data, id)
		delete(p.Data, id+".pem")
		p.change("retired key %s", id)
	}
}

func (p *Plan) change(format string, id string) {
	p.Changes = append(p.Changes, fmt.Sprintf(format, id))
}

func (p *Plan) next(in time.Duration) {
	if in = max(in, time.Second); p.Next == 0 || in < p.Next {
		p.Next = in
	}
}

// Summary returns what the plan changes, in a sentence.
func (p *Plan) Summary() string { return strings.Join(p.Changes, "; ") }

func newest(times map[string]time.Time) time.Time {
	var newest time.Time
	for _, from := range times {
		if from.After(newest) {
			newest = from
		}
	}
	return newest
}

func encodeTimes(times map[string]time.Time) string {
	encoded, err := json.Marshal(times) // in the order of the keys
	if err != nil {
		panic(errors.Join(errors.New("times cannot be written as JSON"), err)) // beyond the year 9999
	}
	return string(encoded)
}
