package standby_test

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/internal/seal"
	"github.com/treeline-edge/treeline/internal/standby"
)

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("within a minute: want %s", what)
		}
	}
}

func TestReplicasWithTheSameKeyLearnTheirURLs(t *testing.T) {
	keys := func() *os.Root {
		dir := must(os.OpenRoot(t.TempDir()))
		t.Cleanup(func() { _ = dir.Close() })
		must(seal.KeyFile(dir, "secret", false))
		return dir
	}
	ours := keys()
	const one, two, three, away = "https://10.0.0.1:7443", "https://10.0.0.2:7443", "https://10.0.0.3:7443", "https://10.0.0.9:7443"
	active := must(standby.Member(ours, one, one, away))
	defer active.Leave()
	second := must(standby.Member(ours, two))
	other := must(standby.Member(keys(), three)) // of another installation
	defer other.Leave()
	if got := second.URLs(); got != nil {
		t.Errorf("a replica that knows no other one tells clients of %q", got)
	}
	other.Contact(active)
	second.Contact(active)
	show := func() (out []string) {
		for _, m := range active.Members() {
			out = append(out, m.Name+" "+string(m.Role)+" "+string(m.State))
		}
		return out
	}
	eventually(t, "the second replica is a standby, and the configured one that was never seen is unknown", func() bool {
		return slices.Equal(show(), []string{"10.0.0.1:7443 active alive", "10.0.0.2:7443 standby alive", "10.0.0.9:7443  unknown"})
	})
	if got := active.URLs(); !slices.Equal(got, []string{one, away, two}) {
		t.Errorf("clients learn %q, want the configured URLs and that of the second replica", got)
	}
	eventually(t, "the second replica knows both", func() bool { return slices.Equal(second.URLs(), []string{one, two}) })
	second.Leave()
	eventually(t, "the second replica has left, and clients do not learn it", func() bool {
		return slices.Contains(show(), "10.0.0.2:7443  left") && slices.Equal(active.URLs(), []string{one, away})
	})
	if m := other.Members(); len(m) != 1 {
		t.Errorf("the replica of another installation has the members %+v, want itself", m)
	}
	var none *standby.Replica
	if none.URLs() != nil || len(none.Members()) != 0 {
		t.Error("a daemon without replicas has members")
	}
}
