package matrix

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"adit/interop/internal/frontend"
	"adit/interop/internal/pki"
	"adit/interop/internal/proc"
)

const (
	// readyLimit covers an agent's whole back-off (capped at 10 s) on a loaded machine.
	readyLimit = 30 * time.Second
	// portTries is how often a start is tried again when another process took a port first.
	portTries = 3
	// graceLimit is what our server gives connections at its end, more than a case takes.
	graceLimit = time.Minute
)

// binaries are the paths of one side's programs.
type binaries struct {
	server, agent string
}

// options are flags beyond those that every rig has.
type options struct {
	server, agent []string
	// tokens: an agent has no certificate, and the server asks for none.
	tokens bool
}

// rig is one proxy-server with one proxy-agent, real processes, and a way to dial through them.
type rig struct {
	pair   pair
	front  front
	extra  options
	dir    string
	certs  *pki.Set
	bins   map[side]binaries
	dialer frontend.Dialer

	serverPort, agentPort, serverHealth, serverAdmin, agentHealth, agentAdmin int

	server, agent *proc.Process
}

// newRig starts both and waits until both are ready.
func newRig(p pair, f front, o options, dir string, certs *pki.Set, bins map[side]binaries) (*rig, error) {
	r := &rig{pair: p, front: f, extra: o, dir: dir, certs: certs, bins: bins}
	var err error
	for range portTries {
		if err = r.start(); err == nil || !errors.Is(err, proc.ErrPortTaken) {
			break
		}
		r.stop()
	}
	if err != nil {
		r.stop()
		return nil, err
	}
	return r, nil
}

func (r *rig) start() error {
	ports, err := proc.FreePorts(6)
	if err != nil {
		return err
	}
	r.serverPort, r.agentPort, r.serverHealth = ports[0], ports[1], ports[2]
	r.serverAdmin, r.agentHealth, r.agentAdmin = ports[3], ports[4], ports[5]
	if r.dialer, err = newDialer(r.front, r.certs, r.serverPlace()); err != nil {
		return err
	}
	if err := r.startServer(); err != nil {
		return err
	}
	return r.startAgent()
}

func (r *rig) stop() {
	for _, p := range []*proc.Process{r.agent, r.server} {
		if p != nil {
			p.Kill()
		}
	}
}

func (r *rig) serverPlace() serverPlace {
	return serverPlace{
		id: "interop-server", socket: filepath.Join(r.dir, "server.socket"),
		frontendPort: r.serverPort, agentPort: r.agentPort, healthPort: r.serverHealth, adminPort: r.serverAdmin,
	}
}

// startServer leaves a server that answers /healthz.
func (r *rig) startServer() error {
	arguments := serverFlags(r.pair.server, r.front, r.certs, r.serverPlace())
	if !r.extra.tokens {
		arguments = append(arguments, "--cluster-ca-cert="+r.certs.CA)
	}
	if r.pair.server == ours {
		arguments = append(arguments, "--graceful-shutdown-timeout="+graceLimit.String())
	}
	arguments = append(arguments, r.extra.server...)
	server, err := proc.Start("proxy-server", filepath.Join(r.dir, "server.log"), r.bins[r.pair.server].server, arguments...)
	if err != nil {
		return err
	}
	r.server = server
	ctx, cancel := context.WithTimeout(context.Background(), readyLimit)
	defer cancel()
	return server.WaitStatus(ctx, r.serverURL("/healthz"), http.StatusOK)
}

// startAgent leaves an agent that is ready at a server that knows it.
func (r *rig) startAgent() error {
	agent, err := r.launchAgent("interop-agent", r.agentHealth, r.agentAdmin, r.extra.agent...)
	if err != nil {
		return err
	}
	r.agent = agent
	return r.waitReady()
}

// launchAgent waits for nothing.
func (r *rig) launchAgent(id string, healthPort, adminPort int, more ...string) (*proc.Process, error) {
	arguments := agentFlags(r.pair.agent, r.certs, r.agentPort, agentPlace{id, healthPort, adminPort})
	if !r.extra.tokens {
		arguments = append(arguments, agentCertificate(r.certs)...)
	}
	arguments = append(arguments, more...)
	return proc.Start("proxy-agent", filepath.Join(r.dir, id+".log"), r.bins[r.pair.agent].agent, arguments...)
}

// waitReady waits until agent and server see each other.
func (r *rig) waitReady() error {
	ctx, cancel := context.WithTimeout(context.Background(), readyLimit)
	defer cancel()
	if err := r.agent.WaitStatus(ctx, r.agentURL("/readyz"), http.StatusOK); err != nil {
		return err
	}
	return r.server.WaitStatus(ctx, r.serverURL("/readyz"), http.StatusOK)
}

// killAgent ends the agent with SIGKILL. The server may take a moment to notice: waitAgentGone.
func (r *rig) killAgent() { r.agent.Kill() }

func (r *rig) waitAgentGone() error {
	ctx, cancel := context.WithTimeout(context.Background(), readyLimit)
	defer cancel()
	return r.server.WaitStatus(ctx, r.serverURL("/readyz"), http.StatusInternalServerError)
}

// restore brings back what a case has killed, so that the next one finds a working pair.
func (r *rig) restore() error {
	if exited(r.server) {
		if err := r.startServer(); err != nil {
			return err
		}
	}
	if exited(r.agent) {
		if err := r.waitAgentGone(); err != nil {
			return err
		}
		return r.startAgent()
	}
	return r.waitReady()
}

func exited(p *proc.Process) bool {
	select {
	case <-p.Exited():
		return true
	default:
		return false
	}
}

func (r *rig) serverURL(path string) string { return localURL(r.serverHealth, path) }

func (r *rig) agentURL(path string) string { return localURL(r.agentHealth, path) }

const openEndpointsMetric = "konnectivity_network_proxy_agent_open_endpoint_connections"

// openEndpoints is the agent's own count of connections to targets.
func (r *rig) openEndpoints() (float64, error) {
	return proc.Metric(r.agentURL("/metrics"), openEndpointsMetric)
}

// tempDir is short, since a Unix socket's path may have 107 bytes at most.
func tempDir() (string, error) { return os.MkdirTemp("", "adit-interop-") }
