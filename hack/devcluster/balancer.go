// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	// checkEvery is how often a manager's readiness is looked at. A Service
	// takes a second or so to follow; tests should not have to wait for that.
	checkEvery = 100 * time.Millisecond

	// checkTimeout bounds one look.
	checkTimeout = time.Second

	// dialTimeout is when the next manager is tried. On the loopback address
	// only one that was stopped takes any time.
	dialTimeout = time.Second
)

// backend is a manager that connections can be sent to.
type backend struct {
	address string // of its webhooks
	health  string // base URL of its probes
	ready   bool
}

// balancer spreads TCP connections over the managers that are ready, in turn,
// as a Service does.
type balancer struct {
	listener net.Listener
	client   http.Client

	mu       sync.Mutex
	backends []*backend
	turn     int
}

func newBalancer(ctx context.Context, backends []*backend) (*balancer, error) {
	listener, err := listen(ctx)
	if err != nil {
		return nil, err
	}
	return &balancer{listener: listener, client: http.Client{Timeout: checkTimeout}, backends: backends}, nil
}

func (b *balancer) url() string { return "https://" + b.listener.Addr().String() }

// run serves until the context ends.
func (b *balancer) run(ctx context.Context) {
	for _, be := range b.backends {
		go b.watch(ctx, be)
	}
	go func() {
		<-ctx.Done()
		_ = b.listener.Close() // nothing can be done about it
	}()
	for {
		conn, err := b.listener.Accept()
		if err != nil {
			return // the listener was closed
		}
		go b.serve(ctx, conn)
	}
}

// watch follows the readiness of one manager.
func (b *balancer) watch(ctx context.Context, be *backend) {
	ticker := time.NewTicker(checkEvery)
	defer ticker.Stop()
	for {
		ready := b.check(ctx, be)
		b.mu.Lock()
		be.ready = ready
		b.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (b *balancer) check(ctx context.Context, be *backend) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, be.health+"/readyz", http.NoBody)
	if err != nil {
		return false
	}
	res, err := b.client.Do(req)
	if err != nil {
		return false
	}
	_ = res.Body.Close() // the answer is in the status
	return res.StatusCode == http.StatusOK
}

// allReady reports whether every manager is ready.
func (b *balancer) allReady() bool { return b.firstNotReady() == len(b.backends) }

// firstNotReady returns the place of the first manager that is not ready, or how
// many there are.
func (b *balancer) firstNotReady() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, be := range b.backends {
		if !be.ready {
			return i
		}
	}
	return len(b.backends)
}

// candidates returns the addresses of the managers that are ready, beginning
// with the one whose turn it is.
func (b *balancer) candidates() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.turn++
	var addresses []string
	for i := range b.backends {
		if be := b.backends[(b.turn+i)%len(b.backends)]; be.ready {
			addresses = append(addresses, be.address)
		}
	}
	return addresses
}

// serve connects one client with the first manager that answers.
func (b *balancer) serve(ctx context.Context, client net.Conn) {
	dialer := net.Dialer{Timeout: dialTimeout}
	defer func() { _ = client.Close() }() // it may be closed already
	for _, address := range b.candidates() {
		server, err := dialer.DialContext(ctx, "tcp", address)
		if err != nil {
			continue
		}
		var wg sync.WaitGroup
		wg.Go(func() { pipe(server, client) })
		wg.Go(func() { pipe(client, server) })
		wg.Wait()
		return
	}
}

// pipe copies until one side ends, and then ends both.
func pipe(to, from net.Conn) {
	_, _ = io.Copy(to, from) // how a connection ends is for its two ends to know
	_ = to.Close()
	_ = from.Close()
}
