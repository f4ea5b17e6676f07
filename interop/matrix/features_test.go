package matrix

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	authentication "k8s.io/api/authentication/v1"
	coordination "k8s.io/api/coordination/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"adit/interop/internal/kube"
	"adit/interop/internal/proc"
	"adit/interop/internal/target"
)

// feature needs processes of its own, with flags of its own.
type feature struct {
	name    string
	options func(kubeconfig, dir string) (options, error)
	run     func(*env, *kube.API) error
}

const (
	featureLimit = 90 * time.Second
	namespace    = "kube-system"
	audience     = "system:konnectivity-server"
	account      = "konnectivity-agent"
	goodUser     = "system:serviceaccount:" + namespace + ":" + account
)

var allFeatures = []feature{
	{"token-review", tokenOptions, tokenReview},
	{"leases", leaseOptions, countLeases},
	{"strategies", strategyOptions, strategies},
}

// TestFeatures runs what goes beyond a server, an agent and certificates, on one frontend: none of it knows frontends.
func TestFeatures(t *testing.T) {
	s := setUp(t)
	pattern, err := regexp.Compile(*casesFlag)
	if err != nil {
		t.Fatal(err)
	}
	var rigs []func()
	for _, p := range s.pairs {
		for _, one := range allFeatures {
			if !pattern.MatchString(one.name) {
				continue
			}
			dir := s.subdirectory(t)
			rigs = append(rigs, func() { s.runFeature(t, p, one, dir) })
		}
	}
	if len(rigs) == 0 {
		t.Fatalf("no feature matches %q", *casesFlag)
	}
	atOnce(rigs)
}

func (s *stage) runFeature(t *testing.T, p pair, one feature, dir string) {
	f := front{mode: "grpc", unix: true}
	r, api, err := s.startFeature(p, f, one, dir)
	if err != nil {
		record(t, result{pair: p, front: f, name: one.name, outcome: failed, text: err.Error()})
		return
	}
	defer api.Close()
	defer r.stop()
	record(t, judge(r, testCase{name: one.name, limit: featureLimit, run: func(e *env) error { return one.run(e, api) }}))
}

func (s *stage) startFeature(p pair, f front, one feature, dir string) (*rig, *kube.API, error) {
	api, err := kube.Start(s.certs)
	if err != nil {
		return nil, nil, err
	}
	r, err := func() (*rig, error) {
		api.Know(goodToken, goodUser)
		kubeconfig := filepath.Join(dir, "kubeconfig")
		if err := api.WriteKubeconfig(kubeconfig); err != nil {
			return nil, err
		}
		extra, err := one.options(kubeconfig, dir)
		if err != nil {
			return nil, err
		}
		return newRig(p, f, extra, dir, s.certs, s.bins)
	}()
	if err != nil {
		api.Close()
		return nil, nil, err
	}
	return r, api, nil
}

const (
	goodToken    = "good"
	unknownToken = "unknown"
	foreignToken = "foreign"
	lateToken    = "late"
)

func tokenPath(dir string) string { return filepath.Join(dir, "token") }

func tokenOptions(kubeconfig, dir string) (options, error) {
	return options{
		server: []string{
			"--kubeconfig=" + kubeconfig,
			"--agent-namespace=" + namespace,
			"--agent-service-account=" + account,
			"--authentication-audience=" + audience,
		},
		agent:  []string{"--service-account-token-path=" + tokenPath(dir)},
		tokens: true,
	}, os.WriteFile(tokenPath(dir), []byte(goodToken), 0o600)
}

// tokenReview: an agent whose token is the account's is let in, others are not, and the token is read anew at each attempt.
// That an agent tries again shows that it was refused.
func tokenReview(e *env, api *kube.API) error {
	if err := e.dialsWork(); err != nil {
		return err
	}
	for _, review := range api.Reviews() {
		if review.Token != goodToken || !slices.Equal(review.Audiences, []string{audience}) {
			return fmt.Errorf("asked for a review of token %q for %q", review.Token, review.Audiences)
		}
	}
	api.Know(foreignToken, "system:serviceaccount:default:"+account)
	api.Know(lateToken, goodUser)
	e.killAgent()
	if err := e.waitAgentGone(); err != nil {
		return err
	}
	launched := false
	for _, token := range []string{unknownToken, foreignToken, lateToken} {
		if err := os.WriteFile(tokenPath(e.dir), []byte(token), 0o600); err != nil {
			return err
		}
		if !launched {
			agent, err := e.launchAgent("interop-agent", e.agentHealth, e.agentAdmin, e.extra.agent...)
			if err != nil {
				return err
			}
			e.rig.agent, launched = agent, true
		}
		err := proc.Until(e.ctx, fmt.Sprintf("token %q is reviewed", token), func() (bool, error) {
			return slices.ContainsFunc(api.Reviews(), func(r authentication.TokenReviewSpec) bool { return r.Token == token }), nil
		})
		if err != nil {
			return err
		}
	}
	if err := e.waitReady(); err != nil {
		return err
	}
	e.note("%d reviews", len(api.Reviews()))
	return e.dialsWork()
}

func leaseOptions(kubeconfig, _ string) (options, error) {
	return options{
		server: []string{"--kubeconfig=" + kubeconfig, "--enable-lease-controller"},
		agent:  []string{"--kubeconfig=" + kubeconfig, "--count-server-leases"},
	}, nil
}

// countLeases: the server publishes its Lease, removes what has expired, and takes its own away at its end; the agent counts.
func countLeases(e *env, api *kube.API) error {
	const own = "konnectivity-proxy-server-interop-server"
	find := func(name string) (coordination.Lease, bool) {
		all := api.Leases(namespace)
		i := slices.IndexFunc(all, func(l coordination.Lease) bool { return l.Name == name })
		if i < 0 {
			return coordination.Lease{}, false
		}
		return all[i], true
	}
	var lease coordination.Lease
	err := proc.Until(e.ctx, "the server has a Lease", func() (found bool, _ error) {
		lease, found = find(own)
		return found, nil
	})
	if err != nil {
		return err
	}
	if err := checkLease(lease); err != nil {
		return err
	}
	if err := e.waitCount(1); err != nil {
		return err
	}
	// "b" ends without being renewed, as the Lease of a server that was killed does. One that is changed to an end in the past
	// would not do: ours takes a change that it sees for a sign of life, whatever the clocks say.
	api.PutLease(leaseOf("a", lease.Labels, time.Hour))
	api.PutLease(leaseOf("b", lease.Labels, shortLease))
	api.PutLease(leaseOf("c", map[string]string{"k8s-app": "another"}, time.Second))
	if err := e.waitCount(3); err != nil {
		return err
	}
	if err := e.waitCount(2); err != nil {
		return err
	}
	err = proc.Until(e.ctx, "the expired Lease is gone", func() (bool, error) {
		_, found := find("b")
		return !found, nil
	})
	if err != nil {
		return err
	}
	if _, found := find("c"); !found {
		return fmt.Errorf("a Lease of something else was removed")
	}
	if err := e.dialsWork(); err != nil {
		return err
	}
	if err := e.rig.server.Terminate(); err != nil {
		return err
	}
	return proc.Until(e.ctx, "the server's Lease is gone with it", func() (bool, error) {
		_, found := find(own)
		return !found, nil
	})
}

func checkLease(lease coordination.Lease) error {
	spec := lease.Spec
	switch {
	case lease.Labels["k8s-app"] != "konnectivity-server":
		return fmt.Errorf("the Lease's labels are %v", lease.Labels)
	case spec.HolderIdentity == nil || *spec.HolderIdentity != "interop-server":
		return fmt.Errorf("the Lease's holder is not the server")
	case spec.LeaseDurationSeconds == nil || *spec.LeaseDurationSeconds != 30:
		return fmt.Errorf("the Lease is not for 30 s")
	case spec.RenewTime == nil || time.Since(spec.RenewTime.Time).Abs() > time.Minute:
		return fmt.Errorf("the Lease was renewed at %v", spec.RenewTime)
	}
	return nil
}

// shortLease leaves the agent time to count it, on a loaded machine too.
const shortLease = 12 * time.Second

// leaseOf was renewed now.
func leaseOf(name string, labels map[string]string, duration time.Duration) coordination.Lease {
	seconds := int32(duration / time.Second)
	at := meta.NowMicro()
	return coordination.Lease{
		ObjectMeta: meta.ObjectMeta{Namespace: namespace, Name: name, Labels: labels},
		Spec:       coordination.LeaseSpec{HolderIdentity: &name, LeaseDurationSeconds: &seconds, RenewTime: &at},
	}
}

func (e *env) waitCount(count float64) error {
	return proc.Until(e.ctx, fmt.Sprintf("the agent knows %v servers", count), func() (bool, error) {
		known, err := proc.Metric(e.agentURL("/metrics"), "konnectivity_network_proxy_agent_known_server_count")
		return known == count, err
	})
}

func strategyOptions(_, _ string) (options, error) {
	return options{
		server: []string{"--proxy-strategies=destHost,defaultRoute"},
		agent:  []string{"--agent-identifiers=ipv4=127.0.0.1"},
	}, nil
}

// strategies: the agent that names a host gets its dials, the one with the default route all others.
func strategies(e *env, _ *kube.API) error {
	ports, err := proc.FreePorts(2)
	if err != nil {
		return err
	}
	second, err := e.launchAgent("interop-default", ports[0], ports[1], "--agent-identifiers=default-route=true")
	if err != nil {
		return err
	}
	e.onEnd(second.Kill)
	url := fmt.Sprintf("http://127.0.0.1:%d", ports[0])
	if err := second.WaitStatus(e.ctx, url+"/readyz", 200); err != nil {
		return err
	}
	echoes, err := e.target(target.Echo(func(target.Received) {}))
	if err != nil {
		return err
	}
	byName := fmt.Sprintf("localhost:%d", echoes.Port())
	// The agent may be ready a moment before the server counts on it.
	err = proc.Until(e.ctx, "the default route works", func() (bool, error) {
		conn, err := e.dial(e.ctx, byName)
		if err != nil {
			return false, nil
		}
		return true, ping(conn)
	})
	if err != nil {
		return err
	}
	for range 10 {
		conn, err := e.mustDial(echoes.Address())
		if err != nil {
			return err
		}
		if err := ping(conn); err != nil {
			return err
		}
	}
	named, err := e.openEndpoints()
	if err != nil {
		return err
	}
	rest, err := proc.Metric(url+"/metrics", openEndpointsMetric)
	if err != nil {
		return err
	}
	if named != 10 || rest != 1 {
		return fmt.Errorf("the agent of the host has %v of 10 connections, the one of the default route %v of 1", named, rest)
	}
	second.Kill()
	return proc.Until(e.ctx, "a dial to another host finds no agent", func() (bool, error) {
		ctx, cancel := context.WithTimeout(e.ctx, 5*time.Second)
		defer cancel()
		conn, err := e.dial(ctx, byName)
		if err == nil {
			conn.Close()
			return false, nil
		}
		return e.checkRefusal(err, []string{"No agent available"}) == nil, nil
	})
}
