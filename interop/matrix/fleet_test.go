package matrix

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"regexp"
	"testing"
	"time"

	"adit/interop/internal/target"
)

// fleetCase has processes of both sides at once.
type fleetCase struct {
	name  string
	pair  pair // for the report
	count int  // of servers
	limit time.Duration
	run   func(*env, *fleet) error
}

var fleetCases = []fleetCase{
	{"agents-of-both", pair{ours, mixed}, 1, 3 * time.Minute, agentsOfBoth},
	{"servers-of-both", pair{mixed, ours}, 2, 3 * time.Minute, serversOfBoth},
	{"rolling-change", pair{mixed, mixed}, 2, 8 * time.Minute, rollingChange},
}

// TestFleet runs mixed fleets: between our own ends a tunnel is of another kind than with one of upstream's.
func TestFleet(t *testing.T) {
	s := setUp(t)
	fronts, err := selectFronts(*frontsFlag)
	if err != nil {
		t.Fatal(err)
	}
	pattern, err := regexp.Compile(*casesFlag)
	if err != nil {
		t.Fatal(err)
	}
	var runs []func()
	for _, c := range fleetCases {
		if !pattern.MatchString(c.name) {
			continue
		}
		for _, f := range fronts {
			dir := s.subdirectory(t)
			runs = append(runs, func() { s.runFleet(t, c, f, dir) })
		}
	}
	if len(runs) == 0 {
		t.Fatalf("no case of fleets matches %q", *casesFlag)
	}
	atOnce(runs)
}

func (s *stage) runFleet(t *testing.T, c fleetCase, f front, dir string) {
	fleet, err := newFleet(f, c.count, dir, s.certs, s.bins)
	if err != nil {
		record(t, result{pair: c.pair, front: f, name: c.name, outcome: failed, text: err.Error()})
		return
	}
	defer fleet.stop()
	// Without processes: those are the fleet's, and so is what is dialled.
	r := &rig{pair: c.pair, front: f, dir: dir, certs: s.certs, bins: s.bins}
	record(t, judge(r, testCase{name: c.name, limit: c.limit, run: func(e *env) error { return c.run(e, fleet) }}))
}

// turnTo lets the next dials of the case go to that server.
func (e *env) turnTo(server *fleetServer) { e.dialer = server.dialer }

const (
	// heldConnections are enough that no agent stays without one, even if each is drawn by lot.
	heldConnections = 16
	heldBytes       = 2<<20 + 1
	dialsAfterKill  = 30
)

// agentsOfBoth: our server has upstream's agent and ours. Each carries whole data, and serves alone when the other is killed.
func agentsOfBoth(e *env, f *fleet) error {
	server, err := f.addServer(e.ctx, 0, ours)
	if err != nil {
		return err
	}
	e.turnTo(server)
	for _, who := range []side{upstream, ours} {
		if _, err := f.addAgent(e.ctx, who); err != nil {
			return err
		}
	}
	if err := f.complete(e.ctx); err != nil {
		return err
	}
	for range 2 {
		victim, other := f.agents[0], f.agents[1]
		if err := e.loseAgent(f, victim, other); err != nil {
			return fmt.Errorf("with %v to be killed: %w", victim, err)
		}
		if _, err := f.addAgent(e.ctx, victim.side); err != nil {
			return err
		}
		if err := f.complete(e.ctx); err != nil {
			return err
		}
	}
	return nil
}

func (e *env) loseAgent(f *fleet, victim, other *fleetAgent) error {
	echoes, err := e.target(target.Echo(func(target.Received) {}))
	if err != nil {
		return err
	}
	defer echoes.Close()
	conns := make([]net.Conn, heldConnections)
	for i := range conns {
		if conns[i], err = e.mustDial(echoes.Address()); err != nil {
			return err
		}
	}
	lost, err := victim.metric("open_endpoint_connections")
	if err != nil {
		return err
	}
	kept, err := other.metric("open_endpoint_connections")
	if err != nil {
		return err
	}
	if lost == 0 || kept == 0 || lost+kept != heldConnections {
		return fmt.Errorf("of %d connections %v has %v, %v has %v", heldConnections, victim, lost, other, kept)
	}
	err = parallel(heldConnections, heldConnections, func(i int) error {
		sent := target.Random(uint64(i), heldBytes)
		back, err := roundTrip(conns[i], sent)
		if err == nil && !bytes.Equal(back, sent) {
			err = errors.New("other bytes came back")
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("%d bytes both ways: %w", heldBytes, err)
	}
	victim.Kill()
	f.forget(victim)
	// At once, as a server that finds the tunnel lost has another agent to ask.
	for i := range dialsAfterKill {
		conn, err := e.mustDial(echoes.Address())
		if err != nil {
			return fmt.Errorf("dial %d after the kill: %w", i, err)
		}
		if err := pingWithin(conn); err != nil {
			return fmt.Errorf("dial %d after the kill: %w", i, err)
		}
		conn.Close()
	}
	alive := make([]bool, heldConnections)
	_ = parallel(heldConnections, heldConnections, func(i int) error {
		alive[i] = pingWithin(conns[i]) == nil
		return nil
	})
	survivors := 0
	for i, conn := range conns {
		if alive[i] {
			survivors++
		}
		conn.Close()
	}
	if survivors != int(kept) {
		return fmt.Errorf("%d connections work after the kill, %v had %v", survivors, other, kept)
	}
	e.note("%v lost %v of %d connections, %v kept its %v", victim, lost, heldConnections, other, kept)
	return f.complete(e.ctx)
}

// serversOfBoth: our agent has a tunnel to upstream's server and one to ours, and both reach targets by it. When one is killed,
// the other serves on, and the agent finds what takes its place.
func serversOfBoth(e *env, f *fleet) error {
	sizes := []int{1, 65_537, 4<<20 + 1}
	for number, who := range []side{upstream, ours} {
		if _, err := f.addServer(e.ctx, number, who); err != nil {
			return err
		}
	}
	if _, err := f.addAgent(e.ctx, ours); err != nil {
		return err
	}
	if err := f.complete(e.ctx); err != nil {
		return err
	}
	for _, server := range f.servers {
		e.turnTo(server)
		if err := e.echo(sizes); err != nil {
			return fmt.Errorf("at %v: %w", server, err)
		}
	}
	for number := range f.servers {
		victim, other := f.servers[number], f.servers[1-number]
		victim.Kill()
		f.balancer.Remove(victim.agentAddress())
		e.turnTo(other)
		if err := e.echo(sizes); err != nil {
			return fmt.Errorf("at %v, with %v killed: %w", other, victim, err)
		}
		server, err := f.addServer(e.ctx, number, victim.side)
		if err != nil {
			return err
		}
		start := time.Now()
		if err := f.complete(e.ctx); err != nil {
			return err
		}
		e.note("agent back at %v after %.1f s", server, time.Since(start).Seconds())
		e.turnTo(server)
		if err := e.echo(sizes); err != nil {
			return fmt.Errorf("at %v, started again: %w", server, err)
		}
	}
	return nil
}

// pingWithin is ping that ends although a connection says nothing any more.
func pingWithin(conn net.Conn) error {
	return within(exchangeLimit, func() error { return ping(conn) })
}
