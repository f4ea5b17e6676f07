// Package proc runs the proxy binaries as child processes and tells when they are ready.
package proc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// pollInterval is how often a state of another process is looked at.
const pollInterval = 20 * time.Millisecond

// Process is a running child. It is killed with its parent.
type Process struct {
	name    string
	logPath string
	command *exec.Cmd
	exited  chan struct{} // closed once the process has been waited for
}

// Start runs the program, appending its output to the log file.
func Start(name, logPath, binary string, args ...string) (*Process, error) {
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the child has its own copy
	command := exec.Command(binary, args...)
	command.Stdout = log
	command.Stderr = log
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &Process{name: name, logPath: logPath, command: command, exited: make(chan struct{})}
	go func() {
		_ = command.Wait() // how it ended is in ProcessState
		close(p.exited)
	}()
	return p, nil
}

// Terminate sends SIGTERM.
func (p *Process) Terminate() error { return p.command.Process.Signal(syscall.SIGTERM) }

// State is how the process ended; only after Exited.
func (p *Process) State() *os.ProcessState { return p.command.ProcessState }

// Kill ends the process with SIGKILL and waits for its end.
func (p *Process) Kill() {
	_ = p.command.Process.Kill() // fails only if it has ended already
	<-p.exited
}

// Exited is closed when the process has ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// PID is the process id.
func (p *Process) PID() int { return p.command.Process.Pid }

// LogTail is the end of what the process printed, at most the given number of lines.
func (p *Process) LogTail(lines int) string {
	log, err := os.ReadFile(p.logPath)
	if err != nil {
		return err.Error()
	}
	all := bytes.Split(bytes.TrimSpace(log), []byte("\n"))
	return string(bytes.Join(all[max(0, len(all)-lines):], []byte("\n")))
}

// ErrPortTaken tells that the process ended because one of its ports was in use.
var ErrPortTaken = errors.New("port in use")

// WaitStatus polls the URL until it answers with the status, the process ends, or the context does.
func (p *Process) WaitStatus(ctx context.Context, url string, status int) error {
	client := &http.Client{Timeout: 5 * time.Second}
	defer client.CloseIdleConnections()
	last := "no answer yet"
	for {
		if answer, err := client.Get(url); err != nil {
			last = err.Error()
		} else {
			_, _ = io.Copy(io.Discard, answer.Body)
			answer.Body.Close()
			if answer.StatusCode == status {
				return nil
			}
			last = answer.Status
		}
		select {
		case <-p.exited:
			tail := p.LogTail(6)
			err := fmt.Errorf("%s ended with %s before %s was %d:\n%s", p.name, p.command.ProcessState, url, status, tail)
			if strings.Contains(strings.ToLower(tail), "address already in use") {
				err = fmt.Errorf("%w: %w", ErrPortTaken, err)
			}
			return err
		case <-ctx.Done():
			return fmt.Errorf("%s: %s was not %d in time (%s):\n%s", p.name, url, status, last, p.LogTail(6))
		case <-time.After(pollInterval):
		}
	}
}

// Until polls the condition until it holds or the context ends.
func Until(ctx context.Context, what string, holds func() (bool, error)) error {
	for {
		ok, err := holds()
		if err != nil {
			return fmt.Errorf("wait until %s: %w", what, err)
		}
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w", what, ctx.Err())
		case <-time.After(pollInterval):
		}
	}
}
