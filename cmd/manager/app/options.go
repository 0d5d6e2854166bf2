// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

// Package app assembles the operator from its parts.
package app

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log/zap"
)

// Options are the settings of a manager. The zero value is not usable: start
// from DefaultOptions.
type Options struct {
	// Kubeconfig is the path of a kubeconfig file; in-cluster configuration or
	// the usual places when empty.
	Kubeconfig string
	// Namespace is the operator's own, where it keeps its keys.
	Namespace string
	// WebhookHost and WebhookPort are where the webhooks are served.
	WebhookHost string
	WebhookPort int
	// WebhookCertDir holds tls.crt and tls.key; they are read again when they
	// change.
	WebhookCertDir string
	// MetricsAddress is where metrics are served over HTTPS to authorised
	// users; "0" serves none.
	MetricsAddress string
	// HealthAddress is where /healthz and /readyz are served over HTTP.
	HealthAddress string
	// PprofAddress is where profiles are served, on a loopback address; none
	// when empty.
	PprofAddress string
	// LeaderElect has the controllers run on one replica only.
	LeaderElect bool
	// LeaderElectID is the name of the Lease the replicas elect the leader with.
	LeaderElectID string
	// KeyRotationPeriod is how often a new signing key is made; never when 0.
	KeyRotationPeriod time.Duration
	// KeyOverlap is how long a new key is published before it signs.
	KeyOverlap time.Duration
	// RequestTimeout is the --request-timeout of the API servers.
	RequestTimeout time.Duration
	// ShutdownDelay is how long the manager goes on serving after it was told
	// to stop, while it reports that it is not ready.
	ShutdownDelay time.Duration
	// Log configures logging.
	Log zap.Options
}

// DefaultOptions returns the settings of a manager that is given no flags.
func DefaultOptions() Options {
	return Options{
		Namespace:      "seatpool-system",
		WebhookPort:    9443,
		WebhookCertDir: "/etc/seatpool/webhook",
		MetricsAddress: ":8443",
		HealthAddress:  ":8081",
		LeaderElect:    true,
		LeaderElectID:  "seatpool-manager",
		KeyOverlap:     10 * time.Minute,
		RequestTimeout: time.Minute,
		ShutdownDelay:  3 * time.Second,
	}
}

// AddFlags adds a flag for every option.
func (o *Options) AddFlags(fs *flag.FlagSet) {
	fs.StringVar(&o.Kubeconfig, "kubeconfig", o.Kubeconfig, "Path of a kubeconfig file; needed only outside the cluster.")
	fs.StringVar(&o.Namespace, "namespace", o.Namespace, "Namespace of the operator, where it keeps its signing keys.")
	fs.StringVar(&o.WebhookHost, "webhook-host", o.WebhookHost, "Address the webhooks are served on; all when empty.")
	fs.IntVar(&o.WebhookPort, "webhook-port", o.WebhookPort, "Port the webhooks are served on.")
	fs.StringVar(&o.WebhookCertDir, "webhook-cert-dir", o.WebhookCertDir, "Directory of tls.crt and tls.key for the webhooks; they are read again when they change.")
	fs.StringVar(&o.MetricsAddress, "metrics-bind-address", o.MetricsAddress, "Address metrics are served on, over HTTPS, to users who may get /metrics; 0 for none.")
	fs.StringVar(&o.HealthAddress, "health-probe-bind-address", o.HealthAddress, "Address /healthz and /readyz are served on.")
	fs.StringVar(&o.PprofAddress, "pprof-bind-address", o.PprofAddress, "Loopback address profiles are served on; none when empty.")
	fs.BoolVar(&o.LeaderElect, "leader-elect", o.LeaderElect, "Run the controllers on one replica only.")
	fs.StringVar(&o.LeaderElectID, "leader-elect-id", o.LeaderElectID, "Name of the Lease the leader is elected with.")
	fs.DurationVar(&o.KeyRotationPeriod, "key-rotation-period", o.KeyRotationPeriod, "How often a new signing key is made; never when 0.")
	fs.DurationVar(&o.KeyOverlap, "key-overlap", o.KeyOverlap, "How long a new key is published before leases are signed with it.")
	fs.DurationVar(&o.RequestTimeout, "apiserver-request-timeout", o.RequestTimeout, "The --request-timeout of the API servers. A lower value than theirs can oversell a pool.")
	fs.DurationVar(&o.ShutdownDelay, "shutdown-delay", o.ShutdownDelay, "How long to go on serving, not ready, after being told to stop.")
	o.Log.BindFlags(fs)
}

// Validate returns what is wrong with the options, in sentences.
func (o *Options) Validate() error {
	var errs []error
	if o.Namespace == "" {
		errs = append(errs, errors.New("--namespace must be set"))
	}
	if o.PprofAddress != "" {
		host, _, err := net.SplitHostPort(o.PprofAddress)
		if ip := net.ParseIP(host); err != nil || host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			errs = append(errs, fmt.Errorf("--pprof-bind-address is %q: profiles are served on a loopback address only, like 127.0.0.1:6060", o.PprofAddress))
		}
	}
	if o.RequestTimeout < time.Second {
		errs = append(errs, errors.New("--apiserver-request-timeout must be at least 1s, and not less than the API servers have"))
	}
	if o.KeyOverlap < o.RequestTimeout {
		errs = append(errs, errors.New("--key-overlap must not be less than --apiserver-request-timeout, or a checkout could outlive the key it was stamped with"))
	}
	if o.KeyRotationPeriod < 0 || o.KeyRotationPeriod > 0 && o.KeyRotationPeriod <= o.KeyOverlap {
		errs = append(errs, errors.New("--key-rotation-period must be 0 or longer than --key-overlap"))
	}
	if o.ShutdownDelay < 0 {
		errs = append(errs, errors.New("--shutdown-delay must not be negative"))
	}
	if _, err := os.Stat(o.WebhookCertDir); err != nil {
		errs = append(errs, fmt.Errorf("--webhook-cert-dir: %w; it must hold tls.crt and tls.key", err))
	}
	return errors.Join(errs...)
}
