// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

const (
	// noticePatience is how long an API server may take to notice a webhook
	// configuration. It watches them, so that this is about a busy machine.
	noticePatience = 30 * time.Second

	// askTimeout is the longest time an API server would wait for the webhooks.
	askTimeout = 10 * time.Second

	probeName = "devcluster-probe"
)

// configuration is a webhook configuration, as far as leases are concerned.
type configuration struct {
	object *unstructured.Unstructured
	name   string // of the webhook for leases
	path   string // it is served at
}

// installWebhooks writes the webhook configurations, pointed at a URL, and waits
// until every API server calls it. One that does not would let leases in that
// nobody has granted.
//
// The validating one comes first: a lease that meets it alone is refused, and one
// that met only the other would be let in uncounted.
func installWebhooks(ctx context.Context, servers []*installer, url string, ca []byte) error {
	configurations, err := servers[0].configurations(ctx)
	if err != nil {
		return err
	}
	for k, c := range configurations {
		if err := pointAt(c.object, url, ca); err != nil {
			return err
		}
		sign, err := c.sign(ctx, url, ca)
		if err != nil {
			return err
		}
		if err := servers[0].apply(ctx, c.object); err != nil {
			return err
		}
		for _, server := range servers {
			err := until(ctx, noticePatience, "an API server does not call "+url+c.path, func() bool {
				return noticed(server.probe(ctx), sign, configurations[k+1:])
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// removeWebhooks deletes the webhook configurations, and waits until no API
// server calls them any more.
func removeWebhooks(ctx context.Context, servers []*installer) error {
	configurations, err := servers[0].configurations(ctx)
	if err != nil {
		return err
	}
	// The other way round than they were installed, and for the same reason.
	slices.Reverse(configurations)
	for _, c := range configurations {
		admission := servers[0].kube.AdmissionregistrationV1()
		if c.object.GetKind() == "MutatingWebhookConfiguration" {
			err = admission.MutatingWebhookConfigurations().Delete(ctx, c.object.GetName(), metav1.DeleteOptions{})
		} else {
			err = admission.ValidatingWebhookConfigurations().Delete(ctx, c.object.GetName(), metav1.DeleteOptions{})
		}
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		for _, server := range servers {
			err := until(ctx, noticePatience, "an API server still calls "+c.name, func() bool {
				return !names(server.probe(ctx), c.name)
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// configurations returns those under config/, in the order they are installed.
func (i *installer) configurations(ctx context.Context) ([]configuration, error) {
	objects, err := i.render(ctx, "webhook")
	if err != nil {
		return nil, err
	}
	var all []configuration
	for _, kind := range []string{"ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"} {
		for _, object := range objects {
			if object.GetKind() != kind {
				continue
			}
			c, err := configurationOf(object)
			if err != nil {
				return nil, err
			}
			all = append(all, *c)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("there is no webhook configuration under %s", i.dir)
	}
	return all, nil
}

// configurationOf finds the webhook for leases, by the path it is served at.
func configurationOf(object *unstructured.Unstructured) (*configuration, error) {
	webhooks, _, err := unstructured.NestedSlice(object.Object, "webhooks")
	if err != nil {
		return nil, err
	}
	for _, w := range webhooks {
		webhook, ok := w.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("%s has a webhook that is no object", object.GetName())
		}
		name, _, nameErr := unstructured.NestedString(webhook, "name")
		path, _, pathErr := unstructured.NestedString(webhook, "clientConfig", "service", "path")
		if err := errors.Join(nameErr, pathErr); err != nil {
			return nil, err
		}
		if strings.HasSuffix(path, "-seatlease") {
			return &configuration{object: object, name: name, path: path}, nil
		}
	}
	return nil, fmt.Errorf("%s has no webhook for leases", object.GetName())
}

// pointAt has the webhooks of a configuration called at a URL instead of at a
// Service.
func pointAt(object *unstructured.Unstructured, url string, ca []byte) error {
	webhooks, _, err := unstructured.NestedSlice(object.Object, "webhooks")
	if err != nil {
		return err
	}
	for _, w := range webhooks {
		webhook, ok := w.(map[string]any)
		if !ok {
			return fmt.Errorf("%s has a webhook that is no object", object.GetName())
		}
		path, found, err := unstructured.NestedString(webhook, "clientConfig", "service", "path")
		if err != nil {
			return err
		}
		if !found {
			return fmt.Errorf("%s has a webhook without a service path", object.GetName())
		}
		webhook["clientConfig"] = map[string]any{"url": url + path, "caBundle": base64.StdEncoding.EncodeToString(ca)}
	}
	return unstructured.SetNestedSlice(object.Object, webhooks, "webhooks")
}

// probeLease names a pool that does not exist, so that whoever decides about
// leases refuses it.
func probeLease() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": seatLeases.GroupVersion().String(),
		"kind":       "SeatLease",
		"metadata":   map[string]any{"name": probeName, "namespace": operatorNamespace},
		"spec":       map[string]any{"poolRef": map[string]any{"name": probeName}},
	}}
}

// probe asks an API server what it would say to a lease of a pool that does not
// exist. That nothing comes of it, dry run sees to.
func (i *installer) probe(ctx context.Context) error {
	_, err := i.dynamic.Resource(seatLeases).Namespace(operatorNamespace).Create(ctx, probeLease(),
		metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

// What an API server says of a webhook that refused a request, and of one that it
// did not reach. There is no other sign than the text.
const (
	saysRefused     = "admission webhook %q denied the request"
	saysUnreachable = "failed calling webhook %q"
)

// sign returns what an API server will say to the probe once it calls the webhook
// at the URL, which it asks there itself. It is empty when the webhook lets the
// probe pass, as if it were not there: then there is nothing to wait for.
func (c *configuration) sign(ctx context.Context, url string, ca []byte) (string, error) {
	lease, err := probeLease().MarshalJSON()
	if err != nil {
		return "", err
	}
	dryRun := true
	review, err := json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{
			UID:       probeName,
			Kind:      metav1.GroupVersionKind{Group: seatLeases.Group, Version: seatLeases.Version, Kind: "SeatLease"},
			Resource:  metav1.GroupVersionResource{Group: seatLeases.Group, Version: seatLeases.Version, Resource: seatLeases.Resource},
			Namespace: operatorNamespace, Name: probeName, Operation: admissionv1.Create, DryRun: &dryRun,
			UserInfo: authenticationv1.UserInfo{Username: "admin"},
			Object:   runtime.RawExtension{Raw: lease},
		},
	})
	if err != nil {
		return "", err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+c.path, bytes.NewReader(review))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/json")
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(ca)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted, MinVersion: tls.VersionTLS12}}
	defer transport.CloseIdleConnections()
	client := http.Client{Transport: transport, Timeout: askTimeout}
	unreachable := fmt.Sprintf(saysUnreachable, c.name)
	res, err := client.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		return unreachable, nil
	}
	defer func() { _ = res.Body.Close() }() // it has been read
	answer := admissionv1.AdmissionReview{}
	err = json.NewDecoder(res.Body).Decode(&answer)
	switch {
	case err != nil || res.StatusCode != http.StatusOK || answer.Response == nil:
		return unreachable, nil
	case answer.Response.Allowed:
		return "", nil
	default:
		return fmt.Sprintf(saysRefused, c.name), nil
	}
}

// noticed reports whether what an API server says to the probe shows that it
// calls a webhook: that it gives the sign, or that it does not come so far because
// of another that is asked earlier and was there before.
func noticed(answer error, sign string, earlier []configuration) bool {
	if sign == "" {
		return true
	}
	if answer == nil {
		return false
	}
	return strings.Contains(answer.Error(), sign) ||
		slices.ContainsFunc(earlier, func(c configuration) bool { return names(answer, c.name) })
}

// names reports whether an error names a webhook.
func names(answer error, webhook string) bool {
	return answer != nil && strings.Contains(answer.Error(), fmt.Sprintf("webhook %q", webhook))
}
