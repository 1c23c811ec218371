package tunnel

import "testing"

func TestPingPasses(t *testing.T) {
	a, b := pair(t)
	t.Log(a.exec("ping", "-c3", "-i0.1", "-W5", b.addr().String()))
	t.Log(a.exec("ping", "-c3", "-i0.1", "-W5", b.six().String()))
	t.Logf("%+v", a.Stats())
	until[Established](a)
}
