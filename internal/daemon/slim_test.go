package daemon

import "testing"

func TestOnlyTheProgramsConstantPagesAreReleased(t *testing.T) {
	const self = "/usr/bin/netmanager"
	for line, want := range map[string]bool{
		"00400000-00a00000 r-xp 00000000 08:01 42                         /usr/bin/netmanager": true,
		"00a00000-01200000 r--p 00600000 08:01 42                         /usr/bin/netmanager": true,
		"01200000-01280000 rw-p 00e00000 08:01 42                         /usr/bin/netmanager": false, // variables
		"01200000-01280000 r--s 00e00000 08:01 42                         /usr/bin/netmanager": false, // shared with others
		"7f0000000000-7f0000010000 r--p 00000000 08:01 43                 /var/lib/net.db":     false,
		"c000000000-c000400000 rw-p 00000000 00:00 0 ":                                         false,
		"zz-00a00000 r-xp 00000000 08:01 42                               /usr/bin/netmanager": false,
		"": false,
	} {
		from, to, ok := parseMapping(line, self)
		if ok != want || ok && from >= to {
			t.Errorf("%q: %v (%x-%x)", line, ok, from, to)
		}
	}
	program, err := programMappings()
	if err != nil || len(program) == 0 {
		t.Fatal("the program's pages are not found: ", err)
	}
	dropPages(program) // the program continues
}

func TestTheHeapIsFreedOnceWhatWasGoingOnIsOver(t *testing.T) {
	const mib = 1 << 20
	var h heap
	for i, c := range []struct {
		all uint64 // allocated since the start
		due bool
	}{
		{20 * mib, true},            // the start has ended
		{20*mib + trimQuiet, false}, // too little was allocated
		{30 * mib, false},           // busy
		{40 * mib, false},
		{40*mib + 1000, true}, // quiet again
		{40*mib + 2000, false},
		{40*mib + trimQuiet, false},
	} {
		if got := h.due(c.all); got != c.due {
			t.Errorf("look %d, at %d: %v", i, c.all, got)
		}
	}
}
