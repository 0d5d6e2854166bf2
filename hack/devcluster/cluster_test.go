// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// newTestCluster returns a cluster that runs nothing yet.
func newTestCluster(t *testing.T) *cluster {
	t.Helper()
	dir := t.TempDir()
	for _, folder := range []string{"pids", "logs", "pki"} {
		if err := os.Mkdir(filepath.Join(dir, folder), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	c := &cluster{options: options{dir: dir}}
	t.Cleanup(c.stop)
	return c
}

// says starts a process that says something and ends.
func (c *cluster) says(t *testing.T, text string) error {
	t.Helper()
	p, err := c.start("etcd", "/bin/echo", []string{text}, false)
	if err != nil {
		return err
	}
	<-p.done
	return errors.New("it has ended")
}

func TestATakenPortIsTriedAgainOnOthers(t *testing.T) {
	c, tries := newTestCluster(t), 0
	err := c.onFreePorts(t.Context(), func() error {
		if tries++; tries == 1 {
			return c.says(t, "listen tcp 127.0.0.1:1: bind: address already in use")
		}
		_, err := c.start("etcd", "/bin/sleep", []string{"1000"}, false)
		return err
	})
	if err != nil || tries != 2 || len(c.processes) != 1 || c.processes[0].ended() {
		t.Errorf("error %v after %d tries, and %d processes; want the second to run alone", err, tries, len(c.processes))
	}
}

func TestATakenPortIsNotTriedForEver(t *testing.T) {
	c, tries := newTestCluster(t), 0
	err := c.onFreePorts(t.Context(), func() error {
		tries++
		return c.says(t, "listen tcp 127.0.0.1:1: bind: address already in use")
	})
	if err == nil || tries != portTries {
		t.Errorf("error %v after %d tries, want one after %d", err, tries, portTries)
	}
}

func TestAnotherFaultIsNotTriedAgain(t *testing.T) {
	c, tries := newTestCluster(t), 0
	err := c.onFreePorts(t.Context(), func() error {
		tries++
		return c.says(t, "unknown flag: --nonsense")
	})
	if err == nil || tries != 1 {
		t.Errorf("error %v after %d tries, want one after the first", err, tries)
	}
}

func TestTheClusterEndsWithItsLastAPIServer(t *testing.T) {
	c := newTestCluster(t)
	c.apiservers = 2
	for _, name := range []string{"etcd", "kube-apiserver-0", "kube-apiserver-1"} {
		if _, err := c.start(name, "/bin/sleep", []string{"1000"}, false); err != nil {
			t.Fatal(err)
		}
	}
	watched := make(chan error, 1)
	go func() { watched <- c.watch(t.Context()) }()
	c.processes[1].end()
	select {
	case err := <-watched:
		t.Fatalf("it ended with one API server left: %v", err)
	case <-time.After(600 * time.Millisecond): // it has looked
	}
	c.processes[2].end()
	if err := <-watched; err == nil {
		t.Error("want an error: there is no API server left")
	}
}

func TestTheNewestAssetsAreTaken(t *testing.T) {
	t.Setenv("KUBEBUILDER_ASSETS", "")
	bin := t.TempDir()
	for _, version := range []string{"v1.9.11", "v1.37.2", "v1.37.10", "vnext"} {
		if err := os.MkdirAll(filepath.Join(bin, "k8s", version), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if got := filepath.Base(defaultAssets(bin)); got != "v1.37.10" {
		t.Errorf("took %s, want v1.37.10", got)
	}
	t.Setenv("KUBEBUILDER_ASSETS", "elsewhere")
	if got := defaultAssets(bin); got != "elsewhere" {
		t.Errorf("took %s, and KUBEBUILDER_ASSETS says elsewhere", got)
	}
}
