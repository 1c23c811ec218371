package output

import (
	"fmt"
	"strconv"

	"github.com/treeline-edge/treeline/api"
)

// InstanceUsages is the table of what instances use.
var InstanceUsages = Table[api.InstanceUsage]{
	Kind: "running instances",
	Name: func(u api.InstanceUsage) string { return string(u.Instance) },
	Columns: append(append([]Column[api.InstanceUsage]{
		{Header: "NAME", Cell: func(p Printer, u api.InstanceUsage) string { return p.Short(string(u.Instance)) }},
	}, used("", func(u api.InstanceUsage) api.Usage { return u.Usage })...), []Column[api.InstanceUsage]{
		{Header: "CLUSTER", Cell: func(_ Printer, u api.InstanceUsage) string { return string(u.Cluster) }},
		{Header: "NODE", Wide: true, Cell: func(_ Printer, u api.InstanceUsage) string { return string(u.Node) }},
		{Header: "MEASURED", Wide: true, Cell: func(p Printer, u api.InstanceUsage) string { return ago(p.Age(u.At)) }},
	}...),
}

// NodeUsages is the table of what nodes use.
var NodeUsages = Table[api.NodeUsage]{
	Kind: "nodes",
	Name: func(u api.NodeUsage) string { return string(u.Cluster) + "/" + string(u.Node) },
	Columns: append(append(append([]Column[api.NodeUsage]{
		{Header: "NAME", Cell: func(_ Printer, u api.NodeUsage) string { return string(u.Node) }},
		{Header: "CLUSTER", Cell: func(_ Printer, u api.NodeUsage) string { return string(u.Cluster) }},
	}, used("", func(u api.NodeUsage) api.Usage { return u.Machine })...), []Column[api.NodeUsage]{
		{Header: "CPU%", Cell: func(_ Printer, u api.NodeUsage) string { return share(u.Machine.MilliCPU, u.Capacity.MilliCPU) }},
		{Header: "MEMORY%", Cell: func(_ Printer, u api.NodeUsage) string { return share(u.Machine.Memory, u.Capacity.MemoryMB<<20) }},
		{Header: "INSTANCES", Cell: func(_ Printer, u api.NodeUsage) string { return strconv.Itoa(u.Running) }},
	}...), append(used("INSTANCES ", func(u api.NodeUsage) api.Usage { return u.Instances })[:2],
		Column[api.NodeUsage]{Header: "MEASURED", Wide: true, Cell: func(p Printer, u api.NodeUsage) string { return ago(p.Age(u.At)) }})...),
}

// used are the columns of a usage. Amounts have one unit each, so that columns compare and sort at a glance.
func used[T any](of string, usage func(T) api.Usage) []Column[T] {
	cell := func(v func(api.Usage) int64, format func(int64) string) func(Printer, T) string {
		return func(_ Printer, o T) string {
			if n := v(usage(o)); n >= 0 {
				return format(n)
			}
			return "-"
		}
	}
	rate := func(n int64) string { return fmt.Sprintf("%.1fkB/s", float64(n)/1000) }
	return []Column[T]{
		{Header: of + "CPU", Wide: of != "", Cell: cell(func(u api.Usage) int64 { return u.MilliCPU }, func(n int64) string { return fmt.Sprintf("%dm", n) })},
		{Header: of + "MEMORY", Wide: of != "", Cell: cell(func(u api.Usage) int64 { return u.Memory }, func(n int64) string { return fmt.Sprintf("%.1fMi", float64(n)/(1<<20)) })},
		{Header: of + "IN", Cell: cell(func(u api.Usage) int64 { return u.In }, rate)},
		{Header: of + "OUT", Cell: cell(func(u api.Usage) int64 { return u.Out }, rate)},
	}
}

func share(used, of int64) string {
	if used < 0 || of <= 0 {
		return "-"
	}
	return fmt.Sprintf("%d%%", used*100/of)
}
