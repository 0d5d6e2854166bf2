// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package token

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const (
	day     = 24 * time.Hour
	period  = 30 * day
	overlap = 10 * time.Minute
	// never is a time that a case does not want, or a lease that is not there.
	never = time.Duration(-1 << 62)
)

func TestNewPlan(t *testing.T) {
	type at = map[string]time.Duration

	for name, tc := range map[string]struct {
		// from are the keys of the Secret and when each is activated, in
		// relation to now; never for a key without a time.
		from at
		// entries are further entries of the Secret.
		entries map[string]string
		// annotation replaces the one that from asks for.
		annotation string
		period     time.Duration
		// oldest is when the oldest lease was signed, if not never.
		oldest time.Duration
		// want are the keys and times afterwards. A key that was made is "new".
		want        at
		wantChanges []string
		wantNext    time.Duration
		wantErr     string
	}{
		"makes the first key, which signs at once": {
			period: period, oldest: never,
			want:        at{"new": 0},
			wantChanges: []string{"made the first key new"},
			wantNext:    period - overlap,
		},
		"makes the first key also when none is to be rotated": {
			oldest:      never,
			want:        at{"new": 0},
			wantChanges: []string{"made the first key new"},
		},
		"makes a first key again when the Secret was lost": {
			annotation: `{"gone":"2026-11-01T00:00:00Z"}`,
			period:     period, oldest: -time.Minute,
			want:        at{"new": 0},
			wantChanges: []string{"made the first key new"},
			wantNext:    period - overlap,
		},
		"takes up the only key, which a person made": {
			from: at{"a": never}, oldest: never,
			want:        at{"a": 0},
			wantChanges: []string{"took up key a, which was added by hand"},
		},
		"takes up the first of several keys, and schedules the others": {
			from: at{"b": never, "a": never, "c": never}, oldest: never,
			want: at{"a": 0, "b": overlap, "c": overlap},
			wantChanges: []string{
				"took up key a, which was added by hand",
				"scheduled key b, which was added by hand", "scheduled key c, which was added by hand",
			},
		},
		"schedules a key that was added by hand, also when none is to be rotated": {
			from: at{"a": -time.Hour, "b": never}, oldest: never,
			want:        at{"a": -time.Hour, "b": overlap},
			wantChanges: []string{"scheduled key b, which was added by hand"},
		},
		"schedules a key that was added while another is scheduled": {
			from: at{"a": -time.Hour, "b": time.Minute, "0": never}, oldest: never,
			want:        at{"a": -time.Hour, "b": time.Minute, "0": overlap},
			wantChanges: []string{"scheduled key 0, which was added by hand"},
		},
		"does nothing when there is nothing to do": {
			from: at{"a": -day}, period: period, oldest: never,
			want:     at{"a": -day},
			wantNext: 29*day - overlap,
		},
		"does nothing to old keys when none is to be rotated": {
			from: at{"a": -900 * day, "b": -800 * day}, oldest: never,
			want: at{"a": -900 * day, "b": -800 * day},
		},
		"leaves alone when a person says a key is to sign": {
			from: at{"a": -day, "b": 300 * day}, period: period, oldest: never,
			want:     at{"a": -day, "b": 300 * day},
			wantNext: 300*day + overlap,
		},
		"forgets the times of keys that are gone": {
			from:       at{"a": -day},
			annotation: `{"a":"2026-11-30T12:00:00Z","gone":"2026-11-30T12:00:00Z"}`,
			oldest:     never,
			want:       at{"a": -day},
		},
		"brings a key forward when a person has removed the one that signs": {
			from: at{"b": time.Minute}, oldest: never,
			want:        at{"b": 0},
			wantChanges: []string{"brought key b forward, as no other is left to sign"},
		},
		"does not prefer a key that has just come to one that is known": {
			from: at{"a": never, "b": time.Hour}, oldest: never,
			want: at{"a": overlap, "b": 0},
			wantChanges: []string{
				"brought key b forward, as no other is left to sign", "scheduled key a, which was added by hand",
			},
		},
		"gives new times for those that cannot be read": {
			from: at{"a": never, "b": never}, annotation: `{"a":"yesterday","b":"2026-12-01T11:00:00Z"}`, oldest: never,
			want:        at{"a": overlap, "b": -time.Hour},
			wantChanges: []string{"scheduled key a, which was added by hand"},
		},
		"gives new times when none can be read": {
			from: at{"a": never, "b": never}, annotation: `yesterday`, oldest: never,
			want: at{"a": 0, "b": overlap},
			wantChanges: []string{
				"took up key a, which was added by hand", "scheduled key b, which was added by hand",
			},
		},
		"keeps entries that are no keys": {
			from: at{"a": -day}, entries: map[string]string{"README": "do not touch", "b.pem": "broken"}, oldest: never,
			want: at{"a": -day, "README": never, "b.pem": never},
		},
		"forgets the time of a key that cannot be read, for it is new when it can": {
			from: at{"a": -day}, entries: map[string]string{"b": "broken"},
			annotation: `{"a":"2026-11-30T12:00:00Z","b":"2026-11-30T13:00:00Z"}`, oldest: never,
			want: at{"a": -day, "b": never},
		},
		"changes nothing when no entry is a key": {
			entries: map[string]string{"a": "broken"}, period: period, oldest: never,
			wantErr: "there is no signing key; restore the Secret",
		},

		"makes the next key so that it takes over after the period": {
			from: at{"a": overlap - period}, period: period, oldest: never,
			want:        at{"a": overlap - period, "new": overlap},
			wantChanges: []string{"made key new to take over"},
			wantNext:    2 * overlap,
		},
		"makes it a moment later only": {
			from: at{"a": overlap - period + time.Second}, period: period, oldest: never,
			want:     at{"a": overlap - period + time.Second},
			wantNext: time.Second,
		},
		"makes one key, however many were due": {
			from: at{"a": -100 * period}, period: period, oldest: never,
			want:        at{"a": -100 * period, "new": overlap},
			wantChanges: []string{"made key new to take over"},
			wantNext:    2 * overlap,
		},
		"makes keys faster than they are retired when the period is short": {
			from: at{"a": -10 * time.Minute}, period: 15 * time.Minute, oldest: never,
			want:        at{"a": -10 * time.Minute, "new": overlap},
			wantChanges: []string{"made key new to take over"},
			wantNext:    15 * time.Minute,
		},
		"makes no further key while one is about to take over": {
			from: at{"a": -period, "b": time.Second}, period: period, oldest: never,
			want:     at{"a": -period, "b": time.Second},
			wantNext: overlap + time.Second,
		},

		"keeps an old key for the overlap after it was succeeded": {
			from: at{"a": -period, "b": time.Second - overlap}, period: period, oldest: never,
			want:     at{"a": -period, "b": time.Second - overlap},
			wantNext: time.Second,
		},
		"retires it then": {
			from: at{"a": -period, "b": -overlap}, period: period, oldest: never,
			want:        at{"b": -overlap},
			wantChanges: []string{"retired key a"},
			wantNext:    period - 2*overlap,
		},
		"keeps an old key while a lease from its time is left": {
			from: at{"a": -period, "b": -day}, period: period, oldest: -day - time.Second,
			want:     at{"a": -period, "b": -day},
			wantNext: overlap,
		},
		"keeps an old key while a lease is left that a replica with a slow clock may have signed": {
			from: at{"a": -period, "b": -day}, period: period, oldest: -day + overlap - time.Second,
			want:     at{"a": -period, "b": -day},
			wantNext: overlap,
		},
		"retires it when the last of those leases is gone": {
			from: at{"a": -period, "b": -day}, period: period, oldest: -day + overlap,
			want:        at{"b": -day},
			wantChanges: []string{"retired key a"},
			wantNext:    29*day - overlap,
		},
		"keeps the key that signs, and the one to come, whatever their age": {
			from: at{"a": -period + day, "b": day}, period: period, oldest: never,
			want:     at{"a": -period + day, "b": day},
			wantNext: day + overlap,
		},
		"retires old keys one by one": {
			from: at{"a": -3 * day, "b": -2 * day, "c": -day}, period: period, oldest: -2*day + overlap,
			want:        at{"b": -2 * day, "c": -day},
			wantChanges: []string{"retired key a"},
			wantNext:    overlap,
		},
		"retires all old keys when no lease is left": {
			from: at{"a": -3 * day, "b": -2 * day, "c": -day}, period: period, oldest: never,
			want:        at{"c": -day},
			wantChanges: []string{"retired key a", "retired key b"},
			wantNext:    29*day - overlap,
		},
		"retires keys also while one that follows fast keeps the newest young": {
			from: at{"a": -3 * overlap, "b": -overlap - time.Second, "c": -time.Second}, period: period, oldest: never,
			want:        at{"b": -overlap - time.Second, "c": -time.Second},
			wantChanges: []string{"retired key a"},
			wantNext:    overlap - time.Second,
		},
		"retires, of two keys activated at once, the one that never signed": {
			from: at{"a": -day, "b": -day}, period: period, oldest: never,
			want:        at{"b": -day},
			wantChanges: []string{"retired key a"},
			wantNext:    29*day - overlap,
		},
		"retires a key whose entry has a suffix": {
			from: at{"a.pem": -2 * day, "b": -day}, annotation: `{"a":"2026-11-29T12:00:00Z","b":"2026-11-30T12:00:00Z"}`,
			period: period, oldest: never,
			want:        at{"b": -day},
			wantChanges: []string{"retired key a"},
			wantNext:    29*day - overlap,
		},
		"does not take the entry of one key for that of another": {
			from: at{"a.pem.pem": -2 * day, "a.pem": -day}, annotation: `{"a.pem":"2026-11-29T12:00:00Z","a":"2026-11-30T12:00:00Z"}`,
			period: period, oldest: never,
			want:     at{"a.pem.pem": -2 * day, "a.pem": -day},
			wantNext: 29*day - overlap,
		},
		"does not retire a key that two entries claim": {
			from: at{"a": -2 * day, "b": -day}, entries: map[string]string{"a.pem": "another key"}, period: period, oldest: never,
			want:     at{"a": -2 * day, "b": -day, "a.pem": never},
			wantNext: 29*day - overlap,
		},
		"makes and retires in one go": {
			from: at{"a": -3 * period, "b": -2 * period}, period: period, oldest: never,
			want:        at{"b": -2 * period, "new": overlap},
			wantChanges: []string{"made key new to take over", "retired key a"},
			wantNext:    2 * overlap,
		},
	} {
		t.Run(name, func(t *testing.T) {
			data := map[string][]byte{}
			for name, text := range tc.entries {
				data[name] = []byte(text)
			}
			from := at{}
			for i, kid := range slices.Sorted(maps.Keys(tc.from)) {
				data[kid] = keyPEM(t, privateKey(byte(i)))
				if tc.from[kid] != never {
					from[kid] = tc.from[kid]
				}
			}
			annotations := times(t, from)
			if tc.annotation != "" {
				annotations[KeyTimesAnnotation] = tc.annotation
			}
			annotations["somebody.else/note"] = "stays"
			oldest := time.Time{}
			if tc.oldest != never {
				oldest = start.Add(tc.oldest)
			}
			dataBefore, annotationsBefore := maps.Clone(data), maps.Clone(annotations)

			plan, err := NewPlan(data, annotations, start, Policy{Period: tc.period, Overlap: overlap}, oldest)
			if diff := cmp.Diff(dataBefore, data) + cmp.Diff(annotationsBefore, annotations); diff != "" {
				t.Errorf("the plan changed what it was made from: %s", diff)
			}
			if tc.wantErr != "" {
				if plan != nil || err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Errorf("plan %v and error %v, want %q", plan, err, tc.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}

			planned, err := parseTimes(plan.Annotations)
			if err != nil {
				t.Fatal(err)
			}
			got, changes := at{}, slices.Clone(plan.Changes)
			ring, _ := ParseKeyring(plan.Data, nil) // some cases have entries that are no keys
			if timed, keys := slices.Sorted(maps.Keys(planned)), slices.Sorted(maps.Keys(ring.KeySet())); !slices.Equal(timed, keys) {
				t.Errorf("times of %q, want those of the keys %q", timed, keys)
			}
			for name, value := range plan.Data {
				if before, ok := data[name]; ok && !slices.Equal(before, value) {
					t.Errorf("the entry %q was changed", name)
				}
				d := never
				if when, ok := planned[strings.TrimSuffix(name, ".pem")]; ok && value[0] == '-' {
					d = when.Sub(start)
				}
				if _, ok := data[name]; !ok {
					for i := range changes {
						changes[i] = strings.ReplaceAll(changes[i], name, "new")
					}
					name = "new"
				}
				got[name] = d
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("keys: %s", diff)
			}
			if diff := cmp.Diff(tc.wantChanges, changes); diff != "" {
				t.Errorf("changes: %s", diff)
			}
			if plan.Next != tc.wantNext {
				t.Errorf("next plan in %v, want %v", plan.Next, tc.wantNext)
			}
			if plan.Annotations["somebody.else/note"] != "stays" {
				t.Error("an annotation is lost")
			}
			if summary := plan.Summary(); summary != strings.Join(plan.Changes, "; ") {
				t.Errorf("summary %q", summary)
			}

			// What was planned once needs no planning again.
			again, err := NewPlan(plan.Data, plan.Annotations, start, Policy{Period: tc.period, Overlap: overlap}, oldest)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(*plan, *again, cmp.FilterPath(func(p cmp.Path) bool {
				return p.String() == "Changes"
			}, cmp.Ignore())); diff != "" || len(again.Changes) > 0 {
				t.Errorf("planned again: %s, %q", diff, again.Changes)
			}
		})
	}
}

func TestNewPlan_activatesOnWholeSecondsAfterTheOverlap(t *testing.T) {
	now := start.Add(900 * time.Millisecond).In(time.FixedZone("", -3600))
	data := map[string][]byte{"a": keyPEM(t, privateKey(1)), "b": keyPEM(t, privateKey(2))}
	plan, err := NewPlan(data, nil, now, Policy{Period: period, Overlap: overlap}, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"a":"2026-12-01T12:00:00Z","b":"2026-12-01T12:10:01Z"}`; plan.Annotations[KeyTimesAnnotation] != want {
		t.Errorf("times %s, want %s", plan.Annotations[KeyTimesAnnotation], want)
	}
	// b is active at 12:10:01, and a may go an overlap later.
	if want := 2*overlap + 100*time.Millisecond; plan.Next != want {
		t.Errorf("next plan in %v, want %v", plan.Next, want)
	}
}

// A key that was taken away by hand may have been forgotten everywhere: when it
// comes back it does not take up its old time, or one replica would sign with
// what another does not know.
func TestNewPlan_treatsAKeyThatComesBackAsNew(t *testing.T) {
	policy := Policy{Overlap: overlap}
	a, b := keyPEM(t, privateKey(1)), keyPEM(t, privateKey(2))
	annotations := times(t, map[string]time.Duration{"a": -day, "b": -time.Hour})

	without, err := NewPlan(map[string][]byte{"a": a}, annotations, start, policy, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	back := start.Add(time.Minute)
	again, err := NewPlan(map[string][]byte{"a": a, "b": b}, without.Annotations, back, policy, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	want := times(t, map[string]time.Duration{"a": -day, "b": time.Minute + overlap})
	if diff := cmp.Diff(want, again.Annotations); diff != "" {
		t.Error(diff)
	}
	if got := keyring(t, again.Data, again.Annotations).SigningKeyID(back); got != "a" {
		t.Errorf("key %q signs as soon as it is back", got)
	}
}
