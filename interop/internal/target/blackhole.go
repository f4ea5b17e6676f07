package target

import (
	"fmt"
	"net"
	"syscall"
	"time"
)

// BlackHole is an address where a connection attempt gets no answer: a listening socket that never accepts and
// whose queue is full, so that the kernel drops further SYNs.
type BlackHole struct {
	socket  int
	port    int
	fillers []net.Conn
}

// fillTimeout is how long a filler may take before the queue counts as full. On loopback a handshake takes
// microseconds.
const fillTimeout = 300 * time.Millisecond

// NewBlackHole opens the socket and fills its queue.
func NewBlackHole() (*BlackHole, error) {
	socket, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	hole := &BlackHole{socket: socket}
	if err := hole.fill(); err != nil {
		hole.Close()
		return nil, fmt.Errorf("make a black hole: %w", err)
	}
	return hole, nil
}

func (h *BlackHole) fill() error {
	if err := syscall.Bind(h.socket, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return err
	}
	if err := syscall.Listen(h.socket, 0); err != nil {
		return err
	}
	name, err := syscall.Getsockname(h.socket)
	if err != nil {
		return err
	}
	h.port = name.(*syscall.SockaddrInet4).Port
	// Two in a row without an answer, so that one slow handshake is not taken for a full queue.
	for full := 0; full < 2; {
		conn, err := net.DialTimeout("tcp4", h.Address(), fillTimeout)
		if err != nil {
			full++
			continue
		}
		full = 0
		if h.fillers = append(h.fillers, conn); len(h.fillers) > 16 {
			return fmt.Errorf("the queue of %s is not full after %d connections", h.Address(), len(h.fillers))
		}
	}
	return nil
}

// Address is host and port.
func (h *BlackHole) Address() string { return fmt.Sprintf("127.0.0.1:%d", h.port) }

// Port is where attempts get stuck.
func (h *BlackHole) Port() int { return h.port }

// Close resets what is stuck.
func (h *BlackHole) Close() {
	for _, filler := range h.fillers {
		filler.Close()
	}
	syscall.Close(h.socket)
}
