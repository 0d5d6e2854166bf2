// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	// operatorNamespace and managerAccount are those of config/.
	operatorNamespace = "seatpool-system"
	managerAccount    = "seatpool-manager"

	// tokenSeconds is how long a manager's token is good.
	tokenSeconds = 24 * 60 * 60

	// establishPatience is how long the API server may take to serve a new kind.
	establishPatience = 30 * time.Second
)

// installer writes what is under config/ to a cluster.
type installer struct {
	config  *rest.Config
	dynamic dynamic.Interface
	kube    kubernetes.Interface
	mapper  *restmapper.DeferredDiscoveryRESTMapper
	kubectl string
	dir     string
}

func newInstaller(kubeconfig, assets, configDir string) (*installer, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	// Finishing namespaces reads every kind, old ones too, and is told so.
	config.WarningHandler = rest.NoWarnings{}
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	discovered := memory.NewMemCacheClient(discovery.NewDiscoveryClient(kube.Discovery().RESTClient()))
	return &installer{
		config: config, dynamic: dyn, kube: kube, mapper: restmapper.NewDeferredDiscoveryRESTMapper(discovered),
		kubectl: filepath.Join(assets, "kubectl"), dir: configDir,
	}, nil
}

// newInstallers returns one for each API server of a cluster.
func newInstallers(dir string, apiservers int, assets, configDir string) ([]*installer, error) {
	var servers []*installer
	for n := range apiservers {
		server, err := newInstaller(kubeconfigOf(dir, n), assets, configDir)
		if err != nil {
			return nil, err
		}
		servers = append(servers, server)
	}
	return servers, nil
}

// kubeconfigOf returns the path of the admin's kubeconfig for an API server.
func kubeconfigOf(dir string, n int) string {
	return filepath.Join(dir, fmt.Sprint("kubeconfig-", n))
}

// render returns the objects of an overlay.
func (i *installer) render(ctx context.Context, overlay string) ([]*unstructured.Unstructured, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, i.kubectl, "kustomize", filepath.Join(i.dir, overlay))
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("configuration cannot be rendered: %w: %s", err, stderr.String())
	}
	var objects []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(&stdout, 4096)
	for {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(&object.Object)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		if len(object.Object) > 0 {
			objects = append(objects, object)
		}
	}
}

// order is the order kinds are installed in. What is not listed needs nodes.
var order = []string{"Namespace", "CustomResourceDefinition", "ServiceAccount", "ClusterRole", "Role", "ClusterRoleBinding", "RoleBinding"}

// install writes all that a control plane without nodes can take, but for the
// webhook configurations.
func (i *installer) install(ctx context.Context) error {
	objects, err := i.render(ctx, "default")
	if err != nil {
		return err
	}
	for _, kind := range order {
		for _, object := range objects {
			if object.GetKind() == kind {
				if err := i.apply(ctx, object); err != nil {
					return err
				}
			}
		}
	}
	for _, object := range objects {
		if object.GetKind() == "CustomResourceDefinition" {
			if err := i.established(ctx, object.GetName()); err != nil {
				return err
			}
		}
	}
	return nil
}

// apply writes one object. A kind may be a moment younger than the API server
// serves it.
func (i *installer) apply(ctx context.Context, object *unstructured.Unstructured) error {
	gvk := object.GroupVersionKind()
	mapping, err := i.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return err
	}
	var resource dynamic.ResourceInterface = i.dynamic.Resource(mapping.Resource)
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		resource = i.dynamic.Resource(mapping.Resource).Namespace(object.GetNamespace())
	}
	_, err = resource.Apply(ctx, object.GetName(), object, metav1.ApplyOptions{FieldManager: "devcluster", Force: true})
	if err != nil {
		return fmt.Errorf("%s %s: %w", object.GetKind(), object.GetName(), err)
	}
	return nil
}

// established waits until the API server serves a kind.
func (i *installer) established(ctx context.Context, crd string) error {
	resource := i.dynamic.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	return until(ctx, establishPatience, "the API server does not serve "+crd, func() bool {
		object, err := resource.Get(ctx, crd, metav1.GetOptions{})
		if err != nil {
			return false
		}
		conditions, _, err := unstructured.NestedSlice(object.Object, "status", "conditions")
		return err == nil && slices.ContainsFunc(conditions, func(c any) bool {
			condition, ok := c.(map[string]any)
			return ok && condition["type"] == "Established" && condition["status"] == "True"
		})
	})
}

var seatLeases = schema.GroupVersionResource{Group: "seatpool.dev", Version: "v1alpha1", Resource: "seatleases"}

// servesKinds reports whether the API server has heard of our kinds.
func (i *installer) servesKinds(ctx context.Context) bool {
	_, err := i.dynamic.Resource(seatLeases).Namespace(operatorNamespace).List(ctx, metav1.ListOptions{Limit: 1})
	return err == nil
}

// managerToken returns a token of the managers' ServiceAccount.
func (i *installer) managerToken(ctx context.Context) (string, error) {
	seconds := int64(tokenSeconds)
	request, err := i.kube.CoreV1().ServiceAccounts(operatorNamespace).CreateToken(ctx, managerAccount,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("no token for the managers: %w", err)
	}
	return request.Status.Token, nil
}

// finishNamespaces does for namespaces that are being deleted what the
// namespace controller does in a full cluster: it deletes what is in them, and
// then lets go of them. It runs until the context ends.
func (i *installer) finishNamespaces(ctx context.Context) {
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		list, err := i.kube.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
		if err != nil {
			continue // the API server may be away for a moment
		}
		for n := range list.Items {
			if list.Items[n].DeletionTimestamp != nil {
				if err := i.finishNamespace(ctx, &list.Items[n]); err != nil && ctx.Err() == nil {
					fmt.Fprintf(os.Stderr, "devcluster: namespace %s is not finished: %v\n", list.Items[n].Name, err)
				}
			}
		}
	}
}

func (i *installer) finishNamespace(ctx context.Context, namespace *corev1.Namespace) error {
	lists, err := i.kube.Discovery().ServerPreferredNamespacedResources()
	if err != nil {
		return err
	}
	left := 0
	for _, l := range discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list", "delete"}}, lists) {
		version, err := schema.ParseGroupVersion(l.GroupVersion)
		if err != nil {
			return err
		}
		for _, r := range l.APIResources {
			resource := i.dynamic.Resource(version.WithResource(r.Name)).Namespace(namespace.Name)
			objects, err := resource.List(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			for _, object := range objects.Items {
				left++
				if object.GetDeletionTimestamp() != nil {
					continue
				}
				if err := resource.Delete(ctx, object.GetName(), metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
					return err
				}
			}
		}
	}
	if left > 0 {
		return nil // looked at again in a moment
	}
	namespace.Spec.Finalizers = nil
	_, err = i.kube.CoreV1().Namespaces().Finalize(ctx, namespace, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}
