// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package checkout

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	seatpoolv1alpha1 "seatpool.dev/api/v1alpha1"
	"seatpool.dev/internal/ledger"
)

// world is a store, some replicas of the operator and their clients, in which
// nothing happens by itself: every call to the store and every event of a watch
// waits until the schedule lets it through. It is the model of the protocol, run
// with the real committer, index and ledger.
type world struct {
	t        *testing.T
	random   *rand.Rand
	seed     uint64
	seats    int
	revision int
	pool     *seatpoolv1alpha1.SeatPool
	leases   map[types.NamespacedName]*seatpoolv1alpha1.SeatLease
	log      []logged
	replicas []*replica
	// mu guards calls while several replicas come with one at the same time;
	// the schedule itself looks only when all of them wait.
	mu      sync.Mutex
	calls   []*call
	clients []*asker
	trace   []string
}

type logged struct {
	deleted bool
	lease   *seatpoolv1alpha1.SeatLease
}

type replica struct {
	index      *Index
	committers *Committers
	seen       int
}

// call is a call to the store that waits to be let through.
type call struct {
	name string
	do   func()
	done chan struct{}
}

type phase int

const (
	asking phase = iota
	granted
	stored
	over
)

// asker is a checkout with what became of it.
type asker struct {
	name  string
	phase phase
	lease *seatpoolv1alpha1.SeatLease
	// asked is true when it waited for its answer before the last step.
	asked   bool
	sawFull bool
	err     error
}

var errOversold = errors.New("more seats are taken than there are")

var poolKey = types.NamespacedName{Namespace: "demo", Name: "cad"}

func newWorld(t *testing.T, seed uint64, seats, replicas int, lie func(Leases) Leases) *world {
	t.Helper()
	w := &world{
		t: t, seed: seed, random: rand.New(rand.NewPCG(seed, 0)), seats: seats, revision: 100,
		leases: map[types.NamespacedName]*seatpoolv1alpha1.SeatLease{},
		pool: &seatpoolv1alpha1.SeatPool{
			ObjectMeta: metav1.ObjectMeta{Namespace: poolKey.Namespace, Name: poolKey.Name, UID: "pool", ResourceVersion: "100"},
			Spec:       seatpoolv1alpha1.SeatPoolSpec{Seats: new(int32(seats)), TTLSeconds: 3600},
		},
	}
	start := time.Now()
	clock := fixedClock{start}
	for range replicas {
		index := NewIndex(clock.Mono)
		if err := index.Replace(nil, "100"); err != nil {
			t.Fatal(err)
		}
		w.replicas = append(w.replicas, &replica{index: index, committers: New(Options{
			API: w, Leases: lie(index), Clock: clock, Reporter: silent{}, RequestTimeout: time.Minute,
		})})
	}
	return w
}

func honest(l Leases) Leases { return l }

type fixedClock struct{ start time.Time }

func (c fixedClock) Judge(time.Duration) time.Time { return time.Now() }
func (c fixedClock) Mono() time.Duration           { return time.Since(c.start) }

type silent struct{}

func (silent) Committed(_, _ *seatpoolv1alpha1.SeatPool)              {}
func (silent) Reclaimed(_ *seatpoolv1alpha1.SeatPool, _ ledger.Lease) {}
func (silent) Batch(int)                                              {}
func (silent) Conflicted()                                            {}
func (silent) WaitedForWatermark(time.Duration, bool)                 {}
func (silent) Recounted(time.Duration)                                {}

// through makes a call wait for the schedule.
func (w *world) through(name string, do func()) {
	c := &call{name: name, do: do, done: make(chan struct{})}
	w.mu.Lock()
	w.calls = append(w.calls, c)
	w.mu.Unlock()
	<-c.done
}

// waiting returns the calls that wait.
func (w *world) waiting() []*call {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.calls)
}

// let lets one of them through.
func (w *world) let(i int) {
	w.mu.Lock()
	c := w.calls[i]
	w.calls = slices.Delete(w.calls, i, i+1)
	w.mu.Unlock()
	c.do()
	close(c.done)
}

func (w *world) GetPool(context.Context, types.NamespacedName) (pool *seatpoolv1alpha1.SeatPool, err error) {
	w.through("get", func() { pool = w.pool.DeepCopy() })
	return pool, nil
}

func (w *world) UpdatePoolStatus(_ context.Context, next *seatpoolv1alpha1.SeatPool) (updated *seatpoolv1alpha1.SeatPool, err error) {
	next = next.DeepCopy()
	w.through("update", func() {
		if next.ResourceVersion != w.pool.ResourceVersion {
			err = apierrors.NewConflict(seatpoolv1alpha1.SeatPoolResource.GroupResource(), next.Name, errors.New("newer version"))
			return
		}
		w.revision++
		next.ResourceVersion = strconv.Itoa(w.revision)
		w.pool = next
		updated = next.DeepCopy()
	})
	return updated, err
}

func (w *world) ListLeases(context.Context, types.NamespacedName) (leases []ledger.Lease, resourceVersion string, err error) {
	w.through("list", func() {
		for _, l := range w.leases {
			leases = append(leases, ledger.LeaseOf(l))
		}
		resourceVersion = strconv.Itoa(w.revision)
	})
	return leases, resourceVersion, nil
}

func (w *world) DeleteLease(_ context.Context, lease ledger.Lease) (err error) {
	w.through("delete", func() {
		stored, ok := w.leases[lease.Key]
		switch {
		case !ok:
			err = apierrors.NewNotFound(seatpoolv1alpha1.SeatLeaseResource.GroupResource(), lease.Key.Name)
		case stored.UID != lease.UID || stored.ResourceVersion != lease.ResourceVersion:
			err = apierrors.NewConflict(seatpoolv1alpha1.SeatLeaseResource.GroupResource(), lease.Key.Name, errors.New("newer version"))
		default:
			w.remove(stored)
		}
	})
	return err
}

func (w *world) remove(lease *seatpoolv1alpha1.SeatLease) {
	w.revision++
	gone := lease.DeepCopy()
	gone.ResourceVersion = strconv.Itoa(w.revision)
	delete(w.leases, types.NamespacedName{Namespace: lease.Namespace, Name: lease.Name})
	w.log = append(w.log, logged{deleted: true, lease: gone})
}

// ask starts a checkout on a replica.
func (w *world) ask(r *replica, name string) *asker {
	c := &asker{name: name, asked: true, lease: &seatpoolv1alpha1.SeatLease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: name, UID: types.UID("uid-" + name)},
		Spec:       seatpoolv1alpha1.SeatLeaseSpec{PoolRef: seatpoolv1alpha1.PoolReference{Name: "cad"}},
		Status: seatpoolv1alpha1.SeatLeaseStatus{
			SeatID: "seat-" + name, ExpiresAt: metav1.NewTime(time.Now().Add(time.Hour)),
		},
	}}
	w.clients = append(w.clients, c)
	go func() {
		c.err = r.committers.Checkout(context.Background(), poolKey, ledger.Request{
			Key: types.NamespacedName{Namespace: "demo", Name: name}, UID: c.lease.UID, SeatID: c.lease.Status.SeatID,
			ExpiresAt: c.lease.Status.ExpiresAt.Time,
		})
		c.phase = granted
		if c.err != nil {
			c.phase = over
		}
	}()
	return c
}

func (w *world) store(c *asker) {
	w.revision++
	c.lease.ResourceVersion = strconv.Itoa(w.revision)
	w.leases[types.NamespacedName{Namespace: "demo", Name: c.name}] = c.lease
	w.log = append(w.log, logged{lease: c.lease.DeepCopy()})
	c.phase = stored
}

// hear lets a replica's watch deliver one event.
func (w *world) hear(r *replica) {
	event := w.log[r.seen]
	r.seen++
	var err error
	if event.deleted {
		err = r.index.Delete(event.lease.DeepCopy())
	} else {
		err = r.index.Add(event.lease.DeepCopy())
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// taken returns how many seats have an owner: leases in existence and grants
// whose lease can still come into existence.
func (w *world) taken() int {
	n := len(w.leases)
	for _, c := range w.clients {
		if c.phase == granted {
			n++
		}
	}
	return n
}

// held returns what the operator may rightly take for taken: also grants whose
// create has failed without the operator knowing.
func (w *world) held() int {
	names := map[string]bool{}
	for key := range w.leases {
		names[key.Name] = true
	}
	for _, c := range w.clients {
		if c.phase == granted {
			names[c.name] = true
		}
		if c.phase == over && c.err == nil && c.lease.ResourceVersion == "" {
			for _, r := range w.pool.Status.Reservations {
				names[r.Name] = names[r.Name] || r.Name == c.name
			}
		}
	}
	for _, r := range w.pool.Status.Reservations {
		if time.Since(r.ReservedAt.Time) > youngReservation {
			// A watch that is further behind than this cannot tell a create
			// that is under way from a lease that has come and gone.
			names[r.Name] = true
		}
		// Recorded, and not answered yet.
		for _, c := range w.clients {
			if c.name == r.Name && c.phase == asking {
				names[r.Name] = true
			}
		}
	}
	n := 0
	for _, held := range names {
		if held {
			n++
		}
	}
	return n
}

// observe checks what must hold at every moment.
func (w *world) observe() error {
	synctest.Wait()
	if taken := w.taken(); taken > w.seats {
		return fmt.Errorf("%w: %d of %d", errOversold, taken, w.seats)
	}
	full := w.held() >= w.seats
	for _, c := range w.clients {
		// A refusal may come with the very commit that made the pool full.
		c.sawFull = c.sawFull || c.asked && full
		c.asked = c.phase == asking
		if refusal, ok := errors.AsType[*ledger.Refusal](c.err); ok {
			if refusal.Reason() != seatpoolv1alpha1.ReasonSeatsExhausted {
				return fmt.Errorf("checkout %s was refused: %w", c.name, c.err)
			}
			if !c.sawFull {
				return fmt.Errorf("checkout %s was refused though a seat was free all the while", c.name)
			}
		}
	}
	return nil
}

// step does one thing that can happen now, and reports false when nothing can.
func (w *world) step(maxClients int) bool {
	type choice struct {
		name string
		do   func()
	}
	var choices []choice
	for i, c := range w.waiting() {
		choices = append(choices, choice{c.name, func() {
			w.let(i)
		}})
	}
	for i, r := range w.replicas {
		if r.seen < len(w.log) {
			choices = append(choices, choice{fmt.Sprint("hear", i), func() { w.hear(r) }})
		}
		if version := w.pool.DeepCopy(); len(w.waiting()) > 0 {
			choices = append(choices, choice{fmt.Sprint("observe", i), func() { r.committers.Observe(version) }})
		}
		if len(w.clients) < maxClients {
			choices = append(choices, choice{fmt.Sprint("ask", i), func() { w.ask(r, fmt.Sprint("l", len(w.clients))) }})
		}
	}
	for _, c := range w.clients {
		switch c.phase {
		case granted:
			choices = append(choices,
				choice{"store " + c.name, func() { w.store(c) }},
				choice{"fail " + c.name, func() { c.phase = over }})
		case stored:
			choices = append(choices, choice{"release " + c.name, func() { w.remove(c.lease); c.phase = over }})
		case asking, over:
		}
	}
	if len(w.waiting()) > 0 && !slices.ContainsFunc(w.clients, func(c *asker) bool { return c.phase == granted }) {
		// Patience runs out; and no create is under way that could outlive this.
		choices = append(choices, choice{"time", func() { time.Sleep(300 * time.Millisecond) }})
	}
	if len(choices) == 0 {
		return false
	}
	picked := choices[w.random.IntN(len(choices))]
	w.trace = append(w.trace, picked.name)
	picked.do()
	return true
}

// finish lets everything happen that still can, and gives every lease back.
func (w *world) finish() {
	for range 10_000 {
		synctest.Wait()
		busy := false
		for len(w.waiting()) > 0 {
			w.let(0)
			synctest.Wait()
			busy = true
		}
		for _, c := range w.clients {
			switch c.phase {
			case granted:
				c.phase, busy = over, true
			case stored:
				w.remove(c.lease)
				c.phase, busy = over, true
			case asking:
				busy = true
			case over:
			}
		}
		for _, r := range w.replicas {
			for r.seen < len(w.log) {
				w.hear(r)
				busy = true
			}
		}
		if !busy {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	w.t.Fatalf("seed %d: the world does not come to rest\nschedule: %v", w.seed, w.trace)
}

// run plays one random schedule and returns what went wrong.
func (w *world) run(steps, maxClients int) error {
	defer w.finish()
	for range steps {
		if err := w.observe(); err != nil {
			return err
		}
		if !w.step(maxClients) {
			break
		}
	}
	return w.observe()
}

// TestInterleavings plays the model of the protocol with the real committer.
func TestInterleavings(t *testing.T) {
	for seed := range uint64(800) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, seed, 1+int(seed%2), 2+int(seed%2), honest)
			if err := w.run(150, 8); err != nil {
				t.Fatalf("seed %d: %v\nschedule: %v", seed, err, w.trace)
			}

			// When all is over, no seat is lost: grants whose create failed are
			// found dead in time, and the pool can be filled.
			refresh := func() {
				w.replicas[0].committers.Observe(w.pool.DeepCopy())
				var done atomic.Bool
				go func() {
					if _, err := w.replicas[0].committers.Refresh(t.Context(), poolKey); err != nil {
						t.Errorf("seed %d: refresh: %v", seed, err)
					}
					done.Store(true)
				}()
				for !done.Load() {
					w.finish()
					time.Sleep(10 * time.Millisecond) // somebody may be waiting for time to pass
				}
			}
			refresh()
			time.Sleep(2 * time.Minute)
			refresh()
			if left := w.pool.Status.Reservations; len(left) != 0 {
				t.Errorf("seed %d: reservations leaked: %v\nschedule: %v", seed, left, w.trace)
			}
		})
	}
}

// liar makes a replica believe that it has seen everything.
type liar struct{ Leases }

func (l liar) Read(pool types.NamespacedName, f func(View)) {
	l.Leases.Read(pool, func(v View) {
		v.Position = "999999"
		f(v)
	})
}

// TestInterleavingsNeedTheWatermark shows that the schedules above would find a
// committer that counts with a view that is behind the pool's watermark.
func TestInterleavingsNeedTheWatermark(t *testing.T) {
	for seed := range uint64(5000) {
		var err error
		synctest.Test(t, func(t *testing.T) {
			err = newWorld(t, seed, 1, 2, func(l Leases) Leases { return liar{l} }).run(150, 8)
		})
		if errors.Is(err, errOversold) {
			return
		}
	}
	t.Error("no schedule oversold a pool without the watermark: the test sees nothing")
}
