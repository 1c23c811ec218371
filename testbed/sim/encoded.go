package sim

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// encoded encodes and decodes a message as the adapters do. The result shares no memory
// with the message, and fields that are not encoded are lost.
func encoded[M any](msg M) func() M {
	b, err := json.Marshal(msg)
	if err != nil {
		panic(fmt.Sprintf("encode %T: %v", msg, err)) // our own plain structs
	}
	return func() M {
		var m M
		if err := json.Unmarshal(b, &m); err != nil {
			panic(fmt.Sprintf("decode %T: %v", m, err))
		}
		return m
	}
}

// retained is a desired set that a broker retained.
type retained struct{ wire.Desired }

// describe returns a message as a line of a trace.
func describe(msg any) string {
	switch m := msg.(type) {
	case string:
		return m
	case retained:
		return "retained " + describe(m.Desired)
	case wire.Desired:
		parts := []string{fmt.Sprintf("Desired gen %d", m.Gen)}
		if m.From > 0 {
			parts = append(parts, fmt.Sprintf("from %d", m.From))
		}
		for _, a := range m.Put {
			parts = append(parts, fmt.Sprintf("%s@%s", string(a.Instance), a.Epoch))
		}
		for _, id := range m.Drop {
			parts = append(parts, "−"+string(id))
		}
		return strings.Join(parts, " ")
	case wire.Hello:
		return fmt.Sprintf("Hello since %d", m.Since)
	case wire.Report:
		return fmt.Sprintf("Report %d.%d gen %d%s%s", m.Boot, m.Seq, m.Gen, whole(m.Whole), observations(m.Observed))
	case wire.ReportAck:
		return fmt.Sprintf("ReportAck %d.%d gen %d%s", m.Boot, m.Seq, m.Gen, wants(m.RequestWhole))
	case wire.NodeReport:
		return fmt.Sprintf("NodeReport %d.%d gen %d%s%s", m.Boot, m.Seq, m.Gen, whole(m.Whole), observations(m.Observed))
	case wire.Alive:
		return fmt.Sprintf("Alive %d.%d gen %d", m.Boot, m.Seq, m.Gen)
	case wire.Lease:
		return fmt.Sprintf("Lease %d.%d gen %d%s", m.Boot, m.Seq, m.Gen, wants(m.RequestWhole))
	case wire.FetchWorkload:
		return fmt.Sprintf("fetch %s", key(m.Key))
	case wire.CreateWorkload:
		return fmt.Sprintf("create %s attempt %d", key(m.Key), m.Attempt)
	case wire.StartWorkload:
		return fmt.Sprintf("start %s attempt %d", key(m.Key), m.Attempt)
	case wire.StopWorkload:
		return fmt.Sprintf("stop %s grace %s", key(m.Key), m.Grace)
	case wire.UpdateFiles:
		return fmt.Sprintf("update files of %s", key(m.Key))
	case wire.KillWorkload:
		return fmt.Sprintf("kill %s attempt %d grace %s", key(m.Key), m.Attempt, m.Grace)
	case wire.ReadyWorkload:
		return fmt.Sprintf("ready %s %t", key(m.Key), m.Ready)
	case wire.DetachWorkload:
		return fmt.Sprintf("detach %s", key(m.Key))
	case wire.GuardWorkload:
		if m.Until.IsZero() {
			return fmt.Sprintf("guard %s no longer", key(m.Key))
		}
		return fmt.Sprintf("guard %s until %s", key(m.Key), m.Until.Sub(dawn).Round(time.Millisecond))
	case wire.WorkloadEvent:
		s := fmt.Sprintf("%s %s attempt %d", key(m.Key), m.Phase, m.Attempt)
		if m.Phase == wire.WorkloadExited {
			s += fmt.Sprintf(" code %d", m.ExitCode)
		}
		if m.Reason != "" {
			s += " " + string(m.Reason)
		}
		return s
	}
	return fmt.Sprintf("%T", msg)
}

func key(k wire.Key) string { return string(k.Instance) + "@" + k.Epoch.String() }

func whole(b bool) string {
	if b {
		return " whole"
	}
	return ""
}

func wants(b bool) string {
	if b {
		return " wants all"
	}
	return ""
}

func observations(obs []api.Observed) string {
	var b strings.Builder
	for _, o := range obs {
		fmt.Fprintf(&b, " %s@%s=%s", string(o.Instance), o.Epoch, o.State)
		if o.Reason != "" {
			fmt.Fprintf(&b, "(%s)", o.Reason)
		}
		if o.Stopped {
			b.WriteString("·stopped")
		}
		if o.HandedBack {
			b.WriteString("·back")
		}
	}
	return b.String()
}
