package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// tailLines is how much of a failed test's output is shown.
const tailLines = 40

// table collects rows, prints each as it comes, and the sum at the end.
type table struct {
	out            io.Writer
	both, oursOnly int // rows that both pass, and that ours alone does
	neither        int
	against        []string // rows that upstream's agent passes and ours does not
	tails          map[string]string
	leftOut        []string
}

const rowFormat = "%-68s %-14s %-14s %s\n"

func newTable(out io.Writer) *table {
	fmt.Fprintf(out, rowFormat, "test", "upstream agent", "ours", "seconds")
	return &table{out: out, tails: make(map[string]string)}
}

// add has a row for the test and one for each of its parts, in order of their names.
func (t *table) add(name string, theirs, mine []attempt) {
	rows := make(map[string]bool)
	for _, one := range slices.Concat(theirs, mine) {
		for row := range maps.Keys(one.verdicts) {
			rows[row] = true
		}
	}
	rows[name] = true
	for _, row := range slices.Sorted(maps.Keys(rows)) {
		upstream, ours := tally(theirs, row), tally(mine, row)
		took := ""
		if row == name {
			took = fmt.Sprintf("%.1f, %.1f", theirs[len(theirs)-1].took.Seconds(), mine[len(mine)-1].took.Seconds())
		}
		fmt.Fprintf(t.out, rowFormat, row, upstream, ours, took)
		switch {
		case ours.passes > 0 && upstream.passes > 0:
			t.both++
		case ours.passes > 0:
			t.oursOnly++
		case upstream.passes > 0:
			t.against = append(t.against, row)
			t.tails[row] = tail(mine[len(mine)-1].output)
		default:
			t.neither++
		}
	}
}

// leaveOut records a test that is not run, and why.
func (t *table) leaveOut(name, reason string) {
	fmt.Fprintf(t.out, rowFormat, name, "not run", "not run", "")
	t.leftOut = append(t.leftOut, name+": "+reason)
}

// summarise says how many rows count against us.
func (t *table) summarise() (failed int, err error) {
	if t.both+t.oursOnly+t.neither+len(t.against)+len(t.leftOut) == 0 {
		return 0, fmt.Errorf("no test matches")
	}
	for _, row := range t.against {
		fmt.Fprintf(t.out, "\nFAILED with our agent: %s\n%s\n", row, t.tails[row])
	}
	if len(t.leftOut) > 0 {
		fmt.Fprintf(t.out, "\n%d not run, as they reach for addresses beyond this machine (-outside runs them):\n", len(t.leftOut))
	}
	for _, one := range t.leftOut {
		fmt.Fprintf(t.out, "  %s\n", one)
	}
	fmt.Fprintf(t.out, "\n%d pass with both agents, %d with ours alone, %d with neither, %d with upstream's alone\n",
		t.both, t.oursOnly, t.neither, len(t.against))
	fmt.Fprintf(t.out, "%d passed, %d failed\n", t.both+t.oursOnly, len(t.against))
	return len(t.against), nil
}

// score is how often a row passed.
type score struct {
	passes, tries int
}

func tally(attempts []attempt, row string) score {
	s := score{tries: len(attempts)}
	for _, one := range attempts {
		if one.passed(row) {
			s.passes++
		}
	}
	return s
}

func (s score) String() string {
	word := "pass"
	if s.passes == 0 {
		word = "FAIL"
	}
	if s.passes < s.tries {
		return fmt.Sprintf("%s, %d of %d", word, s.passes, s.tries)
	}
	return word
}

// tail is the end of what a test printed, each line cut.
func tail(output string) string {
	lines := strings.Split(strings.TrimSpace(output), "\n")
	lines = lines[max(0, len(lines)-tailLines):]
	for i, line := range lines {
		lines[i] = "    " + line[:min(len(line), 300)]
	}
	return strings.Join(lines, "\n")
}
