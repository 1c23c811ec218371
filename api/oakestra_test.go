package api_test

import (
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
)

// Values that Oakestra's own documents have where they ask for nothing.
func TestEmptyListsOfOakestraAreTaken(t *testing.T) {
	for _, more := range []string{
		`"connectivity":[{"target_microservice_id":"e.f","con_constraints":[]}]`, `"args":[""]`, `"added_files":[""]`,
		`"addresses":{"instances":[{"from":"0","to":"0","start":"10.30.0.9"}]}`,
	} {
		if _, err := api.ParseSLA(two(more)); err != nil {
			t.Errorf("%s: %v", more, err)
		}
	}
}

// A unikernel's URL has a scheme, which is not what is wrong with it.
func TestUnikernelsAreRefusedByName(t *testing.T) {
	_, err := api.ParseSLA([]byte(`{"sla_version":"v2.0","applications":[{"application_name":"a","application_namespace":"b","microservices":[
		{"microservice_name":"c","microservice_namespace":"d","virtualization":"unikernel","code":"https://example.org/a.tar.gz"}]}]}`))
	if err == nil || !strings.Contains(err.Error(), "/virtualization: no node runs unikernels") || strings.Contains(err.Error(), "scheme") {
		t.Errorf("got %v", err)
	}
}
