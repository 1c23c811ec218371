// Package csi calls drivers of the container storage interface, version 1, through their unix sockets.
// Each call has a deadline, and a driver that does not answer delays only its own callers.
//
// Volumes are mounted file systems.
package csi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/fairshare"
)

// The limits of drivers and of what they answer.
const (
	MaxDrivers = 8
	DefaultFor = 30 * time.Second // of one call
	MaxTimeout = 10 * time.Minute

	maxAnswer  = 1 << 20
	maxEntries = 64 // of a context or of a topology
	maxWord    = 1024
	maxText    = 300 // of an error
)

var turns = fairshare.Declare(fairshare.Bound{
	Resource: "calls that wait for a CSI driver", Total: 1 << 12, Per: "topmost tenant",
	Beyond: "5 at once for each driver, 4 of one tenant, and tenants take turns; the newest of the tenant with most fails and is tried again",
	Attack: "TestHangingDriverCostsOnlyItsOwnInstances",
})

// Driver is a client of one driver. It is safe for concurrent use.
type Driver struct {
	name    string
	timeout time.Duration
	conn    *grpc.ClientConn
	secrets secrets
	turns   *fairshare.Turns // by tenant

	mu     sync.Mutex // guards the field below
	silent time.Time  // when the first call began of those since the last answer; zero: none
}

// Parse reads a configured driver, "NAME=/path/of/its.sock".
func Parse(text string) (name, socket string, err error) {
	name, socket, _ = strings.Cut(text, "=")
	if !api.ValidCSIDriver(name) || !strings.HasPrefix(socket, "/") || len(socket) > 107 {
		return "", "", fmt.Errorf("%q is not NAME=/path/of/its.sock, with a name such as csi.example.org: %w", text, api.ErrInvalid)
	}
	return name, socket, nil
}

// ParseAll reads a list of drivers and returns their sockets by name.
func ParseAll(list []string) (map[string]string, error) {
	out := map[string]string{}
	for _, text := range list {
		name, socket, err := Parse(text)
		if err != nil {
			return nil, err
		}
		if out[name] != "" {
			return nil, fmt.Errorf("driver %s is given twice: %w", name, api.ErrInvalid)
		}
		out[name] = socket
	}
	if len(out) > MaxDrivers {
		return nil, fmt.Errorf("%d drivers, want at most %d: %w", len(out), MaxDrivers, api.ErrInvalid)
	}
	return out, nil
}

// Options configure a Driver.
type Options struct {
	Name, Socket string
	Secrets      string        // file with the secrets of its calls, see readSecrets; "": none
	Timeout      time.Duration // of one call; 0: DefaultFor
}

// Open returns a client, which connects when it is used.
func Open(o Options) (*Driver, error) {
	conn, err := grpc.NewClient("unix://"+o.Socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(), grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)), grpc.WithMaxHeaderListSize(64<<10))
	if err != nil {
		return nil, fmt.Errorf("open CSI driver %s: %w", o.Name, err)
	}
	if o.Timeout <= 0 {
		o.Timeout = DefaultFor
	}
	return &Driver{name: o.Name, timeout: o.Timeout, conn: conn, secrets: secrets{path: o.Secrets}, turns: fairshare.NewTurns(turns, 5, 4)}, nil
}

// OpenAll opens the drivers of ParseAll with the files of ParseSecrets.
func OpenAll(sockets, secrets map[string]string, timeout time.Duration) (map[string]*Driver, error) {
	out := map[string]*Driver{}
	for name, socket := range sockets {
		d, err := Open(Options{Name: name, Socket: socket, Secrets: secrets[name], Timeout: timeout})
		if err != nil {
			return nil, err
		}
		out[name] = d
	}
	return out, nil
}

// Close ends calls that are under way.
func (d *Driver) Close() { _ = d.conn.Close() }

// Name returns the driver's name.
func (d *Driver) Name() string { return d.name }

// call makes one call for a tenant when it is its turn, within the driver's timeout. do gets the secrets of
// the call.
func (d *Driver) call(ctx context.Context, tenant api.Tenant, method string, do func(context.Context, map[string]string) error) error {
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	began := time.Now()
	leave, err := d.turns.Enter(ctx, began, []string{string(tenant.Top())}, false)
	if err != nil {
		return d.fail(ctx, method, began, err)
	}
	defer leave()
	secrets, err := d.secrets.of(method)
	if err != nil {
		return fmt.Errorf("call %s of CSI driver %s: %w", method, d.name, err)
	}
	d.mu.Lock()
	if d.silent.IsZero() {
		d.silent = began
	}
	d.mu.Unlock()
	if err := do(ctx, secrets); err != nil {
		return d.fail(ctx, method, began, err)
	}
	d.answered()
	return nil
}

func (d *Driver) answered() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.silent = time.Time{}
}

// fail describes an error. Deadlines say how long the driver has not answered any call.
func (d *Driver) fail(ctx context.Context, method string, began time.Time, err error) error {
	code := status.Code(err)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) || code == codes.DeadlineExceeded {
		d.mu.Lock()
		if !d.silent.IsZero() && d.silent.Before(began) {
			began = d.silent
		}
		d.mu.Unlock()
		return fmt.Errorf("CSI driver %s has not answered %s for %s: %w", d.name, method, time.Since(began).Round(time.Second), api.ErrUnavailable)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if _, ok := status.FromError(err); !ok {
		return fmt.Errorf("call %s of CSI driver %s: %w", method, d.name, err)
	}
	if code != codes.Unavailable { // its socket may be gone
		d.answered()
	}
	return &Error{Driver: d.name, Method: method, Code: code, Text: d.shorten(status.Convert(err).Message())}
}

// Error is a driver's answer that a call failed.
type Error struct {
	Driver, Method, Text string
	Code                 codes.Code
}

func (e *Error) Error() string {
	return fmt.Sprintf("CSI driver %s refused %s: %s: %s", e.Driver, e.Method, e.Code, e.Text)
}

// Unwrap returns the kind of the error.
func (e *Error) Unwrap() error {
	switch e.Code {
	case codes.NotFound:
		return api.ErrNotFound
	case codes.AlreadyExists, codes.FailedPrecondition, codes.Aborted:
		return api.ErrConflict
	case codes.InvalidArgument, codes.OutOfRange, codes.Unimplemented:
		return api.ErrInvalid
	case codes.ResourceExhausted:
		return api.ErrFull
	}
	return api.ErrUnavailable
}

// shorten returns a text of the driver without secrets, as one short line.
func (d *Driver) shorten(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(d.secrets.redact(s), "?"))
	if len(s) > maxText {
		return strings.ToValidUTF8(s[:maxText], "") + "…"
	}
	return s
}

// check returns an error if an answer is too large to be kept, or contains a secret, with which it would be
// stored.
func (d *Driver) check(method string, dicts ...map[string]string) error {
	for _, m := range dicts {
		for k, v := range m {
			if len(m) > maxEntries || len(k) > maxWord || len(v) > maxWord {
				return fmt.Errorf("CSI driver %s answered %s with %d entries, want at most %d with at most %d bytes each: %w", d.name, method, len(m), maxEntries, maxWord, api.ErrInvalid)
			}
		}
		if k, yes := d.secrets.echoed(m); yes {
			return fmt.Errorf("CSI driver %s answered %s with one of its secrets, under the key %q: %w", d.name, method, d.shorten(k), api.ErrInvalid)
		}
	}
	return nil
}

// Check verifies that the driver at the socket has the configured name and is ready.
func (d *Driver) Check(ctx context.Context) error {
	return d.call(ctx, "", "GetPluginInfo", func(ctx context.Context, _ map[string]string) error {
		c := csi.NewIdentityClient(d.conn)
		info, err := c.GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
		if err != nil {
			return err
		}
		if info.GetName() != d.name {
			return fmt.Errorf("the driver at its socket is %q: %w", d.shorten(info.GetName()), api.ErrInvalid)
		}
		ready, err := c.Probe(ctx, &csi.ProbeRequest{})
		if err == nil && ready.GetReady() != nil && !ready.GetReady().GetValue() {
			return fmt.Errorf("it is not ready yet: %w", api.ErrUnavailable)
		}
		return err
	})
}

// capability returns what a volume is: a mounted file system with an access mode of the SLA.
func capability(access string) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: modeOf(access)},
	}
}

func modeOf(access string) csi.VolumeCapability_AccessMode_Mode {
	switch access {
	case api.AccessManyWriters:
		return csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	case api.AccessManyReaders:
		return csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	}
	return csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
}

// Mount is what a volume needs on a node.
type Mount struct {
	Tenant     api.Tenant
	Handle     string
	Context    map[string]string // of the volume
	Attachment map[string]string // of ControllerPublishVolume
	Access     string            // see api.Volume.Access
	Staging    string
	Target     string
	ReadOnly   bool
	Bytes      int64
}

// NodeService is what the driver says about the node.
type NodeService struct {
	ID            string
	Topology      map[string]string
	Stage, Expand bool
}

// Node returns what the driver says about the node.
func (d *Driver) Node(ctx context.Context) (out NodeService, err error) {
	err = d.call(ctx, "", "NodeGetInfo", func(ctx context.Context, _ map[string]string) error {
		c := csi.NewNodeClient(d.conn)
		info, err := c.NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
		if err != nil {
			return err
		}
		out.ID, out.Topology = info.GetNodeId(), info.GetAccessibleTopology().GetSegments()
		if len(out.ID) > 256 || out.ID == "" {
			return fmt.Errorf("the node's id has %d bytes, want 1 to 256: %w", len(out.ID), api.ErrInvalid)
		}
		caps, err := c.NodeGetCapabilities(ctx, &csi.NodeGetCapabilitiesRequest{})
		for _, k := range caps.GetCapabilities() {
			switch k.GetRpc().GetType() {
			case csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME:
				out.Stage = true
			case csi.NodeServiceCapability_RPC_EXPAND_VOLUME:
				out.Expand = true
			}
		}
		return err
	})
	if err == nil {
		err = d.check("NodeGetInfo", out.Topology, map[string]string{"node_id": out.ID})
	}
	return out, err
}

// Stage calls NodeStageVolume.
func (d *Driver) Stage(ctx context.Context, m Mount) error {
	return d.call(ctx, m.Tenant, "NodeStageVolume", func(ctx context.Context, secrets map[string]string) error {
		_, err := csi.NewNodeClient(d.conn).NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
			VolumeId: m.Handle, PublishContext: m.Attachment, StagingTargetPath: m.Staging, VolumeCapability: capability(m.Access), VolumeContext: m.Context, Secrets: secrets,
		})
		return err
	})
}

// Publish calls NodePublishVolume.
func (d *Driver) Publish(ctx context.Context, m Mount) error {
	return d.call(ctx, m.Tenant, "NodePublishVolume", func(ctx context.Context, secrets map[string]string) error {
		_, err := csi.NewNodeClient(d.conn).NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
			VolumeId: m.Handle, PublishContext: m.Attachment, StagingTargetPath: m.Staging, TargetPath: m.Target, VolumeCapability: capability(m.Access),
			Readonly: m.ReadOnly, VolumeContext: m.Context, Secrets: secrets,
		})
		return err
	})
}

// Unpublish calls NodeUnpublishVolume. It succeeds if the driver does not know the volume any more.
func (d *Driver) Unpublish(ctx context.Context, m Mount) error {
	return gone(d.call(ctx, m.Tenant, "NodeUnpublishVolume", func(ctx context.Context, _ map[string]string) error {
		_, err := csi.NewNodeClient(d.conn).NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: m.Handle, TargetPath: m.Target})
		return err
	}))
}

// Unstage calls NodeUnstageVolume. It succeeds if the driver does not know the volume any more.
func (d *Driver) Unstage(ctx context.Context, m Mount) error {
	return gone(d.call(ctx, m.Tenant, "NodeUnstageVolume", func(ctx context.Context, _ map[string]string) error {
		_, err := csi.NewNodeClient(d.conn).NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: m.Handle, StagingTargetPath: m.Staging})
		return err
	}))
}

// ExpandNode calls NodeExpandVolume for a published volume.
func (d *Driver) ExpandNode(ctx context.Context, m Mount) error {
	return d.call(ctx, m.Tenant, "NodeExpandVolume", func(ctx context.Context, secrets map[string]string) error {
		_, err := csi.NewNodeClient(d.conn).NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{
			VolumeId: m.Handle, VolumePath: m.Target, StagingTargetPath: m.Staging, VolumeCapability: capability(m.Access),
			CapacityRange: &csi.CapacityRange{RequiredBytes: m.Bytes}, Secrets: secrets,
		})
		return err
	})
}

func gone(err error) error {
	if errors.Is(err, api.ErrNotFound) {
		return nil
	}
	return err
}

// Volume is a volume of a driver.
type Volume struct {
	Handle   string
	Context  map[string]string
	Access   string              // see api.Volume.Access
	Topology []map[string]string // it is accessible from nodes in any of them; nil: from all
	Bytes    int64
}

// ControllerService is what the driver's controller can do.
type ControllerService struct {
	Create, Attach, Expand bool
	Snapshot               bool
	ReadOnly               bool // attachments; without it they must be requested as writable
}

// Controller returns what the driver's controller can do.
func (d *Driver) Controller(ctx context.Context) (out ControllerService, err error) {
	err = d.call(ctx, "", "ControllerGetCapabilities", func(ctx context.Context, _ map[string]string) error {
		caps, err := csi.NewControllerClient(d.conn).ControllerGetCapabilities(ctx, &csi.ControllerGetCapabilitiesRequest{})
		for _, k := range caps.GetCapabilities() {
			switch k.GetRpc().GetType() {
			case csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME:
				out.Create = true
			case csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME:
				out.Attach = true
			case csi.ControllerServiceCapability_RPC_PUBLISH_READONLY:
				out.ReadOnly = true
			case csi.ControllerServiceCapability_RPC_EXPAND_VOLUME:
				out.Expand = true
			case csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT:
				out.Snapshot = true
			}
		}
		return err
	})
	if e := (&Error{}); errors.As(err, &e) && e.Code == codes.Unimplemented {
		err = fmt.Errorf("CSI driver %s has no controller service at its socket of the cluster, which creates volumes; a driver without one has volumes of type csi_ephemeral only: %w", d.name, api.ErrInvalid)
	}
	return out, err
}

// NewVolume is a volume to create.
type NewVolume struct {
	Name       string
	Bytes      int64
	Access     string // see api.Volume.Access
	Parameters map[string]string
	Near       map[string]string // the topology of the node that needs it first
	Snapshot   string            // handle of the snapshot that it is created from; "": it is empty
}

// Create creates a volume, or returns the existing one of the name.
func (d *Driver) Create(ctx context.Context, tenant api.Tenant, n NewVolume) (v Volume, err error) {
	err = d.call(ctx, tenant, "CreateVolume", func(ctx context.Context, secrets map[string]string) error {
		req := &csi.CreateVolumeRequest{
			Name: n.Name, CapacityRange: &csi.CapacityRange{RequiredBytes: n.Bytes}, VolumeCapabilities: []*csi.VolumeCapability{capability(n.Access)}, Parameters: n.Parameters, Secrets: secrets,
		}
		if len(n.Near) > 0 {
			at := []*csi.Topology{{Segments: n.Near}}
			req.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: at, Preferred: at}
		}
		if n.Snapshot != "" {
			req.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: n.Snapshot}}}
		}
		answer, err := csi.NewControllerClient(d.conn).CreateVolume(ctx, req)
		if err != nil {
			return err
		}
		got := answer.GetVolume()
		v = Volume{Handle: got.GetVolumeId(), Context: got.GetVolumeContext(), Access: n.Access, Bytes: got.GetCapacityBytes()}
		for _, t := range got.GetAccessibleTopology() {
			v.Topology = append(v.Topology, maps.Clone(t.GetSegments()))
		}
		switch {
		case v.Handle == "" || len(v.Handle) > maxWord || len(v.Topology) > maxEntries:
			return fmt.Errorf("it answered with an id of %d bytes and %d topologies, want 1 to %d bytes and at most %d: %w", len(v.Handle), len(v.Topology), maxWord, maxEntries, api.ErrInvalid)
		case v.Bytes != 0 && v.Bytes < n.Bytes:
			return fmt.Errorf("it answered with a volume of %d bytes, want at least %d: %w", v.Bytes, n.Bytes, api.ErrInvalid)
		case n.Snapshot != "" && got.GetContentSource().GetSnapshot().GetSnapshotId() != n.Snapshot:
			// The specification requires it, and a driver that ignores the snapshot would start a service with an empty volume.
			return fmt.Errorf("it did not confirm that the volume is created from the snapshot: %w", api.ErrInvalid)
		}
		return nil
	})
	if err == nil {
		err = d.check("CreateVolume", slices.Concat([]map[string]string{v.Context, {"volume_id": v.Handle}}, v.Topology)...)
	}
	return v, err
}

// Confirm asks the driver whether a volume that exists can be used with its access mode. It fails with ErrInvalid, which
// names the mode, if the driver does not confirm exactly that.
func (d *Driver) Confirm(ctx context.Context, tenant api.Tenant, v Volume, parameters map[string]string) error {
	const method = "ValidateVolumeCapabilities"
	want := capability(v.Access)
	err := d.call(ctx, tenant, method, func(ctx context.Context, secrets map[string]string) error {
		answer, err := csi.NewControllerClient(d.conn).ValidateVolumeCapabilities(ctx, &csi.ValidateVolumeCapabilitiesRequest{
			VolumeId: v.Handle, VolumeContext: v.Context, VolumeCapabilities: []*csi.VolumeCapability{want}, Parameters: parameters, Secrets: secrets,
		})
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(answer.GetConfirmed().GetVolumeCapabilities(), func(c *csi.VolumeCapability) bool {
			return c.GetAccessMode().GetMode() == want.GetAccessMode().GetMode() && c.GetMount() != nil
		}) {
			return fmt.Errorf("it does not confirm access_mode %s for the volume: %q: %w", v.Access, d.shorten(answer.GetMessage()), api.ErrInvalid)
		}
		return nil
	})
	if e := (&Error{}); errors.As(err, &e) && e.Code == codes.Unimplemented {
		return fmt.Errorf("CSI driver %s has no %s, so that it cannot confirm access_mode %s: %w", d.name, method, v.Access, api.ErrInvalid)
	}
	return err
}

// Delete deletes a volume. It succeeds if there is none.
func (d *Driver) Delete(ctx context.Context, tenant api.Tenant, handle string) error {
	return gone(d.call(ctx, tenant, "DeleteVolume", func(ctx context.Context, secrets map[string]string) error {
		_, err := csi.NewControllerClient(d.conn).DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: handle, Secrets: secrets})
		return err
	}))
}

// Snapshot is a snapshot of a driver.
type Snapshot struct {
	Handle string
	Bytes  int64 // of a volume that is created from it, at least; 0: unknown
	Ready  bool  // a volume can be created from it
}

// CreateSnapshot creates a snapshot of a volume, or returns the existing one of the name.
func (d *Driver) CreateSnapshot(ctx context.Context, tenant api.Tenant, name, volume string) (s Snapshot, err error) {
	err = d.call(ctx, tenant, "CreateSnapshot", func(ctx context.Context, secrets map[string]string) error {
		answer, err := csi.NewControllerClient(d.conn).CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: name, SourceVolumeId: volume, Secrets: secrets})
		if err != nil {
			return err
		}
		got := answer.GetSnapshot()
		s = Snapshot{Handle: got.GetSnapshotId(), Bytes: got.GetSizeBytes(), Ready: got.GetReadyToUse()}
		switch {
		case s.Handle == "" || len(s.Handle) > maxWord || s.Bytes < 0 || s.Bytes > api.MaxVolumeMB<<20:
			return fmt.Errorf("it answered with an id of %d bytes and a size of %d bytes, want 1 to %d and at most %d MiB: %w", len(s.Handle), s.Bytes, maxWord, int64(api.MaxVolumeMB), api.ErrInvalid)
		case got.GetSourceVolumeId() != volume:
			return fmt.Errorf("it answered with a snapshot of another volume: %w", api.ErrInvalid)
		}
		return nil
	})
	if err == nil {
		err = d.check("CreateSnapshot", map[string]string{"snapshot_id": s.Handle})
	}
	return s, err
}

// DeleteSnapshot deletes a snapshot. It succeeds if there is none.
func (d *Driver) DeleteSnapshot(ctx context.Context, tenant api.Tenant, handle string) error {
	return gone(d.call(ctx, tenant, "DeleteSnapshot", func(ctx context.Context, secrets map[string]string) error {
		_, err := csi.NewControllerClient(d.conn).DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: handle, Secrets: secrets})
		return err
	}))
}

// Attach makes a volume available on a node and returns what the node's driver needs.
func (d *Driver) Attach(ctx context.Context, tenant api.Tenant, v Volume, node string, readOnly bool) (out map[string]string, err error) {
	err = d.call(ctx, tenant, "ControllerPublishVolume", func(ctx context.Context, secrets map[string]string) error {
		answer, err := csi.NewControllerClient(d.conn).ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{
			VolumeId: v.Handle, NodeId: node, VolumeCapability: capability(v.Access), Readonly: readOnly, VolumeContext: v.Context, Secrets: secrets,
		})
		out = answer.GetPublishContext()
		return err
	})
	if err == nil {
		err = d.check("ControllerPublishVolume", out)
	}
	return out, err
}

// Detach takes a volume away from a node. It succeeds if it is not there.
func (d *Driver) Detach(ctx context.Context, tenant api.Tenant, handle, node string) error {
	return gone(d.call(ctx, tenant, "ControllerUnpublishVolume", func(ctx context.Context, secrets map[string]string) error {
		_, err := csi.NewControllerClient(d.conn).ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: handle, NodeId: node, Secrets: secrets})
		return err
	}))
}

// Expand makes a volume larger. onNode reports whether the node has to expand it too.
func (d *Driver) Expand(ctx context.Context, tenant api.Tenant, v Volume, bytes int64) (onNode bool, err error) {
	err = d.call(ctx, tenant, "ControllerExpandVolume", func(ctx context.Context, secrets map[string]string) error {
		answer, err := csi.NewControllerClient(d.conn).ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{
			VolumeId: v.Handle, CapacityRange: &csi.CapacityRange{RequiredBytes: bytes}, VolumeCapability: capability(v.Access), Secrets: secrets,
		})
		onNode = answer.GetNodeExpansionRequired()
		if err == nil && answer.GetCapacityBytes() < bytes {
			return fmt.Errorf("it answered that the volume has %d bytes, want %d: %w", answer.GetCapacityBytes(), bytes, api.ErrInvalid)
		}
		return err
	})
	return onNode, err
}
