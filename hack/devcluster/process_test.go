// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// shell returns a process that runs a script, in a folder like a cluster's.
func shell(t *testing.T, restart bool, script string) *process {
	t.Helper()
	dir := t.TempDir()
	for _, folder := range []string{"pids", "logs", "pki"} {
		if err := os.Mkdir(filepath.Join(dir, folder), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	p := &process{name: "p", path: "/bin/sh", args: []string{"-c", script}, dir: dir, restart: restart}
	if err := p.start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.end)
	return p
}

func (p *process) pidInFile(t *testing.T) int {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(p.dir, "pids", p.name))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(string(content))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

func exists(pid int) bool { return syscall.Kill(pid, 0) == nil }

func TestKilledProcessIsStartedAgain(t *testing.T) {
	p := shell(t, true, "exec sleep 1000")
	first := p.pidInFile(t)
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return p.pidInFile(t) != first })
	if p.ended() || p.timesEnded() != 1 {
		t.Errorf("ended = %t, %d times; want it running after one end", p.ended(), p.timesEnded())
	}
	second := p.pidInFile(t)
	p.end()
	if exists(second) {
		t.Error("it still runs after it was stopped for good")
	}
	if _, err := os.Stat(filepath.Join(p.dir, "pids", p.name)); err == nil {
		t.Error("the file of its process ID is left")
	}
}

func TestKilledProcessStaysDeadWhenItShould(t *testing.T) {
	p := shell(t, false, "exec sleep 1000")
	if err := syscall.Kill(p.pidInFile(t), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, p.ended)
}

func TestStoppedProcessCanBeEnded(t *testing.T) {
	p := shell(t, true, "exec sleep 1000")
	pid := p.pidInFile(t)
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	p.end()
	if exists(pid) {
		t.Error("it is still there")
	}
}

func TestFailureShowsTheEndOfTheLog(t *testing.T) {
	p := shell(t, false, "i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done; echo the reason >&2")
	eventually(t, p.ended)
	err := p.failure("p has ended")
	if err == nil {
		t.Fatal("want an error")
	}
	message := err.Error()
	if !strings.HasPrefix(message, "p has ended; ") || !strings.HasSuffix(message, "the reason\n") {
		t.Errorf("the error does not tell what and why: %s", message)
	}
	if len(message) > 2*tailLength || strings.Contains(message, "line 0\n") {
		t.Errorf("the error shows %d bytes, which is more than the end of the log", len(message))
	}
}

func TestFolderHasOneOwner(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	lock, err := lockFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lockFolder(dir); err == nil || !strings.Contains(err.Error(), "in use by another cluster") {
		t.Errorf("want to be told that it is in use, got %v", err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := lockFolder(dir)
	if err != nil {
		t.Fatalf("after the first owner's end: %v", err)
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestFreePortsAreDifferentAndNotForOutgoingConnections(t *testing.T) {
	ports, err := freePorts(t.Context(), 50)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[int]bool{}
	for _, port := range ports {
		if seen[port] {
			t.Errorf("port %d was found twice", port)
		}
		seen[port] = true
		if begin := ephemeralBegin(); port >= begin && begin >= lowestPort+fewestPorts {
			t.Errorf("port %d may be given to an outgoing connection", port)
		}
	}
	if len(ports) != 50 {
		t.Errorf("%d ports, want 50", len(ports))
	}
}

func TestWhatCannotBeStartedIsNotTriedAgain(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "logs"), 0o700); err != nil {
		t.Fatal(err)
	}
	p := &process{name: "p", path: filepath.Join(dir, "missing"), dir: dir, restart: true}
	if err := p.start(); err == nil || !strings.Contains(err.Error(), "p could not be started") {
		t.Errorf("want to be told that it could not be started, got %v", err)
	}
	eventually(t, p.ended)
}
