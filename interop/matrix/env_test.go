package matrix

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"adit/interop/internal/frontend"
	"adit/interop/internal/target"
)

// env is what one run of one case has to work with. What it opens is closed when the case ends or its time is up,
// and that unblocks whatever still waits for it.
type env struct {
	*rig
	ctx context.Context

	mutex   sync.Mutex
	done    bool
	closers []func()
	notes   []string
}

// dial goes through the proxy; the context bounds the wait for the agent's answer.
func (e *env) dial(ctx context.Context, address string) (net.Conn, error) {
	conn, err := e.dialer.Dial(ctx, address)
	if err != nil {
		return nil, err
	}
	e.onEnd(func() {
		if abandoner, ok := conn.(frontend.Abandoner); ok {
			abandoner.Abandon()
		}
		conn.Close()
	})
	return conn, nil
}

// mustDial is dial for a target that is known to accept.
func (e *env) mustDial(address string) (net.Conn, error) {
	conn, err := e.dial(e.ctx, address)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", address, err)
	}
	return conn, nil
}

func (e *env) target(handle func(*net.TCPConn)) (*target.Target, error) {
	t, err := target.Listen(handle)
	if err != nil {
		return nil, err
	}
	e.onEnd(t.Close)
	return t, nil
}

// onEnd runs the function when the case ends, at once if it has.
func (e *env) onEnd(close func()) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	if e.done {
		go close()
		return
	}
	e.closers = append(e.closers, close)
}

// note keeps a line of evidence for the report.
func (e *env) note(format string, arguments ...any) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.notes = append(e.notes, fmt.Sprintf(format, arguments...))
}

func (e *env) end() []string {
	e.mutex.Lock()
	closers := e.closers
	e.closers, e.done = nil, true
	notes := e.notes
	e.mutex.Unlock()
	for i := len(closers) - 1; i >= 0; i-- {
		closers[i]()
	}
	return notes
}

// runCase gives the case its time and cleans up behind it. A case that ignores the end of its time is left
// behind, with everything it uses closed.
func runCase(r *rig, c testCase) (notes []string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), c.limit)
	defer cancel()
	e := &env{rig: r, ctx: ctx}
	result := make(chan error, 1)
	go func() { result <- c.run(e) }()
	select {
	case err = <-result:
	case <-ctx.Done():
		notes = e.end()
		select {
		case err = <-result:
			if err == nil {
				err = fmt.Errorf("ended only when its connections were closed")
			}
		case <-time.After(5 * time.Second):
			err = fmt.Errorf("no end")
		}
		return notes, &failure{stalled, fmt.Sprintf("not done after %v: %v", c.limit, err)}
	}
	return e.end(), err
}
