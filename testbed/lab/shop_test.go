package lab_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/programtest"
	"github.com/treeline-edge/treeline/internal/yaml"
	"github.com/treeline-edge/treeline/testbed/gobuild"
	"github.com/treeline-edge/treeline/testbed/lab"
	"github.com/treeline-edge/treeline/testbed/netlab"
	"github.com/treeline-edge/treeline/testbed/ociimage/image"
)

// shop is deploy/examples/shop on three nodes, with a client.
type shop struct {
	*lab.Overlay
	t    *testing.T
	base string // URL of the service web
	c    http.Client
	sla  api.SLA
}

const shopSLA = "../../deploy/examples/shop/shop.yaml"

func newShop(t *testing.T) *shop {
	programtest.Need(t, "containerd", "runc", "redis-check-rdb", "mosquitto")
	s := &shop{Overlay: lab.NewOverlay(t, lab.Options{}, "--dead", "30s"), t: t}
	program := filepath.Join(s.Dir, "shop")
	if err := gobuild.Build(t.Context(), program, "testbed/shop"); err != nil {
		t.Fatal(err)
	}
	redis, err := exec.LookPath("redis-check-rdb")
	if err != nil {
		t.Fatal(err)
	}
	mosquitto, err := exec.LookPath("mosquitto")
	if err != nil {
		t.Fatal(err)
	}
	for _, img := range []image.Image{
		{Ref: "treeline.local/shop:1", Binary: program},
		{Ref: "treeline.local/shop-db:1", Binary: program, Programs: []string{redis}},
		{Ref: brokerImage, Binary: program, Programs: []string{mosquitto}},
	} {
		if err := image.WriteFile(filepath.Join(s.Containerd().Images, filepath.Base(img.Ref)+".tar"), img); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		s.Site(s.First, netlab.None, lab.NodeOptions{})
	}
	s.Ready(s.First, 3)
	password := api.NewValues{Name: "shop", Data: map[string][]byte{"password": []byte("pw-" + strconv.FormatInt(time.Now().UnixNano(), 36))}}
	if _, err := s.API.CreateValues(s.Context(), api.KindSecret, s.Tenant, password); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(shopSLA)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := yaml.ToJSON(text)
	if err != nil {
		t.Fatal(err)
	}
	if s.sla, err = api.ParseSLA(doc); err != nil {
		t.Fatal(err)
	}
	app := &s.sla.Applications[0]
	app.Namespace = lab.Namespace
	for i := range app.Services {
		app.Services[i].Namespace = lab.Namespace
		if app.Services[i].Schedule != nil {
			app.Services[i].Schedule.Cron = "* * * * *" // every minute, so that the test sees a run
		}
	}
	s.Apply(lab.App("client", lab.On(s.Container("client", 1), "c1", "n0")))
	s.Apply(s.sla)
	s.Wait("the shop is ready", func(v lab.View) bool {
		return s.ready(v, "web", 2) && s.ready(v, "db", 1) && s.Running("client", "client", 1)(v)
	})
	s.base = "http://" + netip.AddrPortFrom(s.Addresses("shop", "web").RoundRobin, 8080).String()
	s.c = http.Client{Transport: &http.Transport{DialContext: s.Inside(s.ID("client", "client", 0)).Dial, DisableKeepAlives: true}, Timeout: 10 * time.Second}
	return s
}

func (s *shop) ready(v lab.View, service string, n int) bool {
	ready := 0
	for _, i := range v.Of(s.ServiceID("shop", service)) {
		if i.State == api.Running && i.Reason == api.ReasonNone {
			ready++
		}
	}
	return ready == n
}

// request returns the body of an answer with the status 200 or 201.
func (s *shop) request(method, path, form string) (string, error) {
	req, err := http.NewRequestWithContext(s.Context(), method, s.base+path, strings.NewReader(form))
	if err != nil {
		return "", err
	}
	if form != "" {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	resp, err := s.c.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err == nil && resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusCreated {
		err = fmt.Errorf("%s: %s", resp.Status, body)
	}
	return strings.TrimSpace(string(body)), err
}

func (s *shop) order(item string) error {
	_, err := s.request(http.MethodPost, "/orders", "item="+item)
	return err
}

func (s *shop) orders() (n int, err error) {
	body, err := s.request(http.MethodGet, "/orders", "")
	if err != nil {
		return 0, err
	}
	var reply struct {
		Count int `json:"count"`
	}
	err = json.Unmarshal([]byte(body), &reply)
	return reply.Count, err
}

// load sends rate requests a second until the returned function is called, which returns the number of
// orders that were confirmed. Every tenth request is an order. A failed request fails the test.
func (s *shop) load(rate int) (stop func() (confirmed int)) {
	ctx, cancel := context.WithCancel(s.Context())
	var all sync.WaitGroup
	var confirmed, sent, failed atomic.Int64
	began := time.Now()
	all.Go(func() {
		tick := time.NewTicker(time.Second / time.Duration(rate))
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			all.Go(func() {
				var err error
				at := time.Now()
				if sent.Add(1); n%10 == 0 {
					if err = s.order("apples"); err == nil {
						confirmed.Add(1)
					}
				} else {
					_, err = s.request(http.MethodGet, "/version", "")
				}
				if err != nil && failed.Add(1) <= 5 {
					s.t.Errorf("request %d at %s: %v", n, at.Format("15:04:05.000"), err)
				}
			})
		}
	})
	return func() int {
		cancel()
		took := time.Since(began)
		all.Wait()
		s.t.Logf("%d requests in %s, %d failed, %d orders", sent.Load(), took.Round(time.Millisecond), failed.Load(), confirmed.Load())
		return int(confirmed.Load())
	}
}

// The example shop is updated under load without a failed request, and its database keeps every
// confirmed order over the death of its node.
func TestShop(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	lab.Within(t, time.Minute, "the shop takes an order", func() error { return s.order("bread") })
	want, err := s.orders()
	if err != nil {
		t.Fatal(err)
	}
	t.Run("addon", func(t *testing.T) {
		defer s.For(t)()
		s.addon(t)
	})
	t.Run("update", func(t *testing.T) {
		defer s.For(t)()
		stop := s.load(200)
		web := &s.sla.Applications[0].Services[0]
		web.Environment = []string{"DB=db:6379", "VERSION=2"}
		s.Apply(s.sla)
		lab.Within(t, 2*time.Minute, "every answer is of version 2", func() error {
			for range 20 {
				if v, err := s.request(http.MethodGet, "/version", ""); err != nil || v != "2" {
					return fmt.Errorf("version %q, %w", v, err)
				}
			}
			r, err := s.API.RollOut(t.Context(), s.ServiceID("shop", "web"))
			if err == nil && (!r.Over() || r.State != api.RollOutHealthy) {
				err = fmt.Errorf("the roll-out is %s", r.Standing())
			}
			return err
		})
		want += stop()
		if got, err := s.orders(); err != nil || got != want {
			t.Fatalf("%d orders (%v), want the %d that were confirmed", got, err, want)
		}
	})
	t.Run("the node of the database dies", func(t *testing.T) {
		defer s.For(t)()
		on := s.Workload(s.ID("shop", "db", 0)).Node
		node := s.Nodes[slices.IndexFunc(s.Nodes, func(n *lab.Node) bool { return n.Name == on })]
		node.KillAll()
		node.Start()
		lab.Within(t, 2*time.Minute, "the database is back", func() error {
			got, err := s.orders()
			if err == nil && got != want {
				t.Fatalf("%d orders, want the %d that were confirmed", got, want)
			}
			return err
		})
		if err := s.order("cheese"); err != nil {
			t.Error(err)
		}
	})
	t.Run("the nightly report", func(t *testing.T) {
		defer s.For(t)()
		id := s.ID("shop", "report", 0)
		lab.Within(t, 2*time.Minute, "a run of the report is complete", func() error {
			in, err := s.API.Instance(t.Context(), id)
			if err == nil && !slices.ContainsFunc(in.Runs, func(r api.Run) bool { return r.Result == api.RunCompleted }) {
				err = fmt.Errorf("runs: %+v", in.Runs)
			}
			return err
		})
	})
}
