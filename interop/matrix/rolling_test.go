package matrix

import (
	"context"
	"errors"
	"fmt"
	"time"

	"adit/interop/internal/proc"
	"adit/interop/internal/target"
)

const rolledAgents = 3

// rollingChange: from upstream's pair to ours and back under load, one process at a time, and no dial at a server in service fails.
func rollingChange(e *env, f *fleet) (err error) {
	for number := range f.count {
		if _, err := f.addServer(e.ctx, number, upstream); err != nil {
			return err
		}
	}
	for range rolledAgents {
		if _, err := f.addAgent(e.ctx, upstream); err != nil {
			return err
		}
	}
	if err := f.complete(e.ctx); err != nil {
		return err
	}
	echoes, err := e.target(target.Echo(func(target.Received) {}))
	if err != nil {
		return err
	}
	l := startLoad(e, echoes.Address(), f.servers)
	defer func() {
		l.stop()
		err = errors.Join(l.verdict(), err)
		e.note("%v", l)
	}()
	for _, who := range []side{ours, upstream} {
		for number := range f.servers {
			step := fmt.Sprintf("server-%d becomes %s", number, who)
			if err := l.during(e.ctx, step, func() error { return f.replaceServer(e.ctx, l, number, who) }); err != nil {
				return err
			}
		}
		for range rolledAgents {
			old := f.agents[0] // new ones are at the end
			step := fmt.Sprintf("%v becomes %s", old, who)
			if err := l.during(e.ctx, step, func() error { return f.replaceAgent(e.ctx, l, old, who) }); err != nil {
				return err
			}
		}
	}
	return nil
}

// replaceServer takes kube-apiserver away, then agents, then the server; and brings them back the other way round.
func (f *fleet) replaceServer(ctx context.Context, l *load, number int, who side) error {
	old := f.servers[number]
	if err := l.withdraw(ctx, number); err != nil {
		return err
	}
	f.balancer.Remove(old.agentAddress())
	if err := old.Terminate(); err != nil {
		return err
	}
	if err := awaitGone(ctx, old.Process, old); err != nil {
		return err
	}
	server, err := f.addServer(ctx, number, who)
	if err != nil {
		return err
	}
	if err := f.complete(ctx); err != nil {
		return err
	}
	l.restore(number, server)
	return nil
}

// replaceAgent has the new one at every server before the old one is told to drain, and ends the old one when nothing is dialled
// through it any more. Ours ends itself then.
func (f *fleet) replaceAgent(ctx context.Context, l *load, old *fleetAgent, who side) error {
	if _, err := f.addAgent(ctx, who); err != nil {
		return err
	}
	if err := f.complete(ctx); err != nil {
		return err
	}
	if err := old.Terminate(); err != nil {
		return err
	}
	if old.side != ours {
		if err := f.awaitUnused(ctx, l, old); err != nil {
			return err
		}
		if err := old.Terminate(); err != nil {
			return err
		}
	}
	if err := awaitGone(ctx, old.Process, old); err != nil {
		return err
	}
	f.forget(old)
	return f.complete(ctx)
}

const (
	// unusedDials at each server without one for the agent say that the server does not choose it any more: with one agent in
	// four by lot, the chance of that otherwise is one in 100 000.
	unusedDials = 40
	unusedLimit = 30 * time.Second
)

// awaitUnused waits until dials go on and none of them is the agent's.
func (f *fleet) awaitUnused(ctx context.Context, l *load, agent *fleetAgent) error {
	ctx, cancel := context.WithTimeout(ctx, unusedLimit)
	defer cancel()
	for {
		before, err := agent.metric("dial_duration_seconds_count")
		if err != nil {
			return err
		}
		if err := l.more(ctx, unusedDials); err != nil {
			return fmt.Errorf("wait until %v is not dialled through: %w", agent, err)
		}
		after, err := agent.metric("dial_duration_seconds_count")
		if err != nil {
			return err
		}
		open, err := agent.metric("open_endpoint_connections")
		if err != nil {
			return err
		}
		if after == before && open == 0 {
			return nil
		}
	}
}

func awaitGone(ctx context.Context, process *proc.Process, who fmt.Stringer) error {
	ctx, cancel := context.WithTimeout(ctx, endLimit)
	defer cancel()
	select {
	case <-process.Exited():
	case <-ctx.Done():
		return fmt.Errorf("%v does not end:\n%s", who, process.LogTail(6))
	}
	if !process.State().Success() {
		return fmt.Errorf("%v ended with %v:\n%s", who, process.State(), process.LogTail(6))
	}
	return nil
}
