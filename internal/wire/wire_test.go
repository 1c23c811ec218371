package wire_test

import (
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

func TestAliveSurvivesTheWireAndStaysSmall(t *testing.T) {
	for _, want := range []wire.Alive{
		{},
		{Boot: 3, Seq: 120, Gen: 12, Desired: 1 << 63, Observed: 7, CPUUsed: 42, MemUsed: 100},
		{Boot: math.MaxUint64, Seq: math.MaxUint64, Gen: math.MaxUint64, Desired: math.MaxUint64, Observed: math.MaxUint64, CPUUsed: 255, MemUsed: 255},
	} {
		b, err := want.MarshalBinary()
		if err != nil || len(b) > 50 {
			t.Fatalf("%d bytes, %v", len(b), err)
		}
		var got wire.Alive
		if err := got.UnmarshalBinary(b); err != nil || got != want {
			t.Fatalf("%+v became %+v, %v", want, got, err)
		}
		for n := range b {
			if err := got.UnmarshalBinary(b[:n]); !errors.Is(err, api.ErrInvalid) {
				t.Fatalf("cut to %d bytes it passes: %v", n, err)
			}
		}
		if err := got.UnmarshalBinary(append(b, 0)); !errors.Is(err, api.ErrInvalid) {
			t.Fatalf("with a byte too many it passes: %v", err)
		}
	}
}

func FuzzAlive(f *testing.F) {
	b, _ := wire.Alive{Boot: 1, Seq: 2, Gen: 3}.MarshalBinary()
	f.Add(b)
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		var a, again wire.Alive
		if a.UnmarshalBinary(b) != nil {
			return
		}
		b, _ = a.MarshalBinary()
		if err := again.UnmarshalBinary(b); err != nil || a != again {
			t.Fatalf("%+v became %+v, %v", a, again, err)
		}
	})
}

func TestDigestOfASetIgnoresOrderAndForgets(t *testing.T) {
	var sum api.Digest
	a := wire.Assignment{Instance: "t/a.b.c.d#0", Epoch: 1, SpecRev: 1}
	b := a
	b.Epoch = 2
	if a.Digest() == b.Digest() {
		t.Fatal("another epoch is another member")
	}
	ab := sum.Toggle(a.Digest()).Toggle(b.Digest())
	if ab != sum.Toggle(b.Digest()).Toggle(a.Digest()) || ab.Toggle(a.Digest()).Toggle(b.Digest()) != 0 {
		t.Fatal("a set has no order, and what left it leaves no trace")
	}
}

func TestObservationsDifferWhereTheyMatter(t *testing.T) {
	zero, one := 0, 1
	base := api.Observed{Instance: "t/a.b.c.d#0", Epoch: 1, State: api.Running}
	seen := map[api.Digest]int{base.Digest(): -1}
	for i, change := range []func(*api.Observed){
		func(o *api.Observed) { o.Epoch = 2 }, func(o *api.Observed) { o.State = api.Failed },
		func(o *api.Observed) { o.Reason = api.ReasonExited }, func(o *api.Observed) { o.Restarts = 1 },
		func(o *api.Observed) { o.ExitCode = &zero }, func(o *api.Observed) { o.ExitCode = &one },
	} {
		o := base
		change(&o)
		if j, ok := seen[o.Digest()]; ok {
			t.Errorf("changes %d and %d look alike", i, j)
		}
		seen[o.Digest()] = i
	}
}

func TestEveryKindHasItsStatusAndBack(t *testing.T) {
	for _, kind := range []error{
		api.ErrInvalid, api.ErrUnauthenticated, api.ErrForbidden, api.ErrNotFound, api.ErrConflict, api.ErrPrecondition,
		api.ErrGone, api.ErrTooLarge, api.ErrUnavailable, api.ErrTimeout, api.ErrFull,
	} {
		status, code := api.HTTPStatus(fmt.Errorf("place x on y: %w", kind))
		if status == 500 || code == "internal" || !errors.Is(api.KindOf(status), kind) {
			t.Errorf("%v is %d %s, which is %v", kind, status, code, api.KindOf(status))
		}
	}
	if status, code := api.HTTPStatus(errors.New("boom")); status != 500 || code != "internal" {
		t.Errorf("an unknown error has the status %d %s, want 500 internal", status, code)
	}
	if api.KindOf(418) != nil {
		t.Error("a status of no kind has none")
	}
}

func TestResources(t *testing.T) {
	a, b := api.Resources{MilliCPU: 500, MemoryMB: 64}, api.Resources{MilliCPU: 1000, MemoryMB: 32}
	if a.Fits(b) || !a.Fits(a) || !a.Fits(a.Plus(b)) || a.Plus(b).Minus(b) != a {
		t.Error("amounts add up, part by part")
	}
	if a.Max(b) != (api.Resources{MilliCPU: 1000, MemoryMB: 64}) || a.String() != "0.5 vCPU, 64 MiB" {
		t.Errorf("Max is %v and String is %v", a.Max(b), a)
	}
	for n, want := range map[int64]string{0: "0 MiB", -5: "-5 MiB", 10239: "10239 MiB", 16000: "15.6 GiB", -20480: "-20 GiB", 12 << 20: "12 TiB"} {
		if got := api.MiB(n); got != want {
			t.Errorf("MiB(%d) is %q, want %q", n, got, want)
		}
	}
}

func TestWhatStopsWhenCutOff(t *testing.T) {
	for want, services := range map[bool][]api.Microservice{
		true:  {{Exclusive: true}, {OnDisconnect: api.StopWhenCutOff}},
		false: {{}, {OnDisconnect: api.KeepRunning}},
	} {
		for _, m := range services {
			if m.StopsWhenCutOff() != want {
				t.Errorf("StopsWhenCutOff of %+v is %v, want the opposite", m, !want)
			}
		}
	}
}

func TestLocalNumbersOfClustersNeverMeet(t *testing.T) {
	if a, b := (api.ClusterInfo{Block: 0}).LocalNumbers(), (api.ClusterInfo{Block: 1}).LocalNumbers(); a != 100_000 || b-a != 100_000 || a < api.MaxReplicas {
		t.Errorf("%d and %d", a, b)
	}
}
