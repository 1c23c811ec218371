package faults

import (
	"fmt"
	"slices"
	"time"
)

// Components are the rows of the matrix.
var Components = []string{
	"active root", "standby root", "cluster", "broker", "store", "node engine", "netmanager", "containerd",
	"shim", "guard", "workload", "whole machine",
}

// Faults are the columns of the matrix.
var Faults = []string{
	"kill -9", "SIGSTOP 30 s", "restart", "all at once", "partition", "one-way partition", "20 % loss", "250 ms delay",
	"disk full", "read-only disk", "slow disk", "clock ±1 h", "corrupt state", "truncated state", "older state",
	"messages repeated or reordered", "registry down", "address change",
}

// The durations of faults in scripts/test and in scripts/soak --matrix.
const (
	shortHold, longHold = 4 * time.Second, 12 * time.Second
	shortStop, longStop = 4 * time.Second, 30 * time.Second
	late                = 3 * time.Second // of the part that starts last after all have ended at once
)

// Cell is one cell of the matrix. Exactly one of Inject, By and Not is set.
type Cell struct {
	Component, Fault string
	Expect           string
	// Inject injects the fault and returns when it is over.
	Inject func(*injection)
	// Loses is set if requests may be lost while the fault lasts, because a part on their way fails.
	Loses bool
	By    string // "package Test": another test that covers the cell
	Not   string // why the fault does not apply, or cannot be injected
}

// Name returns the name of a cell, which is also that of its subtest.
func (c Cell) Name() string { return c.Component + ": " + c.Fault }

// injection is one run of a cell.
type injection struct {
	*World
	T
	hold time.Duration // of faults that last
	stop time.Duration // of SIGSTOP
}

// Table returns the cells in the order of Components and Faults.
func Table() (all []Cell) {
	cells := cellsOf()
	for _, c := range Components {
		for _, f := range Faults {
			i := slices.IndexFunc(cells, func(x Cell) bool { return x.Component == c && x.Fault == f })
			if i < 0 {
				panic(fmt.Sprintf("the matrix has no cell %s: %s", c, f)) // found by the test of the table
			}
			all = append(all, cells[i])
		}
	}
	return all
}

// cellsOf returns all cells in any order.
func cellsOf() []Cell { return append(injected(), notHere()...) }

// known are faults of Treeline that cells have found and that are not fixed, by the cells.
var known = map[string]string{}

// Cells that are not injected by this package.
const (
	cutsTest = "testbed/lab TestPowerCutsLeaveNothingBehind"
	simSeeds = "testbed/sim TestSeedsKeepEveryPromise"
	images   = "testbed/lab TestImages"

	helper  = "it has no network and no disk of its own: it serves a unix socket on its node"
	foreign = "it is another project's program, whose state only that program reads"
	inStore = "its state is in the store"
	nodes   = "it is that of the node's disk: see node engine"
	machine = "it is that of the node's link: see whole machine"
)

// notHere returns the cells that are covered elsewhere or do not apply.
func notHere() (cells []Cell) {
	by := func(component, test string, faults ...string) {
		for _, f := range faults {
			cells = append(cells, Cell{Component: component, Fault: f, By: test})
		}
	}
	not := func(component, why string, faults ...string) {
		for _, f := range faults {
			cells = append(cells, Cell{Component: component, Fault: f, Not: why})
		}
	}
	network := []string{"partition", "one-way partition", "20 % loss", "250 ms delay", "address change"}
	onDisk := []string{"disk full", "read-only disk", "slow disk"}
	state := []string{"corrupt state", "truncated state", "older state"}
	const clock, messages, registry = "clock ±1 h", "messages repeated or reordered", "registry down"

	for _, c := range Components {
		if c != "workload" {
			not(c, "it does not use the registry", registry)
		}
	}
	for _, c := range []string{"active root", "cluster", "node engine", "containerd", "shim", "guard", "workload", "whole machine"} {
		by(c, cutsTest, "all at once")
	}
	for _, c := range []string{"active root", "standby root"} {
		by(c, "testbed/lab TestFullDisk", "disk full")
		not(c, inStore, "read-only disk", "slow disk")
		by(c, "internal/store/shared TestADamagedLogIsRefused", "corrupt state", "truncated state")
		by(c, "internal/store/shared TestAPausedReplicaIsFencedByATrimmedLog", "older state")
		not(c, "the configuration of the other roots and the clusters name its address: with another one it is a new root", "address change")
	}
	by("active root", simSeeds, messages)
	not("standby root", "it receives no messages of clusters", messages)

	by("cluster", simSeeds, messages)
	by("cluster", "testbed/tiers TestNewTokenOfANodeThatHasJoined", "address change")

	not("broker", "it is on the host of the cluster: see cluster", "20 % loss", "250 ms delay")
	not("broker", "Mosquitto serves from memory and writes its file once a minute; what a lost file costs: see corrupt state", onDisk...)
	not("broker", "Mosquitto compares no wall clock with others; its libc cannot be patched like the Go runtime", clock)
	by("broker", simSeeds, messages)
	by("broker", "testbed/tiers TestBrokerIsSwitched", "address change")

	not("store", foreign, "truncated state")
	by("store", "internal/store/shared TestADamagedLogIsRefused", "corrupt state")
	by("store", "internal/store/shared TestAPausedReplicaIsFencedByATrimmedLog", "older state")
	by("store", "internal/store/shared TestRandomHistoriesAreLinearizable", messages)
	not("store", "its URI is in the configuration of the roots, which start again with another one", "address change")

	not("node engine", "mounts of its workloads keep the disk in use, so the lab cannot mount it again", "read-only disk")
	not("node engine", machine, "20 % loss", "250 ms delay", "address change")
	by("node engine", simSeeds, messages)

	not("netmanager", machine, "20 % loss", "250 ms delay", "address change")
	by("netmanager", "netmanager/wiring TestAFullDiskStopsNoFlow", "disk full")
	not("netmanager", nodes+"; this netmanager has its directory elsewhere", "read-only disk", "slow disk")
	by("netmanager", "netmanager/tunnel TestReplayedPacketsAreDropped", messages)

	for _, c := range []string{"containerd", "shim", "guard"} {
		not(c, helper, append(network, messages)...)
		not(c, nodes, onDisk...)
	}
	not("containerd", foreign, state...)
	not("containerd", "it compares no wall clock with others, and the lab moves that of Treeline's daemons only", clock)
	not("shim", "it has no state besides the files of its container", state...)
	not("shim", "it compares no wall clock with others", clock)
	not("guard", "its deadlines are on CLOCK_BOOTTIME, which cannot be set", clock)
	not("shim", "it lives and ends with its container: see kill -9", "restart")
	not("guard", "it starts on demand and ends when it has no deadline: see kill -9", "restart")

	not("workload", "its network is the netmanager's: see netmanager and whole machine", append(network, messages)...)
	not("workload", "its files are the application's own; local volumes are on its node's disk: see node engine", append(onDisk, state...)...)
	not("workload", "Treeline does not use its clock", clock)
	by("workload", images, registry)
	not("workload", "its node starts it again however it ends: see kill -9", "restart")

	not("whole machine", nodes, onDisk...)
	not("whole machine", "it is that of its daemons: see node engine and netmanager", append(state, clock)...)
	by("whole machine", simSeeds, messages)
	return cells
}
