// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	seatpoolv1alpha1 "seatpool.dev/api/v1alpha1"
	"seatpool.dev/test/checker"
	"seatpool.dev/test/cluster"
)

func TestParallelCreatesGiveExactlyTheSeats(t *testing.T) {
	for _, managers := range []int{1, 3} {
		t.Run(fmt.Sprint(managers, " managers"), func(t *testing.T) {
			c := shared
			if managers == 1 {
				c = cluster.Start(t, cluster.Options{Replicas: 1, APIServers: 1})
			}
			e := newEnv(t, c).watched(checker.Options{})
			e.pool(25)
			var granted, refused atomic.Int32
			var wg sync.WaitGroup
			for i := range 500 {
				wg.Go(func() {
					_, err := e.tryCheckout(fmt.Sprint("l", i))
					switch {
					case err == nil:
						granted.Add(1)
					case apierrors.ReasonForError(err) == seatpoolv1alpha1.ReasonSeatsExhausted:
						refused.Add(1)
					default:
						t.Errorf("checkout %d: %v", i, err)
					}
				})
			}
			wg.Wait()
			if granted.Load() != 25 || refused.Load() != 475 {
				t.Errorf("granted %d, refused %d, want 25 and 475", granted.Load(), refused.Load())
			}
			e.Eventually(e.figures).Should(Equal("25/25, 0 free"))
		})
	}
}

func TestReleaseThenCreateByOneClientIsNeverRefused(t *testing.T) {
	e := newEnv(t, shared).watched(checker.Options{})
	e.pool(1)
	e.checkout("l0")
	for i := range 100 {
		e.release(fmt.Sprint("l", i))
		if _, err := e.tryCheckout(fmt.Sprint("l", i+1)); err != nil {
			t.Fatalf("checkout %d right after a release: %v", i+1, err)
		}
	}
}

func TestManyClientsShareAFewSeatsWithoutBreakingAPromise(t *testing.T) {
	e := newEnv(t, shared).watched(checker.Options{})
	e.pool(5)
	ctx, cancel := context.WithTimeout(e.Context(), 8*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	var granted atomic.Int32
	for i := range 16 {
		wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				name := fmt.Sprintf("l%d-%d", i, n)
				_, err := e.tryCheckout(name)
				if err == nil {
					granted.Add(1)
					e.release(name)
				} else if apierrors.ReasonForError(err) != seatpoolv1alpha1.ReasonSeatsExhausted {
					t.Errorf("checkout: %v", err)
				}
			}
		})
	}
	wg.Wait()
	if granted.Load() == 0 {
		t.Error("nothing was granted")
	}
	e.Eventually(e.figures).Should(Equal("0/5, 5 free"))
}

func TestC1_ASeatComesBackWithoutTheReaper(t *testing.T) {
	e := newEnv(t, shared).watched(checker.Options{})
	e.pool(1, ttl(5, 1, 3600))
	a := e.checkout("a")
	_, err := e.tryCheckout("b")
	details := e.refusedWith(err, http.StatusConflict, seatpoolv1alpha1.ReasonSeatsExhausted)
	if details.RetryAfterSeconds < 1 || details.RetryAfterSeconds > 7 {
		t.Errorf("retryAfterSeconds = %d, want 1 to 7", details.RetryAfterSeconds)
	}
	if got, want := cause(details, seatpoolv1alpha1.CauseSoonestExpiry), a.Status.ExpiresAt.UTC().Format(time.RFC3339); got != want {
		t.Errorf("soonest expiry = %s, want %s", got, want)
	}
	if cause(details, seatpoolv1alpha1.CauseSeatsInUse) != "1" || cause(details, seatpoolv1alpha1.CauseMaxSeats) != "1" {
		t.Errorf("causes = %v", details.Causes)
	}
	e.Eventually(func() error { _, err := e.tryCheckout("b"); return err }).WithPolling(200 * time.Millisecond).Should(Succeed())
	if early := time.Until(a.Status.ExpiresAt.Add(time.Second)); early > 0 {
		t.Errorf("the seat was given away %s before its time", early)
	}
	e.Eventually(func() int { return e.eventsOf(seatpoolv1alpha1.EventReclaimed) }).Should(Equal(1))
	if n := e.eventsOf(seatpoolv1alpha1.EventReaped); n != 0 {
		t.Errorf("the end of a was reported again, %d times", n)
	}
}

func TestC5_ALostLeaseCannotBeRenewed(t *testing.T) {
	e := newEnv(t, shared).watched(checker.Options{})
	e.pool(1, ttl(5, 1, 3600))
	a := e.checkout("a")
	e.Eventually(func() error { _, err := e.renewExpired("a", a); return err }).WithTimeout(30 * time.Second).Should(Succeed())
	e.Eventually(func() error { _, err := e.tryCheckout("b"); return err }).Should(Succeed())
	_, err := e.renew("a")
	if !apierrors.IsNotFound(err) {
		t.Errorf("renewing what was given to another: want not found, got %v", err)
	}
	e.Consistently(e.figures).WithTimeout(2 * time.Second).Should(Equal("1/1, 0 free"))
}

// renewExpired succeeds once a renewal is answered "lost", after the lease has
// expired.
func (e *env) renewExpired(name string, lease *seatpoolv1alpha1.SeatLease) (bool, error) {
	if time.Now().Before(lease.Status.ExpiresAt.Add(2 * time.Second)) {
		return false, errors.New("not expired yet")
	}
	_, err := e.renew(name)
	e.refusedWith(err, http.StatusGone, seatpoolv1alpha1.ReasonSeatLost)
	return true, nil
}

func TestC6_OneInstallationGetsOneSeat(t *testing.T) {
	e := newEnv(t, shared).watched(checker.Options{})
	e.pool(3)
	for round := range 10 {
		names := []string{fmt.Sprint("x", round), fmt.Sprint("y", round)}
		errs := make([]error, 2)
		var wg sync.WaitGroup
		for i, name := range names {
			wg.Go(func() { _, errs[i] = e.tryCheckout(name, instance(fmt.Sprint("i", round))) })
		}
		wg.Wait()
		winner := 0
		if errs[0] != nil {
			winner = 1
		}
		if errs[winner] != nil {
			t.Fatalf("nobody got the seat: %v, %v", errs[0], errs[1])
		}
		details := e.refusedWith(errs[1-winner], http.StatusConflict, seatpoolv1alpha1.ReasonAlreadyHeld)
		if got := cause(details, seatpoolv1alpha1.CauseLeaseName); got != names[winner] {
			t.Errorf("the refusal names lease %q, want %q", got, names[winner])
		}
		e.release(names[winner])
	}
}

func TestC6_TwoCreatesOfOneNameAreOneSeat(t *testing.T) {
	e := newEnv(t, shared).watched(checker.Options{})
	e.pool(1)
	for round := range 10 {
		name := fmt.Sprint("x", round)
		errs := make([]error, 2)
		var wg sync.WaitGroup
		for i := range errs {
			wg.Go(func() { _, errs[i] = e.tryCheckout(name, instance("i")) })
		}
		wg.Wait()
		if (errs[0] == nil) == (errs[1] == nil) {
			t.Fatalf("want one of two to be granted: %v, %v", errs[0], errs[1])
		}
		if err := cmp.Or(errs[0], errs[1]); !apierrors.IsAlreadyExists(err) {
			t.Fatalf("want AlreadyExists, got %v", err)
		}
		e.release(name)
	}
}

func TestC7_AMachineThatWasAwayGetsItsSeatAgain(t *testing.T) {
	e := newEnv(t, shared).watched(checker.Options{})
	e.pool(1, ttl(5, 0, 3600))
	a := e.checkout("a", instance("i"))
	e.Eventually(func() bool { return time.Now().After(a.Status.ExpiresAt.Add(time.Second)) }).Should(BeTrue())
	again, err := e.tryCheckout("a", instance("i"))
	if err != nil {
		t.Fatalf("checking out again under the same name: %v", err)
	}
	if again.Status.SeatID == a.Status.SeatID {
		t.Error("a seat was given twice")
	}
	e.Eventually(func() bool { return time.Now().After(again.Status.ExpiresAt.Add(time.Second)) }).Should(BeTrue())
	if _, err := e.tryCheckout("b", instance("i")); err != nil {
		t.Fatalf("checking out again under another name: %v", err)
	}
	if n := len(e.leases()); n != 1 {
		t.Errorf("%d leases, want 1", n)
	}
}

func TestC8_RenewingALeaseThatNeverWasFails(t *testing.T) {
	e := newEnv(t, shared)
	e.pool(1)
	if _, err := e.renew("never"); !apierrors.IsNotFound(err) {
		t.Errorf("want not found, got %v", err)
	}
}

func TestC10_LoweredSeatsShowHowFarOver(t *testing.T) {
	e := newEnv(t, shared).watched(checker.Options{})
	e.pool(5)
	for i := range 5 {
		e.checkout(fmt.Sprint("l", i))
	}
	e.patchPool(`{"spec":{"seats":3}}`)
	e.Eventually(func() string { return e.condition(seatpoolv1alpha1.ConditionOverCommitted) }).Should(Equal("True SeatsExceeded"))
	e.Eventually(e.figures).Should(Equal("5/3, 0 free"))
	stdout, stderr, err := e.cluster.Kubectl("describe", "seatpools", "cad", "-n", e.namespace)
	if err != nil {
		t.Fatal(err, stderr)
	}
	e.Expect(stdout).To(ContainSubstring("over by 2"))
	_, err = e.tryCheckout("more")
	e.refusedWith(err, http.StatusConflict, seatpoolv1alpha1.ReasonSeatsExhausted)
	for i := range 3 {
		e.release(fmt.Sprint("l", i))
	}
	e.checkout("more")
	e.Eventually(func() string { return e.condition(seatpoolv1alpha1.ConditionOverCommitted) }).Should(Equal("False WithinSeats"))
}

func TestAFullPoolReportsOneEpisodeNotEveryRefusal(t *testing.T) {
	e := newEnv(t, shared)
	e.pool(1)
	e.checkout("a")
	for i := range 20 {
		_, err := e.tryCheckout(fmt.Sprint("b", i))
		e.refusedWith(err, http.StatusConflict, seatpoolv1alpha1.ReasonSeatsExhausted)
	}
	e.Eventually(func() int { return e.eventsOf(seatpoolv1alpha1.ReasonCheckoutsRefused) }).Should(Equal(1))
	e.release("a")
	e.Eventually(func() int { return e.eventsOf(seatpoolv1alpha1.ReasonSeatsFree) }).Should(Equal(1))
	if n := e.eventsOf(seatpoolv1alpha1.ReasonCheckoutsRefused); n != 1 {
		t.Errorf("%d events for one episode", n)
	}
}

func TestAPoolCreatedAgainCountsTheLeasesThatNameIt(t *testing.T) {
	e := newEnv(t, shared).watched(checker.Options{})
	pool := e.pool(2)
	e.checkout("a")
	e.must(e.client.Delete(e.Context(), pool))
	_, err := e.tryCheckout("b")
	e.refusedWith(err, http.StatusNotFound, seatpoolv1alpha1.ReasonPoolNotFound)
	e.Eventually(func() error {
		_, err := e.renew("a")
		if err == nil {
			return errors.New("renewed in a deleted pool")
		}
		e.refusedWith(err, http.StatusNotFound, seatpoolv1alpha1.ReasonPoolNotFound)
		return nil
	}).Should(Succeed())
	e.pool(2)
	e.checkout("b")
	_, err = e.tryCheckout("c")
	e.refusedWith(err, http.StatusConflict, seatpoolv1alpha1.ReasonSeatsExhausted)
	e.Eventually(e.figures).Should(Equal("2/2, 0 free"))
}

func TestAllReplicasDecide(t *testing.T) {
	e := newEnv(t, shared)
	e.pool(1000)
	// Connections are spread, as a Service spreads them; each API server keeps
	// its own, so that a good number of requests at once opens several.
	var wg sync.WaitGroup
	for i := range 120 {
		wg.Go(func() {
			if _, err := e.tryCheckout(fmt.Sprint("l", i)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for i := range 3 {
		metrics := e.metrics(i)
		if got := metrics[`seatpool_checkouts_total{outcome="granted",reason=""}`]; got == 0 {
			t.Errorf("manager %d has granted nothing", i)
		}
	}
}

func TestFreeSeatsShowWithinASecond(t *testing.T) {
	e := newEnv(t, shared)
	e.pool(3)
	e.checkout("a")
	e.Eventually(e.figures).WithTimeout(5 * time.Second).Should(Equal("1/3, 2 free"))
	e.must(e.client.Delete(e.Context(), e.lease("a"), client.PropagationPolicy("Background")))
	e.Eventually(e.figures).WithTimeout(5 * time.Second).Should(Equal("0/3, 3 free"))
	pool := e.getPool()
	if pool.Status.PeakSeatsInUse == nil || *pool.Status.PeakSeatsInUse != 1 || pool.Status.PeakTime == nil {
		t.Errorf("peak = %v at %v, want 1", pool.Status.PeakSeatsInUse, pool.Status.PeakTime)
	}
	e.Eventually(func() int { return len(e.getPool().Status.Reservations) }).Should(BeZero())
}
