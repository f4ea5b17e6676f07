// Package balancer is a load balancer in front of servers that agents reach by one address.
package balancer

import (
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
)

// Balancer passes each TCP connection on to a random backend that takes it. Random as in the field, where neither an agent nor
// the one before it decides which server the next attempt meets.
type Balancer struct {
	listener *net.TCPListener

	mutex    sync.Mutex
	backends []string
	closed   bool
	open     map[net.Conn]bool
}

// Listen starts a balancer on 127.0.0.1 that has no backend yet.
func Listen() (*Balancer, error) {
	listener, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, err
	}
	b := &Balancer{listener: listener, open: make(map[net.Conn]bool)}
	go b.accept()
	return b, nil
}

// Port is where agents connect.
func (b *Balancer) Port() int { return b.listener.Addr().(*net.TCPAddr).Port }

// Add lets new connections reach the address.
func (b *Balancer) Add(address string) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	b.backends = append(b.backends, address)
}

// Remove keeps new connections away from the address. Those that are there go on.
func (b *Balancer) Remove(address string) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	b.backends = slices.DeleteFunc(b.backends, func(known string) bool { return known == address })
}

// Close ends the listener and every connection.
func (b *Balancer) Close() {
	b.listener.Close()
	b.mutex.Lock()
	defer b.mutex.Unlock()
	b.closed = true
	for conn := range b.open {
		conn.Close()
	}
}

func (b *Balancer) accept() {
	for {
		conn, err := b.listener.AcceptTCP()
		if err != nil {
			return // the listener is closed
		}
		go b.passOn(conn)
	}
}

func (b *Balancer) passOn(client *net.TCPConn) {
	defer client.Close()
	server := b.connect()
	if server == nil {
		return
	}
	defer server.Close()
	if !b.keep(client, server) {
		return
	}
	defer b.forget(client, server)
	var group sync.WaitGroup
	group.Go(func() { relay(server, client) })
	group.Go(func() { relay(client, server) })
	group.Wait()
}

// relay passes the end on with the bytes. How a side ended does not matter here: its tunnel knows.
func relay(to, from *net.TCPConn) {
	if _, err := io.Copy(to, from); err != nil {
		to.Close()
		from.Close()
		return
	}
	_ = to.CloseWrite()
}

func (b *Balancer) connect() *net.TCPConn {
	b.mutex.Lock()
	order := slices.Clone(b.backends)
	b.mutex.Unlock()
	rand.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	for _, address := range order {
		if conn, err := net.Dial("tcp4", address); err == nil {
			return conn.(*net.TCPConn)
		}
	}
	return nil
}

func (b *Balancer) keep(conns ...net.Conn) bool {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	for _, conn := range conns {
		b.open[conn] = true
	}
	return !b.closed
}

func (b *Balancer) forget(conns ...net.Conn) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	for _, conn := range conns {
		delete(b.open, conn)
	}
}
