package matrix

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"time"

	"adit/interop/internal/proc"
	"adit/interop/internal/target"
)

// closeSizes are what one side sends before it closes at once.
var closeSizes = []int{1, 10, 4097, 70_001, 1_000_003, 3_000_000}

// targetClosesFirst: the target sends and closes; the client must get all, then the end.
func targetClosesFirst(e *env) error {
	for _, size := range closeSizes {
		sent := target.Random(uint64(size), size)
		sender, err := e.target(target.Sender(true, func() []byte { return sent }))
		if err != nil {
			return err
		}
		conn, err := e.mustDial(sender.Address())
		if err != nil {
			return err
		}
		if _, err := conn.Write([]byte{1}); err != nil {
			return fmt.Errorf("write: %w", err)
		}
		got := target.ReadAll(conn)
		if got.Bytes != int64(size) {
			return failf(lost, "client got %d of %d bytes (%v)", got.Bytes, size, got.Err)
		}
		if got.Sum != sha256.Sum256(sent) {
			return fmt.Errorf("client got %d bytes, but not those that were sent", size)
		}
		if got.Err != nil {
			return fmt.Errorf("client got all %d bytes, then not EOF: %w", size, got.Err)
		}
		conn.Close()
		sender.Close()
	}
	return nil
}

// clientClosesFirst: the client sends and closes with the data in flight; the target must get all.
func clientClosesFirst(e *env) error { return e.clientCloses(closeSizes, 0) }

// clientClosesFirstSlowTarget: the same towards a target that takes 64 KiB each 10 ms.
func clientClosesFirstSlowTarget(e *env) error {
	return e.clientCloses([]int{5_000_000}, 10*time.Millisecond)
}

func (e *env) clientCloses(sizes []int, pause time.Duration) error {
	reports := make(chan target.Received, 1)
	sink, err := e.target(target.Sink(pause, func(r target.Received) { reports <- r }))
	if err != nil {
		return err
	}
	missing := ""
	for _, size := range sizes {
		sent := target.Random(uint64(size), size)
		conn, err := e.mustDial(sink.Address())
		if err != nil {
			return err
		}
		if err := writeChunks(conn, sent); err != nil {
			return fmt.Errorf("write %d bytes: %w", size, err)
		}
		if err := conn.Close(); err != nil {
			return fmt.Errorf("close: %w", err)
		}
		select {
		case got := <-reports:
			switch {
			case got.Bytes > int64(size) || got.Bytes == int64(size) && got.Sum != sha256.Sum256(sent):
				return fmt.Errorf("target got %d bytes, but not the %d that were sent", got.Bytes, size)
			case got.Bytes < int64(size):
				missing += fmt.Sprintf("; %d of %d", got.Bytes, size)
			case got.Err != nil:
				return fmt.Errorf("target got all %d bytes, then not EOF: %w", size, got.Err)
			}
		case <-e.ctx.Done():
			return failf(stalled, "target saw no end of a connection of %d bytes", size)
		}
	}
	if missing != "" {
		return failf(lost, "target did not get all bytes: %s", missing[2:])
	}
	return nil
}

// writeChunks writes as a copying proxy would, 32 KiB at a time.
func writeChunks(conn net.Conn, sent []byte) error {
	for rest := sent; len(rest) > 0; {
		n := min(32<<10, len(rest))
		if _, err := conn.Write(rest[:n]); err != nil {
			return err
		}
		rest = rest[n:]
	}
	return nil
}

// clientHalfCloses: the client ends its sending side and waits for the answer, as an HTTP/1.0 client may. The tunnel's
// protocol cannot say so, so an answer is welcome but not demanded; what was sent must arrive.
func clientHalfCloses(e *env) error {
	const size = 100_003
	reports := make(chan target.Received, 1)
	replier, err := e.target(func(conn *net.TCPConn) {
		reports <- target.ReadAll(conn)
		_, _ = conn.Write([]byte("answer")) // whether it arrives is for the client to say
	})
	if err != nil {
		return err
	}
	conn, err := e.mustDial(replier.Address())
	if err != nil {
		return err
	}
	if err := writeChunks(conn, target.Random(size, size)); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	if err := conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		return fmt.Errorf("end the sending side: %w", err)
	}
	answer, _ := io.ReadAll(conn) // how the connection ends is not demanded either
	got := <-reports
	if got.Bytes < size {
		return failf(lost, "target got %d of %d bytes, client got %q", got.Bytes, size, answer)
	}
	if got.Sum != sha256.Sum256(target.Random(size, size)) {
		return fmt.Errorf("target got %d bytes, but not the %d that were sent", got.Bytes, size)
	}
	e.note("all bytes arrived, client got %q back", answer)
	return nil
}

// nothingLeftOpen: all connections of the cases before are closed by now, so the agent must come down to none.
func nothingLeftOpen(e *env) error {
	ctx, cancel := context.WithTimeout(e.ctx, 20*time.Second)
	defer cancel()
	var open float64
	err := proc.Until(ctx, "the agent has no connection to a target", func() (bool, error) {
		var err error
		open, err = e.openEndpoints()
		return open == 0, err
	})
	if err != nil && ctx.Err() != nil {
		return failf(leaked, "the agent still counts %v open connections to targets", open)
	}
	return err
}
