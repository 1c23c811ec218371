package api_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
)

func volumesOf(t *testing.T, volumes string) api.Microservice {
	t.Helper()
	sla, err := api.ParseSLA([]byte(placed(`"memory":100,"volumes":` + volumes)))
	if err != nil {
		t.Fatal(err)
	}
	return sla.Applications[0].Services[0]
}

func TestVolumesInOakestrasFormAndInOursAreTheSame(t *testing.T) {
	own := volumesOf(t, `[{"name":"data","type":"local","mount_path":"/data","size":64}]`)
	theirs := volumesOf(t, `[{"volume_id":"data","csi_driver":"local","mount_path":"/data","size":64,"config":{}}]`)
	want := []api.Volume{{Name: "data", Type: api.VolumeLocal, MountPath: "/data", SizeMB: 64}}
	if !reflect.DeepEqual(own.Volumes, want) || !reflect.DeepEqual(theirs.Volumes, want) {
		t.Errorf("volumes: got %+v and %+v, want %+v", own.Volumes, theirs.Volumes, want)
	}
}

func TestVolumesAreReserved(t *testing.T) {
	m := volumesOf(t, `[{"name":"a","type":"local","mount_path":"/a","size":64},{"name":"b","type":"ephemeral","mount_path":"/b","size":32},{"name":"c","type":"tmpfs","mount_path":"/c","size":8}]`)
	if got := m.Needs(); got.StorageMB != 96 || got.MemoryMB != 108 {
		t.Errorf("needs: got %s, want 96 MiB of disk and 108 MiB of memory", got)
	}
	if !m.KeepsData() || len(m.LocalVolumes()) != 1 || m.TmpfsMB() != 8 {
		t.Errorf("got %+v, want one local volume and 8 MiB of tmpfs", m)
	}
}

func TestCSIVolumes(t *testing.T) {
	m := volumesOf(t, `[{"volume_id":"data","csi_driver":"csi.example.org","mount_path":"/data","size":8,"config":{"class":"fast"}}]`)
	want := []api.Volume{{Name: "data", Type: api.VolumeCSI, Driver: "csi.example.org", MountPath: "/data", SizeMB: 8, Config: map[string]string{"class": "fast"}}}
	if own := volumesOf(t, `[{"name":"data","type":"csi","csi_driver":"csi.example.org","mount_path":"/data","size":8,"config":{"class":"fast"}}]`); !reflect.DeepEqual(m.Volumes, want) || !reflect.DeepEqual(own.Volumes, want) {
		t.Errorf("volumes: got %+v and %+v, want %+v", m.Volumes, own.Volumes, want)
	}
	if !m.Exclusive || !m.KeepsData() || len(m.LocalVolumes()) > 0 || m.Needs().StorageMB != 0 || !slices.Equal(m.Features(), []string{"csi:csi.example.org"}) {
		t.Errorf("got %+v with features %v, want an exclusive service that takes no disk of the node and needs the driver", m, m.Features())
	}
}

func TestSharedCSIVolumes(t *testing.T) {
	of := func(mode, more string) api.Microservice {
		return volumesOf(t, `[{"name":"data","csi_driver":"csi.example.org","mount_path":"/data","size":8,"access_mode":"`+mode+`"}]`+more)
	}
	m := of(api.AccessManyWriters, "")
	if m.Exclusive || m.Single() || !m.KeepsData() || !m.SharesVolumes() || !m.InOneCluster() || !slices.Equal(m.Features(), []string{"csi:csi.example.org", api.FeatureVolumeShared}) {
		t.Errorf("got %+v with features %v, want a service of several instances that needs the driver and shared volumes", m, m.Features())
	}
	if v := of(api.AccessManyReaders, "").Volumes[0]; !v.ReadOnly || v.Access != api.AccessManyReaders {
		t.Errorf("a volume for readers: got %+v, want it read-only", v)
	}
	if m := of(api.AccessOneWriter, ""); !m.Exclusive || m.SharesVolumes() || m.Volumes[0].Access != "" {
		t.Errorf("a volume for one writer: got %+v, want the same as without access_mode", m)
	}
	m = of(api.AccessManyWriters, `,"on_disconnect":"keep","update":{"surge":1},"scale":{"min":1,"max":1}`)
	if m.Scale == nil || m.Update == nil {
		t.Errorf("got %+v, want what needs several instances at once", m)
	}
}

// TestIDsOfVolumes: those of services and of instances are not mistaken for each other, also in paths.
func TestIDsOfVolumes(t *testing.T) {
	service := api.ServiceID("acme/eu/shop.prod.web.v1")
	v := api.Volume{Name: "data"}
	own := v.IDFor(service.Instance(3))
	v.Access = api.AccessManyWriters
	shared := v.IDFor(service.Instance(3))
	for id, is := range map[api.VolumeID]bool{own: false, shared: true} {
		if got, err := api.ParseVolumeID(string(id)); err != nil || got != id || id.Shared() != is || id.Service() != service || id.Tenant() != "acme/eu" || id.Label() != "data" {
			t.Errorf("%s: got %s, %v of %s of tenant %s, shared %v", id, got, err, id.Service(), id.Tenant(), id.Shared())
		}
		if got := api.VolumeFromPath(api.PathOf(id)); got != id {
			t.Errorf("path of %s: got %s", id, got)
		}
		if s, err := api.ParseSnapshotID(string(id.Snapshot("monday"))); err != nil || s.Volume() != id || api.SnapshotFromPath(api.PathOf(s)) != s {
			t.Errorf("snapshot of %s: got %s, %v", id, s, err)
		}
	}
	if own != "acme/eu/shop.prod.web.v1#3:data" || shared != "acme/eu/shop.prod.web.v1:data" || shared.Instance() != "" {
		t.Errorf("ids: got %s and %s", own, shared)
	}
	for _, bad := range []string{"acme/shop.prod.web:data", "acme/shop.prod.web.v1", "shop.prod.web.v1:data", "acme/shop.prod.web.v1#:data", "acme/shop.prod.web.v1:", "acme/shop.prod.web.v1#x:data", "acme/shop.prod.web.v1:a:b"} {
		if id, err := api.ParseVolumeID(bad); !errors.Is(err, api.ErrInvalid) {
			t.Errorf("%q: got %q, %v; want ErrInvalid", bad, id, err)
		}
	}
}

func TestEphemeralCSIVolumes(t *testing.T) {
	m := volumesOf(t, `[{"name":"id","type":"csi_ephemeral","csi_driver":"csi.example.org","mount_path":"/id","read_only":true,"config":{"class":"fast"}}]`)
	want := []api.Volume{{Name: "id", Type: api.VolumeCSIEphemeral, Driver: "csi.example.org", MountPath: "/id", ReadOnly: true, Config: map[string]string{"class": "fast"}}}
	if !reflect.DeepEqual(m.Volumes, want) {
		t.Errorf("volumes: got %+v, want %+v", m.Volumes, want)
	}
	// A release that does not know the type needs the feature volume_csi_ephemeral, which no node has.
	if m.Exclusive || m.KeepsData() || m.Needs().StorageMB != 0 || !slices.Equal(m.Features(), []string{"csi_ephemeral:csi.example.org"}) {
		t.Errorf("got %+v with features %v, want a service that keeps nothing and needs the driver", m, m.Features())
	}
	if text := api.FeatureText(m.Features()[0]); !strings.Contains(text, "csi.example.org") || !strings.Contains(text, "key") {
		t.Errorf("feature for people: got %q", text)
	}
	if text, err := json.Marshal(m.Volumes[0]); err != nil || strings.Contains(string(text), "size") {
		t.Errorf("volume in JSON: got %s, %v; want no size", text, err)
	}
}

func TestVolumesThatCannotBeAreRefused(t *testing.T) {
	volume := func(members string) string {
		all := `"name":"data","type":"local","mount_path":"/data","size":64`
		for _, m := range strings.Split(members, ";") {
			key, value, _ := strings.Cut(m, "=")
			var kept []string
			for _, part := range strings.Split(all, ",") {
				if !strings.HasPrefix(part, `"`+key+`":`) {
					kept = append(kept, part)
				}
			}
			if value != "" {
				kept = append(kept, `"`+key+`":`+value)
			}
			all = strings.Join(kept, ",")
		}
		return `"volumes":[{` + all + `}]`
	}
	two := func(a, b string) string {
		return `"volumes":[{"name":"a","type":"tmpfs","mount_path":"` + a + `","size":1},{"name":"b","type":"tmpfs","mount_path":"` + b + `","size":1}]`
	}
	for _, c := range []struct{ members, pointer, message string }{
		{volume("name="), "/volumes/0/name", "name is missing"},
		{volume(`name="No_label"`), "/volumes/0/name", "name cannot be"},
		{volume(`volume_id="other"`), "/volumes/0/volume_id", "contradicts name"},
		{volume("type="), "/volumes/0/type", "type is missing"},
		{volume(`type="nfs"`), "/volumes/0/type", "type cannot be"},
		{volume(`type=;csi_driver="locall"`), "/volumes/0/csi_driver", `csi_driver "locall" is not built in`},
		{volume(`type="csi"`), "/volumes/0/csi_driver", "csi_driver is missing"},
		{volume(`type="csi";csi_driver="tmpfs"`), "/volumes/0/csi_driver", "contradicts type"},
		{volume(`type="csi";csi_driver="csi"`), "/volumes/0/csi_driver", "is not built in"},
		{volume(`csi_driver="csi.example.org"`), "/volumes/0/csi_driver", "contradicts type"},
		{volume(`type=;csi_driver="csi..example"`), "/volumes/0/csi_driver", "no name of a CSI driver"},
		{volume(`type=;csi_driver="csi.example.org";config={"a":1}`), "/volumes/0/config/a", "must be a string"},
		{volume(`type=;csi_driver="csi.example.org";config={"":"b"}`), "/volumes/0/config/", "is invalid"},
		{volume(`type=;csi_driver="csi.example.org";secrets=["s"]`), "/volumes/0/secrets", "csi_secrets"},
		{volume(`type=;csi_driver="csi.example.org";access_mode="shared"`), "/volumes/0/access_mode", "cannot be"},
		{volume(`access_mode="multi_node_multi_writer"`), "/volumes/0/access_mode", "for type csi"},
		{`"exclusive":false,"scale":{"max":1},` + volume(`type=;csi_driver="csi.example.org"`), "/volumes/0/type", "outlive an instance"},
		{`"update":{"surge":1},` + volume(`type=;csi_driver="csi.example.org"`), "/update/surge", "CSI volume"},
		{`"on_disconnect":"keep",` + volume(`type=;csi_driver="csi.example.org"`), "/on_disconnect", "CSI volume"},
		{volume(`type="csi_ephemeral";size=`), "/volumes/0/csi_driver", "csi_driver is missing"},
		{volume(`type="csi_ephemeral";csi_driver="csi.example.org"`), "/volumes/0/size", "has no size"},
		{volume(`type="csi_ephemeral";csi_driver="local";size=`), "/volumes/0/csi_driver", "contradicts type"},
		{volume(`type="csi_ephemeral";csi_driver="csi.example.org";size=;snapshot="shop.prod.db.prod#0:data@monday"`), "/volumes/0/snapshot", "is for CSI drivers"},
		{volume(`type="csi_ephemeral";csi_driver="csi.example.org";size=;config={"csi.storage.k8s.io/pod.name":"x"}`), "/volumes/0/config/csi.storage.k8s.io~1pod.name", "is set by the node"},
		{volume(`csi_driver="tmpfs"`), "/volumes/0/csi_driver", "contradicts type"},
		{volume("size="), "/volumes/0/size", "size is missing"},
		{volume("size=0"), "/volumes/0/size", "out of range"},
		{volume("size=15"), "/volumes/0/size", "too small"},
		{volume("size=16777217"), "/volumes/0/size", "out of range"},
		{volume("mount_path="), "/volumes/0/mount_path", "mount_path is missing"},
		{volume(`mount_path="data"`), "/volumes/0/mount_path", "is not absolute"},
		{volume(`mount_path="/data/../etc"`), "/volumes/0/mount_path", "shortest form"},
		{volume(`mount_path="/data/"`), "/volumes/0/mount_path", "shortest form"},
		{volume(`mount_path="/"`), "/volumes/0/mount_path", "covers"},
		{volume(`mount_path="/proc"`), "/volumes/0/mount_path", "/proc"},
		{volume(`mount_path="/sys/fs"`), "/volumes/0/mount_path", "/sys"},
		{volume(`mount_path="/dev/shm"`), "/volumes/0/mount_path", "/dev"},
		{volume(`mount_path="/etc"`), "/volumes/0/mount_path", "/etc/hosts"},
		{volume(`type="tmpfs";read_only=true`), "/volumes/0/read_only", "useless"},
		{volume(`config={"a":"b"}`), "/volumes/0/config", "is for CSI drivers"},
		{two("/a", "/a"), "/volumes/1/mount_path", "contain one another"},
		{two("/a", "/a/b"), "/volumes/1/mount_path", "contain one another"},
		{two("/a/b", "/a"), "/volumes/1/mount_path", "contain one another"},
		{strings.ReplaceAll(two("/a", "/b"), `"name":"b"`, `"name":"a"`), "/volumes/1/name", "given twice"},
		{`"virtualization":"process","code":"/bin/true",` + volume(""), "/volumes", "not supported for virtualization: process"},
		{`"virtualization":"runsc",` + volume(""), "/volumes", "not supported for virtualization: runsc"},
	} {
		found := false
		for _, f := range faultsOf(t, placed(c.members)) {
			found = found || f.Pointer == at+c.pointer && strings.Contains(f.Message, c.message) && f.Fix != ""
		}
		if !found {
			t.Errorf("%s: got %+v, want a fault at %s about %q", c.members, faultsOf(t, placed(c.members)), c.pointer, c.message)
		}
	}
	if _, err := api.ParseSLA([]byte(placed(two("/a", "/ab")))); err != nil {
		t.Errorf("paths of which none contains the other: %v", err)
	}
}

func TestIdOfAVolume(t *testing.T) {
	const id = api.VolumeID("acme/lab/shop.prod.db.v1#2:data")
	if got, err := api.ParseVolumeID(string(id)); err != nil || got != id {
		t.Errorf("ParseVolumeID(%q): got %q, %v", id, got, err)
	}
	if got := api.VolumeFromPath(api.PathOf(id)); got != id {
		t.Errorf("id after a path: got %q, want %q", got, id)
	}
	if id.Tenant() != "acme/lab" || id.Instance() != "acme/lab/shop.prod.db.v1#2" || id.Label() != "data" || id.Name() != "shop.prod.db.v1#2:data" {
		t.Errorf("parts of %s: got %q, %q, %q, %q", id, id.Tenant(), id.Instance(), id.Label(), id.Name())
	}
	for _, bad := range []string{"", ":", "acme/shop.prod.db.v1#2", "acme/shop.prod.db.v1#2:", "acme/shop.prod.db.v1#2:../x", "acme/shop.prod.db.v1#2:a/b", "/shop.prod.db.v1#2:data"} {
		if got, err := api.ParseVolumeID(bad); err == nil {
			t.Errorf("ParseVolumeID(%q): got %q, want an error", bad, got)
		}
	}
}

func TestMove(t *testing.T) {
	const local = `"volumes":[{"name":"data","type":"local","mount_path":"/data","size":64}]`
	sla, err := api.ParseSLA([]byte(placed(local + `,"move":"volume"`)))
	if err != nil {
		t.Fatal(err)
	}
	m := sla.Applications[0].Services[0]
	if !m.MovesVolumes() || !slices.Contains(m.Features(), api.FeatureMoveVolume) {
		t.Errorf("got %+v with features %v, want that it moves", m, m.Features())
	}
	if m := volumesOf(t, `[{"name":"data","type":"local","mount_path":"/data","size":64}]`); m.MovesVolumes() || slices.Contains(m.Features(), api.FeatureMoveVolume) {
		t.Error("a service without move moves")
	}
	for _, c := range []struct{ members, fix string }{
		{local + `,"move":"memory"`, "memory cannot move"},
		{local + `,"move":"volumes"`, "volume"},
		{`"move":"volume"`, "add a volume of type local"},
		{`"volumes":[{"name":"data","type":"tmpfs","mount_path":"/data","size":64}],"move":"volume"`, "add a volume of type local"},
		{`"volumes":[{"name":"data","type":"local","mount_path":"/data","size":64},{"name":"more","csi_driver":"csi.example.org","mount_path":"/more","size":64}],"move":"volume"`, "volumes/1"},
	} {
		_, err := api.ParseSLA([]byte(placed(c.members)))
		var invalid *api.Faults
		if !errors.As(err, &invalid) || len(invalid.Faults) != 1 || !strings.HasSuffix(invalid.Faults[0].Pointer, "/move") || !strings.Contains(invalid.Faults[0].Fix, c.fix) {
			t.Errorf("%s: got %v, want one fault of move with the fix %q", c.members, err, c.fix)
		}
	}
}
