package matrix

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"adit/interop/internal/proc"
	"adit/interop/internal/target"
)

// promptly is what counts as at once when a process is gone: no timeout of any peer is as short, and a loaded machine
// still makes it. Shorter than the 30 s of the client library and the 5 s of the agent's dial.
const promptly = 4 * time.Second

// agentKilledDuringDial: the agent ends while it dials; the client must be told at once.
func agentKilledDuringDial(e *env) error {
	hole, err := target.NewBlackHole()
	if err != nil {
		return err
	}
	e.onEnd(hole.Close)
	answer := make(chan error, 1)
	go func() {
		_, err := e.dial(e.ctx, hole.Address())
		answer <- err
	}()
	err = proc.Until(e.ctx, "the agent dials", func() (bool, error) {
		count, err := proc.DialsInProgress(hole.Port())
		return count > 0, err
	})
	if err != nil {
		return err
	}
	e.killAgent()
	killed := time.Now()
	select {
	case err = <-answer:
	case <-time.After(promptly):
		if err := e.restore(); err != nil {
			return err
		}
		return failf(noAnswer, "the dial has no answer %v after its agent was killed", promptly)
	}
	if err == nil {
		return errors.New("the dial succeeded")
	}
	e.note("after %d ms: %v", time.Since(killed).Milliseconds(), err)
	if err := e.checkRefusal(err, nil, http.StatusBadGateway, http.StatusServiceUnavailable); err != nil {
		return err
	}
	return e.restore()
}

// agentKilledDuringTransfer: the agent ends while data flows; the client must see the end at once, and the next
// agent must serve.
func agentKilledDuringTransfer(e *env) error {
	if err := e.endDuringTransfer("agent", e.killAgent); err != nil {
		return err
	}
	if err := e.restore(); err != nil {
		return err
	}
	return e.dialsWork()
}

// serverKilledAndRestarted: the server ends while data flows and comes back on the same ports and socket path. The
// agent must find it again by itself.
func serverKilledAndRestarted(e *env) error {
	if err := e.endDuringTransfer("server", e.server.Kill); err != nil {
		return err
	}
	agent := e.agent.PID()
	start := time.Now()
	if err := e.restore(); err != nil {
		return err
	}
	if e.agent.PID() != agent {
		return errors.New("the agent ended with its server")
	}
	e.note("agent back after %.1f s", time.Since(start).Seconds())
	return e.dialsWork()
}

// endDuringTransfer reads from an endless source, kills, and waits until client and target both see the end.
func (e *env) endDuringTransfer(what string, kill func()) error {
	targetEnd := make(chan struct{})
	source, err := e.target(target.Endless(func() { close(targetEnd) }))
	if err != nil {
		return err
	}
	conn, err := e.mustDial(source.Address())
	if err != nil {
		return err
	}
	if _, err := conn.Write([]byte{1}); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	if _, err := io.CopyN(io.Discard, conn, 1<<20); err != nil {
		return fmt.Errorf("read before the kill: %w", err)
	}
	clientEnd := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, conn)
		clientEnd <- err
	}()
	kill()
	killed := time.Now()
	timeout := time.After(promptly)
	select {
	case err := <-clientEnd:
		e.note("client saw the end after %d ms (%v)", time.Since(killed).Milliseconds(), err)
	case <-timeout:
		return failf(stalled, "client saw no end within %v of the kill of the %s", promptly, what)
	}
	select {
	case <-targetEnd:
		return nil
	case <-timeout:
		return failf(leaked, "target saw no end within %v of the kill of the %s", promptly, what)
	}
}

// dialsWork proves that a pair serves again.
func (e *env) dialsWork() error {
	echoes, err := e.target(target.Echo(func(target.Received) {}))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(e.ctx, 10*time.Second)
	defer cancel()
	conn, err := e.dial(ctx, echoes.Address())
	if err != nil {
		return fmt.Errorf("dial afterwards: %w", err)
	}
	defer conn.Close()
	return ping(conn)
}
