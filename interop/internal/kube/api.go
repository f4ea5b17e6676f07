// Package kube plays the part of the Kubernetes API that proxy-servers and proxy-agents use, over HTTPS and with Kubernetes' own
// types: token reviews and Leases.
package kube

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"

	authentication "k8s.io/api/authentication/v1"
	coordination "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	clientcmd "k8s.io/client-go/tools/clientcmd/api/v1"
	"sigs.k8s.io/yaml"

	"adit/interop/internal/pki"
)

// clientToken is what the proxies show this API, and have to.
const clientToken = "of-a-proxy"

const maxBodyBytes = 1 << 20

// API is one that runs.
type API struct {
	server *httptest.Server
	ca     string

	mutex   sync.Mutex
	users   map[string]string // by token
	reviews []authentication.TokenReviewSpec
	leases  leases
}

// Start listens on 127.0.0.1 with the server's certificate of the set.
func Start(certs *pki.Set) (*API, error) {
	config, err := certs.ServerConfig()
	if err != nil {
		return nil, err
	}
	a := &API{ca: certs.CA, users: make(map[string]string), leases: newLeases()}
	routes := http.NewServeMux()
	routes.HandleFunc("POST /apis/authentication.k8s.io/v1/tokenreviews", a.review)
	const all = "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
	routes.HandleFunc("GET "+all, a.listOrWatch)
	routes.HandleFunc("POST "+all, a.create)
	routes.HandleFunc("GET "+all+"/{name}", a.get)
	routes.HandleFunc("PUT "+all+"/{name}", a.update)
	routes.HandleFunc("DELETE "+all+"/{name}", a.remove)
	a.server = httptest.NewUnstartedServer(authenticated(routes))
	a.server.TLS = config
	a.server.StartTLS()
	return a, nil
}

// Close also ends what watches.
func (a *API) Close() {
	a.server.CloseClientConnections()
	a.server.Close()
}

// WriteKubeconfig makes the file that leads here.
func (a *API) WriteKubeconfig(path string) error {
	const name = "interop"
	config, err := yaml.Marshal(clientcmd.Config{
		Kind:       "Config",
		APIVersion: "v1",
		Clusters: []clientcmd.NamedCluster{{Name: name, Cluster: clientcmd.Cluster{
			Server: a.server.URL, CertificateAuthority: a.ca,
		}}},
		AuthInfos:      []clientcmd.NamedAuthInfo{{Name: name, AuthInfo: clientcmd.AuthInfo{Token: clientToken}}},
		Contexts:       []clientcmd.NamedContext{{Name: name, Context: clientcmd.Context{Cluster: name, AuthInfo: name}}},
		CurrentContext: name,
	})
	if err != nil {
		return err
	}
	return os.WriteFile(path, config, 0o600)
}

// Know makes a token one of the user's.
func (a *API) Know(token, user string) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	a.users[token] = user
}

// Reviews are what was asked so far.
func (a *API) Reviews() []authentication.TokenReviewSpec {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	return append([]authentication.TokenReviewSpec(nil), a.reviews...)
}

// Leases are those of the namespace.
func (a *API) Leases(namespace string) []coordination.Lease {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	return a.leases.list(namespace)
}

// PutLease makes it or takes the place of one.
func (a *API) PutLease(lease coordination.Lease) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	a.leases.put(lease)
}

func (a *API) review(w http.ResponseWriter, r *http.Request) {
	review, ok := body[*authentication.TokenReview](w, r)
	if !ok {
		return
	}
	a.mutex.Lock()
	a.reviews = append(a.reviews, review.Spec)
	user, known := a.users[review.Spec.Token]
	a.mutex.Unlock()
	review.Status = authentication.TokenReviewStatus{Authenticated: known}
	if known {
		review.Status.User.Username = user
		review.Status.Audiences = review.Spec.Audiences
	} else {
		review.Status.Error = "nobody's token"
	}
	review.SetGroupVersionKind(authentication.SchemeGroupVersion.WithKind("TokenReview"))
	write(w, http.StatusCreated, review)
}

func authenticated(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+clientToken {
			refuse(w, apierrors.NewUnauthorized("no token, or nobody's"))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// body decodes JSON and Kubernetes' protobuf, whichever was sent.
func body[T runtime.Object](w http.ResponseWriter, r *http.Request) (object T, ok bool) {
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBodyBytes))
	if err != nil {
		refuse(w, apierrors.NewBadRequest(err.Error()))
		return object, false
	}
	decoded, _, err := scheme.Codecs.UniversalDeserializer().Decode(raw, nil, nil)
	if err == nil {
		if object, ok = decoded.(T); ok {
			return object, true
		}
		err = fmt.Errorf("unexpected %T", decoded)
	}
	refuse(w, apierrors.NewBadRequest(err.Error()))
	return object, false
}

func refuse(w http.ResponseWriter, err *apierrors.StatusError) {
	status := err.Status()
	status.Kind, status.APIVersion = "Status", "v1"
	write(w, int(status.Code), &status)
}

// write answers in JSON, which every client takes.
func write(w http.ResponseWriter, code int, object any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(object) // a client that has gone needs no answer
}
