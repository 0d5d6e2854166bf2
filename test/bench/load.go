// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	seatpoolv1alpha1 "seatpool.dev/api/v1alpha1"
)

// namespace is where everything is measured.
const namespace = "bench"

// api speaks to an API server with as little work of its own as possible, since
// it shares the machine with what it measures: bodies are made once, and
// answers are not decoded.
type api struct {
	leases rest.Interface
}

func newAPI(config *rest.Config) (*api, error) {
	scheme := runtime.NewScheme()
	if err := seatpoolv1alpha1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	config = rest.CopyConfig(config)
	config.GroupVersion = &seatpoolv1alpha1.GroupVersion
	config.APIPath = "/apis"
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.QPS = -1
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, err
	}
	return &api{leases: client}, nil
}

// manifest returns the body of a checkout. Without webhooks that grant it also
// carries a status like the one they would stamp, so that all variants store
// objects of the same size.
func manifest(pool, name string, ttl time.Duration, granted bool) []byte {
	now := metav1.Now()
	lease := &seatpoolv1alpha1.SeatLease{
		TypeMeta:   metav1.TypeMeta{APIVersion: seatpoolv1alpha1.GroupVersion.String(), Kind: "SeatLease"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: seatpoolv1alpha1.SeatLeaseSpec{
			PoolRef: seatpoolv1alpha1.PoolReference{Name: pool},
			Holder:  seatpoolv1alpha1.Holder{User: "bench-user", Host: "bench-host", InstanceID: "instance-" + name},
		},
	}
	if granted {
		renewTime := metav1.NowMicro()
		lease.Spec.RenewTime = &renewTime
		lease.Status = seatpoolv1alpha1.SeatLeaseStatus{
			SeatID: "00000000000000000000000000000000", AcquiredAt: now, IssuedAt: now,
			ExpiresAt: metav1.NewTime(now.Add(ttl)), RenewAfterSeconds: 40, Requester: "admin",
			Token: string(slices.Repeat([]byte("x"), 620)),
		}
	}
	body, err := json.Marshal(lease)
	if err != nil {
		panic(err) // of plain values, which cannot fail
	}
	return body
}

func (a *api) create(ctx context.Context, body []byte) error {
	return a.leases.Post().Namespace(namespace).Resource("seatleases").Body(body).SetHeader("Content-Type", "application/json").Do(ctx).Error()
}

func (a *api) renew(ctx context.Context, name string) error {
	patch := fmt.Sprintf(`{"spec":{"renewTime":%q}}`, time.Now().UTC().Format("2006-01-02T15:04:05.000000Z"))
	return a.leases.Patch(types.MergePatchType).Namespace(namespace).Resource("seatleases").Name(name).Body([]byte(patch)).Do(ctx).Error()
}

func (a *api) release(ctx context.Context, name string) error {
	return a.leases.Delete().Namespace(namespace).Resource("seatleases").Name(name).Do(ctx).Error()
}

// figures are what a number of calls came to.
type figures struct {
	calls   int
	elapsed time.Duration
	samples []time.Duration
	// Processor time of the API server with etcd, and of the managers.
	server, managers time.Duration
}

func (f *figures) rate() float64 { return float64(f.calls) / f.elapsed.Seconds() }

func (f *figures) quantile(q float64) time.Duration {
	if len(f.samples) == 0 {
		return 0
	}
	return f.samples[min(int(q*float64(len(f.samples))), len(f.samples)-1)]
}

// add takes the figures of another round of the same thing.
func (f *figures) add(g *figures) {
	f.calls += g.calls
	f.elapsed += g.elapsed
	f.server += g.server
	f.managers += g.managers
	f.samples = append(f.samples, g.samples...)
	slices.Sort(f.samples)
}

// run has a number of clients make calls at the same time, each the next as
// soon as it has its answer, until all n calls are made.
func run(clients, n int, call func(i int) error) (*figures, error) {
	samples := make([][]time.Duration, clients)
	var next atomic.Int64
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	begun := time.Now()
	for c := range clients {
		wg.Go(func() {
			for failed.Load() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				start := time.Now()
				if err := call(i); err != nil {
					failed.CompareAndSwap(nil, &err)
					return
				}
				samples[c] = append(samples[c], time.Since(start))
			}
		})
	}
	wg.Wait()
	f := &figures{calls: n, elapsed: time.Since(begun), samples: slices.Concat(samples...)}
	slices.Sort(f.samples)
	if err := failed.Load(); err != nil {
		return nil, *err
	}
	return f, nil
}

// mustBeRefused turns the refusal of a full pool into success, and anything
// else into an error.
func mustBeRefused(err error) error {
	switch {
	case err == nil:
		return errors.New("a checkout was granted by a full pool")
	case apierrors.ReasonForError(err) == seatpoolv1alpha1.ReasonSeatsExhausted:
		return nil
	case isCode(err, http.StatusTooManyRequests):
		return nil
	}
	return err
}

func isCode(err error, code int32) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Code == code
}
