package matrix

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"adit/interop/internal/proc"
	"adit/interop/internal/target"
)

// endLimit is for a process that has nothing left to do: our agent leaves some seconds after its last connection.
const endLimit = 20 * time.Second

// agentDrains: the agent's first signal. What is open goes on, and new dials still work, since no other agent is there.
// Releases that know no drain end instead, and their server must notice.
func agentDrains(e *env) (err error) {
	conn, address, err := e.echoing()
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			e.killAgent() // one that drains is of no use to the cases behind
		}
	}()
	if err := e.agent.Terminate(); err != nil {
		return err
	}
	if !e.pair.agent.about().drains {
		if err := e.awaitEnd("agent", e.agent); err != nil {
			return err
		}
		if err := e.waitAgentGone(); err != nil {
			return err
		}
		return e.restoreAndDial()
	}
	// The drain has begun when the agent has heard the signal, which nothing tells. Pings go on over that time.
	for range 10 {
		if err := ping(conn); err != nil {
			return fmt.Errorf("connection of before the signal: %w", err)
		}
		select {
		case <-e.agent.Exited():
			return fmt.Errorf("the agent ended with a connection open: %v", e.agent.State())
		case <-time.After(100 * time.Millisecond):
		}
	}
	later, err := e.mustDial(address)
	if err != nil {
		return fmt.Errorf("after the signal: %w", err)
	}
	if err := ping(later); err != nil {
		return fmt.Errorf("connection of after the signal: %w", err)
	}
	later.Close()
	conn.Close()
	// Ours ends by itself, upstream's at the second signal.
	if e.pair.agent != ours {
		if err := e.agent.Terminate(); err != nil {
			return err
		}
	}
	if err := e.awaitEnd("agent", e.agent); err != nil {
		return err
	}
	if code := e.agent.State().ExitCode(); code != 0 {
		return fmt.Errorf("the agent ended with %v", e.agent.State())
	}
	return e.restoreAndDial()
}

// serverDrains: our server's first signal, with an agent of any age. What is open goes on until its own end; then the
// server leaves, and the agent finds the next one.
func serverDrains(e *env) (err error) {
	conn, _, err := e.echoing()
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			e.server.Kill()
		}
	}()
	if err := e.server.Terminate(); err != nil {
		return err
	}
	// Longer than an upstream agent takes to cut a tunnel after a GOAWAY.
	for range 25 {
		if err := ping(conn); err != nil {
			return fmt.Errorf("connection of before the signal: %w", err)
		}
		select {
		case <-e.server.Exited():
			return fmt.Errorf("the server ended with a connection open: %v", e.server.State())
		case <-time.After(100 * time.Millisecond):
		}
	}
	conn.Close()
	if err := e.awaitEnd("server", e.server); err != nil {
		return err
	}
	if code := e.server.State().ExitCode(); code != 0 {
		return fmt.Errorf("the server ended with %v", e.server.State())
	}
	return e.restoreAndDial()
}

// echoing is a connection to an echo target that has been used, and the target's address.
func (e *env) echoing() (net.Conn, string, error) {
	echoes, err := e.target(target.Echo(func(target.Received) {}))
	if err != nil {
		return nil, "", err
	}
	conn, err := e.mustDial(echoes.Address())
	if err != nil {
		return nil, "", err
	}
	return conn, echoes.Address(), ping(conn)
}

func (e *env) awaitEnd(name string, process *proc.Process) error {
	ctx, cancel := context.WithTimeout(e.ctx, endLimit)
	defer cancel()
	start := time.Now()
	select {
	case <-process.Exited():
		e.note("the %s ended after %.1f s", name, time.Since(start).Seconds())
		return nil
	case <-ctx.Done():
		return errors.New("the " + name + " does not end")
	}
}

func (e *env) restoreAndDial() error {
	if err := e.restore(); err != nil {
		return err
	}
	return e.dialsWork()
}
