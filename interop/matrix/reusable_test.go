package matrix

import (
	"fmt"
	"net"

	"adit/interop/internal/frontend"
	"adit/interop/internal/target"
)

// reusableTunnel uses the client library's newer way: one HTTP/2 connection, a stream for each dial, ended with
// RST_STREAM. More streams at once than HTTP/2 libraries allow by default, then more resets than they forgive.
func reusableTunnel(e *env) error {
	const (
		atOnce   = 300
		inARow   = 500
		pingSize = 1001
	)
	echoes, err := e.target(target.Echo(func(target.Received) {}))
	if err != nil {
		return err
	}
	tunnel, err := e.dialer.(*frontend.GRPC).Reusable(e.ctx)
	if err != nil {
		return fmt.Errorf("create reusable tunnel: %w", err)
	}
	e.onEnd(func() { tunnel.Close() })
	conns := make([]net.Conn, atOnce)
	err = parallel(atOnce, atOnce, func(i int) (err error) {
		conns[i], err = tunnel.DialContext(e.ctx, "tcp", echoes.Address())
		return err
	})
	if err != nil {
		return fmt.Errorf("%d dials at once: %w", atOnce, err)
	}
	err = parallel(atOnce, atOnce, func(i int) error {
		if _, err := roundTrip(conns[i], target.Random(uint64(i), pingSize)); err != nil {
			return fmt.Errorf("stream %d: %w", i, err)
		}
		return conns[i].Close()
	})
	if err != nil {
		return err
	}
	for i := range inARow {
		conn, err := tunnel.DialContext(e.ctx, "tcp", echoes.Address())
		if err != nil {
			return fmt.Errorf("dial %d in a row: %w", i, err)
		}
		if err := ping(conn); err != nil {
			return fmt.Errorf("dial %d in a row: %w", i, err)
		}
		if err := conn.Close(); err != nil {
			return fmt.Errorf("close %d in a row: %w", i, err)
		}
	}
	e.note("%d streams at once and %d in a row on one connection", atOnce, inARow)
	return nil
}
