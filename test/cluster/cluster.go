// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cluster runs bin/devcluster for tests: a real control plane with real
// managers, which is gone when the test is.
package cluster

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/version"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	seatpoolv1alpha1 "seatpool.dev/api/v1alpha1"
)

const (
	// startPatience is how long a cluster may take to be ready. It takes some
	// 10 s on an idle machine of two cores.
	startPatience = 4 * time.Minute

	// stopPatience is how long it may take to stop.
	stopPatience = time.Minute
)

// Options say what to start. The zero value is one API server and one manager.
type Options struct {
	// Replicas is how many managers to run; 1 when 0.
	Replicas int
	// APIServers is how many API servers to run; 1 when 0.
	APIServers int
	// NoOperator runs no managers and installs no webhook configurations.
	NoOperator bool
	// Fsync has etcd sync to disk.
	Fsync bool
	// NoRestart leaves managers dead that have ended.
	NoRestart bool
	// ManagerArgs and APIServerArgs are further arguments of each.
	ManagerArgs, APIServerArgs []string
}

// Endpoints say where everything listens.
type Endpoints struct {
	Etcd       string    `json:"etcd"`
	APIServers []string  `json:"apiservers"`
	Balancer   string    `json:"balancer"`
	Managers   []Manager `json:"managers"`
}

// Manager says where one manager listens.
type Manager struct {
	Name    string `json:"name"`
	Webhook string `json:"webhook"`
	Metrics string `json:"metrics"`
	Health  string `json:"health"`
}

// Cluster is a running control plane.
type Cluster struct {
	root   string
	dir    string
	cmd    *exec.Cmd
	ended  chan struct{} // closed when cmd has been waited for
	ends   Endpoints
	config *rest.Config
	client client.Client

	stopOnce sync.Once
	stopErr  error
}

// Start starts a cluster and stops it when the test is over. The logs are shown
// when the test has failed.
func Start(tb testing.TB, options Options) *Cluster {
	tb.Helper()
	c, stop, err := StartMain(options)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Log(c.Logs())
		}
		if err := stop(); err != nil {
			tb.Error(err)
		}
	})
	return c
}

// StartMain starts a cluster for several tests. The caller stops it.
func StartMain(options Options) (*Cluster, func() error, error) {
	root, err := moduleRoot()
	if err != nil {
		return nil, nil, err
	}
	binary := filepath.Join(root, "bin", "devcluster")
	if _, err := os.Stat(binary); err != nil {
		return nil, nil, fmt.Errorf("%w: run \"make build assets\" first", err)
	}
	dir, err := os.MkdirTemp("", "seatpool-cluster-")
	if err != nil {
		return nil, nil, err
	}
	c := &Cluster{root: root, dir: dir, ended: make(chan struct{})}
	if err := c.start(binary, options); err != nil {
		return nil, nil, errors.Join(err, errors.New(c.Logs()), c.stop())
	}
	return c, c.stop, nil
}

func (c *Cluster) start(binary string, options Options) error {
	args := []string{
		"up", "--dir", c.dir,
		"--replicas", strconv.Itoa(max(options.Replicas, 1)), "--apiservers", strconv.Itoa(max(options.APIServers, 1)),
		fmt.Sprintf("--no-operator=%t", options.NoOperator), fmt.Sprintf("--fsync=%t", options.Fsync),
		fmt.Sprintf("--restart=%t", !options.NoRestart),
	}
	for _, arg := range options.ManagerArgs {
		args = append(args, "--manager-arg", arg)
	}
	for _, arg := range options.APIServerArgs {
		args = append(args, "--apiserver-arg", arg)
	}
	c.cmd = exec.Command(binary, args...)
	// A file, which can be read while it is written to.
	stderr, err := os.Create(c.errorLog())
	if err != nil {
		return err
	}
	defer func() { _ = stderr.Close() }() // devcluster has its own
	c.cmd.Stderr = stderr
	// A test that panics or takes too long runs no clean-up; then the cluster
	// ends because the test has.
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	stdout, err := c.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	started := make(chan error, 1)
	go func() {
		// That signal is about the thread that started a process: this one is
		// there as long as the cluster.
		goruntime.LockOSThread()
		err := c.cmd.Start()
		started <- err
		if err == nil {
			<-c.ended
		}
	}()
	if err := <-started; err != nil {
		return err
	}
	ready := make(chan bool, 1)
	go func() {
		scanner := bufio.NewScanner(stdout)
		for scanner.Scan() {
			if scanner.Text() == "ready" {
				ready <- true
			}
		}
		ready <- false
	}()
	timer := time.NewTimer(startPatience)
	defer timer.Stop()
	select {
	case ok := <-ready:
		if !ok {
			return errors.New("devcluster ended before it was ready")
		}
	case <-timer.C:
		return fmt.Errorf("devcluster was not ready within %s", startPatience)
	}

	content, err := os.ReadFile(filepath.Join(c.dir, "endpoints.json"))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(content, &c.ends); err != nil {
		return err
	}
	if c.config, err = clientcmd.BuildConfigFromFlags("", c.Kubeconfig()); err != nil {
		return err
	}
	c.config.QPS = -1
	c.client, err = client.New(c.config, client.Options{Scheme: Scheme()})
	return err
}

// stop stops the cluster, and reports what it left behind.
func (c *Cluster) stop() error {
	c.stopOnce.Do(func() { c.stopErr = c.end() })
	return c.stopErr
}

func (c *Cluster) end() error {
	if c.cmd == nil || c.cmd.Process == nil {
		return os.RemoveAll(c.dir)
	}
	var pids []int
	for _, name := range c.Processes() {
		if pid, err := c.Pid(name); err == nil {
			pids = append(pids, pid)
		}
	}
	var errs []error
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		errs = append(errs, err)
	}
	timer := time.AfterFunc(stopPatience, func() { _ = c.cmd.Process.Kill() })
	if err := c.cmd.Wait(); err != nil {
		errs = append(errs, fmt.Errorf("devcluster did not end well: %w: %s", err, c.errors()))
	}
	close(c.ended)
	timer.Stop()
	for _, pid := range pids {
		if running(pid) {
			errs = append(errs, fmt.Errorf("process %d was left running", pid))
		}
	}
	return errors.Join(append(errs, os.RemoveAll(c.dir))...)
}

// running reports whether a process runs; one that has ended and waits to be
// reaped by its parent does not.
func running(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, after, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(after, "Z")
}

func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "PROJECT")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("the repository was not found above the working directory")
		}
		dir = parent
	}
}

// Scheme returns the kinds that clients of Client know.
func Scheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, seatpoolv1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			panic(err) // two kinds of one name, which is a fault of the program
		}
	}
	return scheme
}

// Config returns the admin's configuration.
func (c *Cluster) Config() *rest.Config { return rest.CopyConfig(c.config) }

// APIServerConfig returns the admin's configuration for API server n; Config is
// that for the first.
func (c *Cluster) APIServerConfig(n int) *rest.Config {
	config := rest.CopyConfig(c.config) // one authority has signed for all
	config.Host = c.ends.APIServers[n]
	return config
}

// Client returns the admin's client. It reads from the API server itself.
func (c *Cluster) Client() client.Client { return c.client }

// ConfigFor returns the configuration of another user.
func (c *Cluster) ConfigFor(user string, groups ...string) *rest.Config {
	args := []string{"kubeconfig", "--dir", c.dir, "--user", user}
	for _, group := range groups {
		args = append(args, "--group", group)
	}
	content, err := exec.Command(filepath.Join(c.root, "bin", "devcluster"), args...).Output()
	if err != nil {
		panic(fmt.Sprintf("no kubeconfig for %s: %v", user, err))
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(content)
	if err != nil {
		panic(fmt.Sprintf("kubeconfig for %s cannot be read: %v", user, err))
	}
	config.QPS = -1
	return config
}

// Dir returns the cluster's folder.
func (c *Cluster) Dir() string { return c.dir }

// Kubeconfig returns the path of the admin's kubeconfig.
func (c *Cluster) Kubeconfig() string { return filepath.Join(c.dir, "kubeconfig") }

// WebhookCertDir returns the folder of a certificate for webhooks on loopback.
func (c *Cluster) WebhookCertDir() string { return filepath.Join(c.dir, "pki", "webhook") }

// Endpoints say where everything listens.
func (c *Cluster) Endpoints() Endpoints { return c.ends }

// Processes returns the names of the processes.
func (c *Cluster) Processes() []string {
	entries, err := os.ReadDir(filepath.Join(c.dir, "pids"))
	if err != nil {
		return nil
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

// Pid returns the process ID of a process.
func (c *Cluster) Pid(name string) (int, error) {
	content, err := os.ReadFile(filepath.Join(c.dir, "pids", name))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(content))
}

// Kill sends a signal to a process.
func (c *Cluster) Kill(name string, signal syscall.Signal) error {
	pid, err := c.Pid(name)
	if err != nil {
		return err
	}
	return syscall.Kill(pid, signal)
}

// WaitReady waits until every manager is ready.
func (c *Cluster) WaitReady(ctx context.Context) error {
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		ready := 0
		for _, m := range c.ends.Managers {
			if c.Ready(ctx, m) {
				ready++
			}
		}
		if ready == len(c.ends.Managers) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d managers are ready: %w", ready, len(c.ends.Managers), ctx.Err())
		case <-ticker.C:
		}
	}
}

// Ready reports whether a manager is ready.
func (c *Cluster) Ready(ctx context.Context, m Manager) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, m.Health+"/readyz", http.NoBody)
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

// InstallWebhooks points the webhook configurations at a URL. When it returns,
// every API server calls it, unless it is served by something that lets every
// lease pass: then that cannot be told.
func (c *Cluster) InstallWebhooks(url string) error { return c.devcluster("webhooks", "--url", url) }

// RemoveWebhooks deletes the webhook configurations. When it returns, no API
// server calls them any more.
func (c *Cluster) RemoveWebhooks() error { return c.devcluster("webhooks", "--remove") }

func (c *Cluster) devcluster(command string, args ...string) error {
	cmd := exec.Command(filepath.Join(c.root, "bin", "devcluster"), append([]string{command, "--dir", c.dir}, args...)...)
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("devcluster %s: %w: %s", command, err, output)
	}
	return nil
}

// Kubectl runs kubectl as the admin.
func (c *Cluster) Kubectl(args ...string) (stdout, stderr string, err error) {
	return c.KubectlIn("", args...)
}

// KubectlIn runs kubectl as the admin, with something to read.
func (c *Cluster) KubectlIn(stdin string, args ...string) (stdout, stderr string, err error) {
	assets := os.Getenv("KUBEBUILDER_ASSETS")
	if assets == "" {
		if assets, err = newestAssets(filepath.Join(c.root, "bin", "k8s")); err != nil {
			return "", "", err
		}
	}
	cmd := exec.Command(filepath.Join(assets, "kubectl"), append([]string{"--kubeconfig", c.Kubeconfig()}, args...)...)
	var out, errOut bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errOut
	err = cmd.Run()
	return out.String(), errOut.String(), err
}

// newestAssets returns the folder of the newest version that make assets built.
func newestAssets(dir string) (string, error) {
	var newest string
	var newestVersion *version.Version
	found, _ := filepath.Glob(filepath.Join(dir, "v*")) // the pattern is a good one
	for _, folder := range found {
		v, err := version.ParseGeneric(filepath.Base(folder))
		if err == nil && (newestVersion == nil || newestVersion.LessThan(v)) {
			newest, newestVersion = folder, v
		}
	}
	if newest == "" {
		return "", fmt.Errorf("there is no kubectl under %s: run \"make assets\" first", dir)
	}
	return newest, nil
}

func (c *Cluster) errorLog() string { return filepath.Join(c.dir, "devcluster.log") }

// errors returns what devcluster has complained about.
func (c *Cluster) errors() string {
	content, err := os.ReadFile(c.errorLog())
	if err != nil {
		return err.Error()
	}
	return string(content)
}

// Logs returns the end of every log.
func (c *Cluster) Logs() string {
	const tail = 3000
	var logs strings.Builder
	fmt.Fprintf(&logs, "devcluster: %s\n", c.errors())
	entries, _ := os.ReadDir(filepath.Join(c.dir, "logs")) // there may be none yet
	for _, entry := range entries {
		content, err := os.ReadFile(filepath.Join(c.dir, "logs", entry.Name()))
		if err != nil {
			continue
		}
		if len(content) > tail {
			content = content[len(content)-tail:]
		}
		fmt.Fprintf(&logs, "--- %s\n%s\n", entry.Name(), content)
	}
	return logs.String()
}
