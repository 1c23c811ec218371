package oakestra

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/internal/problem"
)

// message is the answer to a change.
type message struct {
	Message string `json:"message"`
}

func login(c call) (any, error) {
	var in struct {
		User         string `json:"username"`
		Password     string `json:"password"`
		Organization string `json:"organization_name"`
	}
	if err := c.decode(&in); err != nil {
		return nil, err
	}
	user := in.User
	if in.Organization != "" && !strings.Contains(user, "/") {
		user = in.Organization + "/" + user
	}
	s, err := c.Login(c, api.Login{User: user, Password: in.Password})
	return session{Token: s.Access, Refresh: s.Refresh}, err
}

// refresh differs from Oakestra's in that a refresh token is valid once: the answer has the next one.
func refresh(c call) (any, error) {
	s, err := c.Refresh(c, c.token)
	return session{Token: s.Access, Refresh: s.Refresh}, err
}

type session struct {
	Token   string `json:"token"`
	Refresh string `json:"refresh_token"`
}

func permission(c call) (any, error) {
	me, err := c.WhoAmI(c)
	if err != nil {
		return nil, err
	}
	if asked := api.FromPath(c.request.PathValue("user")); asked != me.User && asked != nameOf(me.User) {
		return nil, problem.New(http.StatusForbidden, "the roles of another user are not shown")
	}
	return struct {
		Roles []string `json:"roles"`
	}{me.Roles}, nil
}

func applications(c call) (any, error) {
	apps, _, err := c.Apps(c, client.ListOptions{})
	if err != nil {
		return nil, err
	}
	out := []application{}
	for _, a := range apps {
		if !a.Leaving {
			out = append(out, applicationOf(a))
		}
	}
	return out, nil
}

func getApplication(c call) (any, error) {
	a, err := c.App(c, api.AppID(c.id()))
	return applicationOf(a), err
}

// createApplications records the applications of an SLA without instances, as Oakestra does: each instance
// is requested by addInstance. An application that exists is a conflict.
func createApplications(c call) (any, error) {
	sla, err := parse(c.body)
	if err != nil {
		return nil, err
	}
	tenant := ""
	if me, err := c.WhoAmI(c); err == nil && me.Tenant == "" {
		tenant, _ = sla.field("customerID") // of an admin of the system, who has no applications
	}
	var docs [][]byte
	for _, app := range sla.applications {
		for _, s := range app.services {
			if s["replicas"] == nil {
				s["replicas"] = json.RawMessage("0")
			}
		}
		doc, err := sla.with(app)
		if err != nil {
			return nil, err
		}
		if _, err := c.Plan(c, doc, client.ApplyOptions{Tenant: api.Tenant(tenant)}); err != nil { // all faults before the first change
			return nil, err
		}
		docs = append(docs, doc)
	}
	for _, doc := range docs {
		if _, err := c.Apply(c, doc, client.ApplyOptions{Tenant: api.Tenant(tenant), MustNotExist: true}); err != nil {
			return nil, conflict(err)
		}
	}
	return applications(c)
}

// conflict returns 409 for an application that exists already: the native API answers with 412 to If-None-Match.
func conflict(err error) error {
	if errors.Is(err, api.ErrPrecondition) {
		return problem.New(http.StatusConflict, err.Error())
	}
	return err
}

func deleteApplication(c call) (any, error) {
	if _, err := c.DeleteApp(c, api.AppID(c.id()), 0); err != nil {
		return nil, err
	}
	return message{"Application deleted"}, nil
}

// addServices adds the services of an SLA with one application, named by applicationID, to it. Oakestra's dashboard
// sends each service of an uploaded file so. One that exists is replaced, as in Oakestra, and keeps its instances.
func addServices(c call) (any, error) {
	sla, err := parse(c.body)
	if err != nil {
		return nil, err
	}
	if len(sla.applications) != 1 {
		return nil, problem.New(http.StatusUnprocessableEntity, fmt.Sprintf("the SLA has %d applications, want one", len(sla.applications)))
	}
	given := sla.applications[0]
	var id string
	if err := json.Unmarshal(given.fields["applicationID"], &id); err != nil || id == "" {
		return nil, problem.New(http.StatusUnprocessableEntity, "applicationID is missing; it is the id of the application that gets the services")
	}
	type deployed struct {
		Name   string `json:"service_name"`
		Status string `json:"status"`
	}
	out := struct {
		ID       string     `json:"job_id"`
		Deployed []deployed `json:"deployed_services"`
		Failed   []deployed `json:"failed_services"`
	}{Deployed: []deployed{}, Failed: []deployed{}}
	app, err := c.App(c, api.AppID(api.FromPath(id)))
	if err != nil {
		return nil, err
	}
	for _, s := range given.services {
		name, full := named(app.ID, s)
		out.Deployed = append(out.Deployed, deployed{name, "REGISTERED"})
		if s["replicas"] == nil && !slices.Contains(app.Services, full) {
			s["replicas"] = json.RawMessage("0")
		}
	}
	doc, err := json.Marshal(map[string]any{"microservices": append([]map[string]json.RawMessage{}, given.services...)}) // never null
	if err != nil {
		return nil, err
	}
	if _, err := c.Apply(c, doc, client.ApplyOptions{Tenant: app.Tenant, Application: app.ID.Name()}); err != nil {
		return nil, inApplication(err)
	}
	if len(given.services) > 0 {
		_, first := named(app.ID, given.services[0])
		out.ID = api.PathOf(first)
	}
	return out, nil
}

// named returns the name and the id of a service of a document. They are valid only if the document is.
func named(app api.AppID, s map[string]json.RawMessage) (string, api.ServiceID) {
	var name, ns string
	_, _ = json.Unmarshal(s["microservice_name"], &name), json.Unmarshal(s["microservice_namespace"], &ns)
	return name, app.Service(name, ns)
}

// inApplication returns the error of a document of services with the pointers of an SLA with one application.
func inApplication(err error) error {
	var p *api.Problem
	if errors.As(err, &p) {
		for i := range p.Errors {
			if strings.HasPrefix(p.Errors[i].Pointer, "/microservices") {
				p.Errors[i].Pointer = "/applications/0" + p.Errors[i].Pointer
			}
		}
	}
	return err
}

func deleteService(c call) (any, error) {
	id := api.ServiceID(c.id())
	err := c.change(id.App(), func(doc *applicationDoc) error {
		kept := doc.services[:0]
		for _, s := range doc.services {
			if _, full := named(id.App(), s); full != id {
				kept = append(kept, s)
			}
		}
		if len(kept) == len(doc.services) {
			return problem.New(http.StatusNotFound, fmt.Sprintf("service %q does not exist", api.PathOf(id)))
		}
		doc.services = kept
		return nil
	})
	if err != nil {
		return nil, err
	}
	return message{"Job deleted"}, nil
}

// tries is how often a change is repeated that somebody else's change was faster than.
const tries = 5

// change changes an application's document, against the revision that it was read at.
func (c call) change(id api.AppID, edit func(*applicationDoc) error) error {
	for n := 1; ; n++ {
		app, err := c.App(c, id)
		if err != nil {
			return err
		}
		sla, err := documentOf(app)
		if err != nil {
			return err
		}
		if err := edit(&sla.applications[0]); err != nil {
			return err
		}
		doc, err := sla.with(sla.applications[0])
		if err != nil {
			return err
		}
		_, err = c.Apply(c, doc, client.ApplyOptions{Tenant: app.Tenant, IfMatch: app.Revision})
		if !errors.Is(err, api.ErrPrecondition) || n == tries {
			return err
		}
	}
}

func getService(c call) (any, error) {
	s, err := c.Service(c, api.ServiceID(c.id()))
	if err != nil {
		return nil, err
	}
	all, err := c.describe([]api.Service{s}, string(s.ID))
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

func services(c call) (any, error) {
	if id := api.AppID(c.id()); id != "" {
		if _, err := c.App(c, id); err != nil {
			return nil, err
		}
	}
	all, _, err := c.Services(c, client.ListOptions{Under: c.id()})
	if err != nil {
		return nil, err
	}
	return c.describe(all, c.id())
}

// describe adds the instances to services.
func (c call) describe(all []api.Service, under string) ([]service, error) {
	instances, _, err := c.Instances(c, client.ListOptions{Under: under})
	if err != nil {
		return nil, err
	}
	of := map[api.ServiceID][]api.Instance{}
	for _, i := range instances {
		of[i.Service] = append(of[i.Service], i)
	}
	out := []service{}
	for _, s := range all {
		out = append(out, serviceOf(s, of[s.ID]))
	}
	return out, nil
}

func addInstance(c call) (any, error) {
	return c.scale(func(s api.Service) (int, error) { return s.Replicas + 1, nil })
}

// deleteInstance stops the last instance, or all with the number -1. Treeline numbers the instances of a
// service without gaps, so that no other one can be deleted.
func deleteInstance(c call) (any, error) {
	n, err := strconv.Atoi(c.request.PathValue("number"))
	if err != nil {
		return nil, problem.New(http.StatusNotFound, fmt.Sprintf("instance %q is not a number", c.request.PathValue("number")))
	}
	return c.scale(func(s api.Service) (int, error) {
		switch {
		case n == -1:
			return 0, nil
		case n < 0 || n >= s.Replicas:
			return 0, problem.New(http.StatusNotFound, fmt.Sprintf("instance %d does not exist; the service has %d", n, s.Replicas))
		case n != s.Replicas-1:
			return 0, problem.New(http.StatusConflict, fmt.Sprintf("instance %d is not the last one; delete %d first, or -1 for all: instances are numbered without gaps", n, s.Replicas-1))
		}
		return n, nil
	})
}

func (c call) scale(to func(api.Service) (int, error)) (any, error) {
	for n := 1; ; n++ {
		s, err := c.Service(c, api.ServiceID(c.id()))
		if err != nil {
			return nil, err
		}
		replicas, err := to(s)
		if err != nil {
			return nil, err
		}
		_, err = c.Scale(c, s.ID, replicas, s.Revision)
		if err == nil {
			return message{"ok"}, nil
		}
		if !errors.Is(err, api.ErrPrecondition) || n == tries {
			return nil, err
		}
	}
}

func clusters(c call) (any, error) { return c.clusters(false) }

func activeClusters(c call) (any, error) { return c.clusters(true) }

func (c call) clusters(active bool) (any, error) {
	all, _, err := c.Clusters(c, client.ListOptions{})
	if err != nil {
		return nil, err
	}
	out := []cluster{}
	for _, k := range all {
		if d := clusterOf(k); d.Active || !active {
			out = append(out, d)
		}
	}
	return out, nil
}
