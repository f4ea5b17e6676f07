// Command suite runs upstream's own integration tests twice, with upstream's agent and with ours as their external agent,
// and compares. The proxy-server is upstream's and lives in the test process.
//
// It exits with 1 when ours fails a test that upstream's agent passes.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
)

// needsOutside are the tests that reach for an address beyond this machine. Each has a counterpart in the matrix that does not.
var needsOutside = map[string]string{
	"TestProxyDial_AgentTimeout_GRPC":   "dials 198.18.0.254, which must swallow the attempt (matrix: black-hole-target)",
	"TestFailedDNSLookupProxy_HTTPCONN": "asks the resolver for a name below .com (matrix: unknown-host)",
}

// races are the tests whose verdict hangs on a race within the test process, so that ours has as many tries as upstream's agent.
var races = map[string]string{
	"TestProxyHandle_TunnelContextCancelled_GRPC": "one context ends the request and its tunnel, and the first to be heard of " +
		"makes the error: fails with EOF at times with upstream's in-process agent too",
}

func main() {
	binary := flag.String("tests", "", "upstream's integration tests, compiled by go test -c")
	upstream := flag.String("upstream", "", "upstream's agent")
	ours := flag.String("ours", "", "our agent")
	tries := flag.Int("tries", 3, "how often upstream's own agent may try a test; ours has one, except where the test itself races")
	outside := flag.Bool("outside", false, "also run the tests that reach for addresses beyond this machine")
	filter := flag.String("run", "", "regular expression that a test's name must match")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	s := suite{binary: *binary, agents: agents{upstream: *upstream, ours: *ours}, tries: *tries}
	failed, err := s.run(ctx, *filter, *outside)
	if err != nil {
		fmt.Fprintln(os.Stderr, "suite:", err)
		os.Exit(2)
	}
	if failed > 0 {
		os.Exit(1)
	}
}

type agents struct {
	upstream, ours string
}

// suite is one run of all tests.
type suite struct {
	binary string
	agents agents
	tries  int
}

// run prints the table and says how many rows count against us.
func (s *suite) run(ctx context.Context, filter string, outside bool) (failed int, err error) {
	pattern, err := regexp.Compile(filter)
	if err != nil {
		return 0, err
	}
	names, err := s.list(ctx)
	if err != nil {
		return 0, fmt.Errorf("list the tests: %w", err)
	}
	t := newTable(os.Stdout)
	var selected []string
	for _, name := range names {
		if !pattern.MatchString(name) {
			continue
		}
		if reason, found := needsOutside[name]; found && !outside {
			t.leaveOut(name, reason)
			continue
		}
		selected = append(selected, name)
	}
	// Each agent goes through the tests at its own pace, since one of them takes a minute.
	theirs := lane(selected, func(name string) ([]attempt, error) { return s.attempts(ctx, s.agents.upstream, name, s.tries) })
	mine := lane(selected, func(name string) ([]attempt, error) {
		tries := 1
		if _, found := races[name]; found {
			tries = s.tries
		}
		return s.attempts(ctx, s.agents.ours, name, tries)
	})
	for _, name := range selected {
		left, right := <-theirs, <-mine
		if err := errors.Join(left.err, right.err); err != nil {
			return 0, fmt.Errorf("%s: %w", name, err)
		}
		t.add(name, left.attempts, right.attempts)
	}
	return t.summarise()
}

// outcome is what came of one test with one agent.
type outcome struct {
	attempts []attempt
	err      error
}

// lane runs the tests one after another, and gives the outcomes in their order.
func lane(names []string, run func(string) ([]attempt, error)) <-chan outcome {
	outcomes := make(chan outcome, len(names))
	go func() {
		for _, name := range names {
			attempts, err := run(name)
			outcomes <- outcome{attempts, err}
		}
	}()
	return outcomes
}

// attempts ends with the first that passes as a whole.
func (s *suite) attempts(ctx context.Context, agent, name string, tries int) ([]attempt, error) {
	var all []attempt
	for range tries {
		one, err := runTest(ctx, s.binary, agent, name)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
		if one.passed(name) {
			break
		}
	}
	return all, nil
}

func (s *suite) list(ctx context.Context) ([]string, error) {
	command := exec.CommandContext(ctx, s.binary, "-test.list=.")
	out, err := command.Output()
	if err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(exit.Stderr))
		}
		return nil, err
	}
	names := strings.Fields(string(out))
	if len(names) == 0 {
		return nil, errors.New("there are none")
	}
	return names, nil
}
