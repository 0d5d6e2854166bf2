// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"runtime/debug"
	"sync/atomic"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	cradmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	seatpoolv1alpha1 "seatpool.dev/api/v1alpha1"
	"seatpool.dev/controllers"
	"seatpool.dev/internal/admission"
	"seatpool.dev/internal/checkout"
	"seatpool.dev/internal/clock"
	seatmetrics "seatpool.dev/internal/metrics"
	"seatpool.dev/internal/version"
)

// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get;list;watch
// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=seatpool-system,resources=leases,verbs=get;list;watch;create;update;patch;delete

// Paths of the webhooks.
const (
	PathGrant    = "/mutate-seatpool-dev-v1alpha1-seatlease"
	PathCheckout = "/validate-seatpool-dev-v1alpha1-seatlease"
	PathProduct  = "/mutate-seatpool-dev-v1alpha1-seatpool"
)

// gcPercent is by how much the heap may grow between collections. With 20,000
// leases some 30 MiB are live.
const gcPercent = 200

// Main runs the command until it is told to stop.
func Main(args []string) error {
	options := DefaultOptions()
	fs := flag.NewFlagSet("manager", flag.ContinueOnError)
	options.AddFlags(fs)
	showVersion := fs.Bool("version", false, "Print what was built, and end.")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	if *showVersion {
		fmt.Println("manager", version.String())
		return nil
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("argument %q is not understood: only flags are, which --help lists", fs.Arg(0))
	}
	if err := options.Validate(); err != nil {
		return err
	}
	ctrl.SetLogger(zap.New(zap.UseFlagOptions(&options.Log)))
	ctrl.Log.WithName("setup").Info("Starting", "version", version.Version, "commit", version.Commit)
	// Half of what a decision costs is garbage, of a heap that is small: let it
	// grow to three times what is live before it is collected.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	restConfig, err := clientcmd.BuildConfigFromFlags("", options.Kubeconfig)
	if err != nil {
		return fmt.Errorf("no way to the API server: %w; give --kubeconfig, or run in a cluster", err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	return Run(ctx, restConfig, options, clock.New())
}

// Scheme returns the kinds the operator works with.
func Scheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(seatpoolv1alpha1.AddToScheme(scheme))
	return scheme
}

// Run runs a manager until the context ends, and then for the time it takes to
// finish what is in hand.
func Run(ctx context.Context, restConfig *rest.Config, options Options, clk *clock.Clock) error {
	m, err := newManager(restConfig, options, clk)
	if err != nil {
		return err
	}
	if err := m.wire(); err != nil {
		return err
	}

	// First not ready, so that no more requests are sent here; then the end.
	runCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stopDrain := context.AfterFunc(ctx, func() {
		m.draining.Store(true)
		time.AfterFunc(options.ShutdownDelay, cancel)
	})
	defer stopDrain()

	err = m.mgr.Start(runCtx)
	m.committers.Drain()
	return err
}

// manager is a replica of the operator with its parts.
type manager struct {
	options    Options
	mgr        ctrl.Manager
	direct     client.Client
	clock      *clock.Clock
	index      *checkout.Index
	committers *checkout.Committers
	coverage   *controllers.Coverage
	keys       *keyStore
	draining   atomic.Bool
}

func newManager(restConfig *rest.Config, options Options, clk *clock.Clock) (*manager, error) {
	restConfig = rest.CopyConfig(restConfig)
	// The API server's own priority and fairness is what limits us.
	restConfig.QPS = -1
	scheme := Scheme()

	ownObject := func(name string) cache.ByObject {
		return cache.ByObject{Namespaces: map[string]cache.Config{
			options.Namespace: {FieldSelector: fields.OneTermEqualSelector("metadata.name", name)},
		}}
	}
	mgr, err := ctrl.NewManager(restConfig, ctrl.Options{
		Scheme: scheme,
		Cache: cache.Options{
			DefaultTransform: cache.TransformStripManagedFields(),
			ByObject: map[client.Object]cache.ByObject{
				&corev1.Secret{}:    ownObject(controllers.SigningKeysSecret),
				&corev1.ConfigMap{}: ownObject(controllers.JWKSConfigMap),
			},
		},
		LeaderElection:                options.LeaderElect,
		LeaderElectionID:              options.LeaderElectID,
		LeaderElectionNamespace:       options.Namespace,
		LeaderElectionReleaseOnCancel: true,
		HealthProbeBindAddress:        options.HealthAddress,
		PprofBindAddress:              options.PprofAddress,
		Metrics: metricsserver.Options{
			BindAddress:    options.MetricsAddress,
			SecureServing:  true,
			FilterProvider: filters.WithAuthenticationAndAuthorization,
		},
		// Names of controllers are unique here by their being few; the check would
		// keep a process from running two managers, which tests do.
		Controller: config.Controller{SkipNameValidation: new(true)},
		WebhookServer: webhook.NewServer(webhook.Options{
			Host:    options.WebhookHost,
			Port:    options.WebhookPort,
			CertDir: options.WebhookCertDir,
			// HTTP/2 would send all requests of an API server to one replica.
			TLSOpts: []func(*tls.Config){func(c *tls.Config) {
				c.NextProtos = []string{"http/1.1"}
				c.MinVersion = tls.VersionTLS12
			}},
		}),
	})
	if err != nil {
		return nil, fmt.Errorf("manager could not be set up: %w", err)
	}
	direct, err := client.New(restConfig, client.Options{Scheme: scheme, HTTPClient: mgr.GetHTTPClient(), Mapper: mgr.GetRESTMapper()})
	if err != nil {
		return nil, fmt.Errorf("client could not be set up: %w", err)
	}

	clk.OnStep(func(step clock.Step) {
		direction := "forward"
		if step.Size < 0 {
			direction = "backward"
		}
		seatmetrics.ClockSteps.WithLabelValues(direction).Inc()
		ctrl.Log.WithName("clock").Info("Wall clock was stepped; leases are judged without a forward step for one TTL", "by", step.Size.String())
	})
	index := checkout.NewIndex(clk.Mono)
	recorder := mgr.GetEventRecorder("seatpool-manager")
	return &manager{
		options:  options,
		mgr:      mgr,
		direct:   direct,
		clock:    clk,
		index:    index,
		coverage: controllers.NewCoverage(clk.Mono),
		keys:     newKeyStore(direct, clk, options.Namespace),
		committers: checkout.New(checkout.Options{
			API:            checkout.NewAPI(direct),
			Leases:         index,
			Clock:          clk,
			Reporter:       checkout.NewReporter(recorder, clk),
			RequestTimeout: options.RequestTimeout,
		}),
	}, nil
}

// wire connects the parts with the manager.
func (m *manager) wire() error {
	for _, step := range []func() error{m.watch, m.serve, m.control, m.probe, m.measure} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// serve registers the webhooks.
func (m *manager) serve() error {
	decoder := cradmission.NewDecoder(m.mgr.GetScheme())
	pools := &pools{cache: m.mgr.GetCache(), direct: m.direct}
	server := m.mgr.GetWebhookServer()
	register := func(path string, handler cradmission.Handler) {
		server.Register(path, m.drainable(&cradmission.Webhook{Handler: handler}))
	}
	register(PathGrant, &admission.Grant{
		Decoder: decoder, Clock: m.clock, Pools: pools, Signer: m.keys, Managers: admission.NewManagers(m.direct),
	})
	register(PathCheckout, &admission.Checkout{
		Decoder: decoder, Clock: m.clock, Signer: m.keys, Committers: m.committers,
		Namespaces: &namespaces{cache: m.mgr.GetCache(), direct: m.direct}, Synced: m.index.Synced,
	})
	register(PathProduct, &admission.Product{Decoder: decoder})
	return nil
}

// drainable has connections closed after the answer they carry, once the manager
// is stopping: the API server then opens its next one to another replica, and
// finds few connections cut that it meant to use again.
func (m *manager) drainable(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if m.draining.Load() {
			w.Header().Set("Connection", "close")
		}
		handler.ServeHTTP(w, r)
	})
}

// control registers what runs on the leader.
func (m *manager) control() error {
	recorder := m.mgr.GetEventRecorder("seatpool-manager")
	for _, controller := range []interface{ SetupWithManager(ctrl.Manager) error }{
		&controllers.SeatPoolReconciler{Pools: m.mgr.GetClient(), Committers: m.committers, Index: m.index},
		&controllers.Reaper{Client: m.direct, Pools: m.mgr.GetClient(), Index: m.index, Clock: m.clock, Recorder: recorder},
		&controllers.SafetyNet{
			Client: m.direct, Pools: m.mgr.GetClient(), Index: m.index, Clock: m.clock,
			Verifier: m.keys, Coverage: m.coverage, Recorder: recorder,
		},
		&controllers.KeyKeeper{
			Client: m.mgr.GetClient(), Reader: m.direct, Namespace: m.options.Namespace, Index: m.index, Clock: m.clock, Recorder: recorder,
			RotationPeriod: m.options.KeyRotationPeriod, Overlap: m.options.KeyOverlap,
		},
	} {
		if err := controller.SetupWithManager(m.mgr); err != nil {
			return fmt.Errorf("controller %T could not be set up: %w", controller, err)
		}
	}
	return nil
}

// probe registers the health checks.
func (m *manager) probe() error {
	if err := m.mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return err
	}
	for name, check := range map[string]healthz.Checker{
		"webhook":  m.mgr.GetWebhookServer().StartedChecker(),
		"draining": failWhen(m.draining.Load, "the manager is stopping"),
		"leases":   failWhen(func() bool { return !m.index.Synced() }, "not all leases are known yet"),
		"keys":     failWhen(func() bool { return !m.keys.loaded() }, "the signing keys are not loaded yet"),
	} {
		if err := m.mgr.AddReadyzCheck(name, check); err != nil {
			return err
		}
	}
	return nil
}

// measure exposes the figures of the pools.
func (m *manager) measure() error {
	seatmetrics.SetPools(m.figures)
	return nil
}

func (m *manager) figures() []seatmetrics.PoolFigures {
	list := &seatpoolv1alpha1.SeatPoolList{}
	if err := m.mgr.GetClient().List(context.Background(), list, client.UnsafeDisableDeepCopy); err != nil {
		return nil // the cache has not begun
	}
	figures := make([]seatmetrics.PoolFigures, 0, len(list.Items))
	for i := range list.Items {
		pool := &list.Items[i]
		f := seatmetrics.PoolFigures{
			Namespace: pool.Namespace, Name: pool.Name, Seats: pool.Seats(), Reserved: len(pool.Status.Reservations),
		}
		live, reserved := 0, 0
		now := m.clock.Judge(pool.TTL())
		for _, lease := range m.index.Leases(client.ObjectKeyFromObject(pool)) {
			if !lease.LiveAt(now, pool.Skew()) {
				continue
			}
			live++
			if lease.IssuedAt.Equal(lease.AcquiredAt) {
				f.NeverRenewed++
			}
		}
		for _, r := range pool.Status.Reservations {
			if _, _, ok := m.index.Lease(client.ObjectKey{Namespace: r.Namespace, Name: r.Name}); !ok {
				reserved++
			}
		}
		f.Reserved = reserved
		f.InUse = live + reserved
		f.Free = max(f.Seats-f.InUse, 0)
		f.Over = max(f.InUse-f.Seats, 0)
		figures = append(figures, f)
	}
	return figures
}

func failWhen(condition func() bool, why string) healthz.Checker {
	return func(*http.Request) error {
		if condition() {
			return errors.New(why)
		}
		return nil
	}
}

// namespaceObject is the only part of namespaces that is kept: their metadata.
func namespaceObject() *metav1.PartialObjectMetadata {
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	return object
}
