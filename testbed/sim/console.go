package sim

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
)

// Console drives a world without faults by commands, for scenarios as text. Help lists the
// commands.
type Console struct {
	w     *World
	seen  int // lines of the trace that have been shown
	calls []*call
}

// Help lists the console's commands.
const Help = `cluster C [preempt] [N [CPU/MEM]]...   a cluster with nodes, in thousandths of a vCPU and MiB
node C/N [CPU/MEM]           one more node
apply T/APP [SERVICE [KEY[=VALUE]]...]   an SLA; more services on further, indented lines
                             keys: replicas vcpus memory exclusive one_shot attempts stop (on_disconnect) grace image clusters node
                             parallelism surge canaries healthy deadline (of its update, s) norollback
                             priority gpus volume (NAME:MIB of disk, local) move label near (SERVICE:MS of round trip) rigidness (of label and near, s)
                             startup readiness liveness (INTERVAL:FAILURES of a check)
                             scale=MIN:MAX (by 10 connections to an instance; idle and stabilisation 5 s)
network                      nodes that are added further on have netmanagers
load T/APP.SERVICE N         open connections of each of its instances, of which nodes report nothing before; 0: idle
call T/APP.SERVICE           a client of the same application sends a packet every 2 s until an instance takes its flows
set C/N KEY=VALUE...         what a node is from now on: gpus=N, storage=MIB, put=MS in the latency space, release=old|new, any other key is a label
swap C/N C/N EVERY FOR       two nodes change places in the latency space again and again
scale T/APP.SERVICE N        how many are wanted
delete T/APP                 withdraw an application
rollout status|history|pause|resume|promote|undo T/APP.SERVICE
local C T/APP.SERVICE N      the cluster's operator scales
cordon|uncordon|drain|remove C/N
forget C                     the root forgets a cluster
cut|cut-up|cut-down|heal C|C/N   the link to the level above
lose C|C/N N                 the next N messages from the level above are lost
crash|start|pause|resume root|C|C/N   a process
crash root|C|C/N after N     within its next step of more than N saves, after N of them; it starts again
power-off C/N                the machine with its workloads
registry down|up             the image registry
health T/APP.SERVICE N well|unready|dead   whether an instance passes its checks, all but liveness fail, or all fail
run D                        let time pass
settle D                     until all that people, tiers and nodes believe agrees
show instances|workloads|nodes|clusters|calls|why I|desired C/N|moves I
trace WORD...                what was said since the last trace that has one of the words`

// NewConsole returns a console of a world with a root.
func NewConsole() *Console {
	w := NewWorld(1, Settings{}, Options{Trace: true, Scale: true})
	w.addRoot()
	return &Console{w: w}
}

// Do carries out one command, whose further lines are parts of its argument, and returns
// the output.
func (c *Console) Do(command string) string {
	out, err := c.do(command)
	if err == nil && c.w.violation != nil {
		err = c.w.violation
	}
	if err != nil {
		out += "error: " + err.Error() + "\n"
	}
	if out == "" {
		return "ok\n"
	}
	return out
}

func (c *Console) do(command string) (string, error) {
	words := strings.Fields(strings.SplitN(command, "\n", 2)[0])
	if len(words) == 0 {
		return "", nil
	}
	verb, args := words[0], words[1:]
	arg := func(i int) string {
		if i < len(args) {
			return args[i]
		}
		return ""
	}
	switch verb {
	case "cluster":
		return "", c.addCluster(args)
	case "node":
		return "", c.addNode(args)
	case "set":
		return "", c.set(args)
	case "swap":
		return "", c.swap(args)
	case "apply":
		return "", c.apply(command)
	case "scale":
		n, err := strconv.Atoi(arg(1))
		if err != nil {
			return "", err
		}
		return "", c.ask(root.Scale{Service: serviceID(arg(0)), Replicas: n})
	case "rollout":
		return c.rollOut(arg(0), serviceID(arg(1)))
	case "delete":
		return "", c.ask(root.DeleteApp{App: appID(arg(0))})
	case "forget":
		return "", c.ask(root.RemoveCluster{ID: api.ClusterID(arg(0))})
	case "local":
		return "", c.local(args)
	case "cordon", "uncordon", "drain", "remove":
		return "", c.operate(verb, arg(0))
	case "cut", "cut-up", "cut-down", "heal", "lose":
		return "", c.link(verb, args)
	case "crash", "start", "pause", "resume", "power-off":
		return "", c.process(verb, args)
	case "registry":
		c.w.registryDown = arg(0) == "down"
		return "", nil
	case "health":
		n, err := strconv.Atoi(arg(1))
		if err != nil {
			return "", err
		}
		c.w.ill[serviceID(arg(0)).Instance(n)] = arg(2)
		return "", nil
	case "network":
		c.w.Network = true
		return "", nil
	case "load":
		n, err := strconv.Atoi(arg(1))
		if err != nil {
			return "", err
		}
		c.w.load[serviceID(arg(0))] = n
		return "", nil
	case "call":
		return "", c.call(serviceID(arg(0)))
	case "run":
		return c.run(arg(0))
	case "settle":
		return c.settle(arg(0))
	case "show":
		return c.show(args)
	case "trace":
		return c.trace(args), nil
	}
	return "", fmt.Errorf("unknown command %q; the commands are:\n%s", verb, Help)
}

func (c *Console) addCluster(args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("cluster: the name is missing: %w", api.ErrInvalid)
	}
	m := c.w.addCluster(api.ClusterID(args[0]))
	for i := 1; i < len(args); i++ {
		size := ""
		if args[i] == "preempt" {
			m.preempt = true
			continue
		}
		if i+1 < len(args) && strings.Contains(args[i+1], "/") {
			size = args[i+1]
		}
		if _, err := c.newNode(m, args[i], size); err != nil {
			return err
		}
		if size != "" {
			i++
		}
	}
	m.join()
	return nil
}

func (c *Console) newNode(m *ClusterMachine, name, size string) (*NodeMachine, error) {
	room := api.Resources{MilliCPU: 2000, MemoryMB: 2048}
	if size != "" {
		if _, err := fmt.Sscanf(size, "%d/%d", &room.MilliCPU, &room.MemoryMB); err != nil {
			return nil, fmt.Errorf("size %q is not CPU/MEM: %w", size, err)
		}
	}
	return m.addNode(api.NodeID(name), api.NodeInfo{
		Arch: "amd64", OS: "linux", Runtimes: []string{"container"}, Capacity: room,
	}), nil
}

func (c *Console) addNode(args []string) error {
	cl, name, _ := strings.Cut(strings.Join(args[:1], ""), "/")
	m := c.w.cluster(api.ClusterID(cl))
	if m == nil {
		return fmt.Errorf("cluster %q: %w", cl, api.ErrNotFound)
	}
	n, err := c.newNode(m, name, strings.Join(args[1:], ""))
	if err != nil {
		return err
	}
	n.join()
	return nil
}

// "acme/shop" is the application shop.prod of acme, "acme/shop.web" its service web.v1.
func appID(s string) api.AppID {
	t, name, _ := strings.Cut(s, "/")
	return api.Tenant(t).App(name, "prod")
}

func serviceID(s string) api.ServiceID {
	app, name, _ := strings.Cut(s, ".")
	return appID(app).Service(name, "v1")
}

func (c *Console) apply(command string) error {
	lines := strings.Split(command, "\n")
	head := strings.Fields(lines[0])
	if len(head) < 2 {
		return fmt.Errorf("apply: the application is missing: %w", api.ErrInvalid)
	}
	app := appID(head[1])
	spec := api.Application{Name: strings.TrimSuffix(app.Name(), ".prod"), Namespace: "prod"}
	for _, words := range append([][]string{head[2:]}, fieldsOf(lines[1:])...) {
		if len(words) == 0 {
			continue
		}
		m, err := parseService(app.Tenant(), words)
		if err != nil {
			return err
		}
		spec.Services = append(spec.Services, m)
	}
	return c.ask(root.Apply{Tenant: app.Tenant(), Spec: spec, By: "scenario"})
}

func fieldsOf(lines []string) [][]string {
	var out [][]string
	for _, l := range lines {
		out = append(out, strings.Fields(l))
	}
	return out
}

func parseService(t api.Tenant, words []string) (api.Microservice, error) {
	m := api.Microservice{Name: words[0], Namespace: "v1", Virtualization: "container", Code: image(t, words[0], "ok")}
	for _, word := range words[1:] {
		name, value, _ := strings.Cut(word, "=")
		var err error
		switch name {
		case "replicas":
			n := 0
			n, err = strconv.Atoi(value)
			m.Replicas = &n
		case "vcpus":
			m.VCPUs, err = strconv.ParseFloat(value, 64)
		case "memory":
			m.Memory, err = strconv.ParseInt(value, 10, 64)
		case "grace":
			m.StopGrace, err = strconv.Atoi(value)
		case "parallelism", "surge", "canaries", "healthy", "deadline", "norollback":
			err = updated(&m, name, value)
		case "exclusive":
			m.Exclusive = true
		case "one_shot":
			m.OneShot = true
		case "attempts":
			m.MaxAttempts, err = strconv.Atoi(value)
		case "job_deadline":
			m.Deadline, err = strconv.Atoi(value)
		case "ttl":
			m.TimeToLive, err = strconv.Atoi(value)
		case "job_parallelism":
			m.Parallelism, err = strconv.Atoi(value)
		case "minutes":
			m.Exclusive, m.Schedule = true, &api.Schedule{Cron: "*/" + value + " * * * *"}
		case "stop":
			m.OnDisconnect = api.StopWhenCutOff
		case "image":
			m.Code = image(t, words[0], value)
		case "clusters":
			m.Constraints = append(m.Constraints, api.Constraint{Type: "clusters", Allowed: strings.Split(value, ",")})
		case "node":
			cl, n, _ := strings.Cut(value, "/")
			m.Constraints = append(m.Constraints, api.Constraint{Type: "direct", Cluster: cl, Node: n})
		default:
			err = asked(&m, name, value)
		}
		if err != nil {
			return m, fmt.Errorf("service %s: %s: %w", words[0], word, err)
		}
	}
	return m, nil
}

// updated sets a field of the service's update.
func updated(m *api.Microservice, name, value string) (err error) {
	if m.Update == nil {
		m.Update = &api.Update{}
	}
	n, no := 0, false
	if name != "norollback" {
		n, err = strconv.Atoi(value)
	}
	switch name {
	case "parallelism":
		m.Update.Parallelism = n
	case "surge":
		m.Update.Surge = &n
	case "canaries":
		m.Update.Canaries = n
	case "healthy":
		m.Update.MinHealthyTime = &n
	case "deadline":
		m.Update.Deadline = n
	case "norollback":
		m.Update.AutoRollback = &no
	}
	return err
}

func (c *Console) ask(in root.Input) error { return c.w.root.proc.give(in).err }

// rollOut shows a service's roll-out or acts on it.
func (c *Console) rollOut(what string, id api.ServiceID) (string, error) {
	core := c.w.root.core
	switch what {
	case "status":
		r, _ := core.RollOut(id)
		return r.Standing() + "\n", nil
	case "history":
		out := ""
		h, _ := core.RollOutHistory(id)
		for _, v := range h.Versions {
			out += fmt.Sprintf("%s  %s  by %s\n", v.Code, v.Result, v.By)
		}
		return out, nil
	}
	return "", c.ask(root.RollOut{Service: id, Action: root.RollOutAction(what), By: "scenario"})
}

func (c *Console) local(args []string) error {
	if len(args) != 3 {
		return fmt.Errorf("local: want a cluster, a service and a number: %w", api.ErrInvalid)
	}
	m := c.w.cluster(api.ClusterID(args[0]))
	n, err := strconv.Atoi(args[2])
	if m == nil || err != nil {
		return fmt.Errorf("local: no cluster %q or no number %q: %w", args[0], args[2], api.ErrInvalid)
	}
	return m.proc.give(cluster.LocalScale{Service: serviceID(args[1]), Replicas: n}).err
}

func (c *Console) operate(verb, name string) error {
	n, err := c.w.machine(name)
	if err != nil {
		return err
	}
	in := map[string]cluster.Input{
		"cordon": cluster.Cordon{Node: n.id, On: true}, "uncordon": cluster.Cordon{Node: n.id},
		"drain": cluster.Drain{Node: n.id}, "remove": cluster.RemoveNode{Node: n.id},
	}[verb]
	if err := n.cluster.proc.give(in).err; err != nil {
		return err
	}
	n.gone = verb == "remove"
	return nil
}

func (c *Console) link(verb string, args []string) error {
	var l *link
	if len(args) == 0 {
		return fmt.Errorf("%s: the cluster or node is missing: %w", verb, api.ErrInvalid)
	}
	if m := c.w.cluster(api.ClusterID(args[0])); m != nil {
		l = m.link
	} else if n, err := c.w.machine(args[0]); err == nil {
		l = n.link
	} else {
		return err
	}
	switch verb {
	case "lose":
		n, err := strconv.Atoi(strings.Join(args[1:], ""))
		if err != nil {
			return err
		}
		l.lose = n
	default:
		l.sever(verb == "cut" || verb == "cut-up", verb == "cut" || verb == "cut-down")
	}
	return nil
}

// process starts, ends, pauses or resumes a daemon.
func (c *Console) process(verb string, args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("%s: the process is missing: %w", verb, api.ErrInvalid)
	}
	after := -1
	if len(args) == 3 && args[1] == "after" {
		n, err := strconv.Atoi(args[2])
		if err != nil {
			return err
		}
		after = n
	}
	w := c.w
	if args[0] == "root" {
		return drive(verb, after, &w.root.proc, w.root.crash, w.root.start, nil, linksBelow(w))
	}
	if m := w.cluster(api.ClusterID(args[0])); m != nil {
		return drive(verb, after, &m.proc, m.crash, m.start, nil, append(linksOf(m), m.link))
	}
	n, err := w.machine(args[0])
	if err != nil {
		return err
	}
	return drive(verb, after, &n.proc, n.crash, n.start, func() { n.crashMachine(false) }, []*link{n.link})
}

func linksBelow(w *World) []*link {
	var out []*link
	for _, m := range w.clusters {
		out = append(out, m.link)
	}
	return out
}

func drive[In any](verb string, after int, p *process[In], crash, start, off func(), links []*link) error {
	switch {
	case verb == "crash" && after >= 0:
		p.snip = after
	case verb == "crash":
		crash()
	case verb == "start":
		start()
	case verb == "pause":
		p.pause()
	case verb == "resume":
		p.resume()
	case verb == "power-off" && off != nil:
		off()
	default:
		return fmt.Errorf("%s: only a node's machine can be switched off: %w", verb, api.ErrInvalid)
	}
	for _, l := range links {
		l.changed()
	}
	return nil
}

func (c *Console) run(arg string) (string, error) {
	d, err := time.ParseDuration(arg)
	if err != nil {
		return "", err
	}
	for end := c.w.now + d; c.w.now < end && c.w.violation == nil; {
		c.w.Run(min(time.Second, end-c.w.now))
		c.w.look()
	}
	return "", nil
}

func (c *Console) settle(arg string) (string, error) {
	d, err := time.ParseDuration(arg)
	if err != nil {
		return "", err
	}
	begun := c.w.now
	if c.w.RunUntil(func() bool { c.w.look(); return len(c.w.unsettled()) == 0 }, d) {
		return fmt.Sprintf("settled after %s\n", c.w.now-begun), nil
	}
	out := "not settled\n"
	for _, what := range c.w.unsettled() {
		out += what.String() + "\n"
	}
	return out, nil
}
