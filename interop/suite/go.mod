module adit/interop/suite

go 1.26.2

// Only tests of this module are built, and they are what go.sum is for: `go get -t sigs.k8s.io/apiserver-network-proxy/tests`
// writes both files; `go mod tidy` would empty them.
require sigs.k8s.io/apiserver-network-proxy v0.36.0 // indirect
