// Package target has the servers behind the agent: each shows one behaviour of a TCP peer.
package target

import (
	"fmt"
	"net"
	"sync"
)

// Target is a TCP server on 127.0.0.1 that hands every connection to one function.
type Target struct {
	listener *net.TCPListener
	handlers sync.WaitGroup

	mutex  sync.Mutex
	closed bool
	open   map[*net.TCPConn]bool
}

// Listen starts a target. A connection is closed when its handler returns.
func Listen(handle func(*net.TCPConn)) (*Target, error) {
	listener, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, err
	}
	t := &Target{listener: listener, open: make(map[*net.TCPConn]bool)}
	go t.accept(handle)
	return t, nil
}

// Address is host and port.
func (t *Target) Address() string { return t.listener.Addr().String() }

// Port is where the target listens.
func (t *Target) Port() int { return t.listener.Addr().(*net.TCPAddr).Port }

// Close ends the listener and every connection, and waits for the handlers.
func (t *Target) Close() {
	t.listener.Close()
	t.mutex.Lock()
	t.closed = true
	for conn := range t.open {
		conn.Close()
	}
	t.mutex.Unlock()
	t.handlers.Wait()
}

func (t *Target) accept(handle func(*net.TCPConn)) {
	for {
		conn, err := t.listener.AcceptTCP()
		if err != nil {
			return // the listener is closed
		}
		if !t.add(conn) {
			return
		}
		go func() {
			defer t.remove(conn)
			handle(conn)
		}()
	}
}

func (t *Target) add(conn *net.TCPConn) bool {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if t.closed {
		conn.Close()
		return false
	}
	t.open[conn] = true
	t.handlers.Add(1)
	return true
}

func (t *Target) remove(conn *net.TCPConn) {
	conn.Close()
	t.mutex.Lock()
	delete(t.open, conn)
	t.mutex.Unlock()
	t.handlers.Done()
}

// RefusedAddress is an address on 127.0.0.1 where nothing listens.
func RefusedAddress() (string, error) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer listener.Close()
	return fmt.Sprint(listener.Addr()), nil
}
