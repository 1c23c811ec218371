package refusals

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/treeline-edge/treeline/internal/fairshare"
)

func from(a string) []string { return fairshare.Address(netip.MustParseAddr(a)) }

func TestAFloodOfRefusalsIsAFewLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		l := New(slog.New(slog.NewTextHandler(&out, nil)), "sign-in refused")
		for i := range 10_000 {
			l.Warn(from("192.0.2.1"), "user", fmt.Sprint("guess", i))
		}
		if n := strings.Count(out.String(), "\n"); n != 10 {
			t.Errorf("%d lines of one address, want 10", n)
		}
		l.Warn(from("192.0.2.2"), "user", "acme/ann")
		if !strings.Contains(out.String(), "acme/ann") {
			t.Error("the refusal of another address is not in the log")
		}
		out.Reset()
		time.Sleep(summaryEvery)
		synctest.Wait()
		want := `msg="sign-in refused: lines left out of the log" count=9990 most_from=192.0.2.1/32 of_these=9990 addresses=1`
		if got := out.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, want) {
			t.Errorf("after a minute:\n%s\nwant one line with %s", got, want)
		}
		out.Reset()
		time.Sleep(time.Hour)
		synctest.Wait()
		if out.Len() != 0 {
			t.Errorf("without refusals: %s", out.String())
		}
	})
}

// Any number of addresses causes a bounded number of lines, and every omitted line is counted.
func TestManyAddressesDoNotFillTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		l := New(slog.New(slog.NewTextHandler(&out, nil)), "node not let in")
		for i := range 20_000 {
			l.Warn(from(fmt.Sprintf("10.%d.%d.1", i/250, i%250)), "node", "n1")
		}
		if n := strings.Count(out.String(), "\n"); n != 200 {
			t.Errorf("%d lines at once, want 200", n)
		}
		if n := len(l.counted); n > maxCounted {
			t.Errorf("%d addresses are counted, want at most %d", n, maxCounted)
		}
		out.Reset()
		time.Sleep(summaryEvery)
		synctest.Wait()
		if got := out.String(); !strings.Contains(got, "count=19800") {
			t.Errorf("after a minute: %s, want the count of 19,800", got)
		}
	})
}

func TestValuesFromOutsideAreCut(t *testing.T) {
	var out bytes.Buffer
	l := New(slog.New(slog.NewTextHandler(&out, nil)), "node not let in")
	l.Warn(from("192.0.2.1"), "hostname", strings.Repeat("ü", 40_000), "err", fmt.Errorf("bad name %s", strings.Repeat("x", 40_000)))
	if n := out.Len(); n > 1024 {
		t.Errorf("a line has %d bytes", n)
	}
	if strings.Contains(out.String(), "\uFFFD") {
		t.Error("a character is cut in the middle")
	}
}
