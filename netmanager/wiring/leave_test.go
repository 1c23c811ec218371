package wiring

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	bpflink "github.com/cilium/ebpf/link"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// trace returns all state that a netmanager can leave on its host, as text.
func (h *testHost) trace() string {
	t := h.w.t
	t.Helper()
	var b strings.Builder
	for _, c := range []string{
		"ip -o link show | sed 's/^[0-9]*: //; s/ qdisc.*//; s/@.*//; s/: <.*//' | sort",
		"ip route show table all | sed 's/ metric [0-9]*//; s/ pref [a-z]*//' | grep -v 'fe80\\|ff00' | sort", "ip -6 route show | grep -v 'fe80\\|ff00' | sed 's/ pref.*//; s/ metric [0-9]*//' | sort",
		"ip rule", "ip neigh show nud permanent | sort", "nft -s list ruleset",
		"cat /proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv6/conf/all/forwarding",
	} {
		cmd := exec.Command("nsenter", "--net="+nsPath(h.ns), "sh", "-c", c)
		out, err := cmd.Output() // ip complains about peers in namespaces that other tests have deleted
		if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
			t.Fatalf("%s: %v", c, err)
		}
		fmt.Fprintf(&b, "# %s\n%s", c, out)
	}
	b.WriteString(must[string](t)(within(h.ns, h.programs)))
	return b.String()
}

// kept are the plane's maps of attachments and policy. Counters, turns and settings always have
// the same number of entries. Flows, their places and fragments are not here, because they
// outlive their ends.
var kept = []string{
	"tl_allowed", "tl_backends", "tl_closed", "tl_devices", "tl_endpoints", "tl_open", "tl_peers", "tl_services", "tl_slots", "tl_sources",
}

// programs returns the eBPF programs on the host's devices, and the entries of their maps and
// of those that the netmanager holds, as text. Nothing is pinned.
func (h *testHost) programs() (string, error) {
	devices, err := net.Interfaces()
	if err != nil {
		return "", err
	}
	var lines []string
	maps := map[ebpf.MapID]bool{}
	for _, d := range devices {
		for _, at := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
			all, err := bpflink.QueryPrograms(bpflink.QueryOptions{Target: d.Index, Attach: at})
			if err != nil {
				return "", fmt.Errorf("programs of %s: %w", d.Name, err)
			}
			for _, p := range all.Programs {
				name, err := programOf(p.ID, maps)
				if err != nil {
					return "", fmt.Errorf("program %d of %s: %w", p.ID, d.Name, err)
				}
				lines = append(lines, fmt.Sprintf("%s: %s at %s\n", d.Name, name, at))
			}
		}
	}
	if h.cmd != nil {
		held, err := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", h.cmd.Process.Pid))
		if err != nil {
			return "", err
		}
		for _, file := range held {
			text, _ := os.ReadFile(file) // closed meanwhile
			var id uint32
			if _, after, ok := strings.Cut(string(text), "map_id:"); ok {
				if _, err := fmt.Sscan(after, &id); err != nil {
					return "", err
				}
				maps[ebpf.MapID(id)] = true
			}
		}
	}
	for id := range maps {
		entries, err := entriesOf(id)
		if err != nil {
			return "", err
		}
		lines = append(lines, entries...)
	}
	slices.Sort(lines)
	return "# programs and maps\n" + strings.Join(lines, ""), nil
}

// programOf returns a program's name, and adds its maps.
func programOf(id ebpf.ProgramID, maps map[ebpf.MapID]bool) (string, error) {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return "", err
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return "", err
	}
	all, _ := info.MapIDs()
	for _, id := range all {
		maps[id] = true
	}
	return info.Name, nil
}

// entriesOf returns the keys of a map if it is one of kept.
func entriesOf(id ebpf.MapID) (lines []string, err error) {
	m, err := ebpf.NewMapFromID(id)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	info, err := m.Info()
	if err != nil || !slices.Contains(kept, info.Name) {
		return nil, err
	}
	var key, value []byte
	for all := m.Iterate(); all.Next(&key, &value); {
		lines = append(lines, fmt.Sprintf("%s has %x\n", info.Name, key))
	}
	return lines, nil
}

// differ returns the lines that are in one of both texts.
func differ(a, b string) string {
	in := map[string]int{}
	for l := range strings.Lines(a) {
		in[l]--
	}
	for l := range strings.Lines(b) {
		in[l]++
	}
	var out strings.Builder
	for l, n := range in {
		if n != 0 {
			fmt.Fprintf(&out, "%+d %s", n, l)
		}
	}
	return out.String()
}

func TestThousandAttachmentsLeaveNothing(t *testing.T) {
	for _, plane := range []string{"nft", "ebpf"} {
		t.Run(plane, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1, "--plane", plane)
			h := w.hosts[0]
			w.mu.Lock()
			h.lease.Rev++
			h.lease.Subnet = netip.MustParsePrefix("10.16.0.0/20") // large enough that no address is reused
			w.mu.Unlock()
			w.sendDownAll()
			const lanes, rounds, each = 8, 5, 13 // more than 1,000 with both planes
			ns := make([]string, lanes)
			for i := range ns {
				ns[i] = w.netns(fmt.Sprint("lane", i))
			}
			lane := func(i, n int) wire.Key {
				return wire.Key{Instance: service(fmt.Sprintf("s%d", n%3)).Instance(i), Epoch: api.Epoch(n + 1)}
			}
			first, err := h.sock.Attach(t.Context(), wire.Attach{Key: lane(0, 0), NetNS: nsPath(ns[0])})
			if err != nil {
				t.Fatal(err)
			}
			if err := h.sock.Detach(t.Context(), first.Key); err != nil {
				t.Fatal(err)
			}
			before := h.trace()
			var done, again atomic.Int64
			// A node engine retries until it succeeds.
			until := func(what func(context.Context) error) error {
				ctx, cancel := context.WithTimeout(t.Context(), testTime)
				defer cancel()
				for {
					err := what(ctx)
					if err == nil || ctx.Err() != nil {
						return err
					}
					again.Add(1)
					time.Sleep(5 * time.Millisecond)
				}
			}
			for round := range rounds {
				var g sync.WaitGroup
				for i := range lanes {
					g.Go(func() {
						for n := range each {
							k := lane(i, round*each+n)
							a := wire.Attach{Key: k, NetNS: nsPath(ns[i]), Ports: []api.PortMap{{Host: uint16(2000 + i*1000 + round*each + n), Instance: 80, Protocol: "tcp"}}, BandwidthOut: int64(n % 2 * 10)}
							err := until(func(ctx context.Context) error { _, err := h.sock.Attach(ctx, a); return err })
							err = errors.Join(err, until(func(ctx context.Context) error { return h.sock.Detach(ctx, k) }))
							if done.Add(1); err != nil {
								t.Errorf("%s: %v", k, err)
							}
						}
					})
				}
				time.Sleep(time.Duration(50+round*40) * time.Millisecond) // in the middle of the round
				h.kill()
				h.start()
				g.Wait()
			}
			all, err := h.sock.Attachments(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%d attachments, %d attempts in the way of %d kills", done.Load(), again.Load(), rounds)
			if len(all) > 0 {
				t.Errorf("attached after all were detached: %v, want none", all)
			}
			if d := differ(before, h.trace()); d != "" {
				t.Errorf("state of the host differs from before (+ new, - missing):\n%s", d)
			}
			for _, n := range ns {
				if out, _ := exec.Command("ip", "-n", n, "-o", "link").CombinedOutput(); strings.Count(string(out), "\n") != 1 {
					t.Errorf("namespace %s has devices other than lo:\n%s", n, out)
				}
			}
		})
	}
}

func TestRemoveLeavesTheHostAsItWas(t *testing.T) {
	for _, plane := range []string{"nft", "ebpf"} {
		t.Run(plane, func(t *testing.T) {
			w := newWorld(t, 0)
			sw := w.netns("sw2")
			w.sh("ip", "-n", sw, "link", "add", "name", "br0", "type", "bridge")
			w.host(0, sw, []string{"--plane", plane})
			h := w.hosts[0]
			before := h.trace()
			h.start()
			c := h.run("server", 0, 1)
			c.serve(80)
			if got := c.ask(vip(1), 80); got != string(c.key.Instance) {
				t.Errorf("%s answers, want %s", got, c.key.Instance)
			}
			if out, err := within(h.ns, func() ([]byte, error) { return h.command("--remove").CombinedOutput() }); err == nil {
				t.Errorf("--remove succeeded while a netmanager runs: %s", out)
			}
			h.end(syscall.SIGTERM)
			if got := c.ask(vip(1), 80); got != string(c.key.Instance) {
				t.Errorf("after the netmanager ended %s answers, want %s", got, c.key.Instance)
			}
			if out, err := within(h.ns, func() ([]byte, error) { return h.command("--remove").CombinedOutput() }); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if d := differ(before, h.trace()); d != "" {
				t.Errorf("state of the host differs from before (+ new, - missing):\n%s", d)
			}
		})
	}
}

func TestAttachErrorsNameTheReason(t *testing.T) {
	w := newWorld(t, 1, "--plane", "nft")
	h := w.hosts[0]
	c := h.run("server", 0, 1, func(a *wire.Attach) { a.Ports = []api.PortMap{{Host: 80, Instance: 80, Protocol: "tcp"}} })
	other := wire.Key{Instance: service("server").Instance(1), Epoch: 1}
	before := h.trace()
	for name, bad := range map[string]struct {
		netns string
		want  error
	}{
		"the host's own": {nsPath(h.ns), api.ErrInvalid},
		"gone":           {"/run/netns/" + w.tag + "-gone", api.ErrGone},
		"a taken port":   {nsPath(w.netns("other")), api.ErrConflict},
	} {
		_, err := h.sock.Attach(t.Context(), wire.Attach{Key: other, NetNS: bad.netns, Ports: []api.PortMap{{Host: 80, Instance: 8080, Protocol: "tcp"}}})
		if !errors.Is(err, bad.want) {
			t.Errorf("%s: %v, want %v", name, err, bad.want)
		}
	}
	if d := differ(before, h.trace()); d != "" {
		t.Errorf("a refused attachment changed the host (+ new, - missing):\n%s", d)
	}
	all, err := h.sock.Attachments(t.Context())
	if err != nil || len(all) != 1 || all[0].Key != c.key || all[0].Error != "" {
		t.Errorf("attachments %+v, %v, want the first alone, without an error", all, err)
	}
}

// A later listener of the host does not affect an attachment.
func TestThePortsOfTheMachineAreRefused(t *testing.T) {
	w := newWorld(t, 1, "--plane", "nft")
	h := w.hosts[0]
	ssh, err := within(h.ns, func() (net.Listener, error) { return net.Listen("tcp", ":22") })
	if err != nil {
		t.Fatal(err)
	}
	defer ssh.Close()
	other := wire.Attach{Key: wire.Key{Instance: service("server").Instance(1), Epoch: 1}, NetNS: nsPath(w.netns("other"))}
	before := h.trace()
	for _, p := range []api.PortMap{{Host: 22, Instance: 22, Protocol: "tcp"}, {Host: 4789, Instance: 80, Protocol: "udp"}} {
		other.Ports = []api.PortMap{p}
		_, err := h.sock.Attach(t.Context(), other)
		if want := fmt.Sprintf("port %d/%s is in use by the machine itself", p.Host, p.Protocol); !errors.Is(err, api.ErrConflict) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", p, err, want)
		}
	}
	if d := differ(before, h.trace()); d != "" {
		t.Errorf("a refused attachment changed the host (+ new, - missing):\n%s", d)
	}
	c := h.run("server", 0, 1, func(a *wire.Attach) { a.Ports = []api.PortMap{{Host: 2222, Instance: 22, Protocol: "tcp"}} })
	late, err := within(h.ns, func() (net.Listener, error) { return net.Listen("tcp", ":2222") })
	if err != nil {
		t.Fatal(err)
	}
	defer late.Close()
	if _, err := h.sock.Attach(t.Context(), c.as); err != nil {
		t.Errorf("repetition of an attachment whose port is in use now: %v, want nil", err)
	}
}

// A restarted instance has another namespace and the same address.
func TestAnotherNamespaceTakesTheAddressOver(t *testing.T) {
	for _, plane := range []string{"nft", "ebpf"} {
		t.Run(plane, func(t *testing.T) {
			w := newWorld(t, 1, "--plane", plane)
			h := w.hosts[0]
			client, server := h.run("client", 0, 1), h.run("server", 0, 2)
			was := server.at.Address
			if err := exec.Command("ip", "netns", "delete", server.ns).Run(); err != nil {
				t.Fatal(err)
			}
			server.ns = w.netns("again")
			server.attach()
			server.serve(80)
			if server.at.Address != was {
				t.Errorf("address %s before and %s after a restart of the instance, want the same", was, server.at.Address)
			}
			if got := client.ask(vip(2), 80); got != string(server.key.Instance) {
				t.Errorf("%s answers, want %s", got, server.key.Instance)
			}
		})
	}
}

func TestNamesAreAnswered(t *testing.T) {
	w := newWorld(t, 2, "--plane", "nft")
	client := w.hosts[0].run("client", 0, 1)
	w.hosts[1].run("server", 0, 2)
	r := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return within(client.ns, func() (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, netip.AddrPortFrom(wire.ResolverAddr, 53).String())
		})
	}}
	for name, want := range map[string]string{"server.treeline.": vip(2).String(), "any.rr.server.prod.shop.prod.treeline.": vip(2).String(), "nobody.treeline.": ""} {
		ctx, cancel := context.WithTimeout(t.Context(), testTime)
		got, err := r.LookupNetIP(ctx, "ip4", name)
		cancel()
		if len(got) > 0 != (want != "") || want != "" && got[0].Unmap().String() != want {
			t.Errorf("%s is %v, want %q (%v)", name, got, want, err)
		}
	}
	r6, err := r.LookupNetIP(t.Context(), "ip6", "server.treeline.")
	if err != nil || len(r6) != 1 || r6[0] != wire.DefaultNetRanges().To6(vip(2)) {
		t.Errorf("server.treeline. over IPv6 is %v, %v, want its IPv6 address", r6, err)
	}
}
