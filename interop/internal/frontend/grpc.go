package frontend

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/pkg/client"
)

// GRPC dials with upstream's client library.
type GRPC struct {
	target  string
	options []grpc.DialOption
}

// GRPCOverUnix dials as kube-apiserver does: the socket's absolute path is the dial target, so that grpc-go sends
// it, percent-encoded, as :authority.
func GRPCOverUnix(path string) *GRPC {
	dialer := func(ctx context.Context, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}
	return &GRPC{target: path, options: []grpc.DialOption{
		grpc.WithContextDialer(dialer),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
	}}
}

// GRPCOverTLS dials with mutual TLS.
func GRPCOverTLS(address string, config *tls.Config) *GRPC {
	return &GRPC{target: address, options: []grpc.DialOption{
		grpc.WithTransportCredentials(credentials.NewTLS(config)),
	}}
}

// Dial makes one single-use tunnel and dials through it. As in kube-apiserver the context bounds the dial but not
// the step before it, the connection to the proxy-server.
func (g *GRPC) Dial(ctx context.Context, address string) (net.Conn, error) {
	createCtx, cancelCreate := context.WithTimeout(context.Background(), DialLimit)
	defer cancelCreate()
	tunnelCtx, abandon := context.WithCancel(context.Background())
	tunnel, err := client.CreateSingleUseGrpcTunnelWithContext(createCtx, tunnelCtx, g.target, g.blocking()...)
	if err != nil {
		abandon()
		return nil, fmt.Errorf("create tunnel: %w", err)
	}
	conn, err := tunnel.DialContext(ctx, "tcp", address)
	if err != nil {
		// The library still has a DIAL_CLS to send, so its stream is not cut at once.
		time.AfterFunc(time.Second, abandon)
		return nil, err
	}
	return &grpcConn{Conn: conn, abandon: abandon}, nil
}

// Reusable makes one gRPC connection that serves many dials, each with a stream of its own.
func (g *GRPC) Reusable(ctx context.Context) (client.ReusableTunnel, error) {
	return client.CreateGRPCTunnel(ctx, g.target, g.blocking()...)
}

// blocking adds what kube-apiserver sets for its connection; grpc-go calls some of it deprecated.
func (g *GRPC) blocking() []grpc.DialOption {
	return append([]grpc.DialOption{
		grpc.WithBlock(), grpc.WithReturnConnectionError(), grpc.WithTimeout(DialLimit),
	}, g.options...)
}

// grpcConn holds what ends its tunnel, since the library's own connection has no deadlines.
type grpcConn struct {
	net.Conn
	abandon context.CancelFunc
}

func (c *grpcConn) Abandon() { c.abandon() }
