package frontend

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
)

const (
	maxHeadBytes = 1 << 20 // as kube-apiserver
	maxBodyBytes = 64 << 10
)

// Connect dials with HTTP CONNECT, byte for byte as kube-apiserver.
type Connect struct {
	Network string      // "unix" or "tcp"
	Address string      // of the proxy-server
	TLS     *tls.Config // nil for cleartext
}

// Dial ends early when the context does, also in the wait for the answer.
func (c *Connect) Dial(ctx context.Context, address string) (net.Conn, error) {
	conn, err := c.open(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect to the proxy-server: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if err := handshake(conn, address); err != nil {
		conn.Close()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, err
	}
	return conn, nil
}

func (c *Connect) open(ctx context.Context) (net.Conn, error) {
	dialer := &net.Dialer{Timeout: DialLimit}
	if c.TLS == nil {
		return dialer.DialContext(ctx, c.Network, c.Address)
	}
	return (&tls.Dialer{NetDialer: dialer, Config: c.TLS}).DialContext(ctx, c.Network, c.Address)
}

// handshake leaves the connection behind the head of a 200, with nothing read past it.
func handshake(conn net.Conn, address string) error {
	if _, err := fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", address, "127.0.0.1"); err != nil {
		return fmt.Errorf("write CONNECT: %w", err)
	}
	limited := &io.LimitedReader{R: conn, N: maxHeadBytes}
	reader := bufio.NewReader(limited)
	response, err := http.ReadResponse(reader, nil)
	if err != nil {
		return &HeadError{err}
	}
	if response.StatusCode != http.StatusOK {
		body, err := io.ReadAll(io.LimitReader(response.Body, maxBodyBytes))
		if err != nil {
			return fmt.Errorf("read body of %s: %w", response.Status, err)
		}
		return &StatusError{Code: response.StatusCode, Status: response.Status, Body: string(body)}
	}
	if buffered := reader.Buffered(); buffered > 0 {
		return &BufferedError{buffered}
	}
	return nil
}
