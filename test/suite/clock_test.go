// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	seatpoolv1alpha1 "seatpool.dev/api/v1alpha1"
	"seatpool.dev/cmd/manager/app"
	"seatpool.dev/controllers"
	"seatpool.dev/internal/checkout"
	"seatpool.dev/internal/clock"
	"seatpool.dev/test/checker"
	"seatpool.dev/test/cluster"
)

// steppedClock is the machine's clock, until it is set.
type steppedClock struct {
	mu     sync.Mutex
	offset time.Duration
	*clock.Clock
}

func newSteppedClock() *steppedClock {
	c := &steppedClock{}
	start := time.Now()
	c.Clock = clock.NewFrom(func() time.Time {
		c.mu.Lock()
		defer c.mu.Unlock()
		return time.Now().Round(0).Add(c.offset)
	}, func() time.Duration { return time.Since(start) })
	return c
}

func (c *steppedClock) step(by time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.offset += by
}

// runManager runs a manager in this process, with a clock that can be set, for a
// cluster that has none.
func (e *env) runManager(clk *clock.Clock) {
	e.Helper()
	ports := freePorts(e)
	options := app.DefaultOptions()
	options.WebhookHost, options.WebhookPort = "127.0.0.1", ports[0]
	options.WebhookCertDir = e.cluster.WebhookCertDir()
	options.MetricsAddress = "0"
	options.HealthAddress = net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[1]))
	options.ShutdownDelay = 0
	ctx, cancel := context.WithCancel(context.WithoutCancel(e.Context()))
	ended := make(chan error, 1)
	go func() { ended <- app.Run(ctx, e.cluster.Config(), options, clk) }()
	e.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			e.Errorf("manager: %v", err)
		}
	})
	e.Eventually(func() bool {
		return e.cluster.Ready(e.Context(), cluster.Manager{Health: "http://" + options.HealthAddress})
	}).WithTimeout(time.Minute).Should(BeTrue())
	e.must(e.cluster.InstallWebhooks("https://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[0]))))
}

func freePorts(e *env) [2]int {
	e.Helper()
	var ports [2]int
	var listeners [2]net.Listener
	for i := range ports {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		e.must(err)
		listeners[i] = listener // held until both are found
		ports[i] = listener.Addr().(*net.TCPAddr).Port
	}
	for _, listener := range listeners {
		e.must(listener.Close())
	}
	return ports
}

func TestC13_AClockThatJumpsADayAheadReapsNobody(t *testing.T) {
	c := cluster.Start(t, cluster.Options{NoOperator: true})
	e := newEnv(t, c).watched(checker.Options{})
	clk := newSteppedClock()
	e.runManager(clk.Clock)
	e.pool(2, ttl(20, 1, 2))
	e.checkout("a")
	e.checkout("b")
	clk.step(24 * time.Hour)
	_, err := e.tryCheckout("c")
	e.refusedWith(err, http.StatusConflict, seatpoolv1alpha1.ReasonSeatsExhausted)
	for range 6 {
		for _, name := range []string{"a", "b"} {
			if _, err := e.renew(name); err != nil {
				t.Fatalf("holder %s lost its seat to the operator's clock: %v", name, err)
			}
		}
		e.Consistently(func() int { return len(e.leases()) }).WithTimeout(time.Second).Should(Equal(2))
	}
}

func TestC13_ReapingThatIsHeldIsReported(t *testing.T) {
	c := cluster.Start(t, cluster.Options{NoOperator: true})
	e := newEnv(t, c)
	clk := newSteppedClock()
	e.runManager(clk.Clock)
	e.pool(1, ttl(8, 1, 2))
	e.checkout("a")
	clk.step(24 * time.Hour)
	// The lease runs out by the monotonic clock too, and is reaped after the hold.
	e.Eventually(func() int { return len(e.leases()) }).WithTimeout(time.Minute).Should(BeZero())
	e.Eventually(func() int { return e.eventsOf(seatpoolv1alpha1.EventReaped) }).Should(Equal(1))
}

func TestC14_TheReaperEndsNobodyByAFrozenWatch(t *testing.T) {
	e := newEnv(t, shared).watched(checker.Options{})
	e.pool(1, ttl(5, 1, 2))
	a := e.checkout("a")

	// An index that saw the lease once, and nothing since.
	clk := clock.New()
	frozen := checkout.NewIndex(clk.Mono)
	e.must(frozen.Replace([]any{a.DeepCopy()}, a.ResourceVersion))
	recorder := events.NewFakeRecorder(10)
	reaper := &controllers.Reaper{Client: e.client, Pools: e.client, Index: frozen, Clock: clk, Recorder: recorder}
	request := ctrl.Request{NamespacedName: client.ObjectKeyFromObject(a)}

	until := a.Status.ExpiresAt.Add(6 * time.Second)
	for time.Now().Before(until) {
		_, err := e.renew("a")
		e.must(err)
		<-time.After(500 * time.Millisecond) // a heartbeat
	}
	result, err := reaper.Reconcile(e.Context(), request)
	e.must(err)
	if result.RequeueAfter <= 0 {
		t.Error("the reaper does not come back for a lease that lives")
	}
	if n := len(e.leases()); n != 1 {
		t.Error("a live lease was reaped")
	}

	// When the holder has died, the same frozen index must not keep it alive.
	e.Eventually(func() bool { return len(e.leases()) == 0 || reapOnce(e, reaper, request) }).WithTimeout(time.Minute).Should(BeTrue())
}

func reapOnce(e *env, reaper *controllers.Reaper, request ctrl.Request) bool {
	result, err := reaper.Reconcile(e.Context(), request)
	e.must(err)
	return result.RequeueAfter == 0
}

func TestC16_AColdStartReapsWhatExpiredHoursAgo(t *testing.T) {
	c := cluster.Start(t, cluster.Options{NoOperator: true})
	e := newEnv(t, c)
	const dead = 300
	e.pool(dead, ttl(5, 1, 2))
	long := metav1.NewTime(time.Now().Add(-3 * time.Hour))
	var wg sync.WaitGroup
	for i := range dead {
		wg.Go(func() {
			lease := e.lease(fmt.Sprint("l", i))
			lease.Status = seatpoolv1alpha1.SeatLeaseStatus{
				SeatID: fmt.Sprint("seat", i), AcquiredAt: long, IssuedAt: long, ExpiresAt: long, RenewAfterSeconds: 1, Requester: "gone",
			}
			if err := e.client.Create(e.Context(), lease); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	e.runManager(clock.New())
	e.checkout("new")
	e.Eventually(func() int { return len(e.leases()) }).Should(Equal(1))
	e.Eventually(e.figures).Should(Equal(fmt.Sprintf("1/%d, %d free", dead, dead-1)))
}
