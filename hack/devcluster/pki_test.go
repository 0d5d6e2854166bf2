// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/tls"
	"crypto/x509"
	"slices"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
)

func newTestAuthority(t *testing.T) (*authority, string) {
	t.Helper()
	dir := t.TempDir()
	a, err := newAuthority(dir)
	if err != nil {
		t.Fatal(err)
	}
	return a, dir
}

func pool(a *authority) *x509.CertPool {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(a.certPEM)
	return roots
}

func TestKubeconfigIsForTheUserAndTheGroups(t *testing.T) {
	a, _ := newTestAuthority(t)
	content, err := a.kubeconfigFor("https://127.0.0.1:1234", "ann", []string{"staff", "admins"})
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(content)
	if err != nil {
		t.Fatal(err)
	}
	if config.Host != "https://127.0.0.1:1234" {
		t.Errorf("host = %q", config.Host)
	}
	if string(config.CAData) != string(a.certPEM) {
		t.Error("the kubeconfig does not trust the cluster's authority")
	}
	pair, err := tls.X509KeyPair(config.CertData, config.KeyData)
	if err != nil {
		t.Fatal(err)
	}
	if name := pair.Leaf.Subject.CommonName; name != "ann" {
		t.Errorf("user = %q, want ann", name)
	}
	groups := slices.Clone(pair.Leaf.Subject.Organization)
	if slices.Sort(groups); !slices.Equal(groups, []string{"admins", "staff"}) {
		t.Errorf("groups = %q", groups)
	}
	if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: pool(a), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		t.Errorf("an API server would not believe it: %v", err)
	}
}

func TestServingCertificateIsGoodOnLoopbackForLong(t *testing.T) {
	a, _ := newTestAuthority(t)
	certPEM, keyPEM, err := a.issue("webhook", nil)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"127.0.0.1", "localhost"} {
		_, err := pair.Leaf.Verify(x509.VerifyOptions{DNSName: host, Roots: pool(a), CurrentTime: time.Now().Add(7 * 24 * time.Hour)})
		if err != nil {
			t.Errorf("%s: %v", host, err)
		}
	}
}

func TestAuthorityCanBeLoadedByAnotherProcess(t *testing.T) {
	a, dir := newTestAuthority(t)
	loaded, err := loadAuthority(dir)
	if err != nil {
		t.Fatal(err)
	}
	if string(loaded.certPEM) != string(a.certPEM) || !loaded.key.Equal(a.key) {
		t.Error("what was loaded is another authority")
	}
	if _, err := loadAuthority(t.TempDir()); err == nil {
		t.Error("an authority was found in an empty folder")
	}
}
