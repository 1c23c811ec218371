package compose

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// patience is the time for anything to happen. It is long, because other tests may use the processors.
const patience = 3 * time.Minute

// testbed is the installation that testbed/compose/run has started.
type testbed struct {
	t       *testing.T
	project string
}

// open returns the installation. Without one, the test is skipped; testbed/report/skips.txt names it.
func open(t *testing.T) testbed {
	t.Helper()
	project := os.Getenv("TREELINE_COMPOSE")
	if project == "" {
		t.Skip("no installation in containers: testbed/compose/run starts one and runs this test")
	}
	return testbed{t, project}
}

// within returns the testbed for a subtest.
func (b testbed) within(t *testing.T) testbed { return testbed{t, b.project} }

func run(stdin string, args ...string) (string, error) {
	cmd := exec.Command("docker", args...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.Output()
	if e := (*exec.ExitError)(nil); errors.As(err, &e) {
		err = fmt.Errorf("docker %s: %w: %s", strings.Join(args, " "), err, e.Stderr)
	}
	return strings.TrimSpace(string(out)), err
}

// container returns the id of a service's container, which may have ended.
func (b testbed) container(service string) string {
	b.t.Helper()
	id, err := run("", "ps", "-aq", "--filter", "label=com.docker.compose.project="+b.project, "--filter", "label=com.docker.compose.service="+service)
	if err != nil || id == "" {
		b.t.Fatalf("find the container of %s: %q, %v", service, id, err)
	}
	return id
}

// try runs a program in the container cli.
func (b testbed) try(stdin string, args ...string) (string, error) {
	b.t.Helper()
	return run(stdin, append([]string{"exec", "-i", b.container("cli")}, args...)...)
}

// treeline runs the CLI, which is signed in as an admin, and must succeed.
func (b testbed) treeline(stdin string, args ...string) string {
	b.t.Helper()
	out, err := b.try(stdin, append([]string{"treeline", "--tenant", "acme"}, args...)...)
	if err != nil {
		b.t.Fatal(err)
	}
	return out
}

// eventually waits until f returns an empty text, which otherwise says what is missing.
func (b testbed) eventually(what string, f func() string) {
	b.t.Helper()
	begin, missing := time.Now(), ""
	for time.Since(begin) < patience {
		if missing = f(); missing == "" {
			b.t.Logf("%s: after %.1f s", what, time.Since(begin).Seconds())
			return
		}
		time.Sleep(200 * time.Millisecond)
	}
	b.t.Fatalf("%s: not within %s: %s", what, patience, missing)
}

// get requests a URL of a daemon from the container cli, and returns the status and the body.
func (b testbed) get(url string) (status, body string) {
	b.t.Helper()
	out, err := b.try("", "curl", "-s", "--max-time", "5", "--cacert", "/state/root1/ca.pem", "-w", "\n%{http_code}", url)
	if err != nil {
		return "", err.Error()
	}
	at := strings.LastIndexByte(out, '\n')
	return out[at+1:], out[:max(at, 0)]
}

// pair is the two replicas of a daemon: their services, and the port.
type pair struct {
	names [2]string
	port  string
}

var (
	roots = pair{[2]string{"root1", "root2"}, "7443"}
	east  = pair{[2]string{"east1", "east2"}, "7444"}
)

// active waits until exactly one of the replicas is ready, and returns it and the other one.
func (b testbed) active(p pair) (active, other string) {
	b.t.Helper()
	b.eventually("one of "+strings.Join(p.names[:], " and ")+" is active", func() string {
		var ready []string
		said := map[string]string{}
		for _, name := range p.names {
			status, body := b.get("https://" + name + ":" + p.port + "/readyz?verbose")
			said[name] = status + " " + body
			if status == "200" {
				ready = append(ready, name)
			}
		}
		if len(ready) != 1 {
			return fmt.Sprint(said)
		}
		active, other = ready[0], p.names[0]
		if active == other {
			other = p.names[1]
		}
		return ""
	})
	return active, other
}

// kill kills the active replica, runs meanwhile, and waits until the other one is active. It starts the
// killed one again, which must be a standby.
func (b testbed) kill(p pair, meanwhile func()) {
	b.t.Helper()
	victim, other := b.active(p)
	if _, err := run("", "kill", b.container(victim)); err != nil {
		b.t.Fatal(err)
	}
	begin := time.Now()
	b.eventually(other+" is active", func() string {
		status, body := b.get("https://" + other + ":" + p.port + "/readyz?verbose")
		if status == "200" {
			return ""
		}
		return status + " " + body
	})
	b.t.Logf("%s was killed: takeover seen after %.1f s", victim, time.Since(begin).Seconds())
	meanwhile()
	if _, err := run("", "start", b.container(victim)); err != nil {
		b.t.Fatal(err)
	}
	b.eventually(victim+" is a standby", func() string {
		status, body := b.get("https://" + victim + ":" + p.port + "/readyz?verbose")
		if status == "503" && strings.Contains(body, "role standby") {
			return ""
		}
		return status + " " + body
	})
	if now, _ := b.active(p); now != other {
		b.t.Errorf("%s is active after %s has come back, want %s", now, victim, other)
	}
}

// running waits until as many instances of a service run, all in the clusters, and returns their ids.
func (b testbed) running(app, service string, want int, clusters ...api.ClusterID) []string {
	b.t.Helper()
	var ids []string
	b.eventually(fmt.Sprintf("%d of %s/%s run", want, app, service), func() string {
		out, err := b.try("", "treeline", "--tenant", "acme", "get", "instances", app, "-o", "json")
		if err != nil {
			return err.Error()
		}
		var list struct{ Items []api.Instance }
		if err := json.Unmarshal([]byte(out), &list); err != nil {
			b.t.Fatalf("read the instances: %v: %s", err, out)
		}
		ids = nil
		for _, i := range list.Items {
			if strings.Contains(string(i.Service), "."+service+".") && i.State == api.Running && !i.Leaving && !i.Stale && slices.Contains(clusters, i.Cluster) {
				ids = append(ids, string(i.ID))
			}
		}
		if len(ids) != want {
			return out
		}
		return ""
	})
	return ids
}

// reaches checks that an instance reaches the service back by its name.
func (b testbed) reaches(instance string) {
	b.t.Helper()
	b.eventually(instance+" reaches back by name", func() string {
		if _, err := b.try("", "treeline", "--tenant", "acme", "exec", instance, "--", "/app", "check", "http://back:8080/"); err != nil {
			return err.Error()
		}
		return ""
	})
}

// scraped waits until the targets of Prometheus are up.
func (b testbed) scraped() {
	b.t.Helper()
	root, rootStandby := b.active(roots)
	cluster, clusterStandby := b.active(east)
	want := map[string]string{root + ":7443": "1", rootStandby + ":7443": "1", cluster + ":7444": "1", clusterStandby + ":7444": "1", "west:7444": "1"}
	for _, node := range []string{"east-worker1", "east-worker2", "west-worker1", "west-worker2"} {
		for _, job := range []string{"treeline-node", "treeline-net"} {
			want[job+" "+node] = "1"
		}
	}
	b.eventually("all targets of Prometheus are up", func() string {
		status, body := b.get("http://prometheus:9090/api/v1/query?query=up")
		if status != "200" {
			return status + " " + body
		}
		var answer struct {
			Data struct {
				Result []struct {
					Metric struct{ Job, Instance string }
					Value  [2]any
				}
			}
		}
		if err := json.Unmarshal([]byte(body), &answer); err != nil {
			return err.Error()
		}
		have := map[string]string{}
		for _, r := range answer.Data.Result {
			name := r.Metric.Instance
			if _, daemon := want[name]; !daemon {
				name = r.Metric.Job + " " + name
			}
			have[name] = fmt.Sprint(r.Value[1])
		}
		if !maps.Equal(have, want) {
			return fmt.Sprintf("%v, want %v", have, want)
		}
		return ""
	})
}

const hello = `
sla_version: v2.0
applications:
  - application_name: %s
    application_namespace: demo
    microservices:
      - {microservice_name: web, microservice_namespace: demo, virtualization: container, code: "treeline.local/hello:1", replicas: 2, memory: 32, vcpus: 0.1,
         constraints: [{type: spread, by: cluster}]}
`

// TestInstallation tests the parts in order, each on what the earlier ones have left.
func TestInstallation(t *testing.T) {
	b := open(t)
	b.eventually("the CLI is signed in and all nodes are ready", func() string {
		out, err := b.try("", "treeline", "get", "nodes", "-o", "json")
		if err != nil {
			return err.Error()
		}
		var list struct{ Items []api.Node }
		if err := json.Unmarshal([]byte(out), &list); err != nil {
			return err.Error()
		}
		ready := 0
		for _, n := range list.Items {
			if n.Status == api.NodeReady {
				ready++
			}
		}
		if ready != 4 {
			return out
		}
		return ""
	})

	part := func(name string, f func(testbed)) {
		t.Helper()
		if !t.Run(name, func(t *testing.T) { f(b.within(t)) }) {
			t.FailNow()
		}
	}
	part("ServicesTalkAcrossClusters", func(b testbed) {
		sla, err := os.ReadFile("sla.yaml")
		if err != nil {
			b.t.Fatal(err)
		}
		b.treeline(string(sla), "apply", "-f", "-", "--timeout", patience.String())
		b.running("hello", "back", 1, "west")
		b.reaches(b.running("hello", "front", 1, "east")[0])
	})
	part("PrometheusScrapesAll", func(b testbed) { b.scraped() })
	part("ActiveRootIsKilled", func(b testbed) {
		b.treeline(fmt.Sprintf(hello, "before"), "apply", "-f", "-", "--detach")
		b.kill(roots, func() {
			b.running("before", "web", 2, "east", "west")
			b.treeline(fmt.Sprintf(hello, "after"), "apply", "-f", "-", "--timeout", patience.String())
			b.running("after", "web", 2, "east", "west")
		})
	})
	part("ActiveClusterIsKilled", func(b testbed) {
		b.treeline("", "scale", "hello/front", "2")
		b.kill(east, func() {
			b.running("hello", "front", 2, "east")
			b.treeline("", "scale", "hello/front", "3")
			for _, id := range b.running("hello", "front", 3, "east") {
				b.reaches(id)
			}
		})
	})
	part("BrokersAreKilled", func(b testbed) {
		active, _ := b.active(east)
		for i, broker := range []string{"broker1", "broker2"} {
			if _, err := run("", "kill", b.container(broker)); err != nil {
				b.t.Fatal(err)
			}
			replicas := 4 + i
			b.treeline("", "scale", "hello/front", strconv.Itoa(replicas))
			for _, id := range b.running("hello", "front", replicas, "east") {
				b.reaches(id)
			}
			if _, err := run("", "start", b.container(broker)); err != nil {
				b.t.Fatal(err)
			}
			b.eventually(active+" is connected to both brokers", func() string {
				_, body := b.get("https://" + active + ":7444/readyz?verbose")
				if strings.Contains(body, "[+] broker 1 ok") && strings.Contains(body, "[+] broker 2 ok") {
					return ""
				}
				return body
			})
		}
	})
	part("PrometheusFollowsTheTakeovers", func(b testbed) { b.scraped() })
}

// TestReplicaSetLosesItsPrimary kills the primary of the store.
func TestReplicaSetLosesItsPrimary(t *testing.T) {
	b := open(t)
	if os.Getenv("TREELINE_COMPOSE_LOCAL") != "" {
		t.Skip("FerretDB is one process: the loss of a primary needs the replica set of MongoDB, whose image cannot be pulled")
	}
	out, err := run("", "exec", b.container("mongo1"), "mongosh", "--quiet", "--eval", "db.hello().primary")
	if err != nil {
		t.Fatal(err)
	}
	primary, _, _ := strings.Cut(out, ":")
	if _, err := run("", "kill", b.container(primary)); err != nil {
		t.Fatal(err)
	}
	b.treeline(fmt.Sprintf(hello, "store"), "apply", "-f", "-", "--timeout", patience.String())
	b.running("store", "web", 2, "east", "west")
	if _, err := run("", "start", b.container(primary)); err != nil {
		t.Fatal(err)
	}
}
