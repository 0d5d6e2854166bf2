// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"encoding/json"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	seatpoolv1alpha1 "seatpool.dev/api/v1alpha1"
)

// UserInfo is who makes a request.
type UserInfo authenticationv1.UserInfo

const (
	// managersRemembered is how many answers are kept.
	managersRemembered = 4096
	// manageAllowedFor and manageDeniedFor are how long an answer is kept. A
	// grant of the verb is noticed sooner than its withdrawal, as in the API
	// server's own webhook authorizer.
	manageAllowedFor = 10 * time.Second
	manageDeniedFor  = 3 * time.Second
)

type accessReviewer struct {
	client client.Client
	cache  *cache.LRUExpireCache
}

// NewManagers returns Managers that ask the API server and remember its answers
// for some seconds.
func NewManagers(c client.Client) Managers {
	return &accessReviewer{client: c, cache: cache.NewLRUExpireCache(managersRemembered)}
}

func (a *accessReviewer) MayManage(ctx context.Context, user UserInfo, lease types.NamespacedName) (bool, error) {
	key, err := json.Marshal([]any{user, lease}) // all that the answer depends on
	if err != nil {
		return false, err
	}
	if allowed, ok := a.cache.Get(string(key)); ok {
		return allowed.(bool), nil
	}
	review := &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User:   user.Username,
			UID:    user.UID,
			Groups: user.Groups,
			Extra:  map[string]authorizationv1.ExtraValue{},
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Group:     seatpoolv1alpha1.GroupName,
				Version:   seatpoolv1alpha1.GroupVersion.Version,
				Resource:  seatpoolv1alpha1.SeatLeaseResource.Resource,
				Namespace: lease.Namespace,
				Name:      lease.Name,
				Verb:      seatpoolv1alpha1.VerbManage,
			},
		},
	}
	for k, v := range user.Extra {
		review.Spec.Extra[k] = authorizationv1.ExtraValue(v)
	}
	if err := a.client.Create(ctx, review); err != nil {
		return false, err
	}
	keep := manageDeniedFor
	if review.Status.Allowed {
		keep = manageAllowedFor
	}
	a.cache.Add(string(key), review.Status.Allowed, keep)
	return review.Status.Allowed, nil
}
