package matrix

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"time"

	"adit/interop/internal/frontend"
	"adit/interop/internal/target"
)

// exchangeLimit is what one greeting or transfer may take, long enough for any load. A lost one may also come as
// silence: the client library can drop the close together with the data (W33), and then never ends a read.
const exchangeLimit = 10 * time.Second

var errOverdue = errors.New("overdue")

// within leaves a function behind that does not come back in time.
func within(limit time.Duration, run func() error) error {
	done := make(chan error, 1)
	go func() { done <- run() }()
	select {
	case err := <-done:
		return err
	case <-time.After(limit):
		return errOverdue
	}
}

const greetingText = "220 interop.example ESMTP, speaks first\r\n"

// targetSpeaksFirst repeats what is a race in upstream.
func targetSpeaksFirst(e *env) error { return e.greet(40) }

// greetings is the count that our pair has to reach.
func greetings(e *env) error { return e.greet(200) }

func (e *env) greet(dials int) error {
	greeter, err := e.target(target.Greeter([]byte(greetingText)))
	if err != nil {
		return err
	}
	whole := 0
	var firstMiss error
	for i := range dials {
		err := e.greetOnce(greeter.Address())
		if err != nil && kindOf(err) != early {
			return fmt.Errorf("dial %d: %w", i, err)
		}
		if err == nil {
			whole++
		} else if firstMiss == nil {
			firstMiss = err
		}
	}
	if whole < dials {
		return failf(early, "%d of %d greetings arrived whole; the first that did not: %v", whole, dials, firstMiss)
	}
	e.note("%d of %d greetings whole", whole, dials)
	return nil
}

func (e *env) greetOnce(address string) error {
	conn, err := e.dial(e.ctx, address)
	if err != nil {
		_, buffered := errors.AsType[*frontend.BufferedError](err)
		_, noHead := errors.AsType[*frontend.HeadError](err)
		if buffered || noHead {
			return failf(early, "%v", err)
		}
		return err
	}
	defer conn.Close()
	got := make([]byte, len(greetingText))
	n := 0
	err = within(exchangeLimit, func() (err error) {
		n, err = io.ReadFull(conn, got)
		return err
	})
	if errors.Is(err, errOverdue) {
		return failf(early, "no greeting within %v", exchangeLimit)
	}
	if err != nil {
		return failf(early, "got %q, then %v", got[:n], err)
	}
	if !bytes.Equal(got, []byte(greetingText)) {
		return fmt.Errorf("got %q", got)
	}
	return nil
}

// A quarter of the 1,000 transfers that are asked for, since there are four frontends.
const (
	transfers       = 250
	transfersAtOnce = 8
	maxTransfer     = 256 << 10
)

// transfersDown: the target sends a blob of random length and closes at once. Every second one speaks first.
func transfersDown(e *env) error {
	var targets []*target.Target
	for _, waitForByte := range []bool{true, false} {
		t, err := e.target(target.Sender(waitForByte, func() []byte { return target.Blob(rand.Uint64(), 1+rand.IntN(maxTransfer)) }))
		if err != nil {
			return err
		}
		targets = append(targets, t)
	}
	return e.tally("down", parallel(transfers, transfersAtOnce, func(i int) error {
		conn, err := e.mustDial(targets[i%2].Address())
		if err != nil {
			return err
		}
		defer conn.Close()
		if i%2 == 0 {
			if _, err := conn.Write([]byte{1}); err != nil {
				return fmt.Errorf("write: %w", err)
			}
		}
		return within(exchangeLimit, func() error { return target.ReadBlob(conn, maxTransfer) })
	}))
}

// transfersUp: the client sends a blob of random length and closes at once.
func transfersUp(e *env) error {
	verdicts := make(chan error, transfers)
	sink, err := e.target(func(conn *net.TCPConn) { verdicts <- target.ReadBlob(conn, maxTransfer) })
	if err != nil {
		return err
	}
	err = parallel(transfers, transfersAtOnce, func(int) error {
		conn, err := e.mustDial(sink.Address())
		if err != nil {
			return err
		}
		if err := writeChunks(conn, target.Blob(rand.Uint64(), 1+rand.IntN(maxTransfer))); err != nil {
			return fmt.Errorf("write: %w", err)
		}
		return conn.Close()
	})
	if err != nil {
		return err
	}
	var errs []error
	for range transfers {
		select {
		case verdict := <-verdicts:
			errs = append(errs, verdict)
		case <-e.ctx.Done():
			return failf(stalled, "targets saw the end of %d of %d connections", len(errs), transfers)
		}
	}
	return e.tally("up", partial(errs))
}

// tally says how many transfers arrived whole.
func (e *env) tally(direction string, err error) error {
	if some, ok := errors.AsType[*partialError](err); ok {
		return failf(lost, "%d of %d transfers %s arrived whole; the first that did not: %v", some.total-some.failed, some.total, direction, some.first)
	}
	e.note("%d of %d transfers %s whole", transfers, transfers, direction)
	return nil
}
