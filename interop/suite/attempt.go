package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// testLimit is longer than the minute that upstream's tests wait for a state, with the clean-up behind it.
const testLimit = 150 * time.Second

// attempt is one run of one test.
type attempt struct {
	verdicts map[string]string // PASS, FAIL or SKIP of the test and of each part of it
	took     time.Duration
	output   string
}

func (a attempt) passed(name string) bool { return a.verdicts[name] == pass }

const (
	pass = "PASS"
	fail = "FAIL"
)

// verdictLine is what the testing package prints, behind the mark that -test.v=test2json sets so that no test's output can be
// taken for it.
var verdictLine = regexp.MustCompile(`(?m)^\x16--- (PASS|FAIL|SKIP): (\S+) \(`)

// portTries is how often a test starts anew because another process took a port that its harness had found free. That is no
// try of the test: it says nothing about the agent.
const portTries = 3

func runTest(ctx context.Context, binary, agent, name string) (one attempt, err error) {
	for range portTries {
		one, err = runOnce(ctx, binary, agent, name)
		if err != nil || one.passed(name) || !strings.Contains(strings.ToLower(one.output), "address already in use") {
			break
		}
	}
	return one, err
}

// runOnce runs the test in a process of its own and leaves nothing of it behind: agents are children of the tests, and a
// test that dies does not stop them. An error means that nothing can be said; a test that fails is no error.
func runOnce(ctx context.Context, binary, agent, name string) (attempt, error) {
	limited, cancel := context.WithTimeout(ctx, testLimit)
	defer cancel()
	only := "^" + regexp.QuoteMeta(name) + "$"
	arguments := []string{"-test.run=" + only, "-test.v=test2json", "-agent-path=" + agent}
	benchmark := strings.HasPrefix(name, "Benchmark")
	if benchmark {
		arguments = append(arguments, "-test.run=^$", "-test.bench="+only, "-test.benchtime=1x")
	}
	var output bytes.Buffer
	command := exec.CommandContext(limited, binary, arguments...)
	command.Stdout, command.Stderr = &output, &output
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }
	// An agent that outlives its test holds the pipe of the output open.
	command.WaitDelay = time.Second
	start := time.Now()
	err := command.Run()
	if command.Process == nil {
		return attempt{}, err
	}
	_ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL) // fails if nobody is left
	if ctx.Err() != nil {
		return attempt{}, ctx.Err()
	}
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil // the test itself ended well
	}
	if err != nil {
		if _, ok := errors.AsType[*exec.ExitError](err); !ok {
			return attempt{}, err
		}
		fmt.Fprintf(&output, "\nthe tests ended with %v after %v\n", err, time.Since(start).Round(time.Second))
	}
	one := attempt{verdicts: make(map[string]string), took: time.Since(start), output: output.String()}
	for _, found := range verdictLine.FindAllStringSubmatch(one.output, -1) {
		one.verdicts[found[2]] = found[1]
	}
	switch {
	case err != nil:
		one.verdicts[name] = fail // also when the process died before it could say so
	case benchmark:
		one.verdicts[name] = pass // a benchmark that works has no verdict
	}
	return one, nil
}
