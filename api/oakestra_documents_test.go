package api_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/yaml"
)

var update = flag.Bool("update", false, "write the expected outcomes of testdata/oakestra anew")

// TestDocumentsOfOakestra parses documents with the structure of Oakestra's own. For each of them,
// testdata/oakestra/outcomes.txt says that it is accepted, or lists all reasons why not. Lists of services are added to
// an application, as on its page in Oakestra's dashboard.
func TestDocumentsOfOakestra(t *testing.T) {
	const dir = "testdata/oakestra/"
	files, err := filepath.Glob(dir + "[0-9]*")
	if err != nil || len(files) < 50 {
		t.Fatalf("%d documents, %v", len(files), err)
	}
	var got bytes.Buffer
	accepted := 0
	for _, path := range files {
		doc, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&got, "%s: ", filepath.Base(path))
		if filepath.Ext(path) == ".yaml" {
			doc, err = yaml.ToJSON(doc)
		}
		outcome := "accepted"
		if servicesAlone(doc) {
			outcome = "accepted into an application"
			doc, _, err = api.Application{Name: "shop", Namespace: "test"}.AddServices(doc)
		}
		if err == nil {
			_, err = api.ParseSLA(doc)
		}
		var faults *api.Faults
		switch {
		case err == nil:
			accepted++
			got.WriteString(outcome + "\n")
		case errors.As(err, &faults):
			got.WriteString("refused\n")
			for _, f := range faults.Faults {
				fmt.Fprintf(&got, "  %s\n", strings.TrimSuffix(f.Pointer+": "+f.Message+"; "+f.Fix, "; "))
			}
		default:
			fmt.Fprintf(&got, "refused\n  %v\n", err)
		}
	}
	fmt.Fprintf(&got, "%d of %d accepted as they are\n", accepted, len(files))
	t.Logf("%d of %d documents are accepted as they are", accepted, len(files))
	if *update {
		if err := os.WriteFile(dir+"outcomes.txt", got.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(dir + "outcomes.txt")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), want) {
		w, g := strings.Split(string(want), "\n"), strings.Split(got.String(), "\n")
		for i := range min(len(w), len(g)) {
			if w[i] != g[i] {
				t.Fatalf("outcomes.txt:%d\nwant %s\ngot  %s", i+1, w[i], g[i])
			}
		}
		t.Fatalf("want %d lines of outcomes, got %d", len(w), len(g))
	}
}

// servicesAlone reports whether a document is for the page of an application in Oakestra's dashboard.
func servicesAlone(doc []byte) bool {
	var head map[string]json.RawMessage
	return json.Unmarshal(doc, &head) == nil && head["microservices"] != nil && head["applications"] == nil
}

// What Oakestra's documents write in another way, or leave out, has the effect that they mean.
func TestOakestrasNamesAndDefaultsHaveTheirEffect(t *testing.T) {
	parse := func(fields string) (api.Microservice, error) {
		sla, err := api.ParseSLA([]byte(`{"sla_version":"v2.0","customerID":"Admin","applications":[{"application_name":"a","application_namespace":"b","microservices":[
			{"microservice_name":"c","microservice_namespace":"d","virtualization":"container","code":"x:1",` + fields + `}]}]}`))
		if err != nil {
			return api.Microservice{}, err
		}
		return sla.Applications[0].Services[0], nil
	}
	volume := func(fields string) string {
		return `"volumes":[{"volume_id":"v","mount_path":"/v",` + fields + `}]`
	}
	for _, c := range []struct {
		fields string
		cpus   float64
		size   int64
	}{
		{`"vcpu":0.25`, 0.25, 0},
		{`"vcpu":1,"vcpus":null`, 1, 0},
		{`"vcpu":1,"scale":{"max":2,"cpu":50}`, 1, 0},
		{volume(`"csi_driver":"csi.oakestra.io/hostpath"`), 0, 1024},
		{volume(`"csi_driver":"csi.oakestra.io/hostpath","size":null`), 0, 1024},
		{volume(`"csi_driver":"csi.oakestra.io/hostpath","size":64`), 0, 64},
	} {
		s, err := parse(c.fields)
		if err != nil {
			t.Errorf("%s: %v", c.fields, err)
			continue
		}
		size := int64(0)
		for _, v := range s.Volumes {
			size += v.SizeMB
		}
		if s.VCPUs != c.cpus || size != c.size {
			t.Errorf("%s: %g vCPU, a volume of %d MiB, want %g and %d", c.fields, s.VCPUs, size, c.cpus, c.size)
		}
	}
	s, err := parse(`"constraints":[{"type":"direct","node":"Edge-7;edge-8","cluster":"Munich"},{"type":"direct","node":"EDGE-7"}]`)
	if err != nil || s.Constraints[0].Node != "edge-7;edge-8" || s.Constraints[0].Cluster != "munich" {
		t.Errorf("host names in capitals: %+v, %v, want them in lower case", s.Constraints, err)
	}
	for fields, want := range map[string]string{
		`"vcpu":1,"vcpus":2`:             "the same field",
		`"vcpu":0.0001`:                  "thousandths",
		`"vcpu":-1`:                      "out of range",
		`"vcpu":"1"`:                     "must be a number",
		volume(`"csi_driver":"local"`):   "size is missing",
		volume(`"type":"csi_ephemeral"`): "csi_driver is missing",
	} {
		if _, err := parse(fields); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want a refusal with %q", fields, err, want)
		}
	}
}
