package api_test

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/yaml"
)

// TestDocumentsAreParsedToTheSameApplication parses each document, writes the applications as documents and
// parses these.
func TestDocumentsAreParsedToTheSameApplication(t *testing.T) {
	docs := map[string][]byte{
		"units": []byte(`{"sla_version":"v2.0","applications":[{"application_name":"a","application_namespace":"p","microservices":[
			{"microservice_name":"x","microservice_namespace":"p","virtualization":"container","code":"x:1","memory":10,"bandwidth_in":1500,"bandwidth_out":"2Gbit",
			 "constraints":[{"type":"geo","location":"-11.58,-48.14","threshold":10,"rigidness":0.9},{"type":"geo","location":"1.5N,2W","threshold":10,"tolerate":"90s"},
			  {"type":"latency","area":"munich","threshold":20,"tolerate":"1500ms"}],
			 "connectivity":[{"target_microservice_id":"y","con_constraints":[{"type":"bandwidth","threshold":1200,"rigidness":0.5},{"type":"latency","threshold":2}]}],
			 "volumes":[{"name":"d","type":"local","mount_path":"/d","size":16}],"schedule":null},
			{"microservice_name":"y","microservice_namespace":"p","virtualization":"container","code":"x:1","one_shot":true,"schedule":{"cron":"@daily","overlap":"allow"},"completions":2,
			 "added_files":[{"path":"/a","content":"b"}]},
			{"microservice_name":"z","microservice_namespace":"p","virtualization":"docker","code":"x:1","one_shot":true,"time_to_live":5,
			 "health":{"readiness":{"http":{"port":80,"path":"/"}}},"addresses":{"rr_ip_v6":"fd74:6c6e:2::a1e:101"}}]}]}`),
	}
	files, err := filepath.Glob("testdata/oakestra/[0-9]*")
	more, _ := filepath.Glob("../deploy/examples/*.*")
	if err != nil || len(files) < 50 || len(more) == 0 {
		t.Fatal(files, more, err)
	}
	for _, path := range append(files, append(more, "testdata/accepted.json")...) {
		doc, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if ext := filepath.Ext(path); ext == ".yaml" || ext == ".yml" {
			if doc, err = yaml.ToJSON(doc); err != nil {
				continue // one of Oakestra's has a duplicate key
			}
		}
		docs[path] = doc
	}
	parsed := 0
	for path, doc := range docs {
		sla, err := api.ParseSLA(doc)
		if err != nil {
			if path == "units" {
				t.Fatal(err)
			}
			continue // testdata/oakestra/outcomes.txt says why
		}
		for _, app := range sla.Applications {
			parsed++
			text, err := app.Document()
			if err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			twin, err := api.ParseSLA(text)
			if err != nil {
				t.Errorf("%s: %v\n%s", path, err, text)
				continue
			}
			app.ID = twin.Applications[0].ID
			if !reflect.DeepEqual(twin.Applications[0], app) {
				t.Errorf("%s:\ngot  %+v\nwant %+v\n%s", path, twin.Applications[0], app, text)
			}
		}
	}
	if parsed < 30 {
		t.Errorf("%d applications were parsed", parsed)
	}
}
