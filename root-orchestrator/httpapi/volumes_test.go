package httpapi_test

import (
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/internal/eventlog"
	"github.com/treeline-edge/treeline/internal/frames"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
)

// volume makes a cluster report that it has the volume of an instance of acme, and returns its id.
func (r *rig) volume(cluster api.ClusterID) api.VolumeID {
	r.t.Helper()
	ctx := r.t.Context()
	room := api.Resources{MilliCPU: 4000, MemoryMB: 4096, StorageMB: 4096}
	report := wire.Report{
		Cluster: cluster, Boot: 1, Seq: 2, Whole: true,
		Aggregate: api.Aggregate{
			Nodes: 1, Capacity: room, Free: room, Mean: room, Largest: room,
			Slots: []api.Slot{{
				Runtime: "container", Arch: "amd64", Network: true, Nodes: 1, Free: room, Largest: room,
				Features: []string{api.FeatureOfVolume(api.VolumeLocal)},
			}},
		},
	}
	check(r.t, r.loop.Do(ctx, root.Report{Report: report}, nil))
	m := api.Microservice{
		Name: "db", Namespace: "v1", Virtualization: "container", Code: "example.org/db:1", Memory: 64,
		Volumes: []api.Volume{{Name: "data", Type: api.VolumeLocal, MountPath: "/data", SizeMB: 64}},
	}
	check(r.t, r.loop.Do(ctx, root.Apply{Tenant: "acme", Spec: api.Application{Name: "shop", Namespace: "prod", Services: []api.Microservice{m}}}, nil))
	var in api.Instance
	id := api.InstanceID("acme/shop.prod.db.v1#0")
	check(r.t, r.loop.Read(ctx, func() { in, _ = r.core.Instance(id) }))
	report.Seq, report.Whole = 3, false
	report.Observed = []api.Observed{{Instance: id, Epoch: in.Epoch + 1, State: api.Running, Volumes: true}}
	check(r.t, r.loop.Do(ctx, root.Report{Report: report}, nil))
	return id.Volume("data")
}

func TestVolumesAreListedAndDeletedByTheirTenantOnly(t *testing.T) {
	r := newRig(t)
	r.join("munich", "")
	id := r.volume("munich")
	ctx := t.Context()
	dora, eve := r.client(r.user("acme/dora", rights.ApplicationProvider)), r.client(r.user("rival/eve", rights.ApplicationProvider))
	all, _, err := dora.Volumes(ctx, client.ListOptions{})
	check(t, err)
	if len(all) != 1 || all[0].ID != id || all[0].SizeMB != 64 || all[0].Cluster != "munich" || !all[0].InUse {
		t.Errorf("volumes of acme: got %+v, want %s", all, id)
	}
	if all, _, err := eve.Volumes(ctx, client.ListOptions{}); err != nil || len(all) > 0 {
		t.Errorf("volumes of rival: got %+v, %v, want none", all, err)
	}
	if _, err := eve.Volume(ctx, id); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("get a volume of another tenant: got %v, want ErrNotFound", err)
	}
	if err := eve.DeleteVolume(ctx, id, 0); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("delete a volume of another tenant: got %v, want ErrNotFound", err)
	}
	if err := dora.DeleteVolume(ctx, id, 0); !errors.Is(err, api.ErrConflict) {
		t.Errorf("delete a volume in use: got %v, want ErrConflict", err)
	}
	_, err = dora.DeleteApp(ctx, "acme/shop.prod", 0)
	check(t, err)
	check(t, r.loop.Do(ctx, root.Report{Report: wire.Report{Cluster: "munich", Boot: 1, Seq: 4, Gen: 1 << 40, Whole: true}}, nil))
	v, err := dora.Volume(ctx, id)
	check(t, err)
	if v.InUse {
		t.Fatalf("volume after its application: got %+v, want unused", v)
	}
	admin := r.user("admin", rights.Admin)
	if status, _, text := r.raw(http.MethodDelete, "/v1/tenants/acme", admin, ""); status != http.StatusConflict || !strings.Contains(text, "volume (1)") {
		t.Errorf("delete the tenant of a volume: got %d, want 409: %s", status, text)
	}
	if err := dora.DeleteVolume(ctx, id, v.Revision+1); !errors.Is(err, api.ErrPrecondition) {
		t.Errorf("delete another revision: got %v, want ErrPrecondition", err)
	}
	if err := dora.DeleteVolume(ctx, id, v.Revision); !errors.Is(err, api.ErrUnavailable) {
		t.Errorf("delete while the cluster is away: got %v, want ErrUnavailable", err)
	}
	path := "DELETE /v1/volumes/" + api.PathOf(id)
	r.clusters.answers[path] = httpAnswer(http.StatusConflict, api.Problem{Status: http.StatusConflict, Code: "conflict"})
	if err := dora.DeleteVolume(ctx, id, v.Revision); !errors.Is(err, api.ErrConflict) {
		t.Errorf("delete what the cluster refuses: got %v, want ErrConflict", err)
	}
	r.clusters.answers[path] = "HTTP/1.1 204 No Content\r\n\r\n"
	check(t, dora.DeleteVolume(ctx, id, v.Revision))
	if _, err := dora.Volume(ctx, id); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("get the deleted volume: got %v, want ErrNotFound", err)
	}
}

func (r *rig) dialVolume(token string, id api.VolumeID, kind string) (io.ReadWriteCloser, error) {
	r.t.Helper()
	var socket *websocket.Conn
	right, err := r.client(token).Upgrade(r.t.Context(), client.AccessPath(client.Volumes, id, kind), nil, func(hc *http.Client, url string, h http.Header) (*http.Response, error) {
		s, resp, err := websocket.Dial(r.t.Context(), url, &websocket.DialOptions{HTTPClient: hc, HTTPHeader: h, Subprotocols: []string{"treeline.v1"}})
		socket = s
		return resp, err
	})
	if err != nil {
		return nil, err
	}
	r.t.Cleanup(func() { right.Close(); _ = socket.CloseNow() })
	return websocket.NetConn(r.t.Context(), socket, websocket.MessageBinary), nil
}

func TestCopiesOfVolumesAreSplicedAndRecorded(t *testing.T) {
	r := newRig(t)
	r.join("munich", "")
	id := r.volume("munich")
	dora := r.user("acme/dora", rights.ApplicationProvider)
	for name, c := range map[string]struct {
		token string
		id    api.VolumeID
		kind  string
		want  error
	}{
		"without a token":           {"", id, "snapshot", api.ErrUnauthenticated},
		"by a role that may not":    {r.user("acme/otto", rights.InfrastructureProvider), id, "snapshot", api.ErrForbidden},
		"by another tenant":         {r.user("evil/eve", rights.ApplicationProvider), id, "restore", api.ErrNotFound},
		"that is not there":         {dora, id.Instance().Volume("other"), "snapshot", api.ErrNotFound},
		"that its instance has":     {dora, id, "restore", api.ErrConflict},
		"of a name that is not one": {dora, "acme/shop", "snapshot", api.ErrNotFound},
	} {
		if _, err := r.dialVolume(c.token, c.id, c.kind); !errors.Is(err, c.want) {
			t.Errorf("%s of a volume %s: got %v, want %v", c.kind, name, err, c.want)
		}
	}
	if _, err := r.dialVolume(dora, id.Instance().Volume("other"), "restore"); !errors.Is(err, api.ErrNotFound) || !strings.Contains(err.Error(), "treeline scale") {
		t.Errorf("restore of a volume that does not exist: got %v, want ErrNotFound that says how it comes to exist", err)
	}
	if r.clusters.request.Kind != "" {
		t.Fatalf("a refused request reached the cluster: %+v", r.clusters.request)
	}
	node, far := net.Pipe()
	r.clusters.connected = node
	conn, err := r.dialVolume(dora, id, "snapshot")
	check(t, err)
	go func() {
		defer far.Close()
		w := frames.NewWriter(far)
		_ = w.Write(frames.Stdout, []byte("files"))
		_ = w.Exit(0)
	}()
	in := frames.NewReader(conn)
	if k, p, err := in.Next(); k != frames.Stdout || string(p) != "files" || err != nil {
		t.Errorf("got frame %d %q, %v", k, p, err)
	}
	if k, _, err := in.Next(); k != frames.Exit || err != nil {
		t.Errorf("got frame %d, %v, want the exit code", k, err)
	}
	if q := r.clusters.request; q.Kind != "snapshot" || q.Path != string(id) || q.Instance != id.Instance() || q.Token == "" || q.For == "" {
		t.Errorf("the cluster was asked for %+v", q)
	}
	found := func() (all []string) {
		var events []api.Event
		check(t, r.loop.Read(t.Context(), func() { events = r.core.Events(eventlog.Filter{}) }))
		for _, e := range events {
			if e.Kind == "volume" && e.Object == id.Name() && e.Reason == api.ReasonAccess && e.Tenant == "acme" {
				all = append(all, e.Detail)
			}
		}
		return all
	}
	eventually(t, func() bool { return len(found()) == 2 })
	if all := found(); all[0] != "snapshot by acme/dora" || !strings.HasPrefix(all[1], all[0]+" ended after ") || !strings.HasSuffix(all[1], " with exit code 0") {
		t.Errorf("records %q, want the begin and the result", all)
	}
}
