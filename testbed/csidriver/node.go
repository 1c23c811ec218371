package csidriver

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// NodeGetInfo implements csi.NodeServer.
func (s *Server) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	out := &csi.NodeGetInfoResponse{NodeId: s.node}
	if len(s.segments) > 0 {
		out.AccessibleTopology = &csi.Topology{Segments: s.segments}
	}
	return out, nil
}

// NodeGetCapabilities implements csi.NodeServer.
func (s *Server) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	out := &csi.NodeGetCapabilitiesResponse{}
	all := []csi.NodeServiceCapability_RPC_Type{csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME}
	if !s.opt.NoExpand {
		all = append(all, csi.NodeServiceCapability_RPC_EXPAND_VOLUME)
	}
	for _, t := range all {
		out.Capabilities = append(out.Capabilities, &csi.NodeServiceCapability{Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: t}}})
	}
	return out, nil
}

// use mounts a volume at a path of this node.
func (s *Server) use(id, from, to string, readOnly bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, err := s.volume(id)
	if err != nil {
		return err
	}
	if !s.opt.NoAttach && !v.ephemeral && !v.attached[s.node] {
		s.violate("volume %s is mounted on %s while it is attached to %q", id, s.node, v.at())
	}
	for path, at := range v.mounts {
		if at != s.node && !v.multi {
			s.violate("volume %s is mounted on %s while it is mounted on %s at %s", id, s.node, at, path)
		}
	}
	if from == "" {
		from = s.Data(id)
	}
	if err := mount(from, to, readOnly); err != nil {
		return err
	}
	v.mounts[to] = s.node
	return nil
}

// leave unmounts a volume from a path.
func (s *Server) leave(id, path string) error {
	if id == "" || path == "" {
		return status.Error(codes.InvalidArgument, "volume id or path is missing")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	v, err := s.volume(id)
	if err != nil {
		return err
	}
	if err := unmount(path); err != nil {
		return err
	}
	delete(v.mounts, path)
	if v.ephemeral && len(v.mounts) == 0 {
		delete(s.volumes, id)
		if err := os.RemoveAll(s.Data(id)); err != nil {
			return status.Errorf(codes.Internal, "%v", err)
		}
	}
	return nil
}

// NodeStageVolume implements csi.NodeServer.
func (s *Server) NodeStageVolume(_ context.Context, r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	if r.GetStagingTargetPath() == "" || r.GetVolumeCapability() == nil {
		return nil, status.Error(codes.InvalidArgument, "path or capability is missing")
	}
	return &csi.NodeStageVolumeResponse{}, s.use(r.GetVolumeId(), "", r.GetStagingTargetPath(), false)
}

// NodeUnstageVolume implements csi.NodeServer.
func (s *Server) NodeUnstageVolume(_ context.Context, r *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	return &csi.NodeUnstageVolumeResponse{}, s.leave(r.GetVolumeId(), r.GetStagingTargetPath())
}

// NodePublishVolume implements csi.NodeServer.
func (s *Server) NodePublishVolume(_ context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	ephemeral := r.GetVolumeContext()["csi.storage.k8s.io/ephemeral"] == "true"
	switch {
	case r.GetTargetPath() == "" || r.GetVolumeCapability() == nil:
		return nil, status.Error(codes.InvalidArgument, "path or capability is missing")
	case ephemeral != s.opt.NodeOnly:
		return nil, status.Errorf(codes.InvalidArgument, "the volume is ephemeral: %t, want %t", ephemeral, s.opt.NodeOnly)
	case ephemeral && r.GetStagingTargetPath() != "":
		return nil, status.Error(codes.InvalidArgument, "an ephemeral volume has a staging path")
	case !ephemeral && r.GetStagingTargetPath() == "":
		return nil, status.Error(codes.FailedPrecondition, "staging path is missing")
	}
	if ephemeral {
		if err := s.make(r.GetVolumeId(), r.GetVolumeContext()); err != nil {
			return nil, err
		}
	}
	return &csi.NodePublishVolumeResponse{}, s.use(r.GetVolumeId(), r.GetStagingTargetPath(), r.GetTargetPath(), r.GetReadonly())
}

// make creates an ephemeral volume with a file for each entry of its context.
func (s *Server) make(id string, of map[string]string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id == "" || s.volumes[id] != nil {
		return nil
	}
	if err := os.Mkdir(s.Data(id), 0o777); err != nil {
		return status.Errorf(codes.Internal, "%v", err)
	}
	for name, text := range of {
		if err := os.WriteFile(filepath.Join(s.Data(id), strings.ReplaceAll(name, "/", "_")), []byte(text), 0o600); err != nil {
			return status.Errorf(codes.Internal, "%v", err)
		}
	}
	s.volumes[id] = &volume{id: id, params: maps.Clone(of), mounts: map[string]string{}, ephemeral: true}
	return nil
}

// NodeUnpublishVolume implements csi.NodeServer.
func (s *Server) NodeUnpublishVolume(_ context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	if err := s.leave(r.GetVolumeId(), r.GetTargetPath()); err != nil {
		return nil, err
	}
	if err := os.RemoveAll(r.GetTargetPath()); err != nil {
		return nil, status.Errorf(codes.Internal, "%v", err)
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

// NodeExpandVolume implements csi.NodeServer.
func (s *Server) NodeExpandVolume(_ context.Context, r *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	if r.GetVolumePath() == "" {
		return nil, status.Error(codes.InvalidArgument, "path is missing")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	v, err := s.volume(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if v.mounts[r.GetVolumePath()] == "" {
		return nil, status.Errorf(codes.NotFound, "volume %s is not mounted at %s", v.id, r.GetVolumePath())
	}
	return &csi.NodeExpandVolumeResponse{CapacityBytes: v.bytes}, nil
}
