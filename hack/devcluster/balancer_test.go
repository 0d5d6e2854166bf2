// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"
)

// fakeManager says its name to whoever connects.
type fakeManager struct {
	*backend
	ready    atomic.Bool
	listener net.Listener
}

func newFakeManager(t *testing.T, name string) *fakeManager {
	t.Helper()
	m := &fakeManager{}
	m.ready.Store(true)
	health := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/readyz" || !m.ready.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(health.Close)
	var err error
	if m.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.listener.Close() })
	go func() {
		for {
			conn, err := m.listener.Accept()
			if err != nil {
				return // the test is over
			}
			_, _ = io.WriteString(conn, name+"\n")
			_ = conn.Close()
		}
	}()
	m.backend = &backend{address: m.listener.Addr().String(), health: health.URL}
	return m
}

// ask returns the name of the manager that a new connection leads to, empty when
// there is none.
func ask(t *testing.T, b *balancer) string {
	t.Helper()
	conn, err := net.Dial("tcp", b.listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return ""
	}
	return line[:len(line)-1]
}

func startBalancer(t *testing.T, managers ...*fakeManager) *balancer {
	t.Helper()
	var backends []*backend
	for _, m := range managers {
		backends = append(backends, m.backend)
	}
	b, err := newBalancer(t.Context(), backends)
	if err != nil {
		t.Fatal(err)
	}
	go b.run(t.Context())
	eventually(t, b.allReady)
	return b
}

func eventually(t *testing.T, condition func() bool) {
	t.Helper()
	if err := until(t.Context(), 10*time.Second, "it did not come about", condition); err != nil {
		t.Fatal(err)
	}
}

func TestBalancerTakesTheManagersInTurn(t *testing.T) {
	b := startBalancer(t, newFakeManager(t, "a"), newFakeManager(t, "b"), newFakeManager(t, "c"))
	count := map[string]int{}
	for range 9 {
		count[ask(t, b)]++
	}
	for _, name := range []string{"a", "b", "c"} {
		if count[name] != 3 {
			t.Errorf("connections went to %v, want 3 to each", count)
		}
	}
}

func TestBalancerLeavesOutWhoIsNotReady(t *testing.T) {
	a, b := newFakeManager(t, "a"), newFakeManager(t, "b")
	balancer := startBalancer(t, a, b)
	a.ready.Store(false)
	eventually(t, func() bool { return !balancer.allReady() })
	for range 4 {
		if got := ask(t, balancer); got != "b" {
			t.Errorf("a connection went to %q, want b, which alone is ready", got)
		}
	}
	b.ready.Store(false)
	eventually(t, func() bool { return len(balancer.candidates()) == 0 })
	if got := ask(t, balancer); got != "" {
		t.Errorf("a connection went to %q, and nobody is ready", got)
	}
	a.ready.Store(true)
	eventually(t, func() bool { return len(balancer.candidates()) == 1 })
	if got := ask(t, balancer); got != "a" {
		t.Errorf("a connection went to %q, want a, which is ready again", got)
	}
}

func TestBalancerTriesTheNextWhenOneDoesNotAnswer(t *testing.T) {
	a, b := newFakeManager(t, "a"), newFakeManager(t, "b")
	balancer := startBalancer(t, a, b)
	_ = a.listener.Close() // killed, which its readiness will show only later
	for range 4 {
		if got := ask(t, balancer); got != "b" {
			t.Errorf("a connection went to %q, want b", got)
		}
	}
}

func TestBalancerStopsListening(t *testing.T) {
	b, err := newBalancer(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { b.run(ctx); close(done) }()
	cancel()
	<-done
	if conn, err := net.Dial("tcp", b.listener.Addr().String()); err == nil {
		_ = conn.Close()
		t.Error("it still takes connections")
	}
}
