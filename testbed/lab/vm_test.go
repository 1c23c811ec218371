package lab_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/programtest"
	"github.com/treeline-edge/treeline/testbed/lab"
	"github.com/treeline-edge/treeline/testbed/netlab"
	"github.com/treeline-edge/treeline/testbed/ociimage/image"
	"github.com/treeline-edge/treeline/testbed/vmimage"
)

// machines returns the processes of QEMU in a control group.
func machines(t *testing.T, cgroup string) (pids []int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range all {
		text, err := os.ReadFile(file)
		comm, cerr := os.ReadFile(filepath.Join(filepath.Dir(file), "comm"))
		if err != nil || cerr != nil || !strings.Contains(string(text), cgroup+"/") || !strings.HasPrefix(string(comm), "qemu") {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		pids = append(pids, pid)
	}
	return pids
}

// TestMicroVMsOnTheOverlay runs a virtual machine and containers on two nodes behind NATs. They call each other
// by name, as far as callers allows, and the machine's health check decides when it gets flows. Machines go on
// without their engine, which finds them again, and are restarted when they are killed.
func TestMicroVMsOnTheOverlay(t *testing.T) {
	t.Parallel()
	programtest.Need(t, "containerd", "runc", "qemu-system-x86_64")
	programtest.NeedRoot(t)
	o := lab.NewOverlay(t, lab.Options{}, steady().Args...)
	files, err := vmimage.Linux(t.Context(), o.Program)
	if err != nil {
		t.Fatal(err)
	}
	const code = "treeline.local/vm:1"
	if err := image.WriteFile(filepath.Join(o.Containerd().Images, "vm.tar"), image.Image{Ref: code, Files: files}); err != nil {
		t.Fatal(err)
	}
	o.Node(o.First, netlab.Symmetric)
	cgroup := "/treeline/" + filepath.Base(o.Dir) + "-n1-vm"
	n1 := o.Site(o.First, netlab.PortRestricted, lab.NodeOptions{Args: []string{"--runtime", "containerd,qemu", "--qemu-cgroup-parent", cgroup, "--bandwidth", "100"}})
	o.Ready(o.First, 2)

	vm := func(name string, args ...string) api.Microservice {
		m := o.Server(name, 1)
		m.Virtualization, m.Code, m.Memory, m.VCPUs = api.MicroVM, code, 256, 1
		m.Cmd = append([]string{vmimage.Program}, args...)
		m.Environment = []string{"PORT=8080"} // the guest's kernel does not let its user listen on 80
		return lab.On(m, "c1", "n1")
	}
	machine := vm("machine", "serve")
	machine.BandwidthOut = 4_000 // kbit/s, as in a document
	machine.Callers = []string{"shop.lab.client.lab"}
	machine.Health = &api.Health{Readiness: &api.Check{HTTP: &api.HTTPCheck{Port: 8080, Path: "/healthz"}, Interval: 1}}
	o.Apply(lab.App("shop", lab.On(o.Container("client", 1), "c1", "n0"), lab.On(o.Server("web", 1), "c1", "n0"), machine))
	o.Wait("the containers run", func(v lab.View) bool { return o.Running("shop", "client", 1)(v) && o.Running("shop", "web", 1)(v) })
	id := o.ID("shop", "machine", 0)
	lab.Within(t, time.Minute, "the machine is started", func() error {
		if all := machines(t, cgroup); len(all) != 1 {
			return fmt.Errorf("machines: got %v, want one", all)
		}
		return nil
	})
	first := machines(t, cgroup)[0]

	// The guest is still booting.
	n1.Kill9()
	n1.Start()
	ready := func(restarts int) func(lab.View) bool {
		return lab.Is(id, func(i api.Instance) bool {
			return i.State == api.Running && i.Reason == api.ReasonNone && i.Restarts == restarts
		})
	}
	o.WaitWithin(2*time.Minute, "the machine is ready", ready(0))
	if all := machines(t, cgroup); len(all) != 1 || all[0] != first {
		t.Errorf("machines after the engine was killed: got %v, want %d alone", all, first)
	}
	if out := o.CLI("logs", string(id)); !strings.Contains(out, "listening on") {
		t.Errorf("log of what the machine wrote while its engine was killed: got %q, want listening on", out)
	}

	client := o.Inside(o.ID("shop", "client", 0))
	const name = "machine.lab.shop.lab.treeline"
	calls := lab.CallBy(func() (api.InstanceID, error) { // resolved for each request
		ips, err := client.Lookup(t.Context(), "ip4", name)
		if err != nil {
			return "", err
		}
		return client.Who(net.JoinHostPort(ips[0].String(), "8080"), 10*time.Second)
	})
	t.Cleanup(calls.Stop)
	calls.More(t, 20)

	sub(t, o.Lab, "its engine is killed", func(t *testing.T) {
		n1.Kill9()
		calls.More(t, 10)
		n1.Start()
		o.Wait("the node takes work", lab.Nodes("c1", 2))
		calls.More(t, 10)
		if failed := calls.Failures(); len(failed) > 0 {
			t.Errorf("requests that failed: %v", failed)
		}
		if all := machines(t, cgroup); len(all) != 1 || all[0] != first {
			t.Errorf("machines: got %v, want %d alone", all, first)
		}
	})

	sub(t, o.Lab, "others may not call it", func(t *testing.T) {
		web := o.Inside(o.ID("shop", "web", 0))
		at := net.JoinHostPort(o.Addresses("shop", "machine").RoundRobin.String(), "8080")
		if who, err := web.Who(at, 3*time.Second); err == nil {
			t.Errorf("%s answered a service that is not among its callers", who)
		}
	})

	sub(t, o.Lab, "its bandwidth is limited", func(t *testing.T) {
		at := net.JoinHostPort(o.Addresses("shop", "machine").RoundRobin.String(), "8080")
		c := http.Client{Transport: &http.Transport{DialContext: client.Dial, DisableKeepAlives: true}, Timeout: time.Minute}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+at+"/bulk", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		resp, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		n, err := io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<20))
		took := time.Since(began)
		t.Logf("%d bytes in %v", n, took)
		// 1 MiB is 8.4 Mbit. An emulated machine without a limit sends it in less than a second.
		if err != nil || n != 1<<20 || took < 1600*time.Millisecond {
			t.Errorf("with 4 Mbit/s out: %d bytes in %v, %v; want 1 MiB in 1.6 s at least", n, took, err)
		}
	})

	sub(t, o.Lab, "a machine calls a container", func(t *testing.T) {
		once := vm("once", "check", "http://web.lab.shop.lab.treeline/")
		once.OneShot = true
		o.Apply(lab.App("batch", once))
		o.WaitWithin(2*time.Minute, "its request succeeds", lab.Is(o.ID("batch", "once", 0), func(i api.Instance) bool { return i.State == api.Completed }))
		o.Delete("batch")
		o.Wait("it is gone", o.Gone("batch"))
	})

	sub(t, o.Lab, "the machine is killed", func(t *testing.T) {
		calls.Stop()
		defer func() {
			if t.Failed() {
				console, err := o.TryCLI("logs", string(id))
				t.Logf("console of the machine: %v\n%s", err, console)
			}
		}()
		if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		o.WaitWithin(2*time.Minute, "it is restarted", ready(1))
		if all := machines(t, cgroup); len(all) != 1 || all[0] == first {
			t.Errorf("machines: got %v, want another one than %d", all, first)
		}
		lab.Within(t, time.Minute, "it answers again", func() error {
			_, err := client.Who(net.JoinHostPort(o.Addresses("shop", "machine").RoundRobin.String(), "8080"), 10*time.Second)
			return err
		})
	})

	o.Delete("shop")
	o.Wait("all is gone", o.Gone("shop"))
	lab.Within(t, time.Minute, "nothing is left", func() error {
		left, _ := filepath.Glob(filepath.Join(n1.Data, "qemu", "w", "*"))
		if all := machines(t, cgroup); len(all)+len(left) > 0 {
			return fmt.Errorf("machines %v, files %v", all, left)
		}
		return nil
	})
}
