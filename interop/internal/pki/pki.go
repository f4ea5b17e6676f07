// Package pki issues the certificates of one test run: a CA of its own, and leaves for every role.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// lifetime is longer than any run and short enough that a leaked key is worth nothing.
const lifetime = 24 * time.Hour

// Files are the paths of one certificate and its key, PEM both.
type Files struct {
	Cert, Key string
}

// Set is what a run needs: one CA that signed a leaf for each role. Roles share the CA, since upstream's flags
// take one file for each side of a connection and never compare more than the chain.
type Set struct {
	CA     string
	Server Files // the proxy-server, towards agents and towards the API server
	Agent  Files
	API    Files // the client that stands in for kube-apiserver
	roots  *x509.CertPool
}

// Issue writes a new set below dir.
func Issue(dir string) (*Set, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make CA key: %w", err)
	}
	template := certificate("adit interop CA")
	template.IsCA = true
	template.BasicConstraintsValid = true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("sign CA: %w", err)
	}
	ca, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parse CA: %w", err)
	}
	set := &Set{CA: filepath.Join(dir, "ca.crt"), roots: x509.NewCertPool()}
	set.roots.AddCert(ca)
	if err := writePEM(set.CA, "CERTIFICATE", der); err != nil {
		return nil, err
	}
	for _, leaf := range []struct {
		name  string
		files *Files
	}{
		{"proxy-server", &set.Server}, {"proxy-agent", &set.Agent}, {"kube-apiserver", &set.API},
	} {
		if *leaf.files, err = issueLeaf(dir, leaf.name, ca, key); err != nil {
			return nil, fmt.Errorf("issue certificate for %s: %w", leaf.name, err)
		}
	}
	return set, nil
}

// ClientConfig is how the API server's stand-in talks TLS to the proxy-server: no ALPN is offered, as
// kube-apiserver offers none for CONNECT; gRPC adds its own.
func (s *Set) ClientConfig() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(s.API.Cert, s.API.Key)
	if err != nil {
		return nil, fmt.Errorf("load client certificate: %w", err)
	}
	return &tls.Config{
		Certificates: []tls.Certificate{pair},
		RootCAs:      s.roots,
		ServerName:   "127.0.0.1",
		MinVersion:   tls.VersionTLS12,
	}, nil
}

// ServerConfig is for a server at 127.0.0.1 that clients know by the CA.
func (s *Set) ServerConfig() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(s.Server.Cert, s.Server.Key)
	if err != nil {
		return nil, fmt.Errorf("load server certificate: %w", err)
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}, nil
}

func issueLeaf(dir, name string, ca *x509.Certificate, caKey *ecdsa.PrivateKey) (Files, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Files{}, err
	}
	template := certificate(name)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	template.DNSNames = []string{"localhost", "kubernetes"}
	template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	der, err := x509.CreateCertificate(rand.Reader, template, ca, &key.PublicKey, caKey)
	if err != nil {
		return Files{}, err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Files{}, err
	}
	files := Files{Cert: filepath.Join(dir, name+".crt"), Key: filepath.Join(dir, name+".key")}
	if err := writePEM(files.Cert, "CERTIFICATE", der); err != nil {
		return Files{}, err
	}
	return files, writePEM(files.Key, "PRIVATE KEY", pkcs8)
}

func certificate(name string) *x509.Certificate {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 126))
	if err != nil {
		panic(err) // crypto/rand never fails on a supported system
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    now.Add(-time.Hour),
		NotAfter:     now.Add(lifetime),
	}
}

func writePEM(path, kind string, der []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}
