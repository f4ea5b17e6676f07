package matrix

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"adit/interop/internal/target"
)

// echoSizes are odd on purpose: around packet, frame and window sizes, none a multiple of a buffer, up to 64 MiB.
var echoSizes = []int{
	1, 2, 3, 17, 1023, 4095, 4096, 4097, 16385, 32769, 65537, 262_147, 1_000_003, 4<<20 + 1, 64 << 20,
}

// echo sends each size over a connection of its own, in writes of random length, while reading it back. Both ends
// sum what they got.
func echo(e *env) error { return e.echo(echoSizes) }

// smallerEcho is enough to see that two versions understand each other.
func smallerEcho(e *env) error { return e.echo([]int{1, 4097, 262_147, 16 << 20}) }

func (e *env) echo(sizes []int) error {
	reports := make(chan target.Received, 1)
	echoes, err := e.target(target.Echo(func(r target.Received) { reports <- r }))
	if err != nil {
		return err
	}
	for _, size := range sizes {
		sent := target.Random(uint64(size), size)
		conn, err := e.mustDial(echoes.Address())
		if err != nil {
			return err
		}
		start := time.Now()
		back, err := roundTrip(conn, sent)
		if err != nil {
			return fmt.Errorf("echo of %d bytes: %w", size, err)
		}
		if size == sizes[len(sizes)-1] {
			e.note("%d MiB both ways in %.1f s", size>>20, time.Since(start).Seconds())
		}
		sum := sha256.Sum256(sent)
		if sha256.Sum256(back) != sum {
			return fmt.Errorf("echo of %d bytes came back changed", size)
		}
		conn.Close()
		select {
		case got := <-reports:
			if got.Bytes != int64(size) || got.Sum != sum {
				return fmt.Errorf("target got %d of %d bytes, or other bytes (%v)", got.Bytes, size, got.Err)
			}
		case <-e.ctx.Done():
			return fmt.Errorf("target did not see the end of a connection of %d bytes", size)
		}
	}
	return nil
}

// roundTrip writes and reads at once.
func roundTrip(conn net.Conn, sent []byte) ([]byte, error) {
	written := make(chan error, 1)
	go func() {
		rng := rand.New(rand.NewPCG(uint64(len(sent)), 1))
		for rest := sent; len(rest) > 0; {
			// Mostly around the packet sizes of the peers, sometimes one large message of up to 1 MiB.
			n := 1 + rng.IntN(70_000)
			if rng.IntN(50) == 0 {
				n = 1 + rng.IntN(1<<20)
			}
			n = min(n, len(rest))
			if _, err := conn.Write(rest[:n]); err != nil {
				written <- fmt.Errorf("write: %w", err)
				return
			}
			rest = rest[n:]
		}
		written <- nil
	}()
	back := make([]byte, len(sent))
	if n, err := io.ReadFull(conn, back); err != nil {
		return nil, fmt.Errorf("read back %d of %d bytes: %w", n, len(sent), err)
	}
	return back, <-written
}

// concurrent holds 200 connections open at once, then uses them all.
func concurrent(e *env) error {
	const connections = 200
	echoes, err := e.target(target.Echo(func(target.Received) {}))
	if err != nil {
		return err
	}
	conns := make([]net.Conn, connections)
	err = parallel(connections, connections, func(i int) (err error) {
		conns[i], err = e.mustDial(echoes.Address())
		return err
	})
	if err != nil {
		return err
	}
	return parallel(connections, connections, func(i int) error {
		sent := target.Random(uint64(i), 20_001+i)
		back, err := roundTrip(conns[i], sent)
		if err != nil {
			return fmt.Errorf("connection %d: %w", i, err)
		}
		if !bytes.Equal(back, sent) {
			return fmt.Errorf("connection %d got other bytes than its own", i)
		}
		return conns[i].Close()
	})
}

// partialError stands for the failures among many runs of the same thing.
type partialError struct {
	failed, total int
	first         error
}

func (e *partialError) Error() string {
	return fmt.Sprintf("%d of %d failed, the first with: %v", e.failed, e.total, e.first)
}

func (e *partialError) Unwrap() error { return e.first }

// partial is nil if every error is.
func partial(errs []error) error {
	sum := partialError{total: len(errs)}
	for _, err := range errs {
		if err != nil {
			if sum.failed++; sum.first == nil {
				sum.first = err
			}
		}
	}
	if sum.failed == 0 {
		return nil
	}
	return &sum
}

// parallel runs the function count times, some at once.
func parallel(count, atOnce int, run func(int) error) error {
	var group sync.WaitGroup
	errs := make([]error, count)
	slots := make(chan struct{}, atOnce)
	for i := range count {
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			errs[i] = run(i)
		})
	}
	group.Wait()
	return partial(errs)
}

// ping proves that a connection to an echo target works.
func ping(conn net.Conn) error {
	sent := []byte("ping")
	back, err := roundTrip(conn, sent)
	if err == nil && !bytes.Equal(back, sent) {
		err = errors.New("echo came back changed")
	}
	return err
}

func echoAll(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return // closed
		}
		go func() {
			defer conn.Close()
			_, _ = io.Copy(conn, conn) // the client checks what came back
		}()
	}
}
