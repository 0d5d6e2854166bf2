// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package checkout

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"

	seatpoolv1alpha1 "seatpool.dev/api/v1alpha1"
	"seatpool.dev/internal/ledger"
)

// rememberEnded is for how long the index remembers a lease that is gone, so
// that its reservation can still be resolved by it. A reservation that stays
// longer, because nobody wrote to its pool meanwhile, is resolved the slow way,
// by a consistent list.
const rememberEnded = 2 * time.Minute

// Event says that the leases of a pool changed.
type Event struct {
	// Pool is the pool that the lease names.
	Pool types.NamespacedName
	// Lease is the lease as it is now, or as it was last seen.
	Lease ledger.Lease
	// Kind is what happened to it.
	Kind EventKind
}

// EventKind is what happened to a lease.
type EventKind int

const (
	// LeaseFound is a lease that was there when the index began, or began again.
	LeaseFound EventKind = iota
	// LeaseCreated is a lease that has just been stored.
	LeaseCreated
	// LeaseRenewed is a lease whose expiry moved.
	LeaseRenewed
	// LeaseChanged is any other change of a lease, such as the begin of its deletion.
	LeaseChanged
	// LeaseEnded is a lease that is gone.
	LeaseEnded
)

// View is what an index knows of one pool at one moment.
type View struct {
	// Book answers what the ledger asks. It may be used only until the
	// function that was given the view returns.
	Book ledger.Book
	// Position is the resourceVersion up to which the index has seen every
	// event, empty before the first list.
	Position string

	ended map[types.UID]endedLease
}

// Reached reports whether the index has seen everything up to the watermark.
func (v View) Reached(watermark string) bool {
	return v.Position != "" && reached(v.Position, watermark)
}

// Seen returns a resourceVersion at or after which the lease was created, if
// the index has ever seen it.
func (v View) Seen(key types.NamespacedName, uid types.UID) (string, bool) {
	if lease, ok := v.Book.Get(key); ok && lease.UID == uid {
		return lease.ResourceVersion, true
	}
	ended, ok := v.ended[uid]
	return ended.resourceVersion, ok
}

// reached reports whether the resourceVersion a is at least b. What cannot be
// compared has not been reached: then a consistent list decides.
func reached(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order >= 0
}

// Index is a replica's view of every lease, kept by one watch. It is the store
// of a client-go reflector, so that what it has seen and how far it has seen
// are one thing under one lock: an informer's handlers would run behind its
// store by an unknown distance, and could not see bookmarks at all.
type Index struct {
	now func() time.Duration

	mu       sync.RWMutex
	pools    map[types.NamespacedName]*ledger.Register
	poolOf   map[types.NamespacedName]types.NamespacedName
	position string
	ended    map[types.UID]endedLease
	// endedQueue holds what is in ended, in the order it ends to be remembered.
	endedQueue []endedLease
	// changed is closed at the next change, when anybody waits for it.
	changed chan struct{}

	followers []*follower
}

type endedLease struct {
	uid             types.UID
	resourceVersion string
	at              time.Duration
}

var (
	_ cache.ReflectorStore         = &Index{}
	_ cache.ReflectorBookmarkStore = &Index{}
	_ cache.TransformingStore      = &Index{}
)

// NewIndex returns an empty index. mono is a monotonic clock.
func NewIndex(mono func() time.Duration) *Index {
	return &Index{
		now:    mono,
		pools:  map[types.NamespacedName]*ledger.Register{},
		poolOf: map[types.NamespacedName]types.NamespacedName{},
		ended:  map[types.UID]endedLease{},
	}
}

// Follow calls the function for every lease there is, as found, and then after
// each change in the order of the changes, until the context ends. The function
// must not block, and must not use the index.
func (x *Index) Follow(ctx context.Context, follow func(Event)) {
	f := &follower{follow: follow, done: ctx.Done()}
	x.mu.Lock()
	defer x.mu.Unlock()
	for pool, register := range x.pools {
		for lease := range register.All() {
			follow(Event{Pool: pool, Lease: lease, Kind: LeaseFound})
		}
	}
	x.followers = append(x.followers, f)
}

type follower struct {
	follow func(Event)
	done   <-chan struct{}
}

// Read calls f with the view of one pool. f must be short: it holds up the
// index.
func (x *Index) Read(pool types.NamespacedName, f func(View)) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	f(x.view(pool))
}

func (x *Index) view(pool types.NamespacedName) View {
	book := x.pools[pool]
	if book == nil {
		book = &ledger.Register{}
	}
	return View{Book: book, Position: x.position, ended: x.ended}
}

// Await waits until the view of the pool fulfils the condition, or the context
// ends. It reports whether the condition is fulfilled.
func (x *Index) Await(ctx context.Context, pool types.NamespacedName, condition func(View) bool) bool {
	for {
		x.mu.Lock()
		if condition(x.view(pool)) {
			x.mu.Unlock()
			return true
		}
		if x.changed == nil {
			x.changed = make(chan struct{})
		}
		changed := x.changed
		x.mu.Unlock()

		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// Synced reports whether the first list is in.
func (x *Index) Synced() bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.position != ""
}

// Pools returns the pools that leases name.
func (x *Index) Pools() []types.NamespacedName {
	x.mu.RLock()
	defer x.mu.RUnlock()
	pools := make([]types.NamespacedName, 0, len(x.pools))
	for pool := range x.pools {
		pools = append(pools, pool)
	}
	return pools
}

// Leases returns the leases that name the pool.
func (x *Index) Leases(pool types.NamespacedName) []ledger.Lease {
	x.mu.RLock()
	defer x.mu.RUnlock()
	register := x.pools[pool]
	if register == nil {
		return nil
	}
	return slices.Collect(register.All())
}

// Lease returns a lease by its name, with the pool it names.
func (x *Index) Lease(key types.NamespacedName) (lease ledger.Lease, pool types.NamespacedName, ok bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.lease(key)
}

func (x *Index) lease(key types.NamespacedName) (lease ledger.Lease, pool types.NamespacedName, ok bool) {
	pool, ok = x.poolOf[key]
	if !ok {
		return ledger.Lease{}, pool, false
	}
	lease, ok = x.pools[pool].Get(key)
	return lease, pool, ok
}

// Add implements cache.ReflectorStore.
func (x *Index) Add(obj any) error { return x.put(obj) }

// Update implements cache.ReflectorStore.
func (x *Index) Update(obj any) error { return x.put(obj) }

func (x *Index) put(obj any) error {
	lease, err := asLease(obj)
	if err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.tell(x.record(lease.Pool(), ledger.LeaseOf(lease)))
	x.advance(lease.ResourceVersion)
	return nil
}

// Delete implements cache.ReflectorStore.
func (x *Index) Delete(obj any) error {
	lease, err := asLease(obj)
	if err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if event, ok := x.forget(types.NamespacedName{Namespace: lease.Namespace, Name: lease.Name}); ok {
		x.tell(event)
	}
	// The watch delivers the object with the resourceVersion of its deletion.
	x.advance(lease.ResourceVersion)
	return nil
}

// Replace implements cache.ReflectorStore: a list has been made, at the begin
// or because the watch could not go on.
func (x *Index) Replace(objects []any, resourceVersion string) error {
	leases := make([]*seatpoolv1alpha1.SeatLease, 0, len(objects))
	listed := make(map[types.NamespacedName]bool, len(objects))
	for _, obj := range objects {
		lease, err := asLease(obj)
		if err != nil {
			return err
		}
		leases = append(leases, lease)
		listed[types.NamespacedName{Namespace: lease.Namespace, Name: lease.Name}] = true
	}

	x.mu.Lock()
	defer x.mu.Unlock()
	if x.position != "" && !reached(resourceVersion, x.position) {
		// Resource versions went back: the store was restored from a backup.
		// What was remembered is of a time that has not been.
		x.ended = map[types.UID]endedLease{}
		x.endedQueue = nil
	}
	for key := range x.poolOf {
		if !listed[key] {
			if event, ok := x.forget(key); ok {
				x.tell(event)
			}
		}
	}
	for _, lease := range leases {
		event := x.record(lease.Pool(), ledger.LeaseOf(lease))
		if event.Kind == LeaseCreated {
			event.Kind = LeaseFound
		}
		x.tell(event)
	}
	x.advance(resourceVersion)
	return nil
}

// Bookmark implements cache.ReflectorBookmarkStore.
func (x *Index) Bookmark(resourceVersion string) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.advance(resourceVersion)
	return nil
}

// Resync implements cache.ReflectorStore. Nothing here needs it.
func (x *Index) Resync() error { return nil }

// Transformer implements cache.TransformingStore: it takes off a lease, before
// a first list is collected, all that the index does not keep.
func (x *Index) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) {
		lease, ok := obj.(*seatpoolv1alpha1.SeatLease)
		if !ok {
			return obj, nil
		}
		return &seatpoolv1alpha1.SeatLease{
			ObjectMeta: metav1.ObjectMeta{
				Namespace:         lease.Namespace,
				Name:              lease.Name,
				UID:               lease.UID,
				ResourceVersion:   lease.ResourceVersion,
				DeletionTimestamp: lease.DeletionTimestamp,
			},
			Spec: seatpoolv1alpha1.SeatLeaseSpec{
				PoolRef: lease.Spec.PoolRef,
				Holder:  seatpoolv1alpha1.Holder{InstanceID: lease.Spec.Holder.InstanceID},
			},
			Status: seatpoolv1alpha1.SeatLeaseStatus{
				SeatID:     lease.Status.SeatID,
				AcquiredAt: lease.Status.AcquiredAt,
				IssuedAt:   lease.Status.IssuedAt,
				ExpiresAt:  lease.Status.ExpiresAt,
			},
		}, nil
	}
}

// record puts a lease into the register of its pool. The pool a lease names
// never changes, but a name can be used again with another pool.
func (x *Index) record(pool types.NamespacedName, lease ledger.Lease) Event {
	if old, oldPool, ok := x.lease(lease.Key); ok && (oldPool != pool || old.UID != lease.UID) {
		if event, ok := x.forget(lease.Key); ok {
			x.tell(event)
		}
	}
	register := x.pools[pool]
	if register == nil {
		register = &ledger.Register{}
		x.pools[pool] = register
	}
	event := Event{Pool: pool, Lease: lease, Kind: LeaseCreated}
	if old, ok := register.Get(lease.Key); ok {
		event.Kind = LeaseChanged
		if !old.ExpiresAt.Equal(lease.ExpiresAt) || !old.IssuedAt.Equal(lease.IssuedAt) {
			event.Kind = LeaseRenewed
		}
	}
	register.Put(lease)
	x.poolOf[lease.Key] = pool
	return event
}

func (x *Index) forget(key types.NamespacedName) (Event, bool) {
	pool, ok := x.poolOf[key]
	if !ok {
		return Event{}, false
	}
	delete(x.poolOf, key)
	register := x.pools[pool]
	lease, ok := register.Remove(key)
	if register.Size() == 0 {
		delete(x.pools, pool)
	}
	x.remember(lease)
	return Event{Pool: pool, Lease: lease, Kind: LeaseEnded}, ok
}

func (x *Index) remember(lease ledger.Lease) {
	ended := endedLease{uid: lease.UID, resourceVersion: lease.ResourceVersion, at: x.now()}
	x.ended[lease.UID] = ended
	x.endedQueue = append(x.endedQueue, ended)

	old := 0
	for old < len(x.endedQueue) && ended.at-x.endedQueue[old].at > rememberEnded {
		delete(x.ended, x.endedQueue[old].uid)
		old++
	}
	x.endedQueue = x.endedQueue[old:]
}

// advance moves the position on. Events of a watch come in the order of their
// resourceVersions.
func (x *Index) advance(resourceVersion string) {
	x.position = resourceVersion
	x.notify()
}

func (x *Index) notify() {
	if x.changed != nil {
		close(x.changed)
		x.changed = nil
	}
}

// tell passes an event on to those who follow. It is called with the lock held,
// so that they hear of everything in order.
func (x *Index) tell(event Event) {
	x.followers = slices.DeleteFunc(x.followers, func(f *follower) bool {
		select {
		case <-f.done:
			return true
		default:
			f.follow(event)
			return false
		}
	})
}

func asLease(obj any) (*seatpoolv1alpha1.SeatLease, error) {
	if deleted, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = deleted.Obj
	}
	lease, ok := obj.(*seatpoolv1alpha1.SeatLease)
	if !ok {
		return nil, fmt.Errorf("index of leases was given a %T", obj)
	}
	return lease, nil
}
