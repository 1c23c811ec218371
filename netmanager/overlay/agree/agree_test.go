package agree_test

import (
	"errors"
	"net/netip"
	"reflect"
	"testing"

	"github.com/treeline-edge/treeline/netmanager/overlay/agree"
	"github.com/treeline-edge/treeline/netmanager/overlay/notice"
	"github.com/treeline-edge/treeline/netmanager/overlay/paths"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

var (
	a, b  = netip.MustParseAddr("192.168.1.10"), netip.MustParseAddr("10.0.0.7")
	terms = agree.Terms{Serial: 1 << 50, Ack: 3, Ways: plane.Paths{Route: true, VXLAN: true}, From: a, At: []netip.Addr{a, b}, Port: 4789}
	all   = []agree.Message{
		terms,
		agree.Terms{},
		agree.Terms{Serial: 1, Ways: plane.Paths{VXLAN: true}, From: b, At: []netip.Addr{b}, Port: 1},
		agree.Probe{Serial: 9},
		agree.Arrived{Serial: 9, Bytes: 1 << 40},
	}
)

func TestTermsTravel(t *testing.T) {
	for _, m := range all {
		got, err := agree.Parse(append(m.Append(nil), 1, 2, 3))
		if err != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("%+v became %+v, %v", m, got, err)
		}
		full := m.Append(nil)
		for n := range full {
			if got, err := agree.Parse(full[:n]); !errors.Is(err, agree.ErrMalformed) {
				t.Errorf("%d of %d bytes of %+v became %+v", n, len(full), m, got)
			}
		}
	}
	many := terms
	for range 2 * agree.MaxAt {
		many.At = append(many.At, a)
	}
	if got, err := agree.Parse(many.Append(nil)); err != nil || len(got.(agree.Terms).At) != agree.MaxAt {
		t.Errorf("%+v, %v", got, err)
	}
}

// Sessions carry them all, and who knows some only leaves the others alone.
func TestTermsAreNobodyElses(t *testing.T) {
	for _, m := range all {
		long := append(m.Append(nil), make([]byte, 200)...)
		if got, err := paths.Parse(long); err == nil {
			t.Errorf("%T is read as %T", m, got)
		}
		if got, err := notice.Parse(long); err == nil {
			t.Errorf("%T is read as %T", m, got)
		}
	}
	for _, m := range []interface{ Append([]byte) []byte }{
		paths.Probe{Token: 1}, paths.Reply{}, paths.Candidates{Boot: 1}, paths.Ack{Rev: 1}, notice.Notice{Serial: 1}, notice.Ack{},
	} {
		if got, err := agree.Parse(append(m.Append(nil), make([]byte, 200)...)); !errors.Is(err, agree.ErrMalformed) {
			t.Errorf("%T is read as %T", m, got)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, m := range all {
		f.Add(m.Append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := agree.Parse(b)
		if err != nil {
			return
		}
		out := m.Append(nil)
		if len(out) > len(b) {
			t.Errorf("%d bytes became %d", len(b), len(out))
		}
		if again, err := agree.Parse(out); err != nil || !reflect.DeepEqual(again, m) {
			t.Errorf("%+v became %+v, %v", m, again, err)
		}
	})
}
