package matrix

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

type outcome int

const (
	passed outcome = iota
	failed
	known
)

// result is one case on one pair and frontend.
type result struct {
	pair    pair
	front   front
	name    string
	outcome outcome
	fault   string // number, for known
	text    string // error or evidence
	took    time.Duration
}

// report collects results and prints each as it comes.
type report struct {
	mutex   sync.Mutex
	out     io.Writer
	results []result
}

func (r *report) add(one result) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	one.text = strings.TrimSpace(one.text)
	r.results = append(r.results, one)
	word := map[outcome]string{passed: "ok", failed: "FAILED", known: "known"}[one.outcome]
	text := strings.ReplaceAll(one.text, "\n", "\n        ")
	if one.fault != "" {
		text = one.fault + ": " + text
	}
	fmt.Fprintf(r.out, "%-6s  %-17s %-11s %-32s %6.1fs  %s\n", word, one.pair, one.front, one.name, one.took.Seconds(), text)
}

// summarise prints the table, the known faults and the failures, and the closing line.
func (r *report) summarise() {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	type row struct {
		pair  pair
		front front
	}
	counts := make(map[row]map[outcome]int)
	total := make(map[outcome]int)
	for _, one := range r.results {
		key := row{one.pair, one.front}
		if counts[key] == nil {
			counts[key] = make(map[outcome]int)
		}
		counts[key][one.outcome]++
		total[one.outcome]++
	}
	fmt.Fprintf(r.out, "\n%-9s %-9s %-12s %6s %7s %7s %6s\n", "server", "agent", "frontend", "cases", "passed", "failed", "known")
	line := func(server, agent, front string, count map[outcome]int) {
		cases := count[passed] + count[failed] + count[known]
		fmt.Fprintf(r.out, "%-9s %-9s %-12s %6d %7d %7d %6d\n", server, agent, front, cases, count[passed], count[failed], count[known])
	}
	for _, p := range reportedPairs() {
		for _, f := range allFronts {
			if count := counts[row{p, f}]; count != nil {
				line(string(p.server), string(p.agent), f.String(), count)
			}
		}
	}
	line("total", "", "", total)
	r.list("\nknown upstream faults, with what was seen:", known)
	r.list("\nfailures:", failed)
	fmt.Fprintf(r.out, "\n%d cases, %d passed, %d failed, %d known upstream faults\n", len(r.results), total[passed], total[failed], total[known])
	fmt.Fprintf(r.out, "%d passed, %d failed\n", total[passed], total[failed])
}

func (r *report) list(title string, which outcome) {
	for _, one := range r.results {
		if one.outcome != which {
			continue
		}
		if title != "" {
			fmt.Fprintln(r.out, title)
			title = ""
		}
		label := "failed"
		if which == known {
			label = "known upstream fault " + one.fault
		}
		fmt.Fprintf(r.out, "  %s  %s %s %s: %s\n", label, one.pair, one.front, one.name, strings.ReplaceAll(one.text, "\n", "\n    "))
	}
}
