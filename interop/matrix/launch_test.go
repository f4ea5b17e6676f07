package matrix

import (
	"fmt"

	"adit/interop/internal/frontend"
	"adit/interop/internal/pki"
)

// serverPlace is what a server is known by, whoever's binary it is.
type serverPlace struct {
	id, socket                                     string
	frontendPort, agentPort, healthPort, adminPort int
}

// agentPlace is the same of an agent.
type agentPlace struct {
	id                    string
	healthPort, adminPort int
}

func (p serverPlace) url(path string) string { return localURL(p.healthPort, path) }

func (p agentPlace) url(path string) string { return localURL(p.healthPort, path) }

func localURL(port int, path string) string { return fmt.Sprintf("http://127.0.0.1:%d%s", port, path) }

// serverFlags are the same for both sides' binaries, but old ones lack some.
func serverFlags(who side, f front, certs *pki.Set, at serverPlace) []string {
	flags := []string{
		"--mode=" + f.mode,
		"--cluster-cert=" + certs.Server.Cert,
		"--cluster-key=" + certs.Server.Key,
		fmt.Sprintf("--agent-port=%d", at.agentPort),
		fmt.Sprintf("--health-port=%d", at.healthPort),
		fmt.Sprintf("--admin-port=%d", at.adminPort),
		"--server-id=" + at.id,
		"--v=2",
	}
	binds := who.about().bindFlags
	if binds {
		flags = append(flags,
			"--agent-bind-address=127.0.0.1", "--health-bind-address=127.0.0.1", "--admin-bind-address=127.0.0.1")
	}
	if f.unix {
		// The default of today's; the oldest release had another.
		return append(flags, "--uds-name="+at.socket, "--server-port=0", "--delete-existing-uds-file=true")
	}
	flags = append(flags,
		"--server-cert="+certs.Server.Cert,
		"--server-key="+certs.Server.Key,
		"--server-ca-cert="+certs.CA,
		fmt.Sprintf("--server-port=%d", at.frontendPort))
	if binds {
		flags = append(flags, "--server-bind-address=127.0.0.1")
	}
	return flags
}

// agentFlags lead to the servers at that port.
func agentFlags(who side, certs *pki.Set, serversPort int, at agentPlace) []string {
	flags := []string{
		"--ca-cert=" + certs.CA,
		"--proxy-server-host=127.0.0.1",
		fmt.Sprintf("--proxy-server-port=%d", serversPort),
		fmt.Sprintf("--health-server-port=%d", at.healthPort),
		fmt.Sprintf("--admin-server-port=%d", at.adminPort),
		"--agent-id=" + at.id,
		"--v=2",
	}
	if who.about().bindFlags {
		flags = append(flags, "--health-server-host=127.0.0.1", "--admin-bind-address=127.0.0.1")
	}
	return flags
}

func agentCertificate(certs *pki.Set) []string {
	return []string{"--agent-cert=" + certs.Agent.Cert, "--agent-key=" + certs.Agent.Key}
}

// newDialer dials as kube-apiserver does that has this server.
func newDialer(f front, certs *pki.Set, at serverPlace) (frontend.Dialer, error) {
	if f.unix {
		if f.isGRPC() {
			return frontend.GRPCOverUnix(at.socket), nil
		}
		return &frontend.Connect{Network: "unix", Address: at.socket}, nil
	}
	config, err := certs.ClientConfig()
	if err != nil {
		return nil, err
	}
	address := fmt.Sprintf("127.0.0.1:%d", at.frontendPort)
	if f.isGRPC() {
		return frontend.GRPCOverTLS(address, config), nil
	}
	return &frontend.Connect{Network: "tcp", Address: address, TLS: config}, nil
}
