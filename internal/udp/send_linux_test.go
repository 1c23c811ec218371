package udp

import (
	"bytes"
	"testing"
)

func TestTheEndOfARunArrives(t *testing.T) {
	for _, batched := range []bool{true, false} {
		for _, n := range []int{1, 9, MaxDatagrams, MaxDatagrams + 1} {
			a, b := open(t, "127.0.0.1:0"), open(t, "127.0.0.1:0")
			if !batched {
				a.gso.Store(false)
			}
			var run, want []byte
			for i := range n {
				tail := bytes.Repeat([]byte{byte(i)}, 84)
				if i == n-1 {
					tail = tail[:1]
				}
				run, want = append(append(run, "sixteen of these"...), tail...), append(want, tail...)
			}
			if err := a.NewSender().SendTails(b.Local(), run, 100, 16); err != nil {
				t.Fatal(err)
			}
			all, _ := read(t, b.NewReceiver(), len(want))
			if len(all) != n || !bytes.Equal(bytes.Join(all, nil), want) {
				t.Errorf("%d datagrams came of %d, batched: %t", len(all), n, batched)
			}
		}
	}
}
