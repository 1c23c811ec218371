package oakestra

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/problem"
)

// objectID is an id as MongoDB's JSON encodes it.
type objectID struct {
	OID string `json:"$oid"`
}

type application struct {
	ID          objectID `json:"_id"`
	Application string   `json:"applicationID"`
	Name        string   `json:"application_name"`
	Namespace   string   `json:"application_namespace"`
	Description string   `json:"application_desc"`
	User        string   `json:"userId"`
	Services    []string `json:"microservices"`
}

func applicationOf(a api.App) application {
	id := api.PathOf(a.ID)
	out := application{
		ID: objectID{id}, Application: id, Name: a.Spec.Name, Namespace: a.Spec.Namespace, Description: a.Spec.Description,
		User: a.By, Services: []string{},
	}
	for _, s := range a.Services {
		out.Services = append(out.Services, api.PathOf(s))
	}
	return out
}

// service has the fields of its SLA and those below.
type service struct {
	api.Microservice

	ID               objectID   `json:"_id"`
	Service          string     `json:"microserviceID"`
	Application      string     `json:"applicationID"`
	Job              string     `json:"job_name"`
	AppName          string     `json:"app_name"`
	AppNamespace     string     `json:"app_ns"`
	ServiceName      string     `json:"service_name"`
	ServiceNamespace string     `json:"service_ns"`
	Image            string     `json:"image"`
	RoundRobin       netip.Addr `json:"RR_ip,omitzero"`
	Status           string     `json:"status"`
	StatusDetail     string     `json:"status_detail"`
	Next             int        `json:"next_instance_progressive_number"`
	Instances        []instance `json:"instance_list"`
}

// instance has text for what the oak CLI decodes as text. Treeline's root has no measurements and no logs of
// instances: these fields are empty.
type instance struct {
	Number        int      `json:"instance_number"`
	Cluster       string   `json:"cluster_id"`
	Location      string   `json:"cluster_location"`
	Status        string   `json:"status"`
	StatusDetail  string   `json:"status_detail"`
	PublicIP      string   `json:"publicip"`
	Worker        string   `json:"worker_id"`
	HostIP        string   `json:"host_ip"`
	HostPort      int      `json:"host_port"`
	CPU           string   `json:"cpu_percent"`
	Memory        string   `json:"memory_percent"`
	Disk          string   `json:"disk"`
	Logs          string   `json:"logs"`
	CPUHistory    []string `json:"cpu_history"`
	MemoryHistory []string `json:"memory_history"`
	Modified      float64  `json:"last_modified_timestamp"`
}

func serviceOf(s api.Service, instances []api.Instance) service {
	id, names := api.PathOf(s.ID), strings.Split(s.ID.Name(), ".")
	out := service{
		Microservice: s.Spec,
		ID:           objectID{id}, Service: id, Application: api.PathOf(s.App), Job: s.ID.Name(),
		AppName: names[0], AppNamespace: names[1], ServiceName: s.Spec.Name, ServiceNamespace: s.Spec.Namespace,
		Image: s.Spec.Code, RoundRobin: s.Addresses.RoundRobin, Next: s.Replicas, Instances: []instance{},
	}
	out.BandwidthIn, out.BandwidthOut = 1000*s.Spec.BandwidthIn, 1000*s.Spec.BandwidthOut // kbit/s
	worst := -1
	for _, i := range instances {
		out.Instances = append(out.Instances, instance{
			Number: i.Number, Cluster: string(i.Cluster), Status: statusOf(i.State), StatusDetail: detailOf(i), Worker: string(i.Node),
			CPUHistory: []string{}, MemoryHistory: []string{}, Modified: seconds(i.Since),
		})
		if n := slices.Index(states, i.State); n > worst {
			worst = n
			out.Status, out.StatusDetail = statusOf(i.State), detailOf(i)
		}
	}
	if worst < 0 {
		out.Status = statusOf(api.Registered)
	}
	return out
}

// states orders the states by what the status of a service is: that of the instance that needs most attention.
var states = []api.State{
	api.Terminated, api.Completed, api.Dormant, api.Running, api.Created, api.NodeScheduled, api.ClusterScheduled, api.Requested, api.Registered, api.Failed,
}

// statusOf returns the state as Oakestra writes it: RUNNING, NODE_SCHEDULED.
func statusOf(s api.State) string { return strings.ToUpper(string(s)) }

func detailOf(i api.Instance) string {
	if i.Reason == "" {
		return i.Detail
	}
	return strings.TrimSuffix(string(i.Reason)+": "+i.Detail, ": ")
}

func seconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }

// cluster is a cluster's aggregate. Percentages are of what its SLAs reserve, because Treeline's clusters do
// not report how busy their nodes are.
type cluster struct {
	ID             string   `json:"_id"`
	Candidate      string   `json:"candidate_name"`
	Name           string   `json:"cluster_name"`
	CandidateAt    string   `json:"candidate_location"`
	Location       string   `json:"cluster_location"`
	IP             string   `json:"ip"`
	Port           string   `json:"port"`
	Active         bool     `json:"active"`
	ActiveNodes    int      `json:"active_nodes"`
	CPUs           int64    `json:"vcpus"`
	Cores          int64    `json:"total_cpu_cores"`
	Memory         int64    `json:"memory"`
	MemoryMB       int64    `json:"memory_in_mb"`
	CPUPercent     float64  `json:"cpu_percent"`
	AllCPUPercent  float64  `json:"aggregated_cpu_percent"`
	MemoryPercent  float64  `json:"memory_percent"`
	GPUs           int      `json:"vgpus"`
	GPUCores       int      `json:"total_gpu_cores"`
	GPUTemp        float64  `json:"gpu_temp"`
	GPUPercent     float64  `json:"gpu_percent"`
	VRAM           int      `json:"vram"`
	VRAMPercent    float64  `json:"vram_percent"`
	Virtualization []string `json:"virtualization"`
	Drivers        []string `json:"csi_drivers"`
	Modified       float64  `json:"last_modified_timestamp"`
}

func clusterOf(c api.Cluster) cluster {
	free := c.Aggregate.Free.Minus(c.Reserved)
	return cluster{
		ID: string(c.ID), Candidate: string(c.ID), Name: string(c.ID), CandidateAt: c.Location, Location: c.Location,
		Active: c.Status == api.ClusterReady, ActiveNodes: c.Aggregate.Nodes,
		CPUs: c.Aggregate.Capacity.MilliCPU / 1000, Cores: c.Aggregate.Capacity.MilliCPU / 1000,
		Memory: max(0, free.MemoryMB), MemoryMB: max(0, free.MemoryMB),
		CPUPercent: used(free.MilliCPU, c.Aggregate.Capacity.MilliCPU), AllCPUPercent: used(free.MilliCPU, c.Aggregate.Capacity.MilliCPU),
		MemoryPercent:  used(free.MemoryMB, c.Aggregate.Capacity.MemoryMB),
		Virtualization: virtualizationsOf(c), Drivers: driversOf(c), Modified: seconds(c.Heard),
	}
}

func used(free, all int64) float64 {
	if all <= 0 {
		return 0
	}
	return 100 * float64(all-max(0, min(free, all))) / float64(all)
}

// document is an SLA whose fields are kept as they are, also those that only Oakestra knows.
type document struct {
	fields       map[string]json.RawMessage
	applications []applicationDoc
}

type applicationDoc struct {
	fields   map[string]json.RawMessage
	services []map[string]json.RawMessage
}

// parse splits an SLA. The native API checks its content.
func parse(text []byte) (document, error) {
	var d document
	var apps []map[string]json.RawMessage
	if err := api.CheckJSON(text); err != nil {
		return d, err
	}
	err := json.Unmarshal(text, &d.fields)
	if err == nil && d.fields["applications"] != nil {
		err = json.Unmarshal(d.fields["applications"], &apps)
	}
	for _, fields := range apps {
		if fields == nil {
			return d, problem.New(http.StatusUnprocessableEntity, "an application is null")
		}
		a := applicationDoc{fields: fields}
		if err == nil && fields["microservices"] != nil {
			err = json.Unmarshal(fields["microservices"], &a.services)
		}
		if slices.ContainsFunc(a.services, func(s map[string]json.RawMessage) bool { return s == nil }) {
			return d, problem.New(http.StatusUnprocessableEntity, "a microservice is null")
		}
		d.applications = append(d.applications, a)
	}
	if err != nil {
		return d, problem.New(http.StatusUnprocessableEntity, "the SLA is not the expected JSON: "+err.Error())
	}
	if len(d.applications) == 0 {
		return d, problem.New(http.StatusUnprocessableEntity, "the SLA has no applications")
	}
	return d, nil
}

// documentOf returns the SLA of an application that exists, whose services keep their present number of
// instances.
func documentOf(a api.App) (document, error) {
	text, err := a.Spec.Document()
	if err != nil {
		return document{}, err
	}
	d, err := parse(text)
	if err != nil {
		return document{}, err
	}
	for _, s := range d.applications[0].services {
		delete(s, "replicas")
	}
	return d, nil
}

// field returns a text field of the SLA.
func (d document) field(name string) (s string, ok bool) {
	return s, json.Unmarshal(d.fields[name], &s) == nil
}

// with encodes the SLA with one application. The ids in it are left out: they are the server's, and in
// Oakestra's form they are not those of the native API.
func (d document) with(a applicationDoc) ([]byte, error) {
	app, all := maps.Clone(a.fields), maps.Clone(d.fields)
	delete(app, "applicationID")
	services := []map[string]json.RawMessage{}
	for _, s := range a.services {
		s = maps.Clone(s)
		if bytes.Equal(bytes.TrimSpace(s["microserviceID"]), []byte(`""`)) {
			delete(s, "microserviceID")
		}
		services = append(services, s)
	}
	var err error
	if a.fields["microservices"] != nil { // missing: the native API names the fault
		if app["microservices"], err = json.Marshal(services); err != nil {
			return nil, err
		}
	}
	if all["applications"], err = json.Marshal([]map[string]json.RawMessage{app}); err != nil {
		return nil, err
	}
	return json.Marshal(all)
}

func nameOf(user string) string { return user[strings.LastIndexByte(user, '/')+1:] }

// virtualizationsOf returns the runtimes of a cluster's nodes, with Oakestra's name of containers.
func virtualizationsOf(c api.Cluster) []string {
	out := []string{}
	for _, s := range c.Aggregate.Slots {
		out = append(out, strings.Replace(s.Runtime, "container", "docker", 1))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func driversOf(c api.Cluster) []string {
	out := []string{}
	for _, f := range c.Aggregate.Features {
		if name, ok := strings.CutPrefix(f, "csi:"); ok {
			out = append(out, name)
		}
	}
	return out
}
