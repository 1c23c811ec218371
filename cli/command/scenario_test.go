package command_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the scenarios' outputs anew")

// TestScenarios runs the command lines of each testdata/*.txt in order against a real root. It
// compares their output: stdout unchanged, stderr after "! ", and the exit code unless it is 0.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			r := newRig(t)
			r.signIn()
			r.file("shop.yaml", shop)
			r.file("bad.yaml", bad)
			r.file("shop2.yaml", strings.Replace(strings.Replace(shop, "memory: 64", "memory: 128", 1), "one_shot: true", "one_shot: true, environment: [MODE=fast]", 1))
			r.file("services.json", `{"microservices":[{"microserviceID":"","microservice_name":"Demo","microservice_namespace":"demo","virtualization":"container","cmd":[],"memory":100,"code":"registry.example/demo:1","state":"","port":"8080","added_files":[]}]}`)
			r.mistakes()
			// A time before all events: all ages are 0.
			r.now = func() time.Time { return time.Unix(0, 0) }
			t.Chdir(r.dir)
			got := r.play(string(text))
			if *update {
				if err := os.WriteFile(filepath.Join(here, file), []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != string(text) {
				t.Errorf("%s went otherwise (-update writes it anew):\n%s", file, diff(string(text), got))
			}
		})
	}
}

var here, _ = os.Getwd()

const shop = `sla_version: v2.0
applications:
  - application_name: shop
    application_namespace: prod
    application_desc: what the scenarios are about
    microservices:
      - {microservice_name: web, microservice_namespace: v1, virtualization: container, code: "registry.example/web:1", memory: 64, replicas: 2}
      - {microservice_name: job, microservice_namespace: v1, virtualization: container, code: "registry.example/job:1", one_shot: true}
`

const bad = `sla_version: v2.0
applications:
  - application_name: shop
    application_namespace: prod
    microservices:
      - {microservice_name: web!, microservice_namespace: v1, virtualization: container, code: "registry.example/web:1", cpus: 1}
      - {microservice_name: job, microservice_namespace: v1, virtualization: container, code: "a", memory: -1}
`

// play runs the lines that begin with "$ ", and returns the text with their present output. Lines
// that begin with "#" are kept.
func (r *rig) play(text string) string {
	var b strings.Builder
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, "#") {
			b.WriteString(line + "\n\n")
			continue
		}
		args, ok := strings.CutPrefix(line, "$ treeline ")
		if !ok {
			continue
		}
		fmt.Fprintf(&b, "%s\n", line)
		out, stderr, code := r.run("", strings.Fields(args)...)
		// On a busy machine the result may come after the timeout.
		for _, longer := range []string{"--timeout 20s", "--timeout 1m"} {
			if late := timeout.ReplaceAllString(args, longer); late != args && code != exitAfter(lines[i+1:]) {
				out, stderr, code = r.run("", strings.Fields(late)...)
			}
		}
		b.WriteString(r.steady(out))
		for l := range strings.Lines(r.steady(stderr)) {
			b.WriteString("! " + l)
		}
		if code != 0 {
			fmt.Fprintf(&b, "exit %d\n", code)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

var timeout = regexp.MustCompile(`--timeout \d+m?s`)

// exitAfter returns the exit code that the text has before the next command line.
func exitAfter(lines []string) (code int) {
	for _, l := range lines {
		if strings.HasPrefix(l, "$ ") {
			break
		}
		if n, ok := strings.CutPrefix(l, "exit "); ok {
			code, _ = strconv.Atoi(n)
		}
	}
	return code
}

// Values that differ from run to run, replaced by values of constant width.
var unsteady = []struct {
	re *regexp.Regexp
	to string
}{
	{regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d`), "2026-03-01 12:00:00"},
	{regexp.MustCompile(`"\d{4}-\d\d-\d\dT[^"]*"`), `"2026-03-01T12:00:00Z"`},
	{regexp.MustCompile(` +\d+\.\d{3}s  \(`), "    0.000s  ("},
	{regexp.MustCompile(`TL1\.[-_\w]+\.[-_\w]+`), "TL1.….…"},
	{regexp.MustCompile(`(?m)^[A-Z2-7]{26}$`), "THE-CODE"},
	{regexp.MustCompile(`--pin [0-9a-f]{64}`), "--pin …"},
	{regexp.MustCompile(`(?m)^[0-9a-f]{12}\b`), "0123456789ab"},
	{regexp.MustCompile(`since \d+(ms|s)\b`), "since 0ms"},
}

func (r *rig) steady(s string) string {
	s = strings.ReplaceAll(s, r.url, "https://127.0.0.1:17443") // the width of a URL with a free port
	s = strings.ReplaceAll(s, r.dir, "DIR")
	for _, u := range unsteady {
		s = u.re.ReplaceAllString(s, u.to)
	}
	return s
}

// diff returns the first line that differs, with the lines around it.
func diff(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range max(len(w), len(g)) {
		at := func(l []string) string {
			if i < len(l) {
				return l[i]
			}
			return "(nothing)"
		}
		if at(w) != at(g) {
			return fmt.Sprintf("line %d\n want %s\n got  %s\nall of it:\n%s", i+1, at(w), at(g), got)
		}
	}
	return ""
}
