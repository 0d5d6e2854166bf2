// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

// Command devcluster runs a control plane of its own on this machine: etcd, one
// or more API servers, the operator's managers, and between the two a balancer
// that stands in for the webhook Service. Everything is real but the nodes:
// there are none, so that nothing is scheduled, and Deployments and Services
// are left out of what is installed. There is no controller manager either;
// devcluster itself finishes the deletion of namespaces.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"k8s.io/apimachinery/pkg/util/version"
)

const usage = `devcluster runs a seatpool control plane on this machine.

  devcluster up --dir DIR [--replicas N] [--apiservers N] [--fsync]
                [--no-operator] [--restart=true]
      Starts everything, prints "ready" and runs until it is told to stop.
      DIR/kubeconfig is the admin's, DIR/kubeconfig-N the same for API server N,
      DIR/pids/* and DIR/logs/* are the processes', DIR/endpoints.json says
      where they listen.

  devcluster kubeconfig --dir DIR --user NAME [--group G]...
      Prints a kubeconfig for another identity.

  devcluster webhooks --dir DIR --url https://127.0.0.1:PORT | --remove
      Points the webhook configurations at a manager that was started by hand,
      or removes them, and returns when every API server has noticed.
      DIR/pki/webhook holds a certificate for it.

`

func main() {
	if err := run(os.Args[1:]); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintf(os.Stderr, "devcluster: %v\n", err)
			os.Exit(1)
		}
	}
}

func run(args []string) error {
	if len(args) == 0 {
		fmt.Fprint(os.Stderr, usage)
		return errors.New("say what to do: up, kubeconfig or webhooks")
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	switch command := args[0]; command {
	case "up":
		return up(ctx, args[1:])
	case "kubeconfig":
		return kubeconfig(args[1:])
	case "webhooks":
		return webhooks(ctx, args[1:])
	case "-h", "--help", "help":
		fmt.Print(usage)
		return nil
	default:
		fmt.Fprint(os.Stderr, usage)
		return fmt.Errorf("there is no command %q", command)
	}
}

// list is a flag that can be given several times.
type list []string

func (l *list) String() string     { return strings.Join(*l, " ") }
func (l *list) Set(v string) error { *l = append(*l, v); return nil }

func newFlags(name string) *flag.FlagSet {
	fs := flag.NewFlagSet("devcluster "+name, flag.ContinueOnError)
	return fs
}

// options of up.
type options struct {
	dir, config, assets, manager string
	replicas, apiservers         int
	fsync, noOperator, restart   bool
	managerArgs, apiserverArgs   list
}

func up(ctx context.Context, args []string) error {
	executable, err := os.Executable()
	if err != nil {
		return err
	}
	bin := filepath.Dir(executable)
	o := options{}
	fs := newFlags("up")
	fs.StringVar(&o.dir, "dir", "", "folder for everything the cluster writes; created when missing")
	fs.IntVar(&o.replicas, "replicas", 1, "managers to run")
	fs.IntVar(&o.apiservers, "apiservers", 1, "API servers to run")
	fs.BoolVar(&o.fsync, "fsync", false, "have etcd sync to disk; it does not by default, for speed")
	fs.BoolVar(&o.noOperator, "no-operator", false, "install CRDs and roles only: no managers, no webhook configurations")
	fs.BoolVar(&o.restart, "restart", true, "start a manager again within a second of its end, as a kubelet would")
	fs.StringVar(&o.config, "config", filepath.Join(bin, "..", "config"), "folder of the kustomize configuration")
	fs.StringVar(&o.assets, "assets", defaultAssets(bin), "folder of etcd, kube-apiserver and kubectl")
	fs.StringVar(&o.manager, "manager", filepath.Join(bin, "manager"), "the manager binary")
	fs.Var(&o.managerArgs, "manager-arg", "another argument for every manager; can be given again")
	fs.Var(&o.apiserverArgs, "apiserver-arg", "another argument for every API server; can be given again")
	if err := fs.Parse(args); err != nil {
		return err
	}
	switch {
	case o.dir == "":
		return errors.New("--dir must be given")
	case fs.NArg() > 0:
		return fmt.Errorf("argument %q is not understood", fs.Arg(0))
	case o.replicas < 1 || o.apiservers < 1:
		return errors.New("--replicas and --apiservers must be at least 1; for none use --no-operator")
	}
	for _, path := range []string{filepath.Join(o.assets, "etcd"), filepath.Join(o.assets, "kube-apiserver"), filepath.Join(o.assets, "kubectl")} {
		if _, err := os.Stat(path); err != nil {
			return fmt.Errorf("%w: run \"make assets\" first, or set KUBEBUILDER_ASSETS", err)
		}
	}
	if _, err := os.Stat(o.manager); err != nil && !o.noOperator {
		return fmt.Errorf("%w: run \"make build\" first", err)
	}
	c, err := newCluster(o)
	if err != nil {
		return err
	}
	return c.run(ctx)
}

// defaultAssets returns KUBEBUILDER_ASSETS, or what make assets has built beside
// the binary.
func defaultAssets(bin string) string {
	if dir := os.Getenv("KUBEBUILDER_ASSETS"); dir != "" {
		return dir
	}
	newest, newestVersion := filepath.Join(bin, "k8s"), version.MustParseGeneric("0.0")
	found, _ := filepath.Glob(filepath.Join(bin, "k8s", "v*")) // the pattern is a good one
	for _, dir := range found {
		v, err := version.ParseGeneric(filepath.Base(dir))
		if err == nil && newestVersion.LessThan(v) {
			newest, newestVersion = dir, v
		}
	}
	return newest
}

func kubeconfig(args []string) error {
	fs := newFlags("kubeconfig")
	dir := fs.String("dir", "", "folder of a running cluster")
	user := fs.String("user", "", "name of the user")
	output := fs.String("output", "", "file to write to; printed when empty")
	var groups list
	fs.Var(&groups, "group", "group of the user; can be given again")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if *dir == "" || *user == "" {
		return errors.New("--dir and --user must be given")
	}
	ends, err := readEndpoints(*dir)
	if err != nil {
		return err
	}
	authority, err := loadAuthority(filepath.Join(*dir, "pki"))
	if err != nil {
		return err
	}
	content, err := authority.kubeconfigFor(ends.APIServers[0], *user, groups)
	if err != nil {
		return err
	}
	if *output == "" {
		_, err = os.Stdout.Write(content)
		return err
	}
	return os.WriteFile(*output, content, 0o600)
}

func webhooks(ctx context.Context, args []string) error {
	executable, err := os.Executable()
	if err != nil {
		return err
	}
	bin := filepath.Dir(executable)
	fs := newFlags("webhooks")
	dir := fs.String("dir", "", "folder of a running cluster")
	url := fs.String("url", "", "where the webhooks are served")
	remove := fs.Bool("remove", false, "remove the webhook configurations")
	config := fs.String("config", filepath.Join(bin, "..", "config"), "folder of the kustomize configuration")
	assets := fs.String("assets", defaultAssets(bin), "folder of kubectl")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if *dir == "" || (*url == "") == !*remove {
		return errors.New("--dir, and either --url or --remove must be given")
	}
	ends, err := readEndpoints(*dir)
	if err != nil {
		return err
	}
	servers, err := newInstallers(*dir, len(ends.APIServers), *assets, *config)
	if err != nil {
		return err
	}
	if *remove {
		return removeWebhooks(ctx, servers)
	}
	authority, err := loadAuthority(filepath.Join(*dir, "pki"))
	if err != nil {
		return err
	}
	return installWebhooks(ctx, servers, strings.TrimSuffix(*url, "/"), authority.certPEM)
}
