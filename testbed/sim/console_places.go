package sim

import (
	"crypto/sha256"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
	"github.com/treeline-edge/treeline/internal/vivaldi"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/node"
)

// asked adds a requirement to a service.
func asked(m *api.Microservice, name, value string) (err error) {
	switch name {
	case "priority":
		m.Priority = value
	case "gpus":
		m.VGPUs, err = strconv.Atoi(value)
	case "startup", "readiness", "liveness":
		k := &api.Check{TCP: &api.TCPCheck{Port: 80}}
		if _, err := fmt.Sscanf(value, "%d:%d", &k.Interval, &k.Failures); err != nil {
			return err
		}
		if m.Health == nil {
			m.Health = &api.Health{}
		}
		switch api.CheckKind(name) {
		case api.CheckStartup:
			m.Health.Startup = k
		case api.CheckReadiness:
			m.Health.Readiness = k
		default:
			m.Health.Liveness = k
		}
	case "volume":
		v := api.Volume{Type: api.VolumeLocal, MountPath: "/data"}
		name, size, _ := strings.Cut(value, ":")
		v.Name = name
		v.SizeMB, err = strconv.ParseInt(size, 10, 64)
		m.Volumes = append(m.Volumes, v)
	case "scale":
		low, high := 0, 0
		if _, err := fmt.Sscanf(value, "%d:%d", &low, &high); err != nil {
			return err
		}
		down := 5
		m.Scale = &api.Scale{Min: &low, Max: high, Connections: 10, IdleTime: 5, StabilisationDown: &down}
	case "move":
		m.Move = value
	case "label":
		m.Constraints = append(m.Constraints, api.Constraint{Type: api.ConstrainLabels, Labels: []string{value}})
	case "near":
		service, ms, _ := strings.Cut(value, ":")
		k := api.LinkConstraint{Type: api.LinkLatency}
		k.Threshold, err = strconv.ParseFloat(ms, 64)
		m.Connectivity = append(m.Connectivity, api.Connectivity{Target: service + ".v1", Constraints: []api.LinkConstraint{k}})
	case "rigidness":
		var s float64
		s, err = strconv.ParseFloat(value, 64)
		for i := range m.Constraints {
			m.Constraints[i].Rigidness = s
		}
		for _, l := range m.Connectivity {
			l.Constraints[0].Rigidness = s
		}
	default:
		err = fmt.Errorf("unknown key %q: %w", name, api.ErrInvalid)
	}
	return err
}

// set changes the properties of a node.
func (c *Console) set(args []string) error {
	if len(args) < 2 {
		return fmt.Errorf("set: want a node and KEY=VALUE: %w", api.ErrInvalid)
	}
	n, err := c.w.machine(args[0])
	if err != nil {
		return err
	}
	labels := map[string]string{}
	for _, word := range args[1:] {
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case "put":
			ms, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return err
			}
			n.put(ms)
			continue
		case "storage":
			mb, err := strconv.ParseInt(value, 10, 64)
			if err != nil {
				return err
			}
			n.info.Capacity.StorageMB = mb
		case "gpus":
			count, err := strconv.Atoi(value)
			if err != nil {
				return err
			}
			n.info.Devices = nil
			for i := range count {
				n.info.Devices = append(n.info.Devices, api.NodeDevice{ID: fmt.Sprintf("gpu=%d", i), Kinds: []string{api.DeviceGPU}})
			}
		case "release": // "old": the node announces no features
			if n.info.Features = nil; value != "old" {
				n.info.Features = []string{api.FeatureDeadline, api.FeatureHealth}
			}
		default:
			labels[key] = value
		}
		n.info.Labels = labels
		n.proc.give(node.Info{Info: n.present()})
	}
	return nil
}

// put sets the node's coordinate, as the cluster has it: ms milliseconds from the origin of
// the latency space, on its first axis.
func (m *NodeMachine) put(ms float64) {
	at := vivaldi.New()
	at.Vec = append([]float64{}, at.Vec...)
	at.Vec[0], at.Height, at.Error = ms/1000, 0.0005, 0.05
	m.at = ms
	m.puts++
	m.cluster.proc.give(cluster.NetUp{Node: m.id, NetUp: wire.NetUp{Boot: 1, Seq: m.puts, Whole: m.puts == 1, Self: &wire.NetSelf{Key: sha256.Sum256([]byte(m.name)), Chain: [][]byte{{1}}, Coord: &at}}})
}

func (c *Console) swap(args []string) error {
	if len(args) != 4 {
		return fmt.Errorf("swap: want two nodes, how often and for how long: %w", api.ErrInvalid)
	}
	a, err := c.w.machine(args[0])
	if err != nil {
		return err
	}
	b, err := c.w.machine(args[1])
	if err != nil {
		return err
	}
	every, err := time.ParseDuration(args[2])
	if err != nil || every <= 0 {
		return fmt.Errorf("swap: every %q: %w", args[2], api.ErrInvalid)
	}
	lasts, err := time.ParseDuration(args[3])
	for end := c.w.now + lasts; err == nil && c.w.now < end; {
		at := a.at
		a.put(b.at)
		b.put(at)
		c.w.Run(min(every, end-c.w.now))
	}
	return err
}
