// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func configurationWith(webhooks ...any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"kind": "MutatingWebhookConfiguration", "metadata": map[string]any{"name": "m"}, "webhooks": webhooks,
	}}
}

func TestPointAtReplacesTheServiceAndNothingElse(t *testing.T) {
	object := configurationWith(
		map[string]any{"name": "a", "failurePolicy": "Fail", "clientConfig": map[string]any{
			"service": map[string]any{"namespace": "n", "name": "s", "path": "/a"},
		}},
		map[string]any{"name": "b", "clientConfig": map[string]any{"service": map[string]any{"path": "/b"}}},
	)
	if err := pointAt(object, "https://127.0.0.1:1", []byte("certificate")); err != nil {
		t.Fatal(err)
	}
	webhooks, _, err := unstructured.NestedSlice(object.Object, "webhooks")
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"https://127.0.0.1:1/a", "https://127.0.0.1:1/b"} {
		client := webhooks[i].(map[string]any)["clientConfig"].(map[string]any)
		if client["url"] != want {
			t.Errorf("url = %v, want %s", client["url"], want)
		}
		if client["caBundle"] != base64.StdEncoding.EncodeToString([]byte("certificate")) {
			t.Errorf("caBundle = %v", client["caBundle"])
		}
		if _, there := client["service"]; there {
			t.Error("the service is still there, which the API server refuses beside a url")
		}
	}
	if webhooks[0].(map[string]any)["failurePolicy"] != "Fail" {
		t.Error("the failure policy is gone")
	}
}

func TestPointAtRefusesAWebhookWithoutAPath(t *testing.T) {
	object := configurationWith(map[string]any{"name": "a", "clientConfig": map[string]any{"url": "https://elsewhere"}})
	if err := pointAt(object, "https://127.0.0.1:1", nil); err == nil {
		t.Error("want an error: there is no path to call")
	}
}

func TestTheWebhookForLeasesIsFoundByItsPath(t *testing.T) {
	webhook := func(name, path string) map[string]any {
		return map[string]any{"name": name, "clientConfig": map[string]any{"service": map[string]any{"path": path}}}
	}
	got, err := configurationOf(configurationWith(webhook("pools", "/mutate-v1-seatpool"), webhook("leases", "/mutate-v1-seatlease")))
	if err != nil {
		t.Fatal(err)
	}
	if got.name != "leases" || got.path != "/mutate-v1-seatlease" {
		t.Errorf("found %s at %s", got.name, got.path)
	}
	if _, err := configurationOf(configurationWith(webhook("pools", "/mutate-v1-seatpool"))); err == nil {
		t.Error("want an error: none is for leases")
	}
}

func TestSignIsWhatTheWebhookSaysItself(t *testing.T) {
	answers := map[string]struct {
		answer func(w http.ResponseWriter, review *admissionv1.AdmissionReview)
		want   string
	}{
		"refuses": {
			answer: func(w http.ResponseWriter, review *admissionv1.AdmissionReview) {
				review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID}
				_ = json.NewEncoder(w).Encode(review)
			},
			want: `admission webhook "leases" denied the request`,
		},
		"allows everything": {
			answer: func(w http.ResponseWriter, review *admissionv1.AdmissionReview) {
				review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
				_ = json.NewEncoder(w).Encode(review)
			},
		},
		"is out of order": {
			answer: func(w http.ResponseWriter, _ *admissionv1.AdmissionReview) {
				w.WriteHeader(http.StatusInternalServerError)
			},
			want: `failed calling webhook "leases"`,
		},
	}
	for name, tc := range answers {
		t.Run(name, func(t *testing.T) {
			var asked string
			server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				review := &admissionv1.AdmissionReview{}
				if err := json.NewDecoder(r.Body).Decode(review); err != nil || review.Request == nil {
					t.Errorf("what was asked cannot be read: %v", err)
					return
				}
				asked = r.URL.Path
				if dry := review.Request.DryRun; dry == nil || !*dry {
					t.Error("what was asked is no dry run")
				}
				tc.answer(w, review)
			}))
			defer server.Close()
			ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
			c := configuration{name: "leases", path: "/leases"}
			got, err := c.sign(t.Context(), server.URL, ca)
			if err != nil {
				t.Fatal(err)
			}
			if got != tc.want || asked != "/leases" {
				t.Errorf("sign = %q, asked at %q; want %q", got, asked, tc.want)
			}
		})
	}
	c := configuration{name: "leases", path: "/leases"}
	got, err := c.sign(t.Context(), "https://127.0.0.1:1", nil)
	if err != nil || !strings.HasPrefix(got, "failed calling webhook") {
		t.Errorf("nobody listens: sign = %q, error %v", got, err)
	}
}

func TestNoticed(t *testing.T) {
	mutating := []configuration{{name: "grant"}}
	refusedBy := func(name string) error { return fmt.Errorf(saysRefused+": no", name) }
	sign := fmt.Sprintf(saysRefused, "checkout")
	tests := map[string]struct {
		answer  error
		sign    string
		earlier []configuration
		want    bool
	}{
		"what lets everything pass cannot be waited for": {sign: "", want: true},
		"the lease passed":                           {sign: sign},
		"the webhook refused it":                     {answer: refusedBy("checkout"), sign: sign, earlier: mutating, want: true},
		"the webhook at the old URL was not reached": {answer: fmt.Errorf(saysUnreachable, "checkout"), sign: sign, earlier: mutating},
		"one that is asked earlier refused it":       {answer: refusedBy("grant"), sign: sign, earlier: mutating, want: true},
		"one that is asked later refused it":         {answer: refusedBy("checkout"), sign: fmt.Sprintf(saysRefused, "grant")},
		"the API server was away":                    {answer: errors.New("connection refused"), sign: sign, earlier: mutating},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := noticed(tc.answer, tc.sign, tc.earlier); got != tc.want {
				t.Errorf("noticed = %t, want %t", got, tc.want)
			}
		})
	}
}
