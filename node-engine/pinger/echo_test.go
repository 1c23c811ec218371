package pinger

import (
	"testing"
	"time"
)

func FuzzReply(f *testing.F) {
	for _, six := range []bool{false, true} {
		e := echo{six: six, nonce: [16]byte{1, 2, 3}}
		f.Add(e.request(0), six)
		reply := e.request(1)
		reply[0] = echoReply4
		if six {
			reply[0] = echoReply6
		}
		f.Add(reply, six)
		f.Add(reply[:echoHeader], six)
	}
	f.Fuzz(func(t *testing.T, b []byte, six bool) {
		e := echo{six: six, raw: true, nonce: [16]byte{1, 2, 3}, sent: [tries]time.Time{1: time.Unix(1, 0)}}
		if seq, ok := e.reply(b); ok && seq != 1 {
			t.Errorf("%x answers %d, which was not asked", b, seq)
		}
	})
}

func TestReplyOfAnotherCountsForNothing(t *testing.T) {
	e := echo{id: 7, raw: true, nonce: [16]byte{1}, sent: [tries]time.Time{time.Unix(1, 0)}}
	answer := func(change func(b []byte)) []byte {
		b := e.request(0)
		b[0] = echoReply4
		change(b)
		return b
	}
	if seq, ok := e.reply(answer(func([]byte) {})); !ok || seq != 0 {
		t.Fatalf("the answer is %d, %v", seq, ok)
	}
	for name, change := range map[string]func(b []byte){
		"a request":       func(b []byte) { b[0] = echoRequest4 },
		"a code":          func(b []byte) { b[1] = 1 },
		"another's id":    func(b []byte) { b[5]++ },
		"another's nonce": func(b []byte) { b[echoHeader+15]++ },
		"not sent yet":    func(b []byte) { b[7] = 2 },
		"sequence 0":      func(b []byte) { b[7] = 0 },
		"beyond":          func(b []byte) { b[6] = 9 },
	} {
		if seq, ok := e.reply(answer(change)); ok {
			t.Errorf("%s is taken for the answer to %d", name, seq)
		}
	}
}

func TestChecksum(t *testing.T) {
	e := echo{id: 0xbeef, nonce: [16]byte{0xff, 0xff, 0xff}}
	if got := checksum(e.request(2)); got != 0 {
		t.Errorf("over a message with its checksum it is %#x, want 0", got)
	}
}
