package csidriver

import (
	"context"
	"maps"
	"os"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const (
	defaultBytes = 1 << 30
	maxBytes     = 1 << 50
)

// GetPluginInfo implements csi.IdentityServer.
func (s *Server) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: s.opt.Name, VendorVersion: "1"}, nil
}

// GetPluginCapabilities implements csi.IdentityServer.
func (s *Server) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	var all []csi.PluginCapability_Service_Type
	if !s.opt.NodeOnly {
		all = append(all, csi.PluginCapability_Service_CONTROLLER_SERVICE)
	}
	if s.opt.TopologyKey != "" {
		all = append(all, csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS)
	}
	out := &csi.GetPluginCapabilitiesResponse{}
	for _, t := range all {
		out.Capabilities = append(out.Capabilities, &csi.PluginCapability{Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: t}}})
	}
	return out, nil
}

// Probe implements csi.IdentityServer.
func (s *Server) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

// ControllerGetCapabilities implements csi.ControllerServer.
func (s *Server) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	all := []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME, csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
	}
	if !s.opt.NoAttach {
		all = append(all, csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME)
	}
	if !s.opt.NoExpand {
		all = append(all, csi.ControllerServiceCapability_RPC_EXPAND_VOLUME)
	}
	out := &csi.ControllerGetCapabilitiesResponse{}
	for _, t := range all {
		out.Capabilities = append(out.Capabilities, &csi.ControllerServiceCapability{Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: t}}})
	}
	return out, nil
}

func bytesOf(r *csi.CapacityRange, least int64) (int64, error) {
	want := max(r.GetRequiredBytes(), least)
	if want == 0 {
		want = defaultBytes
	}
	if limit := r.GetLimitBytes(); want > maxBytes || limit > 0 && want > limit {
		return 0, status.Errorf(codes.OutOfRange, "%d bytes are not possible", want)
	}
	return want, nil
}

// CreateVolume implements csi.ControllerServer.
func (s *Server) CreateVolume(_ context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if r.GetName() == "" || len(r.GetVolumeCapabilities()) == 0 {
		return nil, status.Error(codes.InvalidArgument, "name or capabilities are missing")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	from := r.GetVolumeContentSource().GetSnapshot().GetSnapshotId()
	var source *snapshot
	if from != "" {
		if source = s.snapshots[from]; source == nil {
			return nil, status.Errorf(codes.NotFound, "snapshot %s does not exist", from)
		}
		if source.uploads > 0 {
			return nil, status.Errorf(codes.Unavailable, "snapshot %s is not ready", from)
		}
	}
	for _, v := range s.volumes {
		if v.name != r.GetName() {
			continue
		}
		if v.bytes < r.GetCapacityRange().GetRequiredBytes() || v.source != from || r.GetCapacityRange().GetLimitBytes() > 0 && v.bytes > r.GetCapacityRange().GetLimitBytes() {
			return nil, status.Errorf(codes.AlreadyExists, "volume %s exists and differs", v.name)
		}
		return &csi.CreateVolumeResponse{Volume: s.answer(v)}, nil
	}
	if s.opt.OneNode && multi(r.GetVolumeCapabilities()) {
		return nil, status.Error(codes.InvalidArgument, "volumes are for one node")
	}
	want, err := bytesOf(r.GetCapacityRange(), 0)
	if err != nil {
		return nil, err
	}
	v := &volume{id: s.id("vol-"), name: r.GetName(), bytes: want, params: maps.Clone(r.GetParameters()), source: from, multi: multi(r.GetVolumeCapabilities()), attached: map[string]bool{}, mounts: map[string]string{}}
	if k := s.opt.TopologyKey; k != "" {
		for _, t := range append(r.GetAccessibilityRequirements().GetPreferred(), r.GetAccessibilityRequirements().GetRequisite()...) {
			if v.topology = t.GetSegments()[k]; v.topology != "" {
				break
			}
		}
	}
	if err := os.Mkdir(s.Data(v.id), 0o777); err != nil {
		return nil, status.Errorf(codes.Internal, "%v", err)
	}
	if err := os.Chmod(s.Data(v.id), 0o777); err != nil { //nolint:gosec // any user of a container writes to it
		return nil, status.Errorf(codes.Internal, "%v", err)
	}
	if source != nil {
		if err := copyDir(s.Data(source.id), s.Data(v.id)); err != nil {
			return nil, err
		}
	}
	s.volumes[v.id] = v
	return &csi.CreateVolumeResponse{Volume: s.answer(v)}, nil
}

func copyDir(from, to string) error {
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		return status.Errorf(codes.Internal, "copy: %v", err)
	}
	return nil
}

// DeleteVolume implements csi.ControllerServer.
func (s *Server) DeleteVolume(_ context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	if r.GetVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "volume id is missing")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.volumes[r.GetVolumeId()]
	if v == nil {
		return &csi.DeleteVolumeResponse{}, nil
	}
	if len(v.attached) > 0 || len(v.mounts) > 0 {
		return nil, status.Errorf(codes.FailedPrecondition, "volume %s is in use on %s", v.id, v.at())
	}
	if err := os.RemoveAll(s.Data(v.id)); err != nil {
		return nil, status.Errorf(codes.Internal, "%v", err)
	}
	delete(s.volumes, v.id)
	return &csi.DeleteVolumeResponse{}, nil
}

// ControllerPublishVolume implements csi.ControllerServer.
func (s *Server) ControllerPublishVolume(_ context.Context, r *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	if r.GetNodeId() == "" || r.GetVolumeCapability() == nil {
		return nil, status.Error(codes.InvalidArgument, "node id or capability is missing")
	}
	if r.GetReadonly() {
		return nil, status.Error(codes.InvalidArgument, "readonly is requested of a driver without PUBLISH_READONLY")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	v, err := s.volume(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if !s.nodes[r.GetNodeId()] {
		return nil, status.Errorf(codes.NotFound, "node %s does not exist", r.GetNodeId())
	}
	if asked := multi([]*csi.VolumeCapability{r.GetVolumeCapability()}); asked != v.multi {
		return nil, status.Errorf(codes.AlreadyExists, "volume %s has another access mode", v.id)
	}
	if len(v.attached) > 0 && !v.attached[r.GetNodeId()] && !v.multi {
		return nil, status.Errorf(codes.FailedPrecondition, "volume %s is attached to %s", v.id, v.at())
	}
	v.attached[r.GetNodeId()] = true
	return &csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{"attached": r.GetNodeId()}}, nil
}

// ControllerUnpublishVolume implements csi.ControllerServer.
func (s *Server) ControllerUnpublishVolume(_ context.Context, r *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	if r.GetVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "volume id is missing")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if v := s.volumes[r.GetVolumeId()]; v != nil && (r.GetNodeId() == "" || v.attached[r.GetNodeId()]) {
		for path, at := range v.mounts {
			if r.GetNodeId() == "" || at == r.GetNodeId() || !v.multi {
				s.violate("volume %s is detached from %s while it is mounted at %s on %s", v.id, v.at(), path, at)
			}
		}
		if delete(v.attached, r.GetNodeId()); r.GetNodeId() == "" {
			clear(v.attached)
		}
	}
	return &csi.ControllerUnpublishVolumeResponse{}, nil
}

// ValidateVolumeCapabilities implements csi.ControllerServer.
func (s *Server) ValidateVolumeCapabilities(_ context.Context, r *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.volume(r.GetVolumeId()); err != nil {
		return nil, err
	}
	if len(r.GetVolumeCapabilities()) == 0 {
		return nil, status.Error(codes.InvalidArgument, "capabilities are missing")
	}
	if s.opt.OneNode && multi(r.GetVolumeCapabilities()) {
		return &csi.ValidateVolumeCapabilitiesResponse{Message: "volumes are for one node"}, nil
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{VolumeCapabilities: r.GetVolumeCapabilities()}}, nil
}

// ControllerExpandVolume implements csi.ControllerServer.
func (s *Server) ControllerExpandVolume(_ context.Context, r *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	if r.GetCapacityRange() == nil {
		return nil, status.Error(codes.InvalidArgument, "capacity range is missing")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	v, err := s.volume(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	want, err := bytesOf(r.GetCapacityRange(), v.bytes)
	if err != nil {
		return nil, err
	}
	v.bytes = want
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: want, NodeExpansionRequired: true}, nil
}

// CreateSnapshot implements csi.ControllerServer.
func (s *Server) CreateSnapshot(_ context.Context, r *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	if r.GetName() == "" || r.GetSourceVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "name or source is missing")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.snapshots {
		if n.name != r.GetName() {
			continue
		}
		if n.source != r.GetSourceVolumeId() {
			return nil, status.Errorf(codes.AlreadyExists, "snapshot %s exists and is of another volume", n.name)
		}
		n.uploads = max(n.uploads-1, 0)
		return &csi.CreateSnapshotResponse{Snapshot: n.answer()}, nil
	}
	v, err := s.volume(r.GetSourceVolumeId())
	if err != nil {
		return nil, err
	}
	n := &snapshot{id: s.id("snap-"), name: r.GetName(), source: v.id, bytes: v.bytes, created: time.Now(), uploads: s.opt.Uploads}
	if err := os.Mkdir(s.Data(n.id), 0o700); err != nil {
		return nil, status.Errorf(codes.Internal, "%v", err)
	}
	if err := copyDir(s.Data(v.id), s.Data(n.id)); err != nil {
		return nil, err
	}
	s.snapshots[n.id] = n
	return &csi.CreateSnapshotResponse{Snapshot: n.answer()}, nil
}

func (n *snapshot) answer() *csi.Snapshot {
	return &csi.Snapshot{SnapshotId: n.id, SourceVolumeId: n.source, SizeBytes: n.bytes, CreationTime: timestamppb.New(n.created), ReadyToUse: n.uploads == 0}
}

// DeleteSnapshot implements csi.ControllerServer.
func (s *Server) DeleteSnapshot(_ context.Context, r *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	if r.GetSnapshotId() == "" {
		return nil, status.Error(codes.InvalidArgument, "snapshot id is missing")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.snapshots[r.GetSnapshotId()] != nil {
		if err := os.RemoveAll(s.Data(r.GetSnapshotId())); err != nil {
			return nil, status.Errorf(codes.Internal, "%v", err)
		}
		delete(s.snapshots, r.GetSnapshotId())
	}
	return &csi.DeleteSnapshotResponse{}, nil
}
