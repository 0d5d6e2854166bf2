// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"
)

const (
	// restartDelay is how long a manager stays down before it is started again.
	restartDelay = 300 * time.Millisecond

	// stopPatience is how long a process may take to stop before it is killed.
	stopPatience = 20 * time.Second

	// tailLength is how much of a log an error shows.
	tailLength = 2000
)

// process is a program that devcluster runs.
type process struct {
	name string
	path string
	args []string
	dir  string // the cluster's
	// restart has it started again when it ends.
	restart bool

	done chan struct{} // closed when it has ended for good
	stop context.CancelFunc

	mu   sync.Mutex
	cmd  *exec.Cmd
	ends int // how often it has ended
}

// start runs the process, and again when it ends if it should be.
func (p *process) start() error {
	ctx, cancel := context.WithCancel(context.Background())
	p.stop = cancel
	p.done = make(chan struct{})
	started := make(chan error, 1)
	go func() {
		// Pdeathsig is about the thread that started a process, so that this
		// one must live as long as devcluster.
		runtime.LockOSThread()
		defer close(p.done)
		for first := true; ; first = false {
			cmd, err := p.launch(ctx)
			if first {
				started <- err
				if err != nil {
					return // nobody will be there to end it
				}
			}
			if err == nil {
				_ = cmd.Wait() // how it ended is in its log
			}
			p.mu.Lock()
			p.ends++
			p.mu.Unlock()
			if !p.restart || ctx.Err() != nil {
				return
			}
			timer := time.NewTimer(restartDelay)
			select {
			case <-ctx.Done():
				timer.Stop()
				return
			case <-timer.C:
			}
		}
	}()
	return <-started
}

func (p *process) launch(ctx context.Context) (*exec.Cmd, error) {
	log, err := os.OpenFile(p.logPath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()     // the process has its own
	cmd := exec.Command(p.path, p.args...) //nolint:noctx // ended by signals, one kind after the other
	cmd.Stdout, cmd.Stderr = log, log
	// A group of its own, so that a Ctrl-C at the terminal reaches devcluster
	// alone, which stops the rest in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	// Under the lock, so that end either finds this one or has it not started.
	p.mu.Lock()
	defer p.mu.Unlock()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s could not be started: %w", p.name, err)
	}
	p.cmd = cmd
	if err := p.writePid(cmd.Process.Pid); err != nil {
		_, _ = cmd.Process.Kill(), cmd.Wait() // one that nobody can find is not left running
		return nil, err
	}
	return cmd, nil
}

// writePid writes the file that says who the process is, at once: somebody may
// be reading it.
func (p *process) writePid(pid int) error {
	path := filepath.Join(p.dir, "pids", p.name)
	unfinished := filepath.Join(p.dir, "pki", p.name+".pid")
	if err := os.WriteFile(unfinished, []byte(strconv.Itoa(pid)), 0o600); err != nil {
		return err
	}
	return os.Rename(unfinished, path)
}

func (p *process) logPath() string { return filepath.Join(p.dir, "logs", p.name+".log") }

// lacksPort reports whether the process has complained that somebody else listens
// where it should. That is told by the text of its log alone.
func (p *process) lacksPort() bool {
	log, err := os.ReadFile(p.logPath())
	return err == nil && bytes.Contains(log, []byte(syscall.EADDRINUSE.Error()))
}

// ended reports whether the process is not running any more and will not be.
func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// timesEnded returns how often the process has ended.
func (p *process) timesEnded() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ends
}

// end stops the process for good.
func (p *process) end() {
	if p.stop == nil {
		return
	}
	p.stop()
	p.signal(syscall.SIGCONT) // somebody may have stopped it
	p.signal(syscall.SIGTERM)
	timer := time.NewTimer(stopPatience)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
		p.signal(syscall.SIGKILL)
		<-p.done
	}
	_ = os.Remove(filepath.Join(p.dir, "pids", p.name)) // it may never have been written
}

func (p *process) signal(s syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd != nil {
		_ = p.cmd.Process.Signal(s) // it may have ended
	}
}

// failure returns an error that shows the end of the process's log.
func (p *process) failure(what string) error {
	log, err := os.ReadFile(p.logPath())
	if err != nil {
		return errors.Join(errors.New(what), err)
	}
	if len(log) > tailLength {
		log = log[len(log)-tailLength:]
		if i := bytes.IndexByte(log, '\n'); i >= 0 {
			log = log[i+1:]
		}
	}
	return fmt.Errorf("%s; its log %s ends with:\n%s", what, p.logPath(), log)
}
