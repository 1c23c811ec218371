//go:build linux

package browser

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cli/dev"
	"github.com/treeline-edge/treeline/internal/programtest"
)

// installation is a root, two clusters and three nodes.
type installation struct {
	dev.Up
	t        *testing.T
	admin    *client.Client
	workload string // the path of testbed/workload
}

func install(t *testing.T) *installation {
	t.Helper()
	programtest.NeedRoot(t)
	bin, data := os.Getenv(programs), folder(t)
	cfg := dev.Config{
		Bin: bin, Data: data, Listen: "127.0.0.1:0", Clusters: 2, Nodes: 3, Remove: true,
		Runtime: "process", Network: "host", Allow: []string{bin, "/bin", "/usr/bin"}, Tenant: "acme",
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended, ready := make(chan error, 1), make(chan dev.Up, 1)
	go func() {
		ended <- dev.Run(ctx, cfg, dev.Hooks{
			Step: func(format string, args ...any) { t.Logf(format, args...) },
			Up:   func(_ context.Context, up dev.Up) error { ready <- up; return nil },
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the installation ended: %v", err)
		}
	})
	in := &installation{t: t, workload: bin + "/workload"}
	select {
	case in.Up = <-ready:
	case err := <-ended:
		ended <- nil
		t.Fatalf("the installation ended: %v", err)
	}
	in.admin = in.client(in.Session.Access)
	return in
}

// folder returns a directory with a short path, because paths of sockets are limited, which
// workloads may enter.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "b")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// Processes of a browser may still write while they end.
		for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
			if err := os.RemoveAll(dir); err == nil || time.Now().After(end) {
				return
			}
		}
	})
	return dir
}

func (in *installation) client(token string) *client.Client {
	in.t.Helper()
	o := client.Options{URL: in.URL, CA: in.CA}
	if token != "" {
		o.Tokens = client.Static(token)
	}
	c, err := client.New(o)
	if err != nil {
		in.t.Fatal(err)
	}
	in.t.Cleanup(c.Close)
	return c
}

const password = "correct horse battery"

// invite creates a user with a role, and returns the code for the first sign-in.
func (in *installation) invite(user, role string) (code string) {
	in.t.Helper()
	i, err := in.admin.CreateUser(in.t.Context(), user, role)
	if err != nil {
		in.t.Fatal(err)
	}
	return i.Code
}

// user creates a user with a role and the password.
func (in *installation) user(user, role string) {
	in.t.Helper()
	if _, err := in.client("").Redeem(in.t.Context(), api.Redeem{User: user, Code: in.invite(user, role), Password: password}); err != nil {
		in.t.Fatal(err)
	}
}

// apply deploys an application of one service.
func (in *installation) apply(name string, cmd string, memory, replicas int) {
	in.t.Helper()
	doc := fmt.Sprintf(`{"sla_version":"v2.0","applications":[{"application_name":%q,"application_namespace":"prod","microservices":[
		{"microservice_name":"web","microservice_namespace":"v1","virtualization":"process","code":%q,"cmd":[%s],"memory":%d,"replicas":%d}]}]}`,
		name, in.workload, cmd, memory, replicas)
	ctx, cancel := context.WithTimeout(in.t.Context(), time.Minute)
	defer cancel()
	if _, err := in.admin.Apply(ctx, []byte(doc), client.ApplyOptions{Tenant: "acme"}); err != nil {
		in.t.Fatal(err)
	}
}
