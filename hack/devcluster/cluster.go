// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

const (
	// startPatience is how long a process may take to answer. The API server
	// takes about 3 s on an idle machine.
	startPatience = 90 * time.Second

	// portTries is how often a cluster is tried again on other ports, when
	// somebody took one between its being found and its being used.
	portTries = 3

	// hopeless is how often a manager may end before it is ready. It may well
	// do so once, when an API server has not yet heard what it may do.
	hopeless = 5
)

// endpoints say where everything listens.
type endpoints struct {
	Etcd       string    `json:"etcd"`
	APIServers []string  `json:"apiservers"`
	Balancer   string    `json:"balancer,omitempty"`
	Managers   []manager `json:"managers,omitempty"`
}

// manager says where one manager listens.
type manager struct {
	Name    string `json:"name"`
	Webhook string `json:"webhook"`
	Metrics string `json:"metrics"`
	Health  string `json:"health"`
}

func readEndpoints(dir string) (*endpoints, error) {
	content, err := os.ReadFile(filepath.Join(dir, "endpoints.json"))
	if err != nil {
		return nil, fmt.Errorf("%w: is there a cluster in that folder?", err)
	}
	ends := &endpoints{}
	return ends, json.Unmarshal(content, ends)
}

// cluster is a control plane with its parts.
type cluster struct {
	options
	lock      *os.File
	authority *authority
	ends      endpoints
	processes []*process
}

func newCluster(o options) (*cluster, error) {
	var err error
	if o.dir, err = filepath.Abs(o.dir); err != nil {
		return nil, err
	}
	lock, err := lockFolder(o.dir)
	if err != nil {
		return nil, err
	}
	// What an earlier cluster left is gone with it: it may have been killed.
	if err := os.Remove(filepath.Join(o.dir, "endpoints.json")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	for _, folder := range []string{"pids", "logs", "pki"} {
		if err := errors.Join(os.RemoveAll(filepath.Join(o.dir, folder)), os.MkdirAll(filepath.Join(o.dir, folder), 0o700)); err != nil {
			return nil, err
		}
	}
	return &cluster{options: o, lock: lock}, nil
}

// lockFolder makes the folder this process's own for as long as it runs, however
// it ends.
func lockFolder(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	switch err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
	case errors.Is(err, syscall.EWOULDBLOCK):
		return nil, errors.Join(fmt.Errorf("%s is in use by another cluster: stop that one, or use another --dir", dir), lock.Close())
	case err != nil:
		return nil, errors.Join(fmt.Errorf("%s could not be locked: %w", dir, err), lock.Close())
	}
	return lock, nil
}

// run starts everything, and stops everything when the context ends.
func (c *cluster) run(ctx context.Context) error {
	defer func() { _ = c.lock.Close() }() // the end of the process unlocks it too
	defer c.stop()
	if err := c.startAll(ctx); err != nil {
		if ctx.Err() != nil {
			return errors.New("it was told to stop before it was ready")
		}
		return err
	}
	fmt.Println("ready")
	return c.watch(ctx)
}

func (c *cluster) startAll(ctx context.Context) error {
	if err := c.startControlPlane(ctx); err != nil {
		return err
	}
	servers, err := newInstallers(c.dir, c.apiservers, c.assets, c.config)
	if err != nil {
		return err
	}
	if err := servers[0].install(ctx); err != nil {
		return err
	}
	go servers[0].finishNamespaces(ctx)
	for n, server := range servers {
		if err := c.await(ctx, c.processes[1+n], func() bool { return server.servesKinds(ctx) }); err != nil {
			return err
		}
	}
	if !c.noOperator {
		if err := c.startOperator(ctx, servers); err != nil {
			return err
		}
	}
	return c.writeEndpoints()
}

// watch returns when the context ends, or with an error when nothing is left to
// talk to: without etcd, or without any API server. One of several may be killed
// by whoever tests that, as may managers.
func (c *cluster) watch(ctx context.Context) error {
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	told := map[string]bool{} // which API servers have ended
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if etcd := c.processes[0]; etcd.ended() {
			return etcd.failure("etcd has ended")
		}
		for _, server := range c.processes[1 : 1+c.apiservers] {
			if !server.ended() || told[server.name] {
				continue
			}
			told[server.name] = true
			if len(told) == c.apiservers {
				return server.failure(server.name + " has ended, and there is no other API server")
			}
			fmt.Fprintf(os.Stderr, "devcluster: %s has ended; its log is %s\n", server.name, server.logPath())
		}
	}
}

// stop stops what was started: managers first, which still have something to
// tell the API servers, and etcd last. Those of a kind are stopped at once, since
// each of them takes its time.
func (c *cluster) stop() { stopAll(c.processes) }

func stopAll(processes []*process) {
	for _, kind := range []string{"manager-", "kube-apiserver-", "etcd"} {
		var wg sync.WaitGroup
		for _, p := range processes {
			if strings.HasPrefix(p.name, kind) {
				wg.Go(p.end)
			}
		}
		wg.Wait()
	}
}

// startControlPlane starts etcd and the API servers.
func (c *cluster) startControlPlane(ctx context.Context) error {
	var err error
	pki := filepath.Join(c.dir, "pki")
	if c.authority, err = newAuthority(pki); err != nil {
		return err
	}
	for name, user := range map[string]string{"apiserver": "kube-apiserver", "service-account": "service-account"} {
		if err := c.authority.issueTo(pki, name, user); err != nil {
			return err
		}
	}
	if err := c.authority.issueTo(filepath.Join(pki, "webhook"), "tls", "webhook"); err != nil {
		return err
	}
	return c.onFreePorts(ctx, func() error { return c.tryControlPlane(ctx) })
}

// onFreePorts starts processes, and once more on other ports when one of them
// found its own taken.
func (c *cluster) onFreePorts(ctx context.Context, start func() error) error {
	before := len(c.processes)
	for try := 1; ; try++ {
		err := start()
		started := c.processes[before:]
		if err == nil || try == portTries || ctx.Err() != nil || !slices.ContainsFunc(started, (*process).lacksPort) {
			return err
		}
		stopAll(started)
		for _, p := range started {
			if err := os.Remove(p.logPath()); err != nil {
				return err
			}
		}
		c.processes = c.processes[:before]
	}
}

func (c *cluster) tryControlPlane(ctx context.Context) error {
	ports, err := freePorts(ctx, 2+c.apiservers)
	if err != nil {
		return err
	}
	if err := c.startEtcd(ctx, ports[0], ports[1]); err != nil {
		return err
	}
	c.ends.APIServers = nil
	for n := range c.apiservers {
		if err := c.startAPIServer(ctx, n, ports[2+n]); err != nil {
			return err
		}
	}
	return nil
}

func (c *cluster) startEtcd(ctx context.Context, port, peerPort int) error {
	data := filepath.Join(c.dir, "etcd")
	if err := os.RemoveAll(data); err != nil {
		return err
	}
	c.ends.Etcd = "http://127.0.0.1:" + strconv.Itoa(port)
	peer := "http://127.0.0.1:" + strconv.Itoa(peerPort)
	args := []string{
		"--data-dir", data, "--listen-client-urls", c.ends.Etcd, "--advertise-client-urls", c.ends.Etcd,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default=" + peer,
	}
	if !c.fsync {
		args = append(args, "--unsafe-no-fsync")
	}
	etcd, err := c.start("etcd", filepath.Join(c.assets, "etcd"), args, false)
	if err != nil {
		return err
	}
	return c.await(ctx, etcd, func() bool { return answers(ctx, c.ends.Etcd+"/readyz") })
}

func (c *cluster) startAPIServer(ctx context.Context, n, port int) error {
	pki := filepath.Join(c.dir, "pki")
	in := func(name string) string { return filepath.Join(pki, name) }
	args := append([]string{
		"--etcd-servers", c.ends.Etcd, "--secure-port", strconv.Itoa(port), "--bind-address", "127.0.0.1",
		"--tls-cert-file", in("apiserver.crt"), "--tls-private-key-file", in("apiserver.key"), "--client-ca-file", in("ca.crt"),
		"--service-account-issuer", "https://kubernetes.default.svc",
		"--service-account-key-file", in("service-account.key"), "--service-account-signing-key-file", in("service-account.key"),
		"--service-cluster-ip-range", "10.0.0.0/24", "--authorization-mode", "RBAC",
	}, c.apiserverArgs...)
	name := fmt.Sprint("kube-apiserver-", n)
	server, err := c.start(name, filepath.Join(c.assets, "kube-apiserver"), args, false)
	if err != nil {
		return err
	}
	url := "https://127.0.0.1:" + strconv.Itoa(port)
	c.ends.APIServers = append(c.ends.APIServers, url)
	admin, err := c.authority.kubeconfigFor(url, "admin", []string{"system:masters"})
	if err != nil {
		return err
	}
	files := map[string][]byte{fmt.Sprint("kubeconfig-", n): admin}
	if n == 0 {
		files["kubeconfig"] = admin
	}
	if err := writeFiles(c.dir, files); err != nil {
		return err
	}
	inst, err := newInstaller(kubeconfigOf(c.dir, n), c.assets, c.config)
	if err != nil {
		return err
	}
	return c.await(ctx, server, func() bool {
		return inst.kube.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error() == nil
	})
}

// startOperator starts the managers behind a balancer, and points the webhook
// configurations at it once all are ready.
func (c *cluster) startOperator(ctx context.Context, servers []*installer) error {
	token, err := servers[0].managerToken(ctx)
	if err != nil {
		return err
	}
	if err := c.onFreePorts(ctx, func() error { return c.tryManagers(ctx, token) }); err != nil {
		return err
	}
	return installWebhooks(ctx, servers, c.ends.Balancer, c.authority.certPEM)
}

func (c *cluster) tryManagers(ctx context.Context, token string) error {
	c.ends.Managers = nil
	var backends []*backend
	for n := range c.replicas {
		be, err := c.startManager(ctx, n, token)
		if err != nil {
			return err
		}
		backends = append(backends, be)
	}
	balancing, stop := context.WithCancel(ctx)
	b, err := newBalancer(balancing, backends)
	if err != nil {
		stop()
		return err
	}
	c.ends.Balancer = b.url()
	go b.run(balancing)
	if err := c.awaitManagers(ctx, b); err != nil {
		stop()
		return err
	}
	context.AfterFunc(ctx, stop)
	return nil
}

// awaitManagers waits until all managers are ready.
func (c *cluster) awaitManagers(ctx context.Context, b *balancer) error {
	managers := c.processes[len(c.processes)-c.replicas:]
	var dead *process
	err := until(ctx, startPatience, "not all managers are ready", func() bool {
		for _, m := range managers {
			if m.ended() || m.timesEnded() >= hopeless {
				dead = m
			}
		}
		return dead != nil || b.allReady()
	})
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case dead != nil:
		return dead.failure(fmt.Sprintf("%s has ended %d times before it was ready", dead.name, dead.timesEnded()))
	case err != nil:
		return managers[b.firstNotReady()].failure(err.Error())
	}
	return nil
}

func (c *cluster) startManager(ctx context.Context, n int, token string) (*backend, error) {
	ports, err := freePorts(ctx, 3)
	if err != nil {
		return nil, err
	}
	name := fmt.Sprint("manager-", n)
	config, err := c.authority.kubeconfig(c.ends.APIServers[n%len(c.ends.APIServers)], managerAccount, &clientcmdapi.AuthInfo{Token: token})
	if err != nil {
		return nil, err
	}
	if err := writeFiles(filepath.Join(c.dir, "pki"), map[string][]byte{name + ".kubeconfig": config}); err != nil {
		return nil, err
	}
	local := func(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }
	args := append([]string{
		"--kubeconfig", filepath.Join(c.dir, "pki", name+".kubeconfig"), "--namespace", operatorNamespace,
		"--webhook-host", "127.0.0.1", "--webhook-port", strconv.Itoa(ports[0]),
		"--webhook-cert-dir", filepath.Join(c.dir, "pki", "webhook"),
		"--metrics-bind-address", local(ports[1]), "--health-probe-bind-address", local(ports[2]),
	}, c.managerArgs...)
	if _, err := c.start(name, c.manager, args, c.restart); err != nil {
		return nil, err
	}
	m := manager{Name: name, Webhook: "https://" + local(ports[0]), Metrics: "https://" + local(ports[1]), Health: "http://" + local(ports[2])}
	c.ends.Managers = append(c.ends.Managers, m)
	return &backend{address: local(ports[0]), health: m.Health}, nil
}

func (c *cluster) start(name, path string, args []string, restart bool) (*process, error) {
	p := &process{name: name, path: path, args: args, dir: c.dir, restart: restart}
	if err := p.start(); err != nil {
		return nil, err
	}
	c.processes = append(c.processes, p)
	return p, nil
}

// await waits until something started answers.
func (c *cluster) await(ctx context.Context, p *process, answers func() bool) error {
	err := until(ctx, startPatience, p.name+" does not answer", func() bool { return answers() || p.ended() })
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case p.ended():
		return p.failure(p.name + " has ended")
	case err != nil:
		return p.failure(err.Error())
	}
	return nil
}

func (c *cluster) writeEndpoints() error {
	content, err := json.MarshalIndent(c.ends, "", "  ")
	if err != nil {
		return err
	}
	return writeFiles(c.dir, map[string][]byte{"endpoints.json": append(content, '\n')})
}

// until waits until a condition holds.
func until(ctx context.Context, patience time.Duration, otherwise string, condition func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for !condition() {
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return errors.New(otherwise)
			}
			return ctx.Err()
		case <-ticker.C:
		}
	}
	return nil
}

func answers(ctx context.Context, url string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return false
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	_ = res.Body.Close() // the answer is in the status
	return res.StatusCode == http.StatusOK
}
