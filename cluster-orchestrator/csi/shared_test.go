package csi

import (
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/testbed/csidriver"
)

const web = api.ServiceID("acme/shop.prod.web.prod")

// shares has the root desire instances that share a volume, and returns what their node requests for each.
func (r *rig) shares(n int, sizeMB int64, access string) (out []wire.WantVolume) {
	r.t.Helper()
	r.gen++
	d := wire.Desired{Gen: r.gen}
	for i := range n {
		a := wire.Assignment{Instance: web.Instance(i), Epoch: api.EpochOf(api.Revision(r.gen), 0), SpecRev: api.Revision(r.gen), Spec: api.Microservice{
			Name: "web", Namespace: "prod", Virtualization: "container", VCPUs: 1, Memory: 64,
			Volumes: []api.Volume{{Name: "data", Type: api.VolumeCSI, Driver: driverName, MountPath: "/data", SizeMB: sizeMB, Access: access, ReadOnly: access == api.AccessManyReaders}},
		}}
		d.Put, d.Digest = append(d.Put, a), d.Digest.Toggle(a.Digest())
	}
	for i := n; i < 4; i++ {
		d.Drop = append(d.Drop, web.Instance(i))
	}
	r.do(cluster.Desired{Desired: d})
	r.report()
	for i := range n {
		in, ok := r.core.Instance(web.Instance(i))
		if !ok || in.Node != "n1" {
			r.t.Fatalf("instance %d is %+v, want it on n1", i, in)
		}
		out = append(out, wire.WantVolume{Key: wire.Key{Instance: in.ID, Epoch: in.Epoch}, Name: "data"})
	}
	return out
}

// TestSharedVolumeIsDetachedWithItsLastPlacement: the placements of a node get the same volume, and a late or hostile
// request takes it from nobody.
func TestSharedVolumeIsDetachedWithItsLastPlacement(t *testing.T) {
	for _, access := range []string{api.AccessManyWriters, api.AccessManyReaders} {
		t.Run(access, func(t *testing.T) {
			r := newRig(t, time.Minute)
			w := r.shares(2, 64, access)
			var handle string
			for _, each := range w {
				got, err := r.Attach(t.Context(), "n1", each)
				if err != nil || handle != "" && got.Handle != handle || got.Attachment["attached"] != "csi-n1" {
					t.Fatalf("attach for %s: got %+v, %v; want one volume for both", each.Instance, got, err)
				}
				handle = got.Handle
			}
			if n := r.server.Calls("ValidateVolumeCapabilities"); n != 1 {
				t.Errorf("the driver confirmed the access mode %d times, want once", n)
			}
			if err := r.Delete(t.Context(), web.Volume("data")); !errors.Is(err, api.ErrConflict) {
				t.Errorf("delete a volume in use: got %v, want ErrConflict", err)
			}
			older, stranger := w[1], w[1]
			older.Epoch--
			stranger.Instance = "evil/shop.prod.web.prod#0"
			for what, bad := range map[string]wire.WantVolume{"an earlier placement": older, "another tenant": stranger} {
				if _, err := r.Attach(t.Context(), "n1", bad); !errors.Is(err, api.ErrNotFound) {
					t.Errorf("attach for %s: got %v, want ErrNotFound", what, err)
				}
			}
			for what, detach := range map[string]func() error{
				"the first":            func() error { return r.Detach(t.Context(), "n1", w[0]) },
				"the first, again":     func() error { return r.Detach(t.Context(), "n1", w[0]) },
				"an earlier placement": func() error { return r.Detach(t.Context(), "n1", older) },
				"another tenant":       func() error { return r.Detach(t.Context(), "n1", stranger) },
				"another node":         func() error { return r.Detach(t.Context(), "n2", w[1]) },
			} {
				if err := detach(); err != nil || r.storage.Attached(handle) != "csi-n1" {
					t.Errorf("detach for %s: %v, and it is attached to %q", what, err, r.storage.Attached(handle))
				}
			}
			r.server.Set("ControllerUnpublishVolume", csidriver.Fault{Code: codes.Internal})
			if err := r.Detach(t.Context(), "n1", w[1]); err == nil {
				t.Error("a failing detachment: got no error")
			}
			r.server.Set("ControllerUnpublishVolume", csidriver.Fault{})
			r.start()
			if err := r.Detach(t.Context(), "n1", w[1]); err != nil || r.storage.Attached(handle) != "" {
				t.Errorf("detach for the last: %v, and it is attached to %q", err, r.storage.Attached(handle))
			}
			w = r.shares(2, 96, access) // a new version, which grows it
			for _, each := range w {
				if got, err := r.Attach(t.Context(), "n1", each); err != nil || got.SizeMB != 96 || !got.Expand {
					t.Errorf("attach for %s: got %+v, %v; want it grown, also on the node", each.Instance, got, err)
				}
			}
			r.sharedIsDeleted()
		})
	}
}

// TestDetachingANodeLeavesOthersOfItsNameAlone: a machine has joined again under another id, or a node gives the name of
// another one to the driver.
func TestDetachingANodeLeavesOthersOfItsNameAlone(t *testing.T) {
	r := newRig(t, time.Minute)
	w := r.shares(2, 64, api.AccessManyWriters)
	if _, err := r.Attach(t.Context(), "n1", w[0]); err != nil {
		t.Fatal(err)
	}
	key := "csi_volume/" + string(web.Volume("data"))
	d := r.docs[key]
	d.Data = []byte(strings.Replace(string(d.Data), `"nodes":{`, `"nodes":{"n9":{"node_id":"csi-n1","for":{}},`, 1))
	r.docs[key] = d
	r.start()
	if got := r.core.GoneFrom(web.Volume("data")); len(got) != 1 || got[0] != "n9" {
		t.Fatalf("nodes that are gone: got %v, want n9", got)
	}
	if _, err := r.Attach(t.Context(), "n1", w[1]); err != nil {
		t.Fatal(err)
	}
	if n, gone := r.server.Calls("ControllerUnpublishVolume"), r.core.GoneFrom(web.Volume("data")); n > 0 || len(gone) > 0 {
		t.Errorf("the driver detached %d times, and %v are attached; want the record of n9 gone and nothing else", n, gone)
	}
	r.sharedIsDeleted()
}

// sharedIsDeleted removes the instances and deletes their volume, which is attached.
func (r *rig) sharedIsDeleted() {
	r.t.Helper()
	r.shares(0, 64, "")
	if err := r.Delete(r.t.Context(), web.Volume("data")); err != nil {
		r.t.Fatalf("delete: %v", err)
	}
	if v := r.storage.Volumes(); len(v) > 0 {
		r.t.Errorf("volumes of the driver after the deletion: %v", v)
	}
	for k := range r.docs {
		if strings.HasPrefix(k, "csi_") {
			r.t.Errorf("left in the store: %s", k)
		}
	}
}

// TestAccessModeThatTheDriverRefuses is named, nothing is attached, and the volume can be deleted.
func TestAccessModeThatTheDriverRefuses(t *testing.T) {
	for name, o := range map[string]struct {
		driver csidriver.Options
		fault  csidriver.Fault
		text   string
	}{
		"when it creates the volume":  {driver: csidriver.Options{OneNode: true}, text: "volumes are for one node"},
		"and creates it nevertheless": {fault: csidriver.Fault{Lie: true}, text: "does not confirm access_mode " + api.AccessManyWriters},
		"by having no way to ask":     {fault: csidriver.Fault{Code: codes.Unimplemented}, text: "cannot confirm access_mode " + api.AccessManyWriters},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRigOf(t, time.Minute, o.driver)
			r.server.Set("ValidateVolumeCapabilities", o.fault)
			w := r.shares(1, 64, api.AccessManyWriters)
			for range 2 {
				if _, err := r.Attach(t.Context(), "n1", w[0]); !errors.Is(err, api.ErrInvalid) || !strings.Contains(err.Error(), o.text) || !strings.Contains(err.Error(), driverName) {
					t.Errorf("attach: got %v, want ErrInvalid with %q", err, o.text)
				}
			}
			if n := r.server.Calls("ControllerPublishVolume"); n > 0 {
				t.Errorf("it was attached %d times", n)
			}
			r.sharedIsDeleted()
		})
	}
}
