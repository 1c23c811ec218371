package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cli/output"
	"github.com/treeline-edge/treeline/cli/ref"
)

// volumes returns the volumes that a reference matches: INSTANCE:NAME for one, or an application, a
// service or an instance for all of theirs. ErrNotFound: there are none.
func (c *cli) volumes(ctx context.Context, a *client.Client, reference string) ([]api.VolumeStatus, error) {
	all, _, err := a.Volumes(ctx, client.ListOptions{})
	if err != nil {
		return nil, err
	}
	found := ofVolume(c, reference, all, func(v api.VolumeStatus) api.VolumeID { return v.ID })
	if len(found) == 0 {
		return nil, fmt.Errorf("no volume %q; write INSTANCE:NAME, or list all with treeline get volumes: %w", reference, api.ErrNotFound)
	}
	return found, nil
}

// ofVolume returns the objects whose volumes a reference matches.
func ofVolume[T any](c *cli, reference string, all []T, of func(T) api.VolumeID) (found []T) {
	owner, label, named := reference, "", false
	if i := strings.LastIndexByte(reference, ':'); i >= 0 {
		owner, label, named = reference[:i], reference[i+1:], true
	}
	var instances, services []string // that have one
	for _, o := range all {
		switch v := of(o); {
		case named && v.Label() != label:
		case v.Shared():
			services = append(services, string(v.Service()))
		default:
			instances = append(instances, string(v.Instance()))
		}
	}
	best := map[string]bool{}
	for _, id := range append(ref.All(ref.Instance, owner, c.tenant(), instances), ref.All(ref.Service, owner, c.tenant(), services)...) {
		best[id] = true
	}
	for _, o := range all {
		v := of(o)
		if id, _ := strings.CutSuffix(string(v), ":"+v.Label()); best[id] && (!named || v.Label() == label) {
			found = append(found, o)
		}
	}
	return found
}

// volume returns the volume that a reference identifies.
func (c *cli) volume(ctx context.Context, a *client.Client, reference string) (v api.VolumeStatus, err error) {
	found, err := c.volumes(ctx, a, reference)
	switch {
	case err != nil:
		return v, err
	case len(found) > 1:
		var ids []string
		for _, v := range found {
			ids = append(ids, string(v.ID))
		}
		return v, &ref.Ambiguous{Kind: "volume", Reference: reference, Candidates: ids}
	}
	return found[0], nil
}

func (c *cli) getVolumesCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "volumes [APP|SERVICE|INSTANCE[:NAME]…]", Aliases: []string{"volume", "vol"}, Short: "Show volumes that outlive their instances",
		ValidArgsFunction: c.complete("volumes"),
		RunE: c.run(func(ctx context.Context, p output.Printer, a *client.Client, args []string) error {
			if len(args) > 0 {
				var all []api.VolumeStatus
				missing := each(args, func(name string) error {
					found, err := c.volumes(ctx, a, name)
					all = append(all, found...)
					return err
				})
				if len(all) == 0 {
					return missing
				}
				return errors.Join(list(c, p, output.Volumes, all, 0), missing)
			}
			all, rev, err := a.Volumes(ctx, client.ListOptions{Tenant: c.tenant()})
			if err != nil {
				return err
			}
			return list(c, p, output.Volumes, all, rev)
		}),
	}
	c.outputFlags(cmd)
	c.sortFlag(cmd)
	return cmd
}

func (c *cli) describeVolume(ctx context.Context, d *description, name string) error {
	v, err := c.volume(ctx, d.api, name)
	if err != nil {
		return err
	}
	d.of(string(v.ID), v)
	d.line("Volume", "%s", v.ID)
	uses := map[bool]string{true: "has", false: "does not use"}[v.InUse]
	if v.ID.Shared() {
		d.line("Service", "%s, which %s it", v.ID.Service(), uses)
		d.line("Access", "%s", v.Access)
	} else {
		d.line("Instance", "%s, which %s it", v.ID.Instance(), uses)
	}
	d.line("Cluster", "%s", v.Cluster)
	d.line("Type", "%s", cmp.Or(v.Driver, api.VolumeLocal))
	d.line("Size", "%d MiB", v.SizeMB)
	d.line("Created", "%s ago", d.Age(v.Created))
	d.line("Revision", "%d", v.Revision)
	return d.events(ctx, client.ListOptions{}, func(e api.Event) bool {
		return e.Kind == "volume" && e.Tenant == v.Tenant && e.Object == v.ID.Name()
	})
}

func (c *cli) deleteVolumeCmd(yes *bool) *cobra.Command {
	return &cobra.Command{
		Use: "volume INSTANCE:NAME…", Aliases: []string{"volumes", "vol"}, Short: "Delete volumes with their data",
		Long: `Delete volumes with their data. The node that has a local volume must be connected, and
the driver of a CSI volume must answer. A volume that an instance has is not deleted:
delete the application, or leave the volume out of its SLA first.`,
		ValidArgsFunction: c.complete("volumes"),
		RunE: c.run(func(ctx context.Context, _ output.Printer, a *client.Client, args []string) error {
			return each(args, func(name string) error {
				v, err := c.volume(ctx, a, name)
				if err != nil {
					return err
				}
				if err := c.confirm(*yes, fmt.Sprintf("This deletes volume %s with its data (%d MiB in cluster %s).", v.ID, v.SizeMB, v.Cluster)); err != nil {
					return err
				}
				if err := a.DeleteVolume(ctx, v.ID, v.Revision); err != nil {
					return fmt.Errorf("delete volume %s: %w", v.ID, err)
				}
				c.say("volume %s deleted", v.ID)
				return nil
			})
		}),
	}
}

// snapshot returns the snapshot that a reference identifies, INSTANCE:VOLUME@NAME.
func (c *cli) snapshot(ctx context.Context, a *client.Client, reference string) (s api.VolumeSnapshot, err error) {
	all, _, err := a.Snapshots(ctx, client.ListOptions{})
	if err != nil {
		return s, err
	}
	volume, label, _ := strings.Cut(reference, "@")
	all = slices.DeleteFunc(all, func(s api.VolumeSnapshot) bool { return s.ID.Label() != label })
	found := ofVolume(c, volume, all, func(s api.VolumeSnapshot) api.VolumeID { return s.ID.Volume() })
	switch len(found) {
	case 0:
		return s, fmt.Errorf("no snapshot %q; write INSTANCE:VOLUME@NAME, or list all with treeline get snapshots: %w", reference, api.ErrNotFound)
	case 1:
		return found[0], nil
	}
	var ids []string
	for _, s := range found {
		ids = append(ids, string(s.ID))
	}
	return s, &ref.Ambiguous{Kind: "snapshot", Reference: reference, Candidates: ids}
}

func (c *cli) getSnapshotsCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "snapshots", Aliases: []string{"snapshot"}, Short: "Show snapshots of CSI volumes", Args: cobra.NoArgs,
		RunE: c.run(func(ctx context.Context, p output.Printer, a *client.Client, _ []string) error {
			all, rev, err := a.Snapshots(ctx, client.ListOptions{Tenant: c.tenant()})
			if err != nil {
				return err
			}
			return list(c, p, output.Snapshots, all, rev)
		}),
	}
	c.outputFlags(cmd)
	c.sortFlag(cmd)
	return cmd
}

func (c *cli) deleteSnapshotCmd(yes *bool) *cobra.Command {
	return &cobra.Command{
		Use: "snapshot INSTANCE:VOLUME@NAME…", Aliases: []string{"snapshots"}, Short: "Delete snapshots of CSI volumes",
		Long:              `Delete snapshots of CSI volumes. The driver must answer. A snapshot that an SLA names is not deleted.`,
		ValidArgsFunction: c.complete("snapshots"),
		RunE: c.run(func(ctx context.Context, _ output.Printer, a *client.Client, args []string) error {
			return each(args, func(name string) error {
				s, err := c.snapshot(ctx, a, name)
				if err != nil {
					return err
				}
				if err := c.confirm(*yes, fmt.Sprintf("This deletes snapshot %s (cluster %s).", s.ID, s.Cluster)); err != nil {
					return err
				}
				if err := a.DeleteSnapshot(ctx, s.ID, s.Revision); err != nil {
					return fmt.Errorf("delete snapshot %s: %w", s.ID, err)
				}
				c.say("snapshot %s deleted", s.ID)
				return nil
			})
		}),
	}
}

// takeSnapshot has the driver of a CSI volume take a snapshot and waits until it is ready.
func (c *cli) takeSnapshot(ctx context.Context, p output.Printer, a *client.Client, v api.VolumeStatus, name string) error {
	for {
		s, err := a.TakeSnapshot(ctx, v.ID, name)
		switch {
		case err == nil && s.Ready:
			c.say("snapshot %s taken (%d MiB)", p.Short(string(s.ID)), s.SizeMB)
			return nil
		case err != nil && !errors.Is(err, api.ErrTimeout): // the driver goes on
			return err
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return fmt.Errorf("snapshot %s is not ready yet; the same command waits for it again: %w", v.ID.Snapshot(name), context.Cause(ctx))
		}
	}
}
