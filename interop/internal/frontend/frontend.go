// Package frontend dials through a proxy-server in each of the ways in which kube-apiserver may.
package frontend

import (
	"context"
	"fmt"
	"net"
	"time"
)

// DialLimit is how long kube-apiserver lets the connection to the proxy-server take.
const DialLimit = 30 * time.Second

// Dialer opens one connection through the proxy-server.
type Dialer interface {
	Dial(ctx context.Context, address string) (net.Conn, error)
}

// StatusError is a CONNECT that was answered with something else than 200.
type StatusError struct {
	Code   int
	Status string // code and reason
	Body   string
}

func (e *StatusError) Error() string { return fmt.Sprintf("%s: %s", e.Status, e.Body) }

// BufferedError is a CONNECT whose 200 head came in one piece with bytes behind it, which kube-apiserver refuses.
type BufferedError struct {
	Bytes int
}

func (e *BufferedError) Error() string {
	return fmt.Sprintf("unexpected %d bytes of buffered data behind the 200 head", e.Bytes)
}

// HeadError is a CONNECT answered with bytes that are no HTTP head.
type HeadError struct {
	Cause error
}

func (e *HeadError) Error() string { return fmt.Sprintf("read CONNECT response: %v", e.Cause) }

func (e *HeadError) Unwrap() error { return e.Cause }

// Abandoner is a connection that can be dropped at once, where Close still talks to the proxy-server in the
// background. Readers see the end.
type Abandoner interface {
	Abandon()
}
