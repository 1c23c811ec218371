package parts_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/treeline-edge/treeline/internal/bus"
	"github.com/treeline-edge/treeline/internal/bus/parts"
)

func message(seed uint64, size int) []byte {
	b := make([]byte, size)
	r := rand.NewChaCha8([32]byte{byte(seed)})
	_, _ = r.Read(b)
	b[0] = '{'
	return b
}

func split(t *testing.T, m []byte) [][]byte {
	t.Helper()
	all, err := parts.Split(m)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		if len(p) > bus.MaxPayload {
			t.Fatalf("a part of %d bytes", len(p))
		}
	}
	return all
}

func TestPartsAreJoined(t *testing.T) {
	var j parts.Joiner
	for n, size := range []int{1, bus.MaxPayload, bus.MaxPayload + 1, 2*bus.MaxPayload - 26, 2*bus.MaxPayload - 25, 5<<20 + 7, parts.Max} {
		m := message(uint64(n), size)
		all := split(t, m)
		if (len(all) == 1) != (size <= bus.MaxPayload) {
			t.Errorf("%d bytes in %d parts", size, len(all))
		}
		for i, p := range all {
			whole, ok := j.Add(p)
			if ok != (i == len(all)-1) || ok && !bytes.Equal(whole, m) {
				t.Errorf("%d bytes, part %d: %v, %d bytes", size, i, ok, len(whole))
			}
			if again, twice := j.Add(p); len(all) > 1 && twice {
				t.Errorf("%d bytes, part %d again: %d bytes", size, i, len(again))
			}
		}
		if j.Waits() {
			t.Errorf("%d bytes: something is left", size)
		}
	}
	if _, err := parts.Split(make([]byte, parts.Max+1)); !errors.Is(err, bus.ErrTooBig) {
		t.Errorf("larger than the largest: %v", err)
	}
}

// A broker may deliver a part again after later ones, also the first part.
func TestLateDuplicatesAreIgnored(t *testing.T) {
	m := message(1, 4<<20)
	var j parts.Joiner
	var whole []byte
	for n, p := range split(t, m) {
		for _, again := range split(t, m)[:n] {
			if got, ok := j.Add(again); ok {
				t.Errorf("before part %d a duplicate completes a message of %d bytes", n, len(got))
			}
		}
		whole, _ = j.Add(p)
	}
	if !bytes.Equal(whole, m) {
		t.Errorf("the last part completes a message of %d bytes, want the one of %d bytes", len(whole), len(m))
	}
}

// Lost, duplicate and reordered parts never result in another message than was sent.
func TestOnlySentMessagesAreJoined(t *testing.T) {
	one, two := message(1, 3<<20), message(2, 3<<20+9)
	all := append(split(t, one), split(t, two)...)
	r := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		var j parts.Joiner
		for range 30 {
			p := all[r.IntN(len(all))]
			if whole, ok := j.Add(p); ok && !bytes.Equal(whole, one) && !bytes.Equal(whole, two) {
				t.Fatalf("a message of %d bytes that nobody sent", len(whole))
			}
		}
		for n, p := range all[:4] {
			whole, ok := j.Add(p)
			if ok && !bytes.Equal(whole, one) {
				t.Fatalf("part %d: %d bytes", n, len(whole))
			}
		}
	}
}

// An incomplete message needs no more memory than the largest message.
func FuzzJoiner(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 'x'}, []byte{1})
	f.Fuzz(func(_ *testing.T, a, b []byte) {
		var j parts.Joiner
		j.Add(a)
		j.Add(b)
		j.Add(a)
	})
}
