package target

import (
	"crypto/sha256"
	"errors"
	"hash"
	"io"
	"net"
	"time"
)

// Received is what came in on one connection until its end.
type Received struct {
	Bytes int64
	Sum   [sha256.Size]byte
	Err   error // nil for an orderly end
}

// Echo sends everything back and reports what it got.
func Echo(report func(Received)) func(*net.TCPConn) {
	return func(conn *net.TCPConn) {
		meter := newMeter()
		buffer := make([]byte, 64<<10)
		for {
			n, err := conn.Read(buffer)
			meter.add(buffer[:n])
			if n > 0 {
				if _, err := conn.Write(buffer[:n]); err != nil {
					report(meter.received(err))
					return
				}
			}
			if err != nil {
				report(meter.received(err))
				return
			}
		}
	}
}

// Sink reads to the end and reports what it got. Before each read of up to 64 KiB it waits for the pause.
func Sink(pause time.Duration, report func(Received)) func(*net.TCPConn) {
	return func(conn *net.TCPConn) {
		meter := newMeter()
		buffer := make([]byte, 64<<10)
		for {
			time.Sleep(pause)
			n, err := conn.Read(buffer)
			meter.add(buffer[:n])
			if err != nil {
				report(meter.received(err))
				return
			}
		}
	}
}

// Greeter speaks first, then waits for the peer's end.
func Greeter(greeting []byte) func(*net.TCPConn) {
	return func(conn *net.TCPConn) {
		if _, err := conn.Write(greeting); err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, conn) // how the peer ends does not matter here
	}
}

// Sender waits for one byte when asked to, writes what make gives, and closes first.
func Sender(waitForByte bool, make func() []byte) func(*net.TCPConn) {
	return func(conn *net.TCPConn) {
		if waitForByte {
			if _, err := io.ReadFull(conn, []byte{0}); err != nil {
				return
			}
		}
		_, _ = conn.Write(make()) // the reader checks what arrived
	}
}

// Endless waits for one byte, then writes until the connection breaks, and reports that it did.
func Endless(ended func()) func(*net.TCPConn) {
	return func(conn *net.TCPConn) {
		defer ended()
		if _, err := io.ReadFull(conn, []byte{0}); err != nil {
			return
		}
		chunk := make([]byte, 16<<10)
		for {
			if _, err := conn.Write(chunk); err != nil {
				return
			}
		}
	}
}

// meter counts and sums a stream.
type meter struct {
	bytes int64
	hash  hash.Hash
}

func newMeter() *meter { return &meter{hash: sha256.New()} }

func (m *meter) add(chunk []byte) {
	m.bytes += int64(len(chunk))
	m.hash.Write(chunk)
}

func (m *meter) received(err error) Received {
	r := Received{Bytes: m.bytes}
	m.hash.Sum(r.Sum[:0])
	if !errors.Is(err, io.EOF) {
		r.Err = err
	}
	return r
}

// ReadAll measures a stream to its end.
func ReadAll(reader io.Reader) Received {
	meter := newMeter()
	buffer := make([]byte, 64<<10)
	for {
		n, err := reader.Read(buffer)
		meter.add(buffer[:n])
		if err != nil {
			return meter.received(err)
		}
	}
}
