package command_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// canned returns a terminal with a root that gives fixed answers.
func canned(t *testing.T, answer http.HandlerFunc) *rig {
	t.Helper()
	r := newTerminal(t)
	id, err := url.Parse("treeline://root")
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	authority := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "root"}, KeyUsage: x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true, NotAfter: time.Now().Add(time.Hour), URIs: []*url.URL{id}}
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), NotAfter: time.Now().Add(time.Hour), URIs: []*url.URL{id}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	var der [2][]byte
	for i, c := range []*x509.Certificate{authority, leaf} {
		if der[i], err = x509.CreateCertificate(rand.Reader, c, authority, key.Public(), key); err != nil {
			t.Fatal(err)
		}
	}
	srv := httptest.NewUnstartedServer(answer)
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: der[1:], PrivateKey: key}}}
	srv.StartTLS()
	t.Cleanup(srv.Close)
	r.url = srv.URL
	ca := r.file("ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der[0]})))
	for k, v := range map[string]string{"TREELINE_ADDR": srv.URL, "TREELINE_CA": ca, "TREELINE_TOKEN": "a token", "TREELINE_TENANT": "acme"} {
		r.env[k] = v
	}
	return r
}

func say(t *testing.T, w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(v); err != nil {
		t.Error(err)
	}
}

func TestPlanExitsWithWhetherSomethingWouldChange(t *testing.T) {
	var answer api.Plan
	r := canned(t, func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil || req.Method != http.MethodPost || req.URL.Path != "/v1/apps:plan" || req.URL.Query().Get("tenant") != "acme" ||
			req.Header.Get("Content-Type") != "application/yaml" || string(body) != shop {
			t.Errorf("asked %s %s of %d bytes, %v", req.Method, req.URL, len(body), err)
		}
		say(t, w, answer)
	})
	sla := r.file("shop.yaml", shop)

	answer = api.Plan{Apps: []api.AppPlan{{ID: "acme/shop.prod", Action: "none", Revision: 9, Instances: []api.InstancePlan{{ID: "acme/shop.prod.web.v1#0", Action: "stay"}}}}}
	out, stderr, code := r.run("", "plan", "-f", sla)
	if code != 0 || out != "shop.prod  would not change (revision 9)\n  1 instance unchanged\n" || stderr != "" {
		t.Errorf("exit %d\n%s%s", code, out, stderr)
	}

	answer.Apps[0].Action, answer.Apps[0].Changes = "update", []api.FieldChange{{Path: "web.v1/memory", Old: "64", New: "65"}}
	out, stderr, code = r.run("", "plan", "-f", sla)
	if code != 1 || !strings.Contains(out, "~ web.v1/memory  64 → 65\n") || stderr != "to apply: treeline apply -f "+sla+" --if-match 9\n" {
		t.Errorf("exit %d\n%s%s", code, out, stderr)
	}
	out, _, code = r.run("", "plan", "-f", sla, "-o", "json")
	var whole api.Plan
	if err := json.Unmarshal([]byte(out), &whole); err != nil || code != 1 || whole.Apps[0].Revision != 9 {
		t.Errorf("exit %d, %v\n%s", code, err, out)
	}
	if out, _, code = r.run("", "plan", "-f", sla, "-o", "name"); out != "acme/shop.prod\n" || code != 1 {
		t.Errorf("exit %d\n%s", code, out)
	}
	if out, _, code = r.run("", "plan", "-f", sla, "-o", "yaml"); !strings.HasPrefix(out, "apps:\n") || code != 1 {
		t.Errorf("exit %d\n%s", code, out)
	}
}

func TestPlanPrintsThePresentScaling(t *testing.T) {
	load, target := 91.0, 70.0
	answer := api.Plan{Apps: []api.AppPlan{{
		ID: "acme/shop.prod", Action: "update", Revision: 9, Changes: []api.FieldChange{{Path: "web.v1/scale/cpu", Old: "70", New: "50"}},
		Scaling: []api.ScalingNow{
			{Service: "acme/shop.prod.web.v1", Cluster: "munich", Now: &api.ScaleStanding{
				Assigned: 5, Awake: 2, Running: 2, Metrics: []api.ScaleMetric{{Name: "cpu", Unit: "%", Target: target, Value: &load, Wants: 3}}, Why: "cpu is 91% on average, the target is 70%",
			}},
			{Service: "acme/shop.prod.web.v1", Cluster: "osaka", Now: &api.ScaleStanding{Assigned: 3}},
			{Service: "acme/shop.prod.web.v1", Cluster: "paris"},
		},
	}}}
	r := canned(t, func(w http.ResponseWriter, _ *http.Request) { say(t, w, answer) })
	out, _, code := r.run("", "plan", "-f", r.file("shop.yaml", shop))
	want := `  ~ web.v1/scale/cpu  70 → 50
  scaling of shop.prod.web.v1 in munich now: 2 of the cluster's 5 instances run
    cpu is 91%, the target is 70%, asks for 3
    last change: cpu is 91% on average, the target is 70%
  scaling of shop.prod.web.v1 in osaka now: 0 of the cluster's 3 instances run; the first packet, or a value that asks for one, wakes one
  scaling of shop.prod.web.v1 in paris now: not known, the cluster does not say
`
	if code != 1 || !strings.Contains(out, want) {
		t.Errorf("exit %d\n%s\nwant\n%s", code, out, want)
	}
}

// A failure must not have the exit code of "something would change".
func TestAPlanThatFailsExitsWithMoreThanOne(t *testing.T) {
	status := 0
	r := canned(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(status)
		if err := json.NewEncoder(w).Encode(api.Problem{Title: "no", Status: status, Errors: []api.ProblemField{{Pointer: "/applications", Detail: "bad"}}}); err != nil {
			t.Error(err)
		}
	})
	sla := r.file("shop.yaml", shop)
	for s, want := range map[int]int{422: 2, 500: 2, 401: 5, 403: 5, 404: 6, 503: 8} {
		status = s
		if out, stderr, code := r.run("", "plan", "-f", sla); code != want || out != "" || !strings.Contains(stderr, "plan "+sla) {
			t.Errorf("%d: exit %d, want %d\n%s%s", s, code, want, out, stderr)
		}
	}
	for _, args := range [][]string{{"plan"}, {"plan", sla}, {"plan", "-f", sla + "x"}, {"plan", "-f", sla, "-o", "xml"}} {
		if _, _, code := r.run("", args...); code != 2 {
			t.Errorf("%v: exit %d", args, code)
		}
	}
}

func TestApplyHoldsToTheRevisionThatWasPlanned(t *testing.T) {
	header := make(chan http.Header, 1)
	r := canned(t, func(w http.ResponseWriter, req *http.Request) {
		if req.Method == http.MethodPut {
			header <- req.Header
			say(t, w, api.Applied{Apps: []api.App{{ID: "acme/shop.prod"}}})
			return
		}
		say(t, w, api.Page[api.App]{})
	})
	sla := r.file("shop.yaml", shop)
	for flag, want := range map[string][2]string{"42": {`"42"`, ""}, "0": {"", "*"}} {
		r.must("", "apply", "-f", sla, "--detach", "--if-match", flag)
		if h := <-header; h.Get("If-Match") != want[0] || h.Get("If-None-Match") != want[1] {
			t.Errorf("--if-match %s: %v", flag, h)
		}
	}
	if _, stderr, code := r.run("", "apply", "-f", sla, "--if-match", "new"); code != 2 || !strings.Contains(stderr, "as treeline plan prints it") {
		t.Errorf("exit %d: %s", code, stderr)
	}
}
