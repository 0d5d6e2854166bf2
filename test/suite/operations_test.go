// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	seatpoolv1alpha1 "seatpool.dev/api/v1alpha1"
	"seatpool.dev/test/checker"
	"seatpool.dev/test/cluster"
)

// killManagers ends every manager at once, as a crash does.
func (e *env) killManagers() {
	e.Helper()
	for _, m := range e.cluster.Endpoints().Managers {
		e.must(e.cluster.Kill(m.Name, syscall.SIGKILL))
	}
}

// answered makes a call until the operator itself has answered it. The API
// server has connections left to managers that were killed, and learns that they
// are dead only by using them; every client tries again after that.
func (e *env) answered(call func() error) error {
	e.Helper()
	var err error
	e.Eventually(func() bool {
		err = call()
		return !apierrors.IsInternalError(err)
	}).Should(BeTrue())
	return err
}

// managersDown waits until no webhook answers any more.
func (e *env) managersDown() {
	e.Helper()
	e.Eventually(func() bool {
		for _, m := range e.cluster.Endpoints().Managers {
			if e.cluster.Ready(e.Context(), m) {
				return false
			}
		}
		return true
	}).Should(BeTrue())
}

func TestC2_NothingIsGrantedWhileManagersStart(t *testing.T) {
	c := cluster.Start(t, cluster.Options{Replicas: 2})
	e := newEnv(t, c).watched(checker.Options{})
	e.pool(1, ttl(600, 5, 60))
	e.checkout("a")
	for round := range 2 {
		e.killManagers()
		refusals := 0
		e.Eventually(func() error {
			_, err := e.tryCheckout(fmt.Sprint("b", round))
			if err == nil {
				t.Fatal("a second seat was granted")
			}
			if apierrors.ReasonForError(err) == seatpoolv1alpha1.ReasonSeatsExhausted {
				if refusals++; refusals > 20 {
					return nil
				}
			}
			return err
		}).WithTimeout(time.Minute).WithPolling(20 * time.Millisecond).Should(Succeed())
		if err := e.answered(func() error { _, err := e.renew("a"); return err }); err != nil {
			t.Errorf("the holder lost its seat over a restart: %v", err)
		}
	}
}

func TestC3_HoldersKeepTheirSeatsWhenSeatsAreLowered(t *testing.T) {
	c := cluster.Start(t, cluster.Options{})
	e := newEnv(t, c).watched(checker.Options{})
	e.pool(3)
	for _, name := range []string{"a", "b", "c"} {
		e.checkout(name)
	}
	e.patchPool(`{"spec":{"seats":1}}`)
	e.killManagers()
	e.managersDown()
	e.must(c.WaitReady(t.Context()))
	e.Eventually(e.figures).Should(Equal("3/1, 0 free"))
	e.Eventually(func() string { return e.condition(seatpoolv1alpha1.ConditionOverCommitted) }).Should(Equal("True SeatsExceeded"))
	for _, name := range []string{"a", "b", "c"} {
		if err := e.answered(func() error { _, err := e.renew(name); return err }); err != nil {
			t.Errorf("holder %s: %v", name, err)
		}
	}
	for _, name := range []string{"a", "b"} {
		err := e.answered(func() error { _, err := e.tryCheckout("d"); return err })
		e.refusedWith(err, http.StatusConflict, seatpoolv1alpha1.ReasonSeatsExhausted)
		e.release(name)
	}
	err := e.answered(func() error { _, err := e.tryCheckout("d"); return err })
	e.refusedWith(err, http.StatusConflict, seatpoolv1alpha1.ReasonSeatsExhausted)
	e.release("c")
	e.must(e.answered(func() error { _, err := e.tryCheckout("d"); return err }))
}

func TestC4_LeasesNobodyGrantedAreRevoked(t *testing.T) {
	c := cluster.Start(t, cluster.Options{})
	e := newEnv(t, c).watched(checker.Options{AllowUngranted: true, Keys: noKeys})
	e.pool(2, ttl(600, 5, 60))
	e.checkout("granted1")
	e.checkout("granted2")
	e.Eventually(func() int { return len(e.getPool().Status.Reservations) }).Should(BeZero())

	e.must(c.RemoveWebhooks())
	now := metav1.Now().Rfc3339Copy()
	for i := range 2 {
		forged := e.lease(fmt.Sprint("forged", i))
		forged.Status = seatpoolv1alpha1.SeatLeaseStatus{
			SeatID: fmt.Sprint("forged", i), AcquiredAt: now, IssuedAt: now, ExpiresAt: metav1.NewTime(now.Add(time.Hour)),
			RenewAfterSeconds: 60, Requester: "somebody", Token: "x.y.z",
		}
		e.Eventually(func() error {
			err := e.client.Create(e.Context(), forged.DeepCopy())
			return client.IgnoreAlreadyExists(err)
		}).Should(Succeed()) // until the API server has noticed
	}
	bare := e.lease("bare")
	e.must(e.client.Create(e.Context(), bare))
	e.must(c.InstallWebhooks(c.Endpoints().Balancer))

	names := func() []string {
		var names []string
		for _, lease := range e.leases() {
			names = append(names, lease.Name)
		}
		return names
	}
	e.Eventually(names).Should(ConsistOf("granted1", "granted2"))
	e.Eventually(func() int { return e.eventsOf(seatpoolv1alpha1.EventRevoked) }).Should(Equal(2))
	e.Eventually(func() float64 { return e.metrics(0)["seatpool_leases_revoked_total"] }).Should(Equal(2.0))
	e.Eventually(e.figures).Should(Equal("2/2, 0 free"))

	// A number that an admin lowers is repaired at nobody's cost.
	e.patchPool(`{"spec":{"seats":1}}`)
	e.Eventually(func() string { return e.condition(seatpoolv1alpha1.ConditionOverCommitted) }).Should(Equal("True SeatsExceeded"))
	e.Consistently(names).WithTimeout(4 * time.Second).Should(ConsistOf("granted1", "granted2"))
}

func TestC27_WithTheOperatorDownOnlyCheckoutsAndRenewalsFail(t *testing.T) {
	c := cluster.Start(t, cluster.Options{Replicas: 2, NoRestart: true})
	e := newEnv(t, c)
	e.pool(3)
	e.checkout("a")
	e.checkout("b")
	e.killManagers()
	e.managersDown()

	_, err := e.tryCheckout("c")
	if err == nil || !strings.Contains(err.Error(), "grant.seatleases.seatpool.dev") {
		t.Errorf("a checkout: want an error that names the webhook, got %v", err)
	}
	if _, err := e.renew("a"); err == nil || !strings.Contains(err.Error(), "grant.seatleases.seatpool.dev") {
		t.Errorf("a renewal: want an error that names the webhook, got %v", err)
	}
	e.release("a")
	e.must(e.client.Patch(e.Context(), e.lease("b"), client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"x":"y"}}}`))))
	e.must(e.client.Create(e.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: "c"}}))
	e.must(e.client.Create(e.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: "default"}}))
	e.must(e.client.Create(e.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: "p"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}))
	other := &seatpoolv1alpha1.SeatPool{ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: "other"}, Spec: seatpoolv1alpha1.SeatPoolSpec{Seats: new(int32(1))}}
	e.must(e.client.Create(e.Context(), other))
	if got := other.ProductName(); got != "other" {
		t.Errorf("product of a pool created without the operator = %q", got)
	}
	e.must(e.client.Delete(e.Context(), other))
}

func TestC28_TheWebhooksAreAskedAboutOurKindsOnly(t *testing.T) {
	e := newEnv(t, shared)
	mutating, validating := &admissionregistrationv1.MutatingWebhookConfigurationList{}, &admissionregistrationv1.ValidatingWebhookConfigurationList{}
	e.must(e.client.List(e.Context(), mutating))
	e.must(e.client.List(e.Context(), validating))
	var rules []admissionregistrationv1.RuleWithOperations
	for _, configuration := range mutating.Items {
		for _, webhook := range configuration.Webhooks {
			rules = append(rules, webhook.Rules...)
		}
	}
	for _, configuration := range validating.Items {
		for _, webhook := range configuration.Webhooks {
			rules = append(rules, webhook.Rules...)
		}
	}
	if len(rules) != 3 {
		t.Errorf("%d rules, want 3", len(rules))
	}
	for _, rule := range rules {
		e.Expect(rule.APIGroups).To(Equal([]string{seatpoolv1alpha1.GroupName}))
		e.Expect(rule.Resources).To(HaveLen(1))
		e.Expect(rule.Resources[0]).To(BeElementOf("seatleases", "seatpools"))
		e.Expect(rule.Operations).NotTo(ContainElement(admissionregistrationv1.Delete))
	}
}

func TestC29_DeletingIsNeverRefused(t *testing.T) {
	c := cluster.Start(t, cluster.Options{NoRestart: true})
	e := newEnv(t, c)
	pool := e.pool(3)
	for _, name := range []string{"a", "b", "c"} {
		e.checkout(name)
	}
	finalizer := func(name, patch string) error {
		return e.client.Patch(e.Context(), e.lease(name), client.RawPatch(types.MergePatchType, []byte(patch)))
	}
	for _, name := range []string{"a", "b"} {
		e.must(finalizer(name, `{"metadata":{"finalizers":["example.com/hold"]}}`))
	}
	e.must(e.client.Delete(e.Context(), pool))
	e.release("a")
	_, err := e.renew("a")
	e.refusedWith(err, http.StatusGone, seatpoolv1alpha1.ReasonSeatLost)
	e.must(finalizer("a", `{"metadata":{"finalizers":null}}`))

	e.killManagers()
	e.managersDown()
	e.release("b")
	e.must(finalizer("b", `{"metadata":{"finalizers":null}}`))
	e.release("c")
	if n := len(e.leases()); n != 0 {
		t.Errorf("%d leases are left", n)
	}
}

func TestC30_ANamespaceWithLeasesIsGoneAtOnce(t *testing.T) {
	c := cluster.Start(t, cluster.Options{NoRestart: true})
	for _, down := range []bool{false, true} {
		t.Run(fmt.Sprintf("operator down %t", down), func(t *testing.T) {
			e := newEnv(t, c)
			e.pool(3)
			e.checkout("a")
			e.checkout("b")
			if down {
				e.killManagers()
				e.managersDown()
				e.must(c.RemoveWebhooks())
			}
			e.must(e.client.Delete(e.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: e.namespace}}))
			e.Eventually(func() bool {
				err := e.client.Get(e.Context(), types.NamespacedName{Name: e.namespace}, &corev1.Namespace{})
				return apierrors.IsNotFound(err)
			}).Should(BeTrue())
		})
	}
}

func TestAManagerThatIsToldToStopFinishesWhatItHasInHand(t *testing.T) {
	c := cluster.Start(t, cluster.Options{Replicas: 2})
	e := newEnv(t, c).watched(checker.Options{})
	e.pool(100000)
	stop := make(chan struct{})
	failed := make(chan error, 1)
	go func() {
		defer close(failed)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			name := fmt.Sprint("l", i)
			_, err := e.tryCheckout(name)
			if apierrors.IsInternalError(err) {
				// The API server may pick an idle connection in the very moment
				// it is closed. Every client tries again after that, and gets
				// the seat that may be reserved for it already.
				_, err = e.tryCheckout(name)
			}
			if err != nil {
				failed <- err
				return
			}
		}
	}()
	for _, m := range c.Endpoints().Managers {
		e.must(c.Kill(m.Name, syscall.SIGTERM))
		e.Eventually(func() bool { return c.Ready(t.Context(), m) }).Should(BeFalse())
		e.Eventually(func() bool { return c.Ready(t.Context(), m) }).WithTimeout(time.Minute).Should(BeTrue())
	}
	close(stop)
	for err := range failed {
		t.Errorf("a checkout failed during a rolling restart: %v", err)
	}
}
