package notice_test

import (
	"errors"
	"net/netip"
	"reflect"
	"testing"

	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/overlay/notice"
	"github.com/treeline-edge/treeline/netmanager/overlay/paths"
)

var entry = notice.Entry{Address: netip.MustParseAddr("10.16.1.2"), Of: notice.Of(wire.Key{Instance: "acme/shop.prod.web.eu#1", Epoch: 7}), State: notice.Draining}

func TestNoticesTravel(t *testing.T) {
	full := notice.Notice{Serial: 1 << 60}
	for range notice.MaxEntries {
		full.Entries = append(full.Entries, entry)
	}
	for _, m := range []notice.Message{full, notice.Notice{Entries: []notice.Entry{}}, notice.Ack{Serial: 9}} {
		got, err := notice.Parse(m.Append(nil))
		if err != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("%+v became %+v, %v", m, got, err)
		}
	}
	const least = 1280 - 40 - 8 - 40 - 32 // IPv6's path, UDP, the session's and a relay's header
	if n := len(full.Append(nil)); n > least {
		t.Errorf("a notice has %d bytes", n)
	}
	full.Entries = append(full.Entries, entry)
	if got, err := notice.Parse(full.Append(nil)); err != nil || len(got.(notice.Notice).Entries) != notice.MaxEntries {
		t.Errorf("%+v, %v", got, err)
	}
}

// Sessions carry both, and who knows one of them only leaves the other alone.
func TestNoticesAreNoPathMessages(t *testing.T) {
	for _, m := range []notice.Message{notice.Notice{Entries: []notice.Entry{entry}}, notice.Ack{}} {
		if got, err := paths.Parse(append(m.Append(nil), make([]byte, 200)...)); err == nil {
			t.Errorf("%T is read as %T", m, got)
		}
	}
	for _, m := range []paths.Message{paths.Probe{Token: 1}, paths.Reply{}, paths.Candidates{Boot: 1}, paths.Ack{Rev: 1}} {
		if got, err := notice.Parse(m.Append(nil)); !errors.Is(err, notice.ErrMalformed) {
			t.Errorf("%T is read as %T", m, got)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(notice.Notice{Serial: 1, Entries: []notice.Entry{entry, {Address: entry.Address, State: notice.Gone}}}.Append(nil))
	f.Add(notice.Ack{Serial: 1}.Append(nil))
	f.Add([]byte{0x10, 0, 0, 0, 0, 0, 0, 0, 0, 200})
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := notice.Parse(b)
		if err != nil {
			return
		}
		out := m.Append(nil)
		if len(out) > len(b) {
			t.Errorf("%d bytes became %d", len(b), len(out))
		}
		if again, err := notice.Parse(out); err != nil || !reflect.DeepEqual(again, m) {
			t.Errorf("%+v became %+v, %v", m, again, err)
		}
	})
}
