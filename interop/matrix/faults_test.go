package matrix

import (
	"errors"
	"fmt"
)

// kind is what went wrong, where a known fault of upstream may be the reason. Everything else is a plain error
// and never excused.
type kind int

const (
	plain         kind = iota
	lost               // bytes were accepted from one side and never reached the other
	early              // a target's first bytes came before the client could take them
	noAnswer           // a dial got no answer although its agent is gone
	leaked             // something stayed open
	stalled            // the case did not end in its time
	answeredFirst      // a CONNECT was answered before its dial
)

// failure is an error of a kind.
type failure struct {
	kind kind
	text string
}

func (f *failure) Error() string { return f.text }

func failf(k kind, format string, arguments ...any) error {
	return &failure{k, fmt.Sprintf(format, arguments...)}
}

func kindOf(err error) kind {
	if f, ok := errors.AsType[*failure](err); ok {
		return f.kind
	}
	return plain
}

// fault is a weak point of upstream's own, by its number in section 10 of the wire protocol reference; those of its older
// releases alone are in section 12.
type fault struct {
	number  string
	summary string
	kind    kind
	cases   []string
	applies func(pair, front) bool
}

var knownFaults = []fault{
	{
		number:  "W4",
		summary: "the agent drops queued data at CLOSE_REQ",
		kind:    lost,
		cases:   []string{"client-closes-first", "client-closes-first-slow-target"},
		applies: func(p pair, _ front) bool { return p.agent != ours },
	},
	{
		number:  "W5",
		summary: "the end of one direction closes both, with queued data dropped",
		kind:    lost,
		cases:   []string{"client-half-closes"},
		applies: func(p pair, _ front) bool { return p.agent != ours },
	},
	{
		number:  "W6",
		summary: "target bytes before the 200 head, or in one piece with it",
		kind:    early,
		cases:   []string{"target-speaks-first"},
		applies: func(p pair, f front) bool { return p.server != ours && !f.isGRPC() },
	},
	{
		number:  "W33",
		summary: "the client library drops DATA that comes right behind DIAL_RSP",
		kind:    early,
		cases:   []string{"target-speaks-first"},
		applies: func(p pair, f front) bool { return p.server != ours && f.isGRPC() },
	},
	{
		number:  "W13",
		summary: "a dial pending on a lost agent is never failed",
		kind:    noAnswer,
		cases:   []string{"agent-killed-during-dial"},
		applies: func(p pair, f front) bool { return p.server != ours && f.isGRPC() },
	},
	{
		number:  "section 12",
		summary: "the server answers a CONNECT with 200 before the dial",
		kind:    answeredFirst,
		cases:   []string{"refused-target"},
		applies: func(p pair, f front) bool { return !p.server.about().dialsFirst && !f.isGRPC() },
	},
}

// excuse finds the known fault that explains the error, if one does.
func excuse(p pair, f front, name string, err error) (fault, bool) {
	for _, known := range knownFaults {
		if known.kind != kindOf(err) || !known.applies(p, f) {
			continue
		}
		for _, c := range known.cases {
			if c == name {
				return known, true
			}
		}
	}
	return fault{}, false
}
