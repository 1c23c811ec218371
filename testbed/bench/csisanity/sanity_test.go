// Package csisanity runs the checks of kubernetes-csi/csi-test against the driver of testbed/csidriver,
// so that what passes with this driver passes with others that follow the specification. It is in the
// module of the benchmarks, because csi-test needs modules that Treeline does not.
package csisanity

import (
	"context"
	"maps"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/treeline-edge/treeline/internal/programtest"
	"github.com/treeline-edge/treeline/testbed/csidriver"
)

// The results of csi-test 5.4.0.
const (
	passed  = 58
	skipped = 33 // of calls that the driver does not have
	pending = 1  // csi-test does not run it
)

// later delays the connection: csi-test misses that it is ready if it is so before csi-test looks.
type later struct {
	credentials.TransportCredentials
}

// ClientHandshake implements credentials.TransportCredentials.
func (l later) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	time.Sleep(time.Second)
	return l.TransportCredentials.ClientHandshake(ctx, authority, conn)
}

// Clone implements credentials.TransportCredentials.
func (l later) Clone() credentials.TransportCredentials { return later{l.TransportCredentials.Clone()} }

func TestDriverFollowsTheSpecification(t *testing.T) {
	programtest.NeedRoot(t)
	dir := t.TempDir()
	o := csidriver.Options{Name: "dirs.test.example", Dir: filepath.Join(dir, "volumes"), TopologyKey: "zone"}
	if err := os.Mkdir(o.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "csi.sock")
	s, err := csidriver.Serve(socket, csidriver.NewStorage(o), "n1", map[string]string{"zone": "a"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	conf := sanity.NewTestConfig()
	conf.Address = socket
	conf.TargetPath, conf.StagingPath = filepath.Join(dir, "target"), filepath.Join(dir, "staging")
	conf.DialOptions = []grpc.DialOption{grpc.WithTransportCredentials(later{insecure.NewCredentials()})}
	ran := map[types.SpecState]int{}
	ginkgo.ReportAfterSuite("count", func(r ginkgo.Report) {
		for _, spec := range r.SpecReports.WithLeafNodeType(types.NodeTypeIt) {
			ran[spec.State]++
		}
	})
	sanity.Test(t, conf)
	if want := map[types.SpecState]int{types.SpecStatePassed: passed, types.SpecStateSkipped: skipped, types.SpecStatePending: pending}; !maps.Equal(ran, want) {
		t.Errorf("checks: got %v, want %v; docs/how-to/volumes.md names those that are skipped", ran, want)
	}
	if left := s.Volumes(); len(left) > 0 {
		t.Errorf("volumes left by the checks: %v", left)
	}
}
