package clusterlink

import (
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// A cluster that reads too slowly is disconnected. It resumes from its generation, so that no
// dropped message is missed.
func TestAClusterThatDoesNotKeepUpIsCutOff(t *testing.T) {
	l := New(Options{})
	c := newConn()
	l.open("munich", c)
	for i := range streamBuffer {
		l.Send(wire.Envelope{To: api.ClusterID("munich").Addr(), Msg: wire.Desired{Gen: api.Generation(i + 1)}})
	}
	select {
	case <-c.done:
		t.Fatal("cut off while there was room")
	default:
	}
	l.Send(wire.Envelope{To: api.ClusterID("munich").Addr(), Msg: wire.Desired{Gen: 1000}})
	select {
	case <-c.done:
	default:
		t.Error("not cut off")
	}
	if c.push(message{event: "desired"}) {
		t.Error("a message was taken after the end")
	}
	l.closed("munich", c)
	if l.Connected() != 0 {
		t.Error("still counted")
	}
	l.Send(wire.Envelope{To: api.ClusterID("dublin").Addr(), Msg: wire.Desired{}}) // no open stream: dropped
	l.Send(wire.Envelope{To: wire.ToWatchers, Msg: api.Change{}})
}

func TestTheOldStreamDoesNotCloseTheNew(t *testing.T) {
	l := New(Options{})
	old, new := newConn(), newConn()
	l.open("munich", old)
	l.open("munich", new)
	select {
	case <-old.done:
	default:
		t.Error("the old stream goes on")
	}
	l.closed("munich", old)
	if l.conn("munich") != new {
		t.Error("the new stream went with the old")
	}
}
