package api_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
)

// withFiles returns an SLA whose service has the given JSON members.
func withFiles(members string) []byte {
	return []byte(`{"sla_version":"v2.0","customerID":"x","applications":[{"application_name":"shop","application_namespace":"prod","microservices":[
		{"microservice_name":"web","microservice_namespace":"prod","virtualization":"container","code":"example.org/web:1",` + members + `}]}]}`)
}

func TestFilesOfAnSLA(t *testing.T) {
	sla, err := api.ParseSLA(withFiles(`"files":[
		{"path":"/etc/web/web.conf","config":"web.main","template":true,"on_change":"signal:SIGHUP"},
		{"path":"/run/secrets/db","secret":"db-password","on_change":"restart"}],
		"added_files":[{"path":"/etc/motd","content":"hello","mode":"0640"}]`))
	if err != nil {
		t.Fatal(err)
	}
	m := sla.Applications[0].Services[0]
	if len(m.Files) != 3 || m.AddedFiles != nil {
		t.Fatalf("files are %+v and added files %+v, want three files", m.Files, m.AddedFiles)
	}
	for i, want := range []struct {
		kind      api.ValueKind
		name, key string
		mode      uint32
		signal    string
	}{
		{api.KindConfig, "web", "main", 0o444, "SIGHUP"},
		{api.KindSecret, "db-password", "", 0o400, ""},
		{"", "", "", 0o640, ""},
	} {
		f := m.Files[i]
		if kind, name, key := f.Source(); kind != want.kind || name != want.name || key != want.key || f.Permissions() != want.mode || f.OnChange.Signal() != want.signal {
			t.Errorf("%s is from %s %s key %q with mode %o and signal %q, want %+v", f.Path, kind, name, key, f.Permissions(), f.OnChange.Signal(), want)
		}
	}
}

func TestOakestrasEmptyAddedFilesAreAccepted(t *testing.T) {
	for _, list := range []string{`[]`, `[""]`, `null`} {
		if sla, err := api.ParseSLA(withFiles(`"added_files":` + list)); err != nil || sla.Applications[0].Services[0].Files != nil {
			t.Errorf("added_files %s: %v, want no files", list, err)
		}
	}
}

func TestFaultsOfFiles(t *testing.T) {
	file := func(members string) string { return `"files":[{` + members + `}]` }
	for name, tt := range map[string]struct{ members, pointer, text string }{
		"no path":              {file(`"content":"x"`), "/path", "missing"},
		"relative path":        {file(`"path":"etc/x","content":"x"`), "/path", "begin it with /"},
		"parent":               {file(`"path":"/etc/../x","content":"x"`), "/path", "without . and .."},
		"directory":            {file(`"path":"/etc/","content":"x"`), "/path", "without . and .."},
		"root":                 {file(`"path":"/","content":"x"`), "/path", "not the path of a file"},
		"proc":                 {file(`"path":"/proc/self/x","content":"x"`), "/path", "/proc"},
		"device":               {file(`"path":"/dev/null","content":"x"`), "/path", "/dev"},
		"the system's own":     {file(`"path":"/run/treeline/data/0","content":"x"`), "/path", "belongs to the system"},
		"hosts":                {file(`"path":"/etc/hosts","content":"x"`), "/path", "written by the node"},
		"directly in run":      {file(`"path":"/run/x","content":"x"`), "/path", "/run/secrets/x"},
		"control character":    {file(`"path":"/etc/a\tb","content":"x"`), "/path", "control character"},
		"long name":            {file(`"path":"/` + strings.Repeat("x", 256) + `","content":"x"`), "/path", "255"},
		"nothing in it":        {file(`"path":"/etc/x"`), "/files/0", "content, config or secret"},
		"two sources":          {file(`"path":"/etc/x","config":"a","secret":"b"`), "/files/0", "both config and secret"},
		"another tenant":       {file(`"path":"/etc/x","secret":"evil/db"`), "/secret", "tenant's own"},
		"mode":                 {file(`"path":"/etc/x","content":"x","mode":"rw"`), "/mode", "octal"},
		"mode without quotes":  {file(`"path":"/etc/x","content":"x","mode":440`), "/mode", "quotation marks"},
		"signal":               {file(`"path":"/etc/x","config":"a","on_change":"signal:SIGKILL"`), "/on_change", "signal:SIGINT"},
		"change of content":    {file(`"path":"/etc/x","content":"x","on_change":"restart"`), "/on_change", "config or secret"},
		"large content":        {file(`"path":"/etc/x","content":"` + strings.Repeat("x", api.MaxFileBytes+1) + `"`), "/content", "65536"},
		"twice":                {`"files":[{"path":"/etc/x","content":"1"}],"added_files":[{"path":"/etc/x","content":"2"}]`, "/added_files/0/path", "twice"},
		"below another":        {`"files":[{"path":"/etc/x","content":"1"},{"path":"/etc/x/y","content":"2"}]`, "/files/1/path", "below /etc/x"},
		"old names in a list":  {`"added_files":["/etc/x"]`, "/added_files/0", "object"},
		"environment":          {`"environment_from":[{"secret":"db"}]`, "/environment_from", "can be read in /proc"},
		"unknown member":       {file(`"path":"/etc/x","content":"x","owner":"root"`), "/owner", "no field"},
		"content of all files": {`"files":[` + many(3, `{"path":"/etc/%d","content":"`+strings.Repeat("x", api.MaxFileBytes)+`"}`) + `]`, "/files", "131072"},
		"too many":             {`"files":[` + many(api.MaxFiles+1, `{"path":"/etc/%d","content":"x"}`) + `]`, "/files", "at most 32"},
	} {
		_, err := api.ParseSLA(withFiles(tt.members))
		var f *api.Faults
		if !errors.As(err, &f) || !slices.ContainsFunc(f.Faults, func(x api.Fault) bool {
			return strings.HasSuffix(x.Pointer, tt.pointer) && strings.Contains(x.Message+"; "+x.Fix, tt.text)
		}) {
			t.Errorf("%s: %v, want a fault at …%s with %q", name, err, tt.pointer, tt.text)
		}
	}
	process := strings.Replace(string(withFiles(file(`"path":"/etc/x","content":"x"`))), `"container","code":"example.org/web:1"`, `"process","code":"/bin/web"`, 1)
	if _, err := api.ParseSLA([]byte(process)); err == nil || !strings.Contains(err.Error(), "process cannot have files") {
		t.Errorf("files of a process: %v, want a fault", err)
	}
}

func many(n int, format string) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf(format, i)
	}
	return strings.Join(all, ",")
}

func TestFilesBelowAVolumeAreRefused(t *testing.T) {
	_, err := api.ParseSLA(withFiles(`"files":[{"path":"/data/x","content":"x"}],"volumes":[{"volume_id":"v","csi_driver":"d","mount_path":"/data"}]`))
	if err == nil || !strings.Contains(err.Error(), "in the volume at /data") {
		t.Errorf("%v, want a fault about the volume", err)
	}
}

func TestTemplatesReplaceTheirVariablesOnly(t *testing.T) {
	text := "{{instance.number}} {{service.name}}.{{service.namespace}} of {{application.name}}.{{application.namespace}}, {{tenant}}; {{ .Env }} {{exec `id`}} {{instance.name}}"
	want := "2 web.v1 of shop.prod, acme/lab; {{ .Env }} {{exec `id`}} shop.prod.web.v1#2"
	if got := api.FillTemplate(text, "acme/lab/shop.prod.web.v1#2"); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	// A value that looks like a variable is not replaced again.
	if got := api.FillTemplate("{{instance.{{instance.number}}}}", "a/b.c.d.e#0"); got != "{{instance.0}}" {
		t.Errorf("got %q", got)
	}
}

func TestRegistriesOfImages(t *testing.T) {
	for code, want := range map[string]string{
		"nginx": "docker.io", "library/nginx:1": "docker.io", "docker.io/library/nginx": "docker.io", "registry.example:5000/a/b:1": "registry.example:5000",
		"localhost/x": "localhost", "oci-archive://x.tar": "",
	} {
		if got := api.ImageRegistry(&api.Microservice{Virtualization: "container", Code: code}); got != want {
			t.Errorf("registry of %s is %q, want %q", code, got, want)
		}
	}
	if got := api.ImageRegistry(&api.Microservice{Virtualization: "process", Code: "/bin/x"}); got != "" {
		t.Errorf("a process has the registry %q, want none", got)
	}
}

// The memory of files is reserved beside the workload's, which has the limit of its SLA.
func TestFilesNeedMemory(t *testing.T) {
	value := api.File{Path: "/a", Secret: "db"}
	for _, tt := range []struct {
		files []api.File
		want  int64
	}{
		{nil, 64},
		{[]api.File{{Path: "/a", Content: "x"}}, 65},
		{slices.Repeat([]api.File{value}, 4), 65},
		{slices.Repeat([]api.File{value}, 5), 66},
		{slices.Repeat([]api.File{value}, api.MaxFiles), 72},
	} {
		m := api.Microservice{Memory: 64, Files: tt.files}
		if got := m.Needs().MemoryMB; got != tt.want {
			t.Errorf("64 MiB and %d files: got %d MiB, want %d", len(tt.files), got, tt.want)
		}
	}
}
