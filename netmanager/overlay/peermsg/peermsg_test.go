package peermsg_test

import (
	"errors"
	"net/netip"
	"reflect"
	"testing"

	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/overlay/paths"
	"github.com/treeline-edge/treeline/netmanager/overlay/peermsg"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

var (
	a, b  = netip.MustParseAddr("192.168.1.10"), netip.MustParseAddr("10.0.0.7")
	entry = peermsg.Entry{Address: netip.MustParseAddr("10.16.1.2"), Of: peermsg.PlacementOf(wire.Key{Instance: "acme/shop.prod.web.eu#1", Epoch: 7}), State: peermsg.Draining}
	terms = peermsg.Terms{Serial: 1 << 50, Ack: 3, Paths: plane.Paths{Route: true, VXLAN: true}, From: a, At: []netip.Addr{a, b}, Port: 4789}
	all   = []peermsg.Message{
		peermsg.Notice{Serial: 1 << 60, Entries: []peermsg.Entry{entry, {Address: entry.Address, State: peermsg.Gone}}},
		peermsg.Notice{Entries: []peermsg.Entry{}},
		peermsg.NoticeAck{Serial: 9},
		terms,
		peermsg.Terms{},
		peermsg.Terms{Serial: 1, Paths: plane.Paths{VXLAN: true}, From: b, At: []netip.Addr{b}, Port: 1},
		peermsg.TrafficProbe{Serial: 9},
		peermsg.Traffic{Serial: 9, Bytes: 1 << 40},
	}
)

func TestMessagesSurviveEncoding(t *testing.T) {
	for _, m := range all {
		got, err := peermsg.Parse(append(m.Append(nil), 1, 2, 3))
		if err != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("got %+v and %v, want %+v", got, err, m)
		}
		full := m.Append(nil)
		for n := range full {
			if got, err := peermsg.Parse(full[:n]); !errors.Is(err, peermsg.ErrMalformed) {
				t.Errorf("parsed %d of %d bytes of %+v as %+v and %v, want ErrMalformed", n, len(full), m, got, err)
			}
		}
	}
}

func TestListsAreBounded(t *testing.T) {
	many, full := terms, peermsg.Notice{Serial: 1 << 60}
	for range 2 * peermsg.MaxTermsAddresses {
		many.At = append(many.At, a)
	}
	for range peermsg.MaxEntries {
		full.Entries = append(full.Entries, entry)
	}
	const least = 1280 - 40 - 8 - 40 - 32 // IPv6's path, UDP, the session's and a relay's header
	if n := len(full.Append(nil)); n > least {
		t.Errorf("a notice with %d entries has %d bytes, want at most %d", peermsg.MaxEntries, n, least)
	}
	full.Entries = append(full.Entries, entry)
	if got, err := peermsg.Parse(full.Append(nil)); err != nil || len(got.(peermsg.Notice).Entries) != peermsg.MaxEntries {
		t.Errorf("got %+v and %v, want %d entries", got, err, peermsg.MaxEntries)
	}
	if got, err := peermsg.Parse(many.Append(nil)); err != nil || len(got.(peermsg.Terms).At) != peermsg.MaxTermsAddresses {
		t.Errorf("got %+v and %v, want %d addresses", got, err, peermsg.MaxTermsAddresses)
	}
}

// TestTypesDifferFromPathMessages checks that the two kinds of messages in a session are not
// mistaken for one another.
func TestTypesDifferFromPathMessages(t *testing.T) {
	padded := func(m interface{ Append([]byte) []byte }) []byte { return append(m.Append(nil), make([]byte, 200)...) }
	for _, m := range all {
		if got, err := paths.Parse(padded(m)); err == nil {
			t.Errorf("paths.Parse read %T as %T, want an error", m, got)
		}
	}
	for _, m := range []paths.Message{paths.Probe{Token: 1}, paths.Reply{}, paths.Candidates{Boot: 1}, paths.Ack{Rev: 1}} {
		if got, err := peermsg.Parse(padded(m)); !errors.Is(err, peermsg.ErrMalformed) {
			t.Errorf("Parse read %T as %T and %v, want ErrMalformed", m, got, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, m := range all {
		f.Add(m.Append(nil))
	}
	f.Add([]byte{0x10, 0, 0, 0, 0, 0, 0, 0, 0, 200})
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := peermsg.Parse(b)
		if err != nil {
			return
		}
		out := m.Append(nil)
		if len(out) > len(b) {
			t.Errorf("encoded %d bytes as %d", len(b), len(out))
		}
		if again, err := peermsg.Parse(out); err != nil || !reflect.DeepEqual(again, m) {
			t.Errorf("got %+v and %v, want %+v", again, err, m)
		}
	})
}
