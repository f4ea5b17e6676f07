package matrix

import (
	"fmt"
	"strings"
)

// side tells whose binary plays a role.
type side string

const (
	ours     side = "ours"
	upstream side = "upstream"
)

// pair is a proxy-server and a proxy-agent that work together.
type pair struct {
	server, agent side
}

func (p pair) String() string { return fmt.Sprintf("%s/%s", p.server, p.agent) }

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

// selectPairs understands all, ours and upstream (the pair of one side), mixed, or a list such as
// ours/upstream,ours/ours (server first).
func selectPairs(filter string) ([]pair, error) {
	var selected []pair
	for word := range strings.SplitSeq(filter, ",") {
		found := false
		for _, p := range allPairs {
			switch {
			case word == "all", word == p.String(), word == "mixed" && p.server != p.agent,
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
