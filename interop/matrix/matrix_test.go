// Package matrix runs proxy-servers and proxy-agents of two makers against each other, and against clients that act
// as kube-apiserver does.
package matrix

import (
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"k8s.io/klog/v2"

	"adit/interop/internal/pki"
)

var (
	pairsFlag    = flag.String("pairs", "all", "all, ours, upstream, mixed, skew, or a list such as ours/upstream (server first)")
	frontsFlag   = flag.String("frontends", "all", "all, or a list of grpc-uds, grpc-tcp, connect-uds, connect-tcp")
	casesFlag    = flag.String("cases", "", "regular expression that a case's name must match")
	rigsFlag     = flag.Int("rigs", 2, "how many pairs run at once; most of a run is waiting")
	oursFlag     = flag.String("ours", "", "folder with our proxy-server and proxy-agent")
	upstreamFlag = flag.String("upstream", "", "folder with upstream's server and agent")
	skewFlag     = flag.String("skew", "", "folder with those of upstream's older releases, each in a folder of its version")

	results = &report{out: os.Stdout}
)

func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	results.summarise()
	os.Exit(code)
}

func TestMatrix(t *testing.T) {
	s := setUp(t)
	fronts, err := selectFronts(*frontsFlag)
	if err != nil {
		t.Fatal(err)
	}
	cases, err := selectCases(*casesFlag)
	if err != nil {
		t.Fatal(err)
	}
	var rigs []func()
	for _, p := range s.pairs {
		for _, f := range fronts {
			dir := s.subdirectory(t)
			rigs = append(rigs, func() { s.runRig(t, p, f, dir, cases) })
		}
	}
	atOnce(rigs)
}

// stage is what all rigs of a run have in common.
type stage struct {
	pairs []pair
	bins  map[side]binaries
	certs *pki.Set
	dir   string
	dirs  int
}

func setUp(t *testing.T) *stage {
	pairs, err := selectPairs(*pairsFlag)
	if err != nil {
		t.Fatal(err)
	}
	bins, err := findBinaries(pairs)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := tempDir()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("logs are kept in %s", dir)
		} else {
			os.RemoveAll(dir)
		}
	})
	if err := logClientLibrary(filepath.Join(dir, "client-library.log")); err != nil {
		t.Fatal(err)
	}
	certs, err := pki.Issue(dir)
	if err != nil {
		t.Fatal(err)
	}
	return &stage{pairs: pairs, bins: bins, certs: certs, dir: dir}
}

// subdirectory has a short name, as a socket's path has to be short.
func (s *stage) subdirectory(t *testing.T) string {
	dir := filepath.Join(s.dir, fmt.Sprint(s.dirs))
	s.dirs++
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// atOnce runs the rigs, some at a time. What failed is in the report.
func atOnce(rigs []func()) {
	_ = parallel(len(rigs), *rigsFlag, func(i int) error {
		rigs[i]()
		return nil
	})
}

// runRig runs the cases on one pair and frontend. If a process does not come back after a case, what is left is not
// run but counted as failed.
func (s *stage) runRig(t *testing.T, p pair, f front, dir string, cases []testCase) {
	start := time.Now()
	r, err := newRig(p, f, options{}, dir, s.certs, s.bins)
	if err != nil {
		record(t, result{pair: p, front: f, name: "start", outcome: failed, text: err.Error(), took: time.Since(start)})
		return
	}
	defer r.stop()
	var overlapping []func()
	wait := func() {
		for _, done := range overlapping {
			done()
		}
		overlapping = nil
	}
	defer wait()
	for _, c := range cases {
		if !c.appliesTo(p, f) {
			continue
		}
		if c.overlaps {
			overlapping = append(overlapping, inBackground(func() { record(t, judge(r, c)) }))
			continue
		}
		if c.kills {
			wait()
		}
		record(t, judge(r, c))
		if c.kills {
			if err := r.restore(); err != nil {
				record(t, result{pair: p, front: f, name: "restore", outcome: failed, text: err.Error()})
				return
			}
		}
	}
}

// judge runs a case and turns what came out into a result.
func judge(r *rig, c testCase) result {
	start := time.Now()
	notes, err := runCase(r, c)
	one := result{pair: r.pair, front: r.front, name: c.name, text: strings.Join(notes, "; "), took: time.Since(start)}
	if err == nil {
		return one
	}
	one.outcome, one.text = failed, err.Error()
	if fault, found := excuse(r.pair, r.front, c.name, err); found {
		return result{pair: r.pair, front: r.front, name: c.name, outcome: known, fault: fault.number, text: fault.summary + ": " + err.Error(), took: one.took}
	}
	return one
}

func record(t *testing.T, one result) {
	results.add(one)
	if one.outcome == failed {
		t.Fail() // the report says why
	}
}

// logClientLibrary keeps the log of upstream's client library out of the report.
func logClientLibrary(path string) error {
	log, err := os.Create(path)
	if err != nil {
		return err
	}
	klog.SetSlogLogger(slog.New(slog.NewTextHandler(log, nil)))
	return nil
}

func inBackground(run func()) (wait func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		run()
	}()
	return func() { <-done }
}

func selectCases(filter string) ([]testCase, error) {
	pattern, err := regexp.Compile(filter)
	if err != nil {
		return nil, err
	}
	var selected []testCase
	for _, c := range allCases {
		if pattern.MatchString(c.name) {
			selected = append(selected, c)
		}
	}
	if len(selected) == 0 {
		return nil, fmt.Errorf("no case matches %q", filter)
	}
	return selected, nil
}

// findBinaries checks that what the pairs need is there.
func findBinaries(pairs []pair) (map[side]binaries, error) {
	bins := map[side]binaries{
		ours:     {filepath.Join(*oursFlag, "proxy-server"), filepath.Join(*oursFlag, "proxy-agent")},
		upstream: {filepath.Join(*upstreamFlag, "server"), filepath.Join(*upstreamFlag, "agent")},
	}
	for _, r := range releases {
		dir := filepath.Join(*skewFlag, string(r.side))
		bins[r.side] = binaries{filepath.Join(dir, "server"), filepath.Join(dir, "agent")}
	}
	var errs []error
	for _, p := range pairs {
		for _, path := range []string{bins[p.server].server, bins[p.agent].agent} {
			if _, err := os.Stat(path); err != nil {
				errs = append(errs, err)
			}
		}
	}
	return bins, errors.Join(errs...)
}
