// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

// Package suite replays what happens to pools and leases against a real API
// server, with real managers behind real webhooks. A test whose name carries a
// C and a number replays that case of the catalogue in docs/cases.md.
package suite

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	seatpoolv1alpha1 "seatpool.dev/api/v1alpha1"
	"seatpool.dev/seat/leasetoken"
	"seatpool.dev/test/checker"
	"seatpool.dev/test/cluster"
)

// shared is the cluster of all tests that do no harm to it: two API servers and
// three managers.
var shared *cluster.Cluster

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard()) // managers run in processes of their own
	c, stop, err := cluster.StartMain(cluster.Options{Replicas: 3, APIServers: 2})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	shared = c
	code := m.Run()
	if err := stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// env is one test's corner of a cluster: a namespace of its own, and a checker
// that watches it all.
type env struct {
	*testing.T
	gomega.Gomega
	cluster   *cluster.Cluster
	client    client.Client
	namespace string
}

// soon is how long something may take that should happen within a second or so.
const soon = 20 * time.Second

func newEnv(t *testing.T, c *cluster.Cluster) *env {
	t.Helper()
	e := &env{T: t, Gomega: gomega.NewWithT(t), cluster: c, client: c.Client()}
	e.SetDefaultEventuallyTimeout(soon)
	e.SetDefaultEventuallyPollingInterval(50 * time.Millisecond)
	e.SetDefaultConsistentlyPollingInterval(100 * time.Millisecond)
	e.namespace = e.newNamespace(nil)
	return e
}

// in is the same namespace in a subtest.
func (e *env) in(t *testing.T) *env {
	t.Helper()
	return &env{T: t, Gomega: gomega.NewWithT(t), cluster: e.cluster, client: e.client, namespace: e.namespace}
}

// watched has every promise checked while the test runs.
func (e *env) watched(options checker.Options) *env {
	e.Helper()
	if options.Keys == nil {
		options.Keys = checker.PublishedKeys(e.client, "seatpool-system")
	}
	// The checker outlives the test's context: it is stopped in a clean-up.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(e.Context()), 10*time.Minute)
	watching, err := client.NewWithWatch(e.cluster.Config(), client.Options{Scheme: e.client.Scheme()})
	e.must(err)
	check, err := checker.Start(ctx, watching, options)
	e.must(err)
	e.Cleanup(func() {
		defer cancel()
		if err := check.Stop(ctx); err != nil {
			e.Errorf("promises were broken:\n%v", err)
		}
	})
	return e
}

func (e *env) must(err error) {
	e.Helper()
	if err != nil {
		e.Fatal(err)
	}
}

func (e *env) newNamespace(labels map[string]string) string {
	e.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "t-", Labels: labels}}
	e.must(e.client.Create(e.Context(), namespace))
	return namespace.Name
}

type poolEdit func(*seatpoolv1alpha1.SeatPool)

func ttl(seconds, skew, grace int32) poolEdit {
	return func(p *seatpoolv1alpha1.SeatPool) {
		p.Spec.TTLSeconds, p.Spec.SkewSeconds, p.Spec.ReapGraceSeconds = seconds, &skew, grace
	}
}

// pool creates a pool named cad.
func (e *env) pool(seats int32, edits ...poolEdit) *seatpoolv1alpha1.SeatPool {
	e.Helper()
	pool := &seatpoolv1alpha1.SeatPool{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: "cad"},
		Spec:       seatpoolv1alpha1.SeatPoolSpec{Seats: &seats},
	}
	for _, edit := range edits {
		edit(pool)
	}
	e.must(e.client.Create(e.Context(), pool))
	return pool
}

func (e *env) getPool() *seatpoolv1alpha1.SeatPool {
	e.Helper()
	pool := &seatpoolv1alpha1.SeatPool{}
	e.must(e.client.Get(e.Context(), types.NamespacedName{Namespace: e.namespace, Name: "cad"}, pool))
	return pool
}

func (e *env) patchPool(patch string) {
	e.Helper()
	pool := &seatpoolv1alpha1.SeatPool{ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: "cad"}}
	e.must(e.client.Patch(e.Context(), pool, client.RawPatch(types.MergePatchType, []byte(patch))))
}

type leaseEdit func(*seatpoolv1alpha1.SeatLease)

func instance(id string) leaseEdit {
	return func(l *seatpoolv1alpha1.SeatLease) { l.Spec.Holder.InstanceID = id }
}

// lease returns a lease of the pool cad that has not been created yet.
func (e *env) lease(name string, edits ...leaseEdit) *seatpoolv1alpha1.SeatLease {
	lease := &seatpoolv1alpha1.SeatLease{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: name},
		Spec: seatpoolv1alpha1.SeatLeaseSpec{
			PoolRef: seatpoolv1alpha1.PoolReference{Name: "cad"},
			Holder:  seatpoolv1alpha1.Holder{User: "ann", Host: "ws1"},
		},
	}
	for _, edit := range edits {
		edit(lease)
	}
	return lease
}

func (e *env) tryCheckout(name string, edits ...leaseEdit) (*seatpoolv1alpha1.SeatLease, error) {
	lease := e.lease(name, edits...)
	return lease, e.client.Create(e.Context(), lease)
}

func (e *env) checkout(name string, edits ...leaseEdit) *seatpoolv1alpha1.SeatLease {
	e.Helper()
	lease, err := e.tryCheckout(name, edits...)
	e.must(err)
	return lease
}

func (e *env) renewAs(c client.Client, name string) (*seatpoolv1alpha1.SeatLease, error) {
	lease := &seatpoolv1alpha1.SeatLease{ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: name}}
	patch := fmt.Sprintf(`{"spec":{"renewTime":%q}}`, time.Now().UTC().Format("2006-01-02T15:04:05.000000Z"))
	return lease, c.Patch(e.Context(), lease, client.RawPatch(types.MergePatchType, []byte(patch)))
}

func (e *env) renew(name string) (*seatpoolv1alpha1.SeatLease, error) {
	return e.renewAs(e.client, name)
}

func (e *env) release(name string) {
	e.Helper()
	e.must(e.client.Delete(e.Context(), e.lease(name)))
}

func (e *env) leases() []seatpoolv1alpha1.SeatLease {
	e.Helper()
	list := &seatpoolv1alpha1.SeatLeaseList{}
	e.must(e.client.List(e.Context(), list, client.InNamespace(e.namespace)))
	return list.Items
}

// figures returns "in use/seats, free" of the pool's status.
func (e *env) figures() string {
	pool := e.getPool()
	if pool.Status.SeatsInUse == nil {
		return "none"
	}
	return fmt.Sprintf("%d/%d, %d free", *pool.Status.SeatsInUse, pool.Seats(), *pool.Status.SeatsFree)
}

func (e *env) condition(conditionType string) string {
	condition := meta.FindStatusCondition(e.getPool().Status.Conditions, conditionType)
	if condition == nil {
		return "none"
	}
	return fmt.Sprintf("%s %s", condition.Status, condition.Reason)
}

// eventsOf counts the Events of the pool with that reason.
func (e *env) eventsOf(reason string) int {
	e.Helper()
	list := &corev1.EventList{}
	e.must(e.client.List(e.Context(), list, client.InNamespace(e.namespace)))
	n := 0
	for i := range list.Items {
		if event := &list.Items[i]; event.Reason == reason {
			n++
			if event.Series != nil {
				n += int(event.Series.Count) - 1
			}
		}
	}
	return n
}

// refusedWith fails the test unless the error is a refusal with that code and
// reason, and a sentence; it returns its details.
func (e *env) refusedWith(err error, code int32, reason string) *metav1.StatusDetails {
	e.Helper()
	var carrier apierrors.APIStatus
	if !errors.As(err, &carrier) {
		e.Fatalf("want a refusal %s, got %v", reason, err)
	}
	status := carrier.Status()
	if status.Code != code || string(status.Reason) != reason {
		e.Fatalf("want %d %s, got %d %s: %s", code, reason, status.Code, status.Reason, status.Message)
	}
	if len(strings.Fields(status.Message)) < 5 {
		e.Errorf("the message is no sentence: %q", status.Message)
	}
	if status.Details == nil {
		return &metav1.StatusDetails{}
	}
	return status.Details
}

func cause(details *metav1.StatusDetails, causeType string) string {
	for _, c := range details.Causes {
		if string(c.Type) == causeType {
			return c.Message
		}
	}
	return ""
}

// clientFor returns a client of another user, who holds the role holder in the
// test's namespace and the further rules given.
func (e *env) clientFor(user string, rules ...rbacv1.PolicyRule) client.Client {
	e.Helper()
	subject := []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}}
	e.must(e.client.Create(e.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, GenerateName: "holder-"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "seatpool-holder"},
		Subjects:   subject,
	}))
	if len(rules) > 0 {
		role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, GenerateName: "extra-"}, Rules: rules}
		e.must(e.client.Create(e.Context(), role))
		e.must(e.client.Create(e.Context(), &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, GenerateName: "extra-"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
			Subjects:   subject,
		}))
	}
	c, err := client.New(e.cluster.ConfigFor(user), client.Options{Scheme: e.client.Scheme()})
	e.must(err)
	return c
}

// manageRule is the verb that lets somebody renew the leases of others.
var manageRule = rbacv1.PolicyRule{APIGroups: []string{seatpoolv1alpha1.GroupName}, Resources: []string{"seatleases"}, Verbs: []string{seatpoolv1alpha1.VerbManage}}

// metrics returns the metrics of a manager, read as somebody who may.
func (e *env) metrics(manager int) map[string]float64 {
	e.Helper()
	ctx := e.Context()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: "scraper"}}
	if err := e.client.Create(ctx, account); client.IgnoreAlreadyExists(err) != nil {
		e.Fatal(err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "scraper-" + e.namespace},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "seatpool-metrics-reader"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: e.namespace, Name: account.Name}},
	}
	if err := e.client.Create(ctx, binding); client.IgnoreAlreadyExists(err) != nil {
		e.Fatal(err)
	}
	token, _, err := e.cluster.Kubectl("create", "token", account.Name, "-n", e.namespace)
	e.must(err)

	var body []byte
	e.Eventually(func() error {
		var status int
		status, body = e.scrape(manager, strings.TrimSpace(token))
		if status != http.StatusOK {
			return fmt.Errorf("status %d", status)
		}
		return nil
	}).Should(gomega.Succeed())
	values := map[string]float64{}
	for line := range strings.Lines(string(body)) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if number, err := strconv.ParseFloat(value, 64); ok && err == nil {
			values[name] = number
		}
	}
	return values
}

// scrape asks a manager for its metrics.
func (e *env) scrape(manager int, token string) (status int, body []byte) {
	e.Helper()
	// The certificate of the metrics is the manager's own.
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(e.Context(), http.MethodGet, e.cluster.Endpoints().Managers[manager].Metrics+"/metrics", http.NoBody)
	e.must(err)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return 0, nil
	}
	defer func() { e.must(res.Body.Close()) }()
	body, err = io.ReadAll(res.Body)
	e.must(err)
	return res.StatusCode, body
}

func httpClientFor(config *rest.Config) (*http.Client, error) { return rest.HTTPClientFor(config) }

func decodeJSON(r io.Reader, into any) error { return json.NewDecoder(r).Decode(into) }

// noKeys checks no signatures, for tests that forge them.
func noKeys(context.Context) (leasetoken.KeySet, error) { return nil, nil }
