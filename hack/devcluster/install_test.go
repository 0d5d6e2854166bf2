// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/base64"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func configurationOf(webhooks ...any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"kind": "MutatingWebhookConfiguration", "metadata": map[string]any{"name": "m"}, "webhooks": webhooks,
	}}
}

func TestPointAtReplacesTheServiceAndNothingElse(t *testing.T) {
	object := configurationOf(
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
	object := configurationOf(map[string]any{"name": "a", "clientConfig": map[string]any{"url": "https://elsewhere"}})
	if err := pointAt(object, "https://127.0.0.1:1", nil); err == nil {
		t.Error("want an error: there is no path to call")
	}
}
