// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	seatpoolv1alpha1 "seatpool.dev/api/v1alpha1"
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard()) // managers run in processes of their own
	os.Exit(m.Run())
}

func clientFor(t *testing.T, config *rest.Config) client.Client {
	t.Helper()
	c, err := client.New(config, client.Options{Scheme: Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// whoami returns the user that the API server takes a client for.
func whoami(t *testing.T, c client.Client) authenticationv1.UserInfo {
	t.Helper()
	review := &authenticationv1.SelfSubjectReview{}
	if err := c.Create(t.Context(), review); err != nil {
		t.Fatal(err)
	}
	return review.Status.UserInfo
}

// tryLease asks for a seat of a pool that does not exist.
func tryLease(t *testing.T, c client.Client) error {
	t.Helper()
	lease := &seatpoolv1alpha1.SeatLease{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "a"},
		Spec:       seatpoolv1alpha1.SeatLeaseSpec{PoolRef: seatpoolv1alpha1.PoolReference{Name: "none"}},
	}
	return c.Create(t.Context(), lease, client.DryRunAll)
}

func TestThreeManagersAndTwoAPIServers(t *testing.T) {
	c := Start(t, Options{Replicas: 3, APIServers: 2})
	want := []string{"etcd", "kube-apiserver-0", "kube-apiserver-1", "manager-0", "manager-1", "manager-2"}
	if got := c.Processes(); !slices.Equal(got, want) {
		t.Errorf("processes = %q, want %q", got, want)
	}
	for _, name := range want {
		if _, err := os.Stat(filepath.Join(c.Dir(), "logs", name+".log")); err != nil {
			t.Error(err)
		}
	}
	servers := []client.Client{clientFor(t, c.APIServerConfig(0)), clientFor(t, c.APIServerConfig(1))}

	t.Run("every API server calls the webhooks as soon as it is ready", func(t *testing.T) {
		for n, server := range servers {
			if err := tryLease(t, server); err == nil || !strings.Contains(err.Error(), "denied the request") {
				t.Errorf("API server %d: want a refusal, got %v", n, err)
			}
		}
	})
	t.Run("the webhooks are gone, and back, when that is reported", func(t *testing.T) {
		for range 3 {
			if err := c.RemoveWebhooks(); err != nil {
				t.Fatal(err)
			}
			for n, server := range servers {
				if err := tryLease(t, server); err != nil {
					t.Errorf("API server %d without webhooks: %v", n, err)
				}
			}
			if err := c.InstallWebhooks(c.Endpoints().Balancer); err != nil {
				t.Fatal(err)
			}
			for n, server := range servers {
				if err := tryLease(t, server); err == nil {
					t.Errorf("API server %d does not call the webhooks", n)
				}
			}
		}
	})
	t.Run("managers are nobody but their service account", func(t *testing.T) {
		for n, m := range c.Endpoints().Managers {
			config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(c.Dir(), "pki", m.Name+".kubeconfig"))
			if err != nil {
				t.Fatal(err)
			}
			if config.Host != c.Endpoints().APIServers[n%2] {
				t.Errorf("%s talks to %s; they are to be spread over the API servers", m.Name, config.Host)
			}
			if got := whoami(t, clientFor(t, config)).Username; got != "system:serviceaccount:seatpool-system:seatpool-manager" {
				t.Errorf("%s is %s", m.Name, got)
			}
		}
	})
	t.Run("another user is let in and may do nothing", func(t *testing.T) {
		ann := clientFor(t, c.ConfigFor("ann", "staff", "night shift"))
		user := whoami(t, ann)
		if user.Username != "ann" || !slices.Contains(user.Groups, "staff") || !slices.Contains(user.Groups, "night shift") {
			t.Errorf("the API server takes her for %q of %q", user.Username, user.Groups)
		}
		if err := ann.List(t.Context(), &corev1.SecretList{}); !apierrors.IsForbidden(err) {
			t.Errorf("listing secrets: want it forbidden, got %v", err)
		}
	})
	t.Run("a namespace is emptied and goes away", func(t *testing.T) {
		g := gomega.NewWithT(t)
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "short-lived"}}
		g.Expect(c.Client().Create(t.Context(), namespace)).To(gomega.Succeed())
		g.Expect(c.Client().Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "short-lived", Name: "c"}})).To(gomega.Succeed())
		g.Expect(c.Client().Delete(t.Context(), namespace)).To(gomega.Succeed())
		g.Eventually(func() bool {
			return apierrors.IsNotFound(servers[1].Get(t.Context(), client.ObjectKeyFromObject(namespace), &corev1.Namespace{}))
		}).WithTimeout(20 * time.Second).Should(gomega.BeTrue())
	})
	t.Run("kubectl works", func(t *testing.T) {
		stdout, stderr, err := c.KubectlIn(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"k"}}`, "create", "-f", "-")
		if err != nil || stdout != "configmap/k created\n" {
			t.Errorf("it says %q and %q, %v", stdout, stderr, err)
		}
		if _, stderr, err := c.Kubectl("get", "configmaps", "none"); err == nil || !strings.Contains(stderr, "not found") {
			t.Errorf("it says %q, %v; want it to fail", stderr, err)
		}
	})
	t.Run("a killed manager is started again within a second", func(t *testing.T) {
		g := gomega.NewWithT(t)
		killed, err := c.Pid("manager-1")
		g.Expect(err).NotTo(gomega.HaveOccurred())
		g.Expect(c.Kill("manager-1", syscall.SIGKILL)).To(gomega.Succeed())
		g.Eventually(func() (int, error) { return c.Pid("manager-1") }).WithTimeout(time.Second).ShouldNot(gomega.Equal(killed))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		g.Expect(c.WaitReady(ctx)).To(gomega.Succeed())
	})
}

func TestWithoutTheOperator(t *testing.T) {
	c := Start(t, Options{NoOperator: true})
	if got := fmt.Sprint(c.Processes()); got != "[etcd kube-apiserver-0]" {
		t.Errorf("processes = %s", got)
	}
	if err := tryLease(t, c.Client()); err != nil {
		t.Errorf("nothing is there that could refuse a lease, and yet: %v", err)
	}
	if err := c.Client().Get(t.Context(), client.ObjectKey{Name: "seatpool-system"}, &corev1.Namespace{}); err != nil {
		t.Error(err)
	}
	// Nobody listens there, and every lease is refused for it.
	if err := c.InstallWebhooks("https://127.0.0.1:1"); err != nil {
		t.Fatal(err)
	}
	if err := tryLease(t, c.Client()); err == nil || !strings.Contains(err.Error(), "failed calling webhook") {
		t.Errorf("want it to have called the webhook in vain, got %v", err)
	}
}

func TestAKilledManagerStaysDeadWhenItShould(t *testing.T) {
	g := gomega.NewWithT(t)
	c := Start(t, Options{NoRestart: true})
	m := c.Endpoints().Managers[0]
	pid, err := c.Pid(m.Name)
	g.Expect(err).NotTo(gomega.HaveOccurred())
	g.Expect(c.Kill(m.Name, syscall.SIGKILL)).To(gomega.Succeed())
	g.Eventually(func() bool { return running(pid) }).Should(gomega.BeFalse())
	g.Consistently(func() bool { return c.Ready(t.Context(), m) }).WithTimeout(2 * time.Second).Should(gomega.BeFalse())
}

func TestNothingIsLeftOfAKilledCluster(t *testing.T) {
	g := gomega.NewWithT(t)
	c, stop, err := StartMain(Options{})
	g.Expect(err).NotTo(gomega.HaveOccurred())
	var pids []int
	for _, name := range c.Processes() {
		pid, err := c.Pid(name)
		g.Expect(err).NotTo(gomega.HaveOccurred())
		pids = append(pids, pid)
	}
	g.Expect(pids).To(gomega.HaveLen(3))
	g.Expect(c.cmd.Process.Kill()).To(gomega.Succeed())
	g.Eventually(func() bool { return slices.ContainsFunc(pids, running) }).WithTimeout(10 * time.Second).Should(gomega.BeFalse())
	g.Expect(stop()).To(gomega.MatchError(gomega.ContainSubstring("devcluster did not end well")))
	if _, err := os.Stat(c.Dir()); !os.IsNotExist(err) {
		t.Errorf("its folder is left: %v", err)
	}
}

func TestTheNewestKubectlIsTaken(t *testing.T) {
	dir := t.TempDir()
	if _, err := newestAssets(dir); err == nil || !strings.Contains(err.Error(), "make assets") {
		t.Errorf("nothing was built: want to be told what to do, got %v", err)
	}
	for _, version := range []string{"v1.9.11", "v1.37.2", "v1.37.10"} {
		if err := os.Mkdir(filepath.Join(dir, version), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := newestAssets(dir); err != nil || filepath.Base(got) != "v1.37.10" {
		t.Errorf("took %s, %v; want v1.37.10", got, err)
	}
}
