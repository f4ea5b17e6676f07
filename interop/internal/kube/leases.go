package kube

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"

	coordination "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/watch"
)

var resource = coordination.Resource("leases")

// leases is a store that remembers every change, for those who watch from some version on.
type leases struct {
	byName  map[string]coordination.Lease // by namespace/name
	changes []change                      // the n-th led to version n+1
	changed chan struct{}                 // closed at the next change
}

type change struct {
	kind  watch.EventType
	lease coordination.Lease
}

func newLeases() leases {
	return leases{byName: make(map[string]coordination.Lease), changed: make(chan struct{})}
}

func (l *leases) version() string { return strconv.Itoa(len(l.changes)) }

func (l *leases) list(namespace string) []coordination.Lease {
	found := []coordination.Lease{} // a list without items is [], not null
	for _, lease := range l.byName {
		if lease.Namespace == namespace {
			found = append(found, lease)
		}
	}
	slices.SortFunc(found, func(a, b coordination.Lease) int { return strings.Compare(a.Name, b.Name) })
	return found
}

func (l *leases) put(lease coordination.Lease) coordination.Lease {
	key := lease.Namespace + "/" + lease.Name
	kind := watch.Added
	if _, found := l.byName[key]; found {
		kind = watch.Modified
	}
	return l.record(key, kind, lease)
}

func (l *leases) record(key string, kind watch.EventType, lease coordination.Lease) coordination.Lease {
	lease.SetGroupVersionKind(coordination.SchemeGroupVersion.WithKind("Lease"))
	lease.ResourceVersion = strconv.Itoa(len(l.changes) + 1)
	if kind == watch.Deleted {
		delete(l.byName, key)
	} else {
		l.byName[key] = lease
	}
	l.changes = append(l.changes, change{kind, lease})
	close(l.changed)
	l.changed = make(chan struct{})
	return lease
}

func (a *API) listOrWatch(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	selector, err := labels.Parse(query.Get("labelSelector"))
	if err != nil {
		refuse(w, apierrors.NewBadRequest(err.Error()))
		return
	}
	if query.Get("watch") != "" {
		// A list within a watch is not told here; clients then list first, as they do with API servers of before it.
		if query.Get("sendInitialEvents") != "" {
			refuse(w, apierrors.NewInvalid(coordination.SchemeGroupVersion.WithKind("Lease").GroupKind(), "", nil))
			return
		}
		a.watch(w, r, selector)
		return
	}
	a.mutex.Lock()
	list := coordination.LeaseList{Items: a.leases.list(r.PathValue("namespace"))}
	list.ResourceVersion = a.leases.version()
	a.mutex.Unlock()
	list.SetGroupVersionKind(coordination.SchemeGroupVersion.WithKind("LeaseList"))
	list.Items = slices.DeleteFunc(list.Items, func(lease coordination.Lease) bool { return !selector.Matches(labels.Set(lease.Labels)) })
	write(w, http.StatusOK, &list)
}

// watch goes on until the client leaves or the API closes. Labels of a Lease never change here, so its leaving a selector
// is not told.
func (a *API) watch(w http.ResponseWriter, r *http.Request, selector labels.Selector) {
	seen, err := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	if err != nil || seen < 0 {
		refuse(w, apierrors.NewBadRequest("a watch needs a version"))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	flusher := http.NewResponseController(w)
	encoder := json.NewEncoder(w)
	for {
		a.mutex.Lock()
		news := a.leases.changes[min(seen, len(a.leases.changes)):]
		changed := a.leases.changed
		a.mutex.Unlock()
		for _, one := range news {
			if one.lease.Namespace != r.PathValue("namespace") || !selector.Matches(labels.Set(one.lease.Labels)) {
				continue
			}
			event := struct {
				Type   watch.EventType    `json:"type"`
				Object coordination.Lease `json:"object"`
			}{one.kind, one.lease}
			if err := encoder.Encode(event); err != nil {
				return
			}
		}
		seen += len(news)
		if err := flusher.Flush(); err != nil {
			return
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

func (a *API) create(w http.ResponseWriter, r *http.Request) {
	lease, ok := body[*coordination.Lease](w, r)
	if !ok {
		return
	}
	lease.Namespace = r.PathValue("namespace")
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if _, found := a.leases.byName[lease.Namespace+"/"+lease.Name]; found {
		refuse(w, apierrors.NewAlreadyExists(resource, lease.Name))
		return
	}
	write(w, http.StatusCreated, a.leases.put(*lease))
}

func (a *API) get(w http.ResponseWriter, r *http.Request) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	lease, found := a.leases.byName[r.PathValue("namespace")+"/"+r.PathValue("name")]
	if !found {
		refuse(w, apierrors.NewNotFound(resource, r.PathValue("name")))
		return
	}
	write(w, http.StatusOK, lease)
}

func (a *API) update(w http.ResponseWriter, r *http.Request) {
	lease, ok := body[*coordination.Lease](w, r)
	if !ok {
		return
	}
	lease.Namespace, lease.Name = r.PathValue("namespace"), r.PathValue("name")
	a.mutex.Lock()
	defer a.mutex.Unlock()
	old, found := a.leases.byName[lease.Namespace+"/"+lease.Name]
	switch {
	case !found:
		refuse(w, apierrors.NewNotFound(resource, lease.Name))
	case lease.ResourceVersion != "" && lease.ResourceVersion != old.ResourceVersion:
		refuse(w, apierrors.NewConflict(resource, lease.Name, nil))
	default:
		write(w, http.StatusOK, a.leases.put(*lease))
	}
}

func (a *API) remove(w http.ResponseWriter, r *http.Request) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	key := r.PathValue("namespace") + "/" + r.PathValue("name")
	lease, found := a.leases.byName[key]
	if !found {
		refuse(w, apierrors.NewNotFound(resource, r.PathValue("name")))
		return
	}
	a.leases.record(key, watch.Deleted, lease)
	write(w, http.StatusOK, meta.Status{Status: meta.StatusSuccess, TypeMeta: meta.TypeMeta{Kind: "Status", APIVersion: "v1"}})
}
