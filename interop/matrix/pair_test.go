package matrix

import (
	"fmt"
	"strings"
)

// side tells whose binary plays a role: ours, upstream's newest, or one of upstream's older releases, called by its version.
type side string

const (
	ours     side = "ours"
	upstream side = "upstream"
	// mixed stands for several processes of both, in the report.
	mixed side = "mixed"
)

// release is an older one of upstream's that is still run somewhere.
type release struct {
	side
	// bindFlags: it can listen on one address alone.
	bindFlags bool
	// drains: its agent's first signal is the start of a drain; before, it is the end.
	drains bool
	// dialsFirst: its server answers a CONNECT when the agent has, not before.
	dialsFirst bool
}

// releases are those that the module proxy serves, each a folder of ../skew.
var releases = []release{
	{side: "v0.0.24"},
	{side: "v0.30.3", bindFlags: true},
	{side: "v0.31.4", bindFlags: true, drains: true},
	{side: "v0.34.0", bindFlags: true, drains: true, dialsFirst: true},
}

// about tells what a side can do; ours and upstream's newest can do everything.
func (s side) about() release {
	for _, r := range releases {
		if r.side == s {
			return r
		}
	}
	return release{side: s, bindFlags: true, drains: true, dialsFirst: true}
}

// pair is a proxy-server and a proxy-agent that work together.
type pair struct {
	server, agent side
}

func (p pair) String() string { return fmt.Sprintf("%s/%s", p.server, p.agent) }

// isSkewed: one side is an older release.
func (p pair) isSkewed() bool {
	newest := func(s side) bool { return s == ours || s == upstream }
	return !newest(p.server) || !newest(p.agent)
}

// front is a way to reach the proxy-server.
type front struct {
	mode string // as in --mode
	unix bool   // else mutual TLS over TCP
}

func (f front) String() string {
	name := map[string]string{"grpc": "grpc", "http-connect": "connect"}[f.mode]
	if f.unix {
		return name + "-uds"
	}
	return name + "-tcp"
}

func (f front) isGRPC() bool { return f.mode == "grpc" }

var (
	allPairs  = []pair{{upstream, upstream}, {ours, ours}, {ours, upstream}, {upstream, ours}}
	allFronts = []front{{"grpc", true}, {"grpc", false}, {"http-connect", true}, {"http-connect", false}}
)

// reportedPairs are all that a result may be of.
func reportedPairs() []pair {
	pairs := append(skewedPairs(), allPairs...)
	for _, c := range fleetCases {
		pairs = append(pairs, c.pair)
	}
	return pairs
}

// skewedPairs are each older release's server with our agent, and our server with its agent.
func skewedPairs() []pair {
	var pairs []pair
	for _, r := range releases {
		pairs = append(pairs, pair{r.side, ours}, pair{ours, r.side})
	}
	return pairs
}

// selectPairs understands all, ours and upstream (the pair of one side), mixed, skew, or a list such as
// ours/upstream,v0.34.0/ours (server first).
func selectPairs(filter string) ([]pair, error) {
	var selected []pair
	for word := range strings.SplitSeq(filter, ",") {
		found := false
		for _, p := range append(skewedPairs(), allPairs...) {
			switch {
			case word == p.String(), p.isSkewed() && word == "skew", !p.isSkewed() && word == "all",
				!p.isSkewed() && word == "mixed" && p.server != p.agent,
				p.server == p.agent && word == string(p.server):
				selected, found = append(selected, p), true
			}
		}
		if !found {
			return nil, fmt.Errorf("no pair is called %q", word)
		}
	}
	return selected, nil
}

// selectFronts understands all, or a list such as grpc-uds,connect-tcp.
func selectFronts(filter string) ([]front, error) {
	var selected []front
	for word := range strings.SplitSeq(filter, ",") {
		found := false
		for _, f := range allFronts {
			if word == "all" || word == f.String() {
				selected, found = append(selected, f), true
			}
		}
		if !found {
			return nil, fmt.Errorf("no frontend is called %q", word)
		}
	}
	return selected, nil
}
