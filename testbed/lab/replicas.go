package lab

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/internal/freeport"
	"github.com/treeline-edge/treeline/testbed/netlab"
)

// Replicas are two roots that share a FerretDB, if Options.Replicas.
type Replicas struct {
	Both  [2]*Proc
	Data  [2]string // data directories
	Store *Proc
	// StoreData is the store's data directory.
	StoreData string
	// ToStore are the links from each root to the store.
	ToStore [2]*Link

	lab   *Lab
	addrs [2]string
}

// FerretDB is the program that scripts/ferretdb builds, from the environment; empty: there is none.
func FerretDB() string { return os.Getenv("TREELINE_TEST_FERRETDB") }

// replicas starts the store and returns the flags of the first root.
func (l *Lab) replicas(disk int64) []string {
	l.t.Helper()
	r := &Replicas{lab: l, Data: [2]string{l.rootData, filepath.Join(l.Dir, "root2")}, StoreData: filepath.Join(l.Dir, "store")}
	l.Replicas = r
	if disk > 0 {
		l.StoreDisk = l.disk("store", disk)
	} else {
		l.must(os.MkdirAll(r.StoreData, 0o700))
	}
	addr, err := freeport.Addr()
	l.must(err)
	for i := range r.addrs {
		r.addrs[i], err = freeport.Addr()
		l.must(err)
		r.ToStore[i] = l.link()
		r.ToStore[i].To(addr)
	}
	r.Store = l.proc("ferretdb", FerretDB(), "--handler=sqlite", "--sqlite-url=file:"+r.StoreData+"/", "--state-dir="+r.StoreData,
		"--listen-addr="+addr, "--debug-addr=-", "--telemetry=disable", "--log-level=warn")
	r.StartStore()
	return r.flags(0)
}

func (r *Replicas) flags(i int) []string {
	return []string{
		"--replica", "--store", "mongodb://" + r.ToStore[i].Addr() + "/treeline", "--listen", r.addrs[i],
		"--replicas", "https://" + r.addrs[0], "--replicas", "https://" + r.addrs[1],
	}
}

// StartStore starts the store and waits until it listens.
func (r *Replicas) StartStore() {
	r.lab.t.Helper()
	r.Store.Launch()
	addr := r.ToStore[0].target()
	Within(r.lab.t, patience, "the store listens", func() error {
		c, err := net.DialTimeout("tcp", addr, time.Second)
		if err == nil {
			_ = c.Close()
		}
		return err
	})
}

// second starts the second root with the keys of the first one.
func (r *Replicas) second(args ...string) {
	r.Both = [2]*Proc{r.lab.Root, r.lab.Replica("root2", append(r.flags(1), args...)...)}
}

// Active returns the index of the root that is active, and waits until one is.
func (r *Replicas) Active() (i int) {
	r.lab.t.Helper()
	Within(r.lab.t, patience, "a root is active", func() error {
		for i = range r.Both {
			if r.isActive(i) {
				return nil
			}
		}
		return fmt.Errorf("neither of %v is", r.addrs)
	})
	return i
}

func (r *Replicas) isActive(i int) bool {
	c := http.Client{Timeout: time.Second, Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // its clients verify it
		DisableKeepAlives: true,
	}}
	req, err := http.NewRequestWithContext(r.lab.ctx, http.MethodGet, "https://"+r.addrs[i]+"/readyz?verbose", http.NoBody)
	if err != nil {
		return false
	}
	resp, err := c.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	return resp.StatusCode == http.StatusOK && strings.Contains(string(text), "[+] role active ok")
}

// mirror makes the roots reachable in a host's network at the addresses that they tell clusters.
func (r *Replicas) mirror(h *netlab.Host) (links []*Link) {
	l := r.lab
	l.t.Helper()
	for _, addr := range r.addrs {
		var ln net.Listener
		var err error
		l.spaceOf(h).do(func() { ln, err = (&net.ListenConfig{}).Listen(context.Background(), "tcp", addr) })
		l.must(err)
		k := newLinkAt(ln, (*space)(nil).dial)
		k.To(addr)
		l.links = append(l.links, k)
		links = append(links, k)
	}
	return links
}
