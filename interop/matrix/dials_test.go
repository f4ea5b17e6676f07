package matrix

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"adit/interop/internal/frontend"
	"adit/interop/internal/target"
)

// agentDialTimeout is how long upstream's agent tries to reach a target.
const agentDialTimeout = 5 * time.Second

// expectRefusal dials and demands the agent's error text, and over CONNECT one of the statuses.
func (e *env) expectRefusal(address string, texts []string, statuses ...int) error {
	conn, err := e.dial(e.ctx, address)
	if err == nil {
		conn.Close()
		return failf(answeredFirst, "dial to %s succeeded", address)
	}
	// The same, when what follows the head comes in one piece with it.
	if buffered, ok := errors.AsType[*frontend.BufferedError](err); ok {
		return failf(answeredFirst, "dial to %s got a 200, and the refusal behind it: %v", address, buffered)
	}
	e.note("%v", err)
	return e.checkRefusal(err, texts, statuses...)
}

func (e *env) checkRefusal(err error, texts []string, statuses ...int) error {
	answer, isStatus := errors.AsType[*frontend.StatusError](err)
	if isStatus == e.front.isGRPC() {
		return fmt.Errorf("unexpected kind of error: %w", err)
	}
	if isStatus && !slices.Contains(statuses, answer.Code) {
		return fmt.Errorf("status is not one of %v: %w", statuses, err)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			return fmt.Errorf("error does not say %q: %w", text, err)
		}
	}
	return nil
}

func refusedTarget(e *env) error {
	address, err := target.RefusedAddress()
	if err != nil {
		return err
	}
	return e.expectRefusal(address, []string{"dial tcp " + address + ": connect: connection refused"}, http.StatusBadGateway)
}

func unknownHost(e *env) error {
	return e.expectRefusal("unknown-host.invalid:80", []string{"lookup unknown-host.invalid", "no such host"}, http.StatusBadGateway)
}

func blackHoleTarget(e *env) error {
	hole, err := target.NewBlackHole()
	if err != nil {
		return err
	}
	e.onEnd(hole.Close)
	start := time.Now()
	err = e.expectRefusal(hole.Address(), []string{"dial tcp " + hole.Address() + ": i/o timeout"}, http.StatusGatewayTimeout)
	took := time.Since(start)
	if err == nil && (took < agentDialTimeout-500*time.Millisecond || took > agentDialTimeout+5*time.Second) {
		return fmt.Errorf("gave up after %v, expected %v", took, agentDialTimeout)
	}
	return err
}

// addressForms dials by name and by IPv6, where the machine has it.
func addressForms(e *env) error {
	echo, err := e.target(target.Echo(func(target.Received) {}))
	if err != nil {
		return err
	}
	addresses := []string{fmt.Sprintf("localhost:%d", echo.Port()), echo.Address()}
	if listener, err := net.Listen("tcp6", "[::1]:0"); err == nil {
		e.onEnd(func() { listener.Close() })
		go echoAll(listener)
		addresses = append(addresses, listener.Addr().String())
	} else {
		e.note("no IPv6 on this machine: %v", err)
	}
	for _, address := range addresses {
		conn, err := e.mustDial(address)
		if err != nil {
			return err
		}
		if err := ping(conn); err != nil {
			return fmt.Errorf("%s: %w", address, err)
		}
		conn.Close()
	}
	return nil
}

// noAgent dials while no agent is connected. Upstream answers 500 over CONNECT; ours may choose a status that tells
// more, as kube-apiserver only needs it not to be 200.
func noAgent(e *env) error {
	e.killAgent()
	if err := e.waitAgentGone(); err != nil {
		return err
	}
	statuses := []int{http.StatusInternalServerError}
	if e.pair.server == ours {
		statuses = append(statuses, http.StatusBadGateway, http.StatusServiceUnavailable)
	}
	ctx, cancel := context.WithTimeout(e.ctx, 10*time.Second)
	defer cancel()
	conn, err := e.dial(ctx, "127.0.0.1:1")
	if err == nil {
		conn.Close()
		return errors.New("dial without an agent succeeded")
	}
	e.note("%v", err)
	if err := e.checkRefusal(err, []string{"No agent available"}, statuses...); err != nil {
		return err
	}
	return e.restore()
}
