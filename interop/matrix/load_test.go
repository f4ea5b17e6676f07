package matrix

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"adit/interop/internal/frontend"
	"adit/interop/internal/proc"
	"adit/interop/internal/target"
)

const (
	loadWorkers = 4
	// loadPause is between two dials of one worker.
	loadPause = 40 * time.Millisecond
	// loadLimit is for one dial: more than any limit of a peer, so that it is the peer's error that is seen.
	loadLimit = 40 * time.Second
	// loadBytes make several packets and no multiple of any.
	loadBytes = 10_007
	// shownFailures are how many kinds of failure are told.
	shownFailures = 8
)

// load is dials at servers in service, each followed by an echo and a close, a few at once without end.
type load struct {
	address string
	begin   time.Time
	halt    chan struct{}
	workers sync.WaitGroup

	mutex    sync.Mutex
	seats    []*seat
	turn     int
	step     string
	steps    []string // those that are over
	dials    int      // ended
	slowest  time.Duration
	failed   int
	failures []*failedDials
}

// failedDials are those that failed at one server, in one step and in the same way.
type failedDials struct {
	server, step, text string
	count              int
	from, to           time.Time // when the first and the last of them began
	slowest            time.Duration
}

// seat is the kube-apiserver of one server.
type seat struct {
	name      string
	dialer    frontend.Dialer
	inService bool
	inFlight  int
	done      int // dials that ended well
}

func startLoad(e *env, address string, servers []*fleetServer) *load {
	l := &load{address: address, begin: time.Now(), halt: make(chan struct{}), step: "the start"}
	for _, server := range servers {
		l.seats = append(l.seats, &seat{name: server.String(), dialer: server.dialer, inService: true})
	}
	for range loadWorkers {
		l.workers.Go(func() { l.work(e.ctx) })
	}
	return l
}

// stop waits for the dials that are under way.
func (l *load) stop() {
	close(l.halt)
	l.workers.Wait()
}

func (l *load) work(ctx context.Context) {
	ticks := time.NewTicker(loadPause)
	defer ticks.Stop()
	for {
		select {
		case <-l.halt:
			return
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
		if s := l.take(); s != nil {
			l.dial(ctx, s)
		}
	}
}

// take is the next seat in service.
func (l *load) take() *seat {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	for range l.seats {
		l.turn++
		if s := l.seats[l.turn%len(l.seats)]; s.inService {
			s.inFlight++
			return s
		}
	}
	return nil
}

func (l *load) dial(ctx context.Context, s *seat) {
	l.mutex.Lock()
	name, dialer, step := s.name, s.dialer, l.step
	l.mutex.Unlock()
	start := time.Now()
	err := exchange(ctx, dialer, l.address)
	took := time.Since(start)
	l.mutex.Lock()
	defer l.mutex.Unlock()
	s.inFlight--
	l.dials++
	l.slowest = max(l.slowest, took)
	if err == nil {
		s.done++
		return
	}
	l.failed++
	l.note(failedDials{name, step, err.Error(), 1, start, start, took})
}

// note counts a dial that failed, under the lock.
func (l *load) note(one failedDials) {
	for _, known := range l.failures {
		if known.server == one.server && known.step == one.step && known.text == one.text {
			known.count++
			known.to = one.from
			known.slowest = max(known.slowest, one.slowest)
			return
		}
	}
	l.failures = append(l.failures, &one)
}

// exchange is one dial with an echo and a close.
func exchange(ctx context.Context, dialer frontend.Dialer, address string) error {
	ctx, cancel := context.WithTimeout(ctx, loadLimit)
	defer cancel()
	conn, err := dialer.Dial(ctx, address)
	if err != nil {
		return fmt.Errorf("dial: %w", err)
	}
	err = within(exchangeLimit, func() error {
		sent := target.Random(uint64(time.Now().UnixNano()), loadBytes)
		back, err := roundTrip(conn, sent)
		switch {
		case err != nil:
			return fmt.Errorf("echo: %w", err)
		case string(back) != string(sent):
			return errors.New("echo came back changed")
		}
		if err := conn.Close(); err != nil {
			return fmt.Errorf("close: %w", err)
		}
		return nil
	})
	if err != nil {
		if abandoner, ok := conn.(frontend.Abandoner); ok {
			abandoner.Abandon()
		}
		go conn.Close() // the library's may take its time
	}
	return err
}

// withdraw takes a server out of service and waits for the dials that it has.
func (l *load) withdraw(ctx context.Context, number int) error {
	s := l.seats[number]
	l.mutex.Lock()
	s.inService = false
	l.mutex.Unlock()
	ctx, cancel := context.WithTimeout(ctx, loadLimit+exchangeLimit)
	defer cancel()
	return proc.Until(ctx, fmt.Sprintf("the dials at %s have ended", s.name), func() (bool, error) {
		l.mutex.Lock()
		defer l.mutex.Unlock()
		return s.inFlight == 0, nil
	})
}

// restore puts the server that took the place into service.
func (l *load) restore(number int, server *fleetServer) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	s := l.seats[number]
	s.name, s.dialer, s.inService = server.String(), server.dialer, true
}

// more waits until so many more dials have ended well at each server in service.
func (l *load) more(ctx context.Context, count int) error {
	goals := make(map[*seat]int)
	l.mutex.Lock()
	for _, s := range l.seats {
		if s.inService {
			goals[s] = s.done + count
		}
	}
	l.mutex.Unlock()
	return proc.Until(ctx, fmt.Sprintf("%d more dials have ended at each server in service", count), func() (bool, error) {
		l.mutex.Lock()
		defer l.mutex.Unlock()
		for s, goal := range goals {
			if s.done < goal {
				return false, nil
			}
		}
		return true, nil
	})
}

// settledDials at each server after each step belong to it: a fault that shows only then is found there.
const settledDials = 20

// during runs one step of the change, and ends with the first that a dial failed in.
func (l *load) during(ctx context.Context, step string, run func() error) error {
	l.mutex.Lock()
	l.step = step
	l.mutex.Unlock()
	start := time.Now()
	err := run()
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, loadLimit)
		defer cancel()
		err = l.more(ctx, settledDials)
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.steps = append(l.steps, fmt.Sprintf("%s: %.1f s", step, time.Since(start).Seconds()))
	if err != nil {
		return fmt.Errorf("while %s: %w", step, err)
	}
	if l.failed > 0 {
		return fmt.Errorf("%s: a dial failed", step)
	}
	return nil
}

// verdict tells which dials failed, and when.
func (l *load) verdict() error {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.failed == 0 {
		return nil
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%d of %d dials failed; over were %s", l.failed, l.dials, strings.Join(l.steps, ", "))
	for _, f := range l.failures[:min(shownFailures, len(l.failures))] {
		after := func(at time.Time) float64 { return at.Sub(l.begin).Seconds() }
		fmt.Fprintf(&text, "\n%d at %s, while %s, begun %s to %s (%.2f to %.2f s after the first), the slowest %.2f s: %s",
			f.count, f.server, f.step, f.from.Format(clock), f.to.Format(clock), after(f.from), after(f.to), f.slowest.Seconds(), f.text)
	}
	return errors.New(text.String())
}

// clock is how processes' logs tell the time.
const clock = "15:04:05.000"

func (l *load) String() string {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return fmt.Sprintf("%d dials without a failure, the slowest %.2f s; %s", l.dials, l.slowest.Seconds(), strings.Join(l.steps, ", "))
}
