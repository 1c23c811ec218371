package clusterlink

import (
	"cmp"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/sse"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
)

// conn is the open stream of a cluster.
type conn struct {
	queue   chan message
	revoked chan struct{} // signals new revocations; buffers one signal
	done    chan struct{}
	once    sync.Once
}

type message struct {
	event, id string
	data      any
}

func newConn() *conn {
	return &conn{queue: make(chan message, streamBuffer), revoked: make(chan struct{}, 1), done: make(chan struct{})}
}

// push queues a message without blocking. If the queue is full, it closes the stream and returns
// false; the cluster reconnects and gets what it missed.
func (c *conn) push(m message) bool {
	select {
	case <-c.done:
		return false
	default:
	}
	select {
	case c.queue <- m:
		return true
	default:
		c.close()
		return false
	}
}

func (c *conn) close() { c.once.Do(func() { close(c.done) }) }

// desired streams the desired state after the generation that the cluster has. A new stream
// replaces the cluster's old one, whose connection is usually broken.
func (l *Link) desired(w http.ResponseWriter, r *http.Request, id api.ClusterID) error {
	hello, err := helloOf(r, id)
	if err != nil {
		return err
	}
	c := newConn()
	l.open(id, c)
	defer l.closed(id, c)
	// Open the stream before the core answers the hello, because the answer goes to the stream.
	if err := l.opt.Owner.Do(r.Context(), root.Hello{Hello: hello}, nil); err != nil {
		return err
	}
	fairshare.ReleasePlace(r.Context())
	rc := http.NewResponseController(w)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	write := func(text []byte) error {
		if _, err := w.Write(text); err != nil {
			return err
		}
		return rc.Flush()
	}
	if write([]byte(": hello\n\n")) != nil {
		return nil
	}
	tick := time.NewTicker(keepAlive)
	defer tick.Stop()
	var sent int64 // the mark of the revocations that the cluster has
	revoked := func() ([]byte, error) {
		r := l.opt.Revoked.Since(sent)
		sent = r.Mark
		return message{event: "revoked", data: r}.encode()
	}
	// A cluster refuses all delegated tokens until it has received this message once.
	if text, err := revoked(); err != nil || write(text) != nil {
		return err
	}
	if text, err := (message{event: "replicas", data: wire.Replicas{URLs: l.opt.Replicas()}}).encode(); err != nil || write(text) != nil {
		return err
	}
	if text, err := (message{event: "authority", data: l.rootKeys()}).encode(); err != nil || write(text) != nil {
		return err
	}
	for {
		var text []byte
		select {
		case <-c.revoked:
			if text, err = revoked(); err != nil {
				return err
			}
		case <-r.Context().Done():
			return nil
		case <-c.done:
			return nil
		case <-tick.C:
			text = []byte(": alive\n\n")
		case m := <-c.queue:
			if text, err = m.encode(); err != nil {
				l.opt.Log.Error("message to a cluster not sent", "cluster", id, "err", err)
				return nil
			}
		}
		if write(text) != nil {
			return nil
		}
	}
}

// sendRevocations signals all open streams to send the new revocations.
func (l *Link) sendRevocations() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		select {
		case c.revoked <- struct{}{}:
		default: // a signal is already pending
		}
	}
}

func (m message) encode() ([]byte, error) { return sse.Encode(m.event, m.id, m.data) }

func (l *Link) open(id api.ClusterID, c *conn) {
	l.mu.Lock()
	old := l.conns[id]
	l.conns[id] = c
	l.mu.Unlock()
	if old != nil {
		old.close()
	}
	l.opt.Log.Info("cluster connected", "cluster", id)
}

func (l *Link) closed(id api.ClusterID, c *conn) {
	c.close()
	l.mu.Lock()
	last := l.conns[id] == c
	if last {
		delete(l.conns, id)
	}
	l.mu.Unlock()
	if last {
		l.opt.Log.Info("cluster disconnected", "cluster", id)
	}
}

func helloOf(r *http.Request, id api.ClusterID) (wire.Hello, error) {
	var err error
	number := func(key string) uint64 {
		text := r.URL.Query().Get(key)
		n, wrong := strconv.ParseUint(cmp.Or(text, "0"), 10, 64)
		if wrong != nil {
			err = fmt.Errorf("%s=%q of cluster %s is not a number: %w", key, text, id, api.ErrInvalid)
		}
		return n
	}
	hello := wire.Hello{Cluster: id, Since: api.Generation(number("since")), Digest: api.Digest(number("digest"))}
	return hello, err
}
