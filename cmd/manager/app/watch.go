// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	seatpoolv1alpha1 "seatpool.dev/api/v1alpha1"
)

// runnable is a part that every replica runs, leader or not.
type runnable func(context.Context) error

// Start implements manager.Runnable.
func (r runnable) Start(ctx context.Context) error { return r(ctx) }

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (runnable) NeedLeaderElection() bool { return false }

// watch fills the index, and passes on what the caches hear.
func (m *manager) watch() error {
	restClient, err := apiutil.RESTClientForGVK(
		seatpoolv1alpha1.GroupVersion.WithKind("SeatLease"), false, false, m.mgr.GetConfig(),
		serializer.NewCodecFactory(m.mgr.GetScheme()), m.mgr.GetHTTPClient())
	if err != nil {
		return err
	}
	reflector := toolscache.NewReflectorWithOptions(
		toolscache.NewListWatchFromClient(restClient, seatpoolv1alpha1.SeatLeaseResource.Resource, "", fields.Everything()),
		&seatpoolv1alpha1.SeatLease{}, m.index,
		toolscache.ReflectorOptions{
			Name: "seatleases",
			// While the watch is broken every decision costs a list, so that it
			// is tried again sooner than client-go would by default.
			Backoff: &wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 1, Steps: 10, Cap: 5 * time.Second},
		})
	for _, r := range []runnable{
		func(ctx context.Context) error { reflector.RunWithContext(ctx); return nil },
		m.clock.Run,
		m.keys.run,
	} {
		if err := m.mgr.Add(r); err != nil {
			return err
		}
	}
	return m.mgr.Add(runnable(m.observe))
}

// observe passes versions of pools and of the signing keys on as they are heard of.
func (m *manager) observe(ctx context.Context) error {
	pools, err := m.mgr.GetCache().GetInformer(ctx, &seatpoolv1alpha1.SeatPool{})
	if err != nil {
		return err
	}
	_, err = pools.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { m.observePool(obj) },
		UpdateFunc: func(_, obj any) { m.observePool(obj) },
		DeleteFunc: func(obj any) {
			if key, err := toolscache.DeletionHandlingObjectToName(obj); err == nil {
				m.committers.Forget(types.NamespacedName{Namespace: key.Namespace, Name: key.Name})
			}
		},
	})
	if err != nil {
		return err
	}
	secrets, err := m.mgr.GetCache().GetInformer(ctx, &corev1.Secret{})
	if err != nil {
		return err
	}
	_, err = secrets.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { m.keys.observe(obj) },
		UpdateFunc: func(_, obj any) { m.keys.observe(obj) },
	})
	if err != nil {
		return err
	}
	if _, err := m.mgr.GetCache().GetInformer(ctx, namespaceObject()); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

func (m *manager) observePool(obj any) {
	if pool, ok := obj.(*seatpoolv1alpha1.SeatPool); ok {
		m.coverage.Observe(pool)
		m.committers.Observe(pool)
	}
}

// pools implements admission.Pools.
type pools struct {
	cache  cache.Cache
	direct client.Client
}

func (p *pools) Cached(key types.NamespacedName) *seatpoolv1alpha1.SeatPool {
	pool := &seatpoolv1alpha1.SeatPool{}
	// Nobody writes to what they are given, so that it need not be copied for
	// every heartbeat.
	if err := p.cache.Get(context.Background(), key, pool, client.UnsafeDisableDeepCopy); err != nil {
		return nil
	}
	return pool
}

func (p *pools) Read(ctx context.Context, key types.NamespacedName) (*seatpoolv1alpha1.SeatPool, error) {
	pool := &seatpoolv1alpha1.SeatPool{}
	if err := p.direct.Get(ctx, key, pool); err != nil {
		return nil, err
	}
	return pool, nil
}

// namespaces implements admission.Namespaces.
type namespaces struct {
	cache  cache.Cache
	direct client.Client
}

func (n *namespaces) Labels(ctx context.Context, namespace string) (map[string]string, error) {
	object := namespaceObject()
	err := n.cache.Get(ctx, types.NamespacedName{Name: namespace}, object)
	if apierrors.IsNotFound(err) {
		// A namespace may be younger than the cache.
		err = n.direct.Get(ctx, types.NamespacedName{Name: namespace}, object)
	}
	if err != nil {
		return nil, err
	}
	return object.Labels, nil
}
