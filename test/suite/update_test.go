// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"seatpool.dev/test/checker"
	"seatpool.dev/test/cluster"
)

// heartbeats are times as programs in other languages write them. RFC 3339, and
// so a date-time, allows all of them; Go's MicroTime reads the first only.
var heartbeats = map[string]string{
	"millionths":  "2026-01-01T00:00:00.000001Z",
	"seconds":     "2026-01-01T00:00:00Z",
	"thousandths": "2026-01-01T00:00:00.000Z",
	"lower case":  "2026-01-01t00:00:00z",
	"an offset":   "2026-01-01T00:00:00+02:00",
}

// forged is a status that somebody gives himself.
const forged = `"status":{"expiresAt":"2099-01-01T00:00:00Z"}`

func TestAnyTimeIsAHeartbeatAndNoneBringsAStatusAlong(t *testing.T) {
	all := newEnv(t, shared).watched(checker.Options{})
	all.pool(int32(len(heartbeats)))
	for name, heartbeat := range heartbeats {
		t.Run(name, func(t *testing.T) {
			e := all.in(t)
			patch := func(name, body string) error {
				return e.client.Patch(e.Context(), e.lease(name), client.RawPatch(types.MergePatchType, []byte(body)))
			}
			lease := strings.ReplaceAll(name, " ", "-")
			manifest := func(more string) string {
				return fmt.Sprintf(`{"apiVersion":"seatpool.dev/v1alpha1","kind":"SeatLease","metadata":{"name":%q,"namespace":%q},
					"spec":{"poolRef":{"name":"cad"},"renewTime":%q}%s}`, lease, e.namespace, heartbeat, more)
			}
			if code, message := e.post(manifest("," + forged)); code != 422 || !strings.Contains(message, "status.expiresAt") {
				t.Errorf("create with a status: %d %s, want 422 about status.expiresAt", code, message)
			}
			if code, message := e.post(manifest("")); code != 201 {
				t.Fatalf("create: %d %s, want 201", code, message)
			}
			before := e.lease(lease)
			e.must(e.client.Get(e.Context(), client.ObjectKeyFromObject(before), before))

			err := patch(lease, fmt.Sprintf(`{"spec":{"renewTime":%q},%s}`, heartbeat, forged))
			if !apierrors.IsInvalid(err) {
				t.Errorf("renewal with a status: %v, want 422", err)
			}
			if err := patch(lease, fmt.Sprintf(`{"spec":{"renewTime":%q}}`, heartbeat)); err != nil {
				t.Errorf("renewal: %v", err)
			}
			after := e.lease(lease)
			e.must(e.client.Get(e.Context(), client.ObjectKeyFromObject(after), after))
			if !after.Spec.RenewTime.After(before.Spec.RenewTime.Time) {
				t.Errorf("renewTime went from %v to %v, want the operator's own time", before.Spec.RenewTime, after.Spec.RenewTime)
			}
			if term := after.Status.ExpiresAt.Sub(after.Status.IssuedAt.Time); term <= 0 || term > e.getPool().TTL() {
				t.Errorf("the lease runs for %v, want at most the ttl", term)
			}
		})
	}
	all.Eventually(all.figures).Should(Equal(fmt.Sprintf("%d/%[1]d, 0 free", len(heartbeats))))
}

// What Go cannot read would keep every replica from listing leases and pools, so
// that it is refused also by the schema alone, with no webhook in place.
func TestWhatGoCannotReadIsNotStored(t *testing.T) {
	c := cluster.Start(t, cluster.Options{NoOperator: true})
	e := newEnv(t, c)
	for name, heartbeat := range heartbeats {
		if name == "millionths" || name == "an offset" {
			continue
		}
		code, message := e.post(fmt.Sprintf(`{"apiVersion":"seatpool.dev/v1alpha1","kind":"SeatLease","metadata":{"name":"a","namespace":%q},
			"spec":{"poolRef":{"name":"cad"},"renewTime":%q}}`, e.namespace, heartbeat))
		if code != 422 || !strings.Contains(message, "spec.renewTime") {
			t.Errorf("lease with %s: %d %s, want 422 about spec.renewTime", name, code, message)
		}
	}
	code, message := e.post(fmt.Sprintf(`{"apiVersion":"seatpool.dev/v1alpha1","kind":"SeatPool","metadata":{"name":"a","namespace":%q},
		"spec":{"seats":1,"notAfter":"2099-01-01t00:00:00z"}}`, e.namespace))
	if code != 422 || !strings.Contains(message, "spec.notAfter") {
		t.Errorf("pool: %d %s, want 422 about spec.notAfter", code, message)
	}
}
