package hostports

import (
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
)

// The tables are from a little-endian machine.
func TestListeningPortsAreFound(t *testing.T) {
	const heading = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	for name, x := range map[string]struct {
		table string
		state uint64
		want  []uint16
	}{
		"nobody":              {heading, listen, nil},
		"everywhere":          {heading + "   0: 00000000:0016 00000000:0000 0A 0 0\n", listen, []uint16{22}},
		"everywhere, IPv6":    {heading + "   0: 00000000000000000000000000000000:1F90 0:0000 0A 0 0\n", listen, []uint16{8080}},
		"localhost":           {heading + "   0: 0100007F:1538 00000000:0000 0A 0 0\n", listen, []uint16{5432}},
		"another of loopback": {heading + "   0: 3500007F:0035 00000000:0000 0A 0 0\n", listen, nil},
		"the resolver":        {heading + "   0: 351EFEA9:0035 00000000:0000 07 0 0\n", closed, nil},
		"IPv6's loopback":     {heading + "   0: 00000000000000000000000001000000:0035 0:0 07 0 0\n", closed, nil},
		"a connection":        {heading + "   0: 0100007F:1538 0100007F:9000 01 0 0\n", listen, nil},
		"a UDP client":        {heading + "   0: 0100007F:1538 0100007F:9000 01 0 0\n", closed, nil},
		"VXLAN":               {heading + "15053: 00000000:12B5 00000000:0000 07 0 0\n", closed, []uint16{4789}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parse(strings.NewReader(x.table), x.state)
			if err != nil || !slices.Equal(got, x.want) {
				t.Errorf("%v, %v, want %v", got, err, x.want)
			}
		})
	}
	for _, bad := range []string{"short\n", "0: zz:0016 0:0 0A\n", "0: 00:0016 0:0 0A\n", "0: 00000000:99999 0:0 0A\n", "0: 00000000:0016 0:0 zz\n"} {
		if got, err := parse(strings.NewReader(heading+bad), listen); err == nil {
			t.Errorf("%q is %v", bad, got)
		}
	}
}

func TestListeningPortsOfThisMachineAreFound(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p, err := net.ListenPacket("udp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	own, err := Own()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []api.HostPort{
		{Port: uint16(l.Addr().(*net.TCPAddr).Port), Protocol: "tcp"},
		{Port: uint16(p.LocalAddr().(*net.UDPAddr).Port), Protocol: "udp"},
	} {
		if !slices.Contains(own, want) {
			t.Errorf("%s is not among %v", want, own)
		}
	}
}

func FuzzTables(f *testing.F) {
	f.Add("heading\n   0: 0100007F:1538 00000000:0000 0A 0 0\n")
	f.Fuzz(func(_ *testing.T, s string) { _, _ = parse(strings.NewReader(s), listen) })
}
