package matrix

import "time"

// testCase is one behaviour, run on every pair and frontend unless it says otherwise.
type testCase struct {
	name  string
	run   func(*env) error
	limit time.Duration
	// overlaps: only waits, so the next cases may run meanwhile.
	overlaps bool
	// oursOnly: a count that the acceptance text asks of our pair alone.
	oursOnly bool
	// ourServer: only where the server is ours.
	ourServer bool
	// mode: only on frontends of this --mode, if set.
	mode string
	// skew: also with older releases; skewOnly: with nothing else, as what it does is part of another case.
	skew, skewOnly bool
	// kills: ends a process. It runs alone, and what it ended is brought back behind it.
	kills bool
}

func (c testCase) appliesTo(p pair, f front) bool {
	return (!c.oursOnly || p == pair{ours, ours}) && (!c.ourServer || p.server == ours) && (c.mode == "" || c.mode == f.mode) &&
		(c.skew || !p.isSkewed()) && (!c.skewOnly || p.isSkewed())
}

// Cases that kill a process come last, after everything that overlaps has ended.
var allCases = []testCase{
	{name: "black-hole-target", run: blackHoleTarget, limit: 30 * time.Second, overlaps: true},
	{name: "refused-target", run: refusedTarget, limit: 15 * time.Second, skew: true},
	{name: "unknown-host", run: unknownHost, limit: 15 * time.Second},
	{name: "address-forms", run: addressForms, limit: 30 * time.Second},
	{name: "echo-1B-to-64MiB", run: echo, limit: 120 * time.Second},
	{name: "echo-1B-to-16MiB", run: smallerEcho, limit: 120 * time.Second, skew: true, skewOnly: true},
	{name: "concurrent-200", run: concurrent, limit: 90 * time.Second},
	{name: "target-closes-first", run: targetClosesFirst, limit: 60 * time.Second, skew: true},
	{name: "client-closes-first", run: clientClosesFirst, limit: 60 * time.Second, skew: true},
	{name: "client-closes-first-slow-target", run: clientClosesFirstSlowTarget, limit: 60 * time.Second},
	{name: "client-half-closes", run: clientHalfCloses, limit: 30 * time.Second, mode: "http-connect"},
	{name: "reusable-tunnel", run: reusableTunnel, limit: 90 * time.Second, mode: "grpc"},
	{name: "target-speaks-first", run: targetSpeaksFirst, limit: 180 * time.Second, skew: true},
	{name: "greetings-200", run: greetings, limit: 180 * time.Second, oursOnly: true},
	{name: "transfers-down-250", run: transfersDown, limit: 180 * time.Second, oursOnly: true},
	{name: "transfers-up-250", run: transfersUp, limit: 180 * time.Second, oursOnly: true},
	{name: "nothing-left-open", run: nothingLeftOpen, limit: 40 * time.Second, skew: true},
	{name: "agent-killed-during-dial", run: agentKilledDuringDial, limit: 60 * time.Second, kills: true},
	{name: "no-agent", run: noAgent, limit: 60 * time.Second, kills: true},
	{name: "agent-killed-during-transfer", run: agentKilledDuringTransfer, limit: 60 * time.Second, kills: true},
	{name: "agent-drains", run: agentDrains, limit: 60 * time.Second, kills: true, skew: true},
	{name: "server-drains", run: serverDrains, limit: 60 * time.Second, kills: true, skew: true, ourServer: true},
	{name: "server-killed-and-restarted", run: serverKilledAndRestarted, limit: 90 * time.Second, kills: true, skew: true},
}
