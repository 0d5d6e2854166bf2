// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	seatpoolv1alpha1 "seatpool.dev/api/v1alpha1"
	"seatpool.dev/seat/leasetoken"
	"seatpool.dev/test/checker"
)

func TestCreateAnswersWithTheSignedSeat(t *testing.T) {
	e := newEnv(t, shared)
	e.pool(1)
	manifest := fmt.Sprintf(`{"apiVersion":"seatpool.dev/v1alpha1","kind":"SeatLease","metadata":{"name":"a","namespace":%q},
		"spec":{"poolRef":{"name":"cad"},"holder":{"user":"ann"}}}`, e.namespace)
	token, stderr, err := e.cluster.KubectlIn(manifest, "create", "-f", "-", "-o", "jsonpath={.status.token}")
	if err != nil {
		t.Fatal(err, stderr)
	}
	keys, err := checker.PublishedKeys(e.client, "seatpool-system")(e.Context())
	e.must(err)
	claims, err := leasetoken.Verify(token, keys, leasetoken.Options{Product: "cad", Now: time.Now(), Skew: 5 * time.Second})
	e.must(err)
	if claims.Holder != "ann" || claims.Lease.Pool != "cad" || claims.Lease.Namespace != e.namespace {
		t.Errorf("claims = %+v", claims)
	}
}

func TestBadManifestsAreRefusedWithFieldAndRuleAndTakeNoSeat(t *testing.T) {
	e := newEnv(t, shared).watched(checker.Options{})
	e.pool(1)
	lease := func(spec string) string {
		return fmt.Sprintf(`{"apiVersion":"seatpool.dev/v1alpha1","kind":"SeatLease","metadata":{"name":"bad","namespace":%q},%s}`, e.namespace, spec)
	}
	pool := func(spec string) string {
		return fmt.Sprintf(`{"apiVersion":"seatpool.dev/v1alpha1","kind":"SeatPool","metadata":{"name":"bad","namespace":%q},"spec":%s}`, e.namespace, spec)
	}
	tests := map[string]struct {
		body     string
		wantCode int
		want     []string
	}{
		"negative seats":                 {pool(`{"seats":-1}`), 422, []string{"spec.seats", "greater than or equal to 0"}},
		"too many seats":                 {pool(`{"seats":1000001}`), 422, []string{"spec.seats", "1000000"}},
		"no seats":                       {pool(`{}`), 422, []string{"spec.seats", "Required"}},
		"ttl too short":                  {pool(`{"seats":1,"ttlSeconds":4}`), 422, []string{"spec.ttlSeconds", "5"}},
		"skew not below ttl":             {pool(`{"seats":1,"ttlSeconds":5}`), 422, []string{"spec.skewSeconds", "less than ttlSeconds"}},
		"grace not above skew":           {pool(`{"seats":1,"reapGraceSeconds":5}`), 422, []string{"spec.reapGraceSeconds", "greater than skewSeconds"}},
		"renewAfter not below ttl":       {pool(`{"seats":1,"renewAfterSeconds":120}`), 422, []string{"spec.renewAfterSeconds", "less than ttlSeconds"}},
		"notAfter before notBefore":      {pool(`{"seats":1,"notBefore":"2030-01-01T00:00:00Z","notAfter":"2029-01-01T00:00:00Z"}`), 422, []string{"spec.notAfter", "later than notBefore"}},
		"selector without from":          {pool(`{"seats":1,"allowedNamespaces":{"selector":{}}}`), 422, []string{"spec.allowedNamespaces", "selector"}},
		"seats as words":                 {pool(`{"seats":"many"}`), 422, []string{"spec.seats", "integer"}},
		"unknown pool":                   {lease(`"spec":{"poolRef":{"name":"nowhere"}}`), 404, []string{"nowhere", "check spec.poolRef"}},
		"missing poolRef":                {lease(`"spec":{}`), 422, []string{"spec.poolRef", "Required"}},
		"missing spec":                   {lease(`"x":1`), 422, []string{"spec", "Required"}},
		"poolRef without a name":         {lease(`"spec":{"poolRef":{}}`), 422, []string{"spec.poolRef.name", "Required"}},
		"holder of 10,000 letters":       {lease(`"spec":{"poolRef":{"name":"cad"},"holder":{"user":"` + strings.Repeat("x", 10_000) + `"}}`), 422, []string{"spec.holder.user", "253"}},
		"holder with control characters": {lease(`"spec":{"poolRef":{"name":"cad"},"holder":{"host":"a\u0007b"}}`), 422, []string{"spec.holder.host", "control characters"}},
		"holder that is not UTF-8":       {lease("\"spec\":{\"poolRef\":{\"name\":\"cad\"},\"holder\":{\"user\":\"a\xff\xfeb\"}}"), 422, []string{"spec.holder.user", "UTF-8"}},
		"holder of the wrong type":       {lease(`"spec":{"poolRef":{"name":"cad"},"holder":"ann"}`), 422, []string{"spec.holder", "object"}},
		"renewTime that is no time":      {lease(`"spec":{"poolRef":{"name":"cad"},"renewTime":"now"}`), 422, []string{"spec.renewTime", "date-time"}},
		"status set by hand":             {lease(`"spec":{"poolRef":{"name":"cad"}},"status":{"seatID":"mine"}`), 422, []string{"status.seatID", "set by the operator only"}},
		"another namespace's pool":       {strings.Replace(lease(`"spec":{"poolRef":{"name":"cad","namespace":"NS"}}`), `"namespace":"`+e.namespace, `"namespace":"default`, 1), 403, []string{"does not allow leases in namespace default"}},
		"body that is no object":         {`["a"]`, 400, nil},
	}
	if err := e.client.Create(e.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}); client.IgnoreAlreadyExists(err) != nil {
		t.Fatal(err)
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			body := strings.ReplaceAll(tc.body, `"NS"`, fmt.Sprintf("%q", e.namespace))
			code, message := e.post(body)
			if code != tc.wantCode {
				t.Fatalf("code = %d, want %d: %s", code, tc.wantCode, message)
			}
			for _, want := range tc.want {
				if !strings.Contains(message, want) {
					t.Errorf("message does not say %q: %s", want, message)
				}
			}
		})
	}
	if n := len(e.getPool().Status.Reservations); n != 0 {
		t.Errorf("%d seats are reserved for manifests that were refused", n)
	}
	e.checkout("good")
}

// post sends raw bytes to where they belong, and returns the code and message of
// the answer.
func (e *env) post(body string) (code int, message string) {
	e.Helper()
	plural, namespace := "seatleases", e.namespace
	if strings.Contains(body, `"SeatPool"`) {
		plural = "seatpools"
	}
	if strings.Contains(body, `"namespace":"default"`) {
		namespace = "default"
	}
	httpClient, err := httpClientFor(e.cluster.Config())
	e.must(err)
	url := fmt.Sprintf("%s/apis/seatpool.dev/v1alpha1/namespaces/%s/%s", e.cluster.Config().Host, namespace, plural)
	res, err := httpClient.Post(url, "application/json", strings.NewReader(body))
	e.must(err)
	defer func() { e.must(res.Body.Close()) }()
	if res.StatusCode < http.StatusBadRequest {
		return res.StatusCode, ""
	}
	status := metav1.Status{}
	e.must(decodeJSON(res.Body, &status))
	return res.StatusCode, status.Message
}

func TestImmutableFieldsAndStatusCannotBeChanged(t *testing.T) {
	e := newEnv(t, shared).watched(checker.Options{})
	e.pool(1)
	before := e.checkout("a", instance("i"))
	tests := map[string]struct {
		patch string
		want  string
	}{
		"poolRef":               {`{"spec":{"poolRef":{"name":"other"}}}`, "poolRef is immutable"},
		"holder":                {`{"spec":{"holder":{"user":"bob"}}}`, "holder is immutable"},
		"holder removed":        {`{"spec":{"holder":null}}`, "holder is immutable"},
		"status.expiresAt":      {`{"status":{"expiresAt":"2099-01-01T00:00:00Z"}}`, "status.expiresAt"},
		"status.seatID":         {`{"status":{"seatID":"mine"}}`, "status.seatID"},
		"status.requester":      {`{"status":{"requester":"bob"}}`, "status.requester"},
		"status.token":          {`{"status":{"token":"forged"}}`, "status.token"},
		"status with a renewal": {`{"spec":{"renewTime":"2020-01-01T00:00:00.000000Z"},"status":{"expiresAt":"2099-01-01T00:00:00Z"}}`, "status.expiresAt"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			err := e.client.Patch(e.Context(), e.lease("a"), client.RawPatch(types.MergePatchType, []byte(tc.patch)))
			if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("want 422 that says %q, got %v", tc.want, err)
			}
		})
	}
	after := &seatpoolv1alpha1.SeatLease{}
	e.must(e.client.Get(e.Context(), client.ObjectKeyFromObject(before), after))
	if after.Status != before.Status {
		t.Errorf("status = %+v, want %+v", after.Status, before.Status)
	}
}

func TestAStatusThatIsDroppedIsRestored(t *testing.T) {
	e := newEnv(t, shared).watched(checker.Options{})
	e.pool(1)
	before := e.checkout("a")
	e.must(e.client.Patch(e.Context(), e.lease("a"), client.RawPatch(types.MergePatchType, []byte(`{"status":null}`))))
	after := &seatpoolv1alpha1.SeatLease{}
	e.must(e.client.Get(e.Context(), client.ObjectKeyFromObject(before), after))
	if after.Status != before.Status {
		t.Errorf("status = %+v, want %+v", after.Status, before.Status)
	}
}

func TestMetadataUpdatesDoNotRenew(t *testing.T) {
	e := newEnv(t, shared).watched(checker.Options{})
	e.pool(1)
	before := e.checkout("a")
	after := e.lease("a")
	e.must(e.client.Patch(e.Context(), after, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"team":"cad"}}}`))))
	if after.Labels["team"] != "cad" || after.Status != before.Status {
		t.Errorf("labels = %v, status = %+v", after.Labels, after.Status)
	}
}

func TestC12_AHolderWhoseClockIsBehindRenews(t *testing.T) {
	e := newEnv(t, shared).watched(checker.Options{})
	e.pool(1, ttl(5, 1, 3))
	a := e.checkout("a")
	deadline := a.Status.ExpiresAt.Add(4 * time.Second)
	for i := 0; time.Now().Before(deadline); i++ {
		// Each heartbeat of this holder is an hour and then some before the last.
		at := time.Now().Add(-time.Duration(i+1) * time.Hour).UTC().Format("2006-01-02T15:04:05.000000Z")
		e.must(e.client.Patch(e.Context(), e.lease("a"), client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"renewTime":%q}}`, at))))
		<-time.After(500 * time.Millisecond) // a heartbeat
	}
	if n := len(e.leases()); n != 1 {
		t.Errorf("%d leases, want 1", n)
	}
}

func TestC18_OnlyTheRequesterRenews(t *testing.T) {
	e := newEnv(t, shared).watched(checker.Options{})
	e.pool(2)
	ann, bob, boss := e.clientFor("ann"), e.clientFor("bob"), e.clientFor("boss", manageRule)
	lease := e.lease("a")
	e.Eventually(func() error { return ann.Create(e.Context(), lease) }).Should(Succeed()) // roles take a moment
	if lease.Status.Requester != "ann" {
		t.Errorf("requester = %q", lease.Status.Requester)
	}
	if _, err := e.renewAs(ann, "a"); err != nil {
		t.Errorf("the requester: %v", err)
	}
	_, err := e.renewAs(bob, "a")
	e.refusedWith(err, http.StatusForbidden, seatpoolv1alpha1.ReasonNotRequester)
	e.Eventually(func() error { _, err := e.renewAs(boss, "a"); return err }).Should(Succeed())
	var renewed *seatpoolv1alpha1.SeatLease
	e.Eventually(func() bool {
		var err error
		renewed, err = e.renewAs(boss, "a")
		e.must(err)
		return renewed.Status.IssuedAt.After(renewed.Status.AcquiredAt.Time)
	}).Should(BeTrue())
	if renewed.Status.Requester != "ann" {
		t.Errorf("renewing changed the requester to %q", renewed.Status.Requester)
	}
	e.checkout("never-renewed")
	name := fmt.Sprintf(`seatpool_leases_never_renewed{namespace=%q,pool="cad"}`, e.namespace)
	e.Eventually(func() float64 { return e.metrics(0)[name] }).Should(Equal(1.0))
}

func TestC19_AChangedTTLCountsFromTheNextRenewal(t *testing.T) {
	e := newEnv(t, shared).watched(checker.Options{})
	e.pool(1, ttl(60, 1, 30))
	first := e.checkout("a")
	e.patchPool(`{"spec":{"ttlSeconds":600}}`)
	var longer *seatpoolv1alpha1.SeatLease
	e.Eventually(func() time.Duration {
		var err error
		longer, err = e.renew("a")
		e.must(err)
		return longer.Status.ExpiresAt.Sub(longer.Status.IssuedAt.Time)
	}).Should(Equal(10 * time.Minute))
	if !longer.Status.ExpiresAt.After(first.Status.ExpiresAt.Time) {
		t.Error("a raised ttl did not extend the lease")
	}
	e.patchPool(`{"spec":{"ttlSeconds":10}}`)
	e.Eventually(func() int32 {
		renewed, err := e.renew("a")
		e.must(err)
		if renewed.Status.ExpiresAt.Before(&longer.Status.ExpiresAt) {
			t.Fatal("a lowered ttl took back time that was signed")
		}
		return renewed.Status.RenewAfterSeconds
	}).Should(Equal(int32(3)))
}

func TestC21_HeartbeatsWriteNoPoolAndMeetNoConflict(t *testing.T) {
	e := newEnv(t, shared).watched(checker.Options{})
	const holders = 200
	e.pool(holders)
	for i := range holders {
		e.checkout(fmt.Sprint("l", i))
	}
	e.Eventually(e.figures).Should(Equal(fmt.Sprintf("%d/%d, 0 free", holders, holders)))
	e.Eventually(func() int { return len(e.getPool().Status.Reservations) }).Should(BeZero())
	quiet := e.getPool().ResourceVersion
	var wg sync.WaitGroup
	for i := range holders {
		wg.Go(func() {
			for range 5 {
				if _, err := e.renew(fmt.Sprint("l", i)); err != nil {
					t.Errorf("heartbeat: %v", err)
				}
			}
		})
	}
	wg.Wait()
	e.Consistently(func() string { return e.getPool().ResourceVersion }).WithTimeout(2 * time.Second).Should(Equal(quiet))
}

func TestC22_AHolderThatStopsBeatingLosesItsSeat(t *testing.T) {
	e := newEnv(t, shared).watched(checker.Options{})
	e.pool(1, ttl(5, 1, 2))
	e.checkout("a")
	e.Eventually(e.figures).Should(Equal("1/1, 0 free"))
	e.Eventually(e.figures).Should(Equal("0/1, 1 free"))
	e.Eventually(func() int { return len(e.leases()) }).Should(BeZero())
	e.Eventually(func() int { return e.eventsOf(seatpoolv1alpha1.EventReaped) }).Should(Equal(1))
}

func TestC23_ANameIsGivenOnce(t *testing.T) {
	e := newEnv(t, shared).watched(checker.Options{})
	e.pool(3)
	first := e.checkout("a")
	_, err := e.tryCheckout("a")
	e.refusedWith(err, http.StatusConflict, "AlreadyExists")
	e.Eventually(e.figures).Should(Equal("1/3, 2 free"))
	kept := &seatpoolv1alpha1.SeatLease{}
	e.must(e.client.Get(e.Context(), client.ObjectKeyFromObject(first), kept))
	if kept.Status != first.Status {
		t.Error("the first holder was touched")
	}
}

func TestC24_DryRunsDecideAndCountNothing(t *testing.T) {
	e := newEnv(t, shared).watched(checker.Options{})
	e.pool(1)
	dryRun := func(name string) (*seatpoolv1alpha1.SeatLease, error) {
		lease := e.lease(name)
		return lease, e.client.Create(e.Context(), lease, client.DryRunAll)
	}
	for i := range 100 {
		lease, err := dryRun(fmt.Sprint("d", i))
		e.must(err)
		if lease.Status.Token != "" {
			t.Fatal("a dry run was given a token")
		}
	}
	if status := e.getPool().Status; len(status.Reservations) != 0 {
		t.Errorf("dry runs reserved %d seats", len(status.Reservations))
	}
	e.checkout("a")
	for i := range 20 {
		_, err := dryRun(fmt.Sprint("d", i))
		e.refusedWith(err, http.StatusConflict, seatpoolv1alpha1.ReasonSeatsExhausted)
	}
	if n := e.eventsOf(seatpoolv1alpha1.ReasonCheckoutsRefused); n != 0 {
		t.Error("a dry run was reported as a refusal")
	}
	if got := e.condition(seatpoolv1alpha1.ConditionExhausted); got == "True "+seatpoolv1alpha1.ReasonCheckoutsRefused {
		t.Error("a dry run was counted as a refusal")
	}
}

func TestC25_GeneratedNamesWork(t *testing.T) {
	e := newEnv(t, shared).watched(checker.Options{})
	e.pool(3)
	for range 3 {
		lease := e.lease("")
		lease.GenerateName = "seat-"
		e.must(e.client.Create(e.Context(), lease))
		if !strings.HasPrefix(lease.Name, "seat-") || lease.Status.Token == "" {
			t.Errorf("lease %q, token %q", lease.Name, lease.Status.Token)
		}
	}
	lease := e.lease("")
	lease.GenerateName = "seat-"
	e.refusedWith(e.client.Create(e.Context(), lease), http.StatusConflict, seatpoolv1alpha1.ReasonSeatsExhausted)
}

func TestC26_ALeaseThatQuotaRefusesGivesItsSeatToItsNextTry(t *testing.T) {
	e := newEnv(t, shared).watched(checker.Options{})
	e.pool(1)
	quota := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: "none"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"count/seatleases.seatpool.dev": resource.MustParse("0")}},
	}
	e.must(e.client.Create(e.Context(), quota))
	// There is no quota controller here to do this.
	quota.Status = corev1.ResourceQuotaStatus{Hard: quota.Spec.Hard, Used: corev1.ResourceList{"count/seatleases.seatpool.dev": resource.MustParse("0")}}
	e.must(e.client.Status().Update(e.Context(), quota))
	e.Eventually(func() error {
		_, err := e.tryCheckout("a")
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "quota") {
			if err == nil {
				e.release("a")
			}
			return fmt.Errorf("want a refusal by quota, got %w", err)
		}
		return nil
	}).Should(Succeed())
	e.must(e.client.Delete(e.Context(), quota))
	// The API server checks quota after us, so that the seat is reserved; the
	// next try under the same name takes it.
	e.Eventually(func() error { _, err := e.tryCheckout("a"); return err }).Should(Succeed())
}

func TestC31_LeasesOfAnotherNamespaceHaveNoOwner(t *testing.T) {
	e := newEnv(t, shared).watched(checker.Options{})
	e.pool(2, func(p *seatpoolv1alpha1.SeatPool) {
		p.Spec.AllowedNamespaces = &seatpoolv1alpha1.AllowedNamespaces{
			From:     seatpoolv1alpha1.NamespacesFromSelector,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"seats": e.namespace}},
		}
	})
	elsewhere := func(labels map[string]string) *seatpoolv1alpha1.SeatLease {
		lease := e.lease("a")
		lease.Namespace = e.newNamespace(labels)
		lease.Spec.PoolRef.Namespace = e.namespace
		return lease
	}
	allowed := elsewhere(map[string]string{"seats": e.namespace})
	e.must(e.client.Create(e.Context(), allowed))
	if len(allowed.OwnerReferences) != 0 || len(allowed.Finalizers) != 0 {
		t.Errorf("owners %v, finalizers %v, want none", allowed.OwnerReferences, allowed.Finalizers)
	}
	err := e.client.Create(e.Context(), elsewhere(nil))
	e.refusedWith(err, http.StatusForbidden, seatpoolv1alpha1.ReasonNamespaceNotAllowed)
	e.Eventually(e.figures).Should(Equal("1/2, 1 free"))
}

func TestAPoolThatIsNotUsableGrantsAndRenewsNothing(t *testing.T) {
	e := newEnv(t, shared).watched(checker.Options{})
	e.pool(2)
	e.checkout("a")
	e.patchPool(`{"spec":{"suspended":true}}`)
	_, err := e.tryCheckout("b")
	e.refusedWith(err, http.StatusConflict, seatpoolv1alpha1.ReasonPoolSuspended)
	e.Eventually(func() string { _, err := e.renew("a"); return string(apierrors.ReasonForError(err)) }).Should(Equal(seatpoolv1alpha1.ReasonPoolSuspended))
	e.Eventually(func() string { return e.condition(seatpoolv1alpha1.ConditionReady) }).Should(Equal("False Suspended"))
	e.patchPool(`{"spec":{"suspended":null,"notAfter":"2020-01-01T00:00:00Z"}}`)
	_, err = e.tryCheckout("b")
	e.refusedWith(err, http.StatusGone, seatpoolv1alpha1.ReasonPoolExpired)
	e.Eventually(func() string { return e.condition(seatpoolv1alpha1.ConditionReady) }).Should(Equal("False Expired"))
	e.patchPool(`{"spec":{"notAfter":null,"notBefore":"2099-01-01T00:00:00Z"}}`)
	_, err = e.tryCheckout("b")
	e.refusedWith(err, http.StatusConflict, seatpoolv1alpha1.ReasonPoolSuspended)
	e.release("a")
}

func TestNoLeaseOutlivesTheLicence(t *testing.T) {
	e := newEnv(t, shared).watched(checker.Options{})
	end := time.Now().Add(30 * time.Second).UTC().Truncate(time.Second)
	e.pool(1, func(p *seatpoolv1alpha1.SeatPool) { p.Spec.NotAfter = new(metav1.NewTime(end)) })
	if a := e.checkout("a"); !a.Status.ExpiresAt.Time.Equal(end) {
		t.Errorf("expiresAt = %s, want %s", a.Status.ExpiresAt.UTC(), end)
	}
}

func TestTheProductDefaultsToTheName(t *testing.T) {
	e := newEnv(t, shared)
	if pool := e.pool(1); pool.Spec.Product != "cad" {
		t.Errorf("product = %q, want cad", pool.Spec.Product)
	}
}

func TestMetricsAreForThoseWhoMay(t *testing.T) {
	e := newEnv(t, shared)
	if status, _ := e.scrape(0, ""); status != http.StatusUnauthorized {
		t.Errorf("without a token: %d, want 401", status)
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: "nobody"}}
	e.must(e.client.Create(e.Context(), account))
	token, _, err := e.cluster.Kubectl("create", "token", account.Name, "-n", e.namespace)
	e.must(err)
	if status, _ := e.scrape(0, strings.TrimSpace(token)); status != http.StatusForbidden {
		t.Errorf("without the right: %d, want 403", status)
	}
	if len(e.metrics(0)) == 0 {
		t.Error("no metrics for who may read them")
	}
}
