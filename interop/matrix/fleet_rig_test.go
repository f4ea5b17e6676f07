package matrix

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"time"

	"adit/interop/internal/balancer"
	"adit/interop/internal/frontend"
	"adit/interop/internal/pki"
	"adit/interop/internal/proc"
)

// completeLimit is for all agents to be at all servers. An upstream agent tries once a second, and behind a balancer each try is
// as likely to meet a server that it has.
const completeLimit = time.Minute

const (
	serverMetrics = "konnectivity_network_proxy_server_"
	agentMetrics  = "konnectivity_network_proxy_agent_"
)

// fleet is several servers and agents of both sides at once, with one address in front of the servers.
type fleet struct {
	front    front
	dir      string
	certs    *pki.Set
	bins     map[side]binaries
	count    int // as in --server-count
	balancer *balancer.Balancer

	servers []*fleetServer
	agents  []*fleetAgent
	started []*proc.Process
	names   int // of agents, so far
}

type fleetServer struct {
	*proc.Process
	side   side
	place  serverPlace
	dialer frontend.Dialer
}

type fleetAgent struct {
	*proc.Process
	side  side
	place agentPlace
}

func newFleet(f front, servers int, dir string, certs *pki.Set, bins map[side]binaries) (*fleet, error) {
	b, err := balancer.Listen()
	if err != nil {
		return nil, err
	}
	return &fleet{front: f, dir: dir, certs: certs, bins: bins, count: servers, balancer: b}, nil
}

func (f *fleet) stop() {
	for _, process := range f.started {
		process.Kill()
	}
	f.balancer.Close()
}

func (s *fleetServer) String() string { return fmt.Sprintf("%s (%s)", s.place.id, s.side) }

func (a *fleetAgent) String() string { return fmt.Sprintf("%s (%s)", a.place.id, a.side) }

func (s *fleetServer) agentAddress() string { return fmt.Sprintf("127.0.0.1:%d", s.place.agentPort) }

func (s *fleetServer) metric(name string) (float64, error) {
	return proc.Metric(s.place.url("/metrics"), serverMetrics+name)
}

func (a *fleetAgent) metric(name string) (float64, error) {
	return proc.Metric(a.place.url("/metrics"), agentMetrics+name)
}

// addServer starts a server that answers /healthz and takes connections of kube-apiserver, and lets the balancer find it. A
// server that takes another's place has its number: its id and socket, as that host would. Ports are new ones.
func (f *fleet) addServer(ctx context.Context, number int, who side) (*fleetServer, error) {
	var server *fleetServer
	err := retryPorts(4, func(ports []int) (err error) {
		id := fmt.Sprintf("server-%d", number)
		at := serverPlace{id, filepath.Join(f.dir, id+".socket"), ports[0], ports[1], ports[2], ports[3]}
		server, err = f.launchServer(ctx, who, at)
		return err
	})
	if err != nil {
		return nil, err
	}
	if number == len(f.servers) {
		f.servers = append(f.servers, nil)
	}
	f.servers[number] = server
	f.balancer.Add(server.agentAddress())
	return server, nil
}

func (f *fleet) launchServer(ctx context.Context, who side, at serverPlace) (*fleetServer, error) {
	dialer, err := newDialer(f.front, f.certs, at)
	if err != nil {
		return nil, err
	}
	flags := append(serverFlags(who, f.front, f.certs, at),
		"--cluster-ca-cert="+f.certs.CA, fmt.Sprintf("--server-count=%d", f.count))
	process, err := f.launch("server", at.id, who, f.bins[who].server, flags)
	if err != nil {
		return nil, err
	}
	server := &fleetServer{process, who, at, dialer}
	ctx, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	if err := process.WaitStatus(ctx, at.url("/healthz"), http.StatusOK); err != nil {
		return nil, err
	}
	// Upstream's may be healthy a moment before it listens for CONNECT.
	return server, proc.Until(ctx, fmt.Sprintf("%v takes connections at its frontend", server), func() (bool, error) {
		network, address := "unix", at.socket
		if !f.front.unix {
			network, address = "tcp", fmt.Sprintf("127.0.0.1:%d", at.frontendPort)
		}
		conn, err := net.Dial(network, address)
		if err != nil {
			return false, nil
		}
		return true, conn.Close()
	})
}

// addAgent starts an agent, under a name of its own, that has a tunnel to one server at least.
func (f *fleet) addAgent(ctx context.Context, who side) (*fleetAgent, error) {
	f.names++
	var agent *fleetAgent
	err := retryPorts(2, func(ports []int) error {
		at := agentPlace{fmt.Sprintf("agent-%d", f.names), ports[0], ports[1]}
		flags := append(agentFlags(who, f.certs, f.balancer.Port(), at), agentCertificate(f.certs)...)
		process, err := f.launch("agent", at.id, who, f.bins[who].agent, flags)
		if err != nil {
			return err
		}
		agent = &fleetAgent{process, who, at}
		ctx, cancel := context.WithTimeout(ctx, readyLimit)
		defer cancel()
		return process.WaitStatus(ctx, at.url("/readyz"), http.StatusOK)
	})
	if err != nil {
		return nil, err
	}
	f.agents = append(f.agents, agent)
	return agent, nil
}

func (f *fleet) launch(role, id string, who side, binary string, flags []string) (*proc.Process, error) {
	name := fmt.Sprintf("%s %s (%s)", role, id, who)
	process, err := proc.Start(name, filepath.Join(f.dir, fmt.Sprintf("%s.%s.log", id, who)), binary, flags...)
	if err == nil {
		f.started = append(f.started, process)
	}
	return process, err
}

// forget leaves an agent that has ended, or is to, out of what is expected.
func (f *fleet) forget(gone *fleetAgent) {
	f.agents = slices.DeleteFunc(f.agents, func(a *fleetAgent) bool { return a == gone })
}

func retryPorts(count int, start func(ports []int) error) error {
	for tries := 1; ; tries++ {
		ports, err := proc.FreePorts(count)
		if err != nil {
			return err
		}
		if err = start(ports); err == nil || tries == portTries || !errors.Is(err, proc.ErrPortTaken) {
			return err
		}
	}
}

// complete waits until every agent is at every server, both say so, and each tunnel of which one end is ours is of the kind that
// it has to be.
func (f *fleet) complete(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, completeLimit)
	defer cancel()
	missing := "nothing was asked yet"
	err := proc.Until(ctx, "every agent has its tunnel to every server", func() (bool, error) {
		missing = f.missing()
		return missing == "", nil
	})
	if err != nil {
		return fmt.Errorf("%w: %s", err, missing)
	}
	return nil
}

// missing is the first count that is not as expected, or cannot be had.
func (f *fleet) missing() string {
	expected := func(who fmt.Stringer, metric func(string) (float64, error), name string, want int) string {
		got, err := metric(name)
		switch {
		case err != nil:
			return fmt.Sprintf("%v does not tell %s: %v", who, name, err)
		case got != float64(want):
			return fmt.Sprintf("%v has %s at %v, not %d", who, name, got, want)
		}
		return ""
	}
	streams, packets := 0, 0 // of one of our servers, then of one of our agents
	for _, agent := range f.agents {
		if agent.side == ours {
			streams++
		} else {
			packets++
		}
	}
	kinds := func(who fmt.Stringer, metric func(string) (float64, error)) string {
		for name, want := range map[string]int{"stream": streams, "packet": packets, "credit": 0} {
			if wrong := expected(who, metric, fmt.Sprintf("tunnels{kind=%q}", name), want); wrong != "" {
				return wrong
			}
		}
		return ""
	}
	for _, server := range f.servers {
		if wrong := expected(server, server.metric, "ready_backend_connections", len(f.agents)); wrong != "" {
			return wrong
		}
		if server.side != ours {
			continue
		}
		if wrong := kinds(server, server.metric); wrong != "" {
			return wrong
		}
	}
	streams, packets = 0, 0
	for _, server := range f.servers {
		if server.side == ours {
			streams++
		} else {
			packets++
		}
	}
	for _, agent := range f.agents {
		if wrong := expected(agent, agent.metric, "open_server_connections", len(f.servers)); wrong != "" {
			return wrong
		}
		if agent.side != ours {
			continue
		}
		if wrong := kinds(agent, agent.metric); wrong != "" {
			return wrong
		}
	}
	return ""
}
