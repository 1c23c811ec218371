package daemon

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
)

type mqttConfig struct {
	URL      string        `yaml:"url" usage:"broker"`
	Password Secret        `yaml:"password"`
	Beat     time.Duration `yaml:"beat"`
}

func (c mqttConfig) Validate() error {
	if c.Beat <= 0 {
		return errors.New("beat must be positive")
	}
	return nil
}

type mirror struct {
	From string `yaml:"from"`
	To   string `yaml:"to"`
}

type testConfig struct {
	Log     Log           `yaml:",inline"`
	Cluster api.ClusterID `yaml:"cluster" usage:"its name"`
	MQTT    mqttConfig    `yaml:"mqtt"`
	Max     int           `yaml:"max_nodes"`
	Names   []string      `yaml:"names" old:"aliases"`
	Dev     bool          `yaml:"dev"`
	Mirrors []mirror      `yaml:"mirrors"`
}

func defaults() testConfig {
	return testConfig{Log: DefaultLog(), Cluster: "home", Max: 10, MQTT: mqttConfig{Beat: time.Second}}
}

func load(t *testing.T, file string, env map[string]string, args ...string) (testConfig, string, error) {
	t.Helper()
	if file != "" {
		path := filepath.Join(t.TempDir(), "c.yaml")
		if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append([]string{"--config", path}, args...)
	}
	var out bytes.Buffer
	c, err := Load("test", defaults(), Source{Args: args, Env: func(k string) string { return env[k] }, Stdout: &out})
	return c, out.String(), err
}

func TestLaterSourcesWin(t *testing.T) {
	file := "cluster: file\nmax_nodes: 1\nnames: [a, b]\nmqtt:\n  url: mqtts://file\n  beat: 5s\nmirrors:\n- {from: x, to: y}\n"
	env := map[string]string{"TREELINE_MAX_NODES": "2", "TREELINE_MQTT_URL": "mqtts://env", "TREELINE_MQTT_PASSWORD": "hush"}
	c, _, err := load(t, file, env, "--mqtt-url=mqtts://flag", "--dev", "--log-level", "debug")
	if err != nil {
		t.Fatal(err)
	}
	want := defaults()
	want.Cluster, want.Max, want.Dev, want.Names = "file", 2, true, []string{"a", "b"}
	want.MQTT = mqttConfig{"mqtts://flag", "hush", 5 * time.Second}
	want.Mirrors, want.Log.Level = []mirror{{"x", "y"}}, "debug"
	if fmt.Sprintf("%+v", c) != fmt.Sprintf("%+v", want) || c.MQTT.Password.Reveal() != "hush" {
		t.Errorf("%+v\nwant %+v", c, want)
	}
	if c, _, err := load(t, `{"cluster": "json", "mqtt": {"beat": "2s"}}`, nil); err != nil || c.Cluster != "json" || c.MQTT.Beat != 2*time.Second {
		t.Errorf("JSON: %+v, %v", c, err)
	}
}

func TestAllFaultsAtOnce(t *testing.T) {
	_, _, err := load(t, "clustr: x\nmqtt:\n  ulr: y\n  beat: soon\nmax_nodes: many\nmirrors:\n- {form: x}\n",
		map[string]string{"TREELINE_DEV": "perhaps"}, "--log-level=loud", "--mqtt-beat=0s")
	if !errors.Is(err, api.ErrInvalid) {
		t.Fatal(err)
	}
	for _, want := range []string{
		`unknown key "clustr", did you mean cluster?`, `unknown key "mqtt.ulr", did you mean mqtt.url?`,
		`mqtt.beat: "soon" is not a duration`, `max_nodes: "many"`, "mirrors", `TREELINE_DEV: "perhaps"`,
		`log_level "loud"`, "mqtt: beat must be positive",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in:\n%v", want, err)
		}
	}
	for args, want := range map[string]string{
		"--mqqt-url=x": "did you mean --mqtt-url?", "extra": `argument "extra"`, "--config=/nowhere/x": "/nowhere/x",
	} {
		if _, _, err := load(t, "", nil, args); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("flags %s: %v, want an error with the expected text", args, err)
		}
	}
	for _, file := range []string{"a: [", "- x\n", "mqtt: 5\n", "\x00"} {
		if _, _, err := load(t, file, nil); !errors.Is(err, api.ErrInvalid) {
			t.Errorf("file %q: %v, want ErrInvalid", file, err)
		}
	}
}

func TestPrintConfigCanBeReadBack(t *testing.T) {
	_, out, err := load(t, "mqtt: {password: hush}\nnames: [x]\n", nil, "--print-config", "--dev")
	if !errors.Is(err, ErrDone) || strings.Contains(out, "hush") || !strings.Contains(out, hidden) {
		t.Fatalf("%v\n%s", err, out)
	}
	c, _, err := load(t, out, nil)
	if err != nil || !c.Dev || c.MQTT.Beat != time.Second || c.Log.Format != "auto" || len(c.Names) != 1 {
		t.Errorf("%+v, %v\n%s", c, err, out)
	}
	for _, arg := range []string{"--help", "--version"} {
		if _, out, err := load(t, "", nil, arg); !errors.Is(err, ErrDone) || out == "" {
			t.Errorf("flag %s: %v, want ErrDone and an output", arg, err)
		}
	}
	_, out, _ = load(t, "", nil, "--help")
	if !strings.Contains(out, "--mqtt-url") || !strings.Contains(out, "broker") {
		t.Error(out)
	}
}

func TestSecretsStaySecret(t *testing.T) {
	var log bytes.Buffer
	s := Secret("hush")
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "s", s, "c", mqttConfig{Password: s})
	js, _ := json.Marshal(map[string]any{"s": s, "c": mqttConfig{Password: s}})
	seen := log.String() + string(js) + fmt.Sprintf("%v %s %q %+v %#v", s, s, s, mqttConfig{Password: s}, mqttConfig{Password: s})
	if strings.Contains(seen, "hush") {
		t.Error(seen)
	}
}

func FuzzFile(f *testing.F) {
	f.Add("mqtt: {url: x}")
	f.Add("names: [1, null, {a: b}]\nmax_nodes: 1e99\nlog_level: [")
	path := filepath.Join(f.TempDir(), "c.yaml")
	f.Fuzz(func(t *testing.T, text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Load("test", defaults(), Source{Args: []string{"--config", path}, Stdout: &bytes.Buffer{}})
		if err != nil && !errors.Is(err, api.ErrInvalid) {
			t.Fatal(err)
		}
	})
}

func TestAConfigurationFileIsBounded(t *testing.T) {
	file := filepath.Join(t.TempDir(), "big.yaml")
	if err := os.WriteFile(file, bytes.Repeat([]byte("#\n"), maxConfig/2+1), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Load("test", testConfig{}, Source{Args: []string{"--config", file}})
	if !errors.Is(err, api.ErrInvalid) || !strings.Contains(err.Error(), "larger than") {
		t.Fatalf("want a refusal of the size, got %v", err)
	}
}

type secrets struct {
	Token Secret `yaml:"token" usage:"a token"`
	Hosts []struct {
		Password Secret `yaml:"password"`
	} `yaml:"hosts"`
}

func TestSecretsComeFromFilesAndStdin(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "token")
	for _, text := range []string{"TL1.secret\n", " TL1.secret "} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for what, src := range map[string]Source{
			"flag":        {Args: []string{"--token-file", file}},
			"environment": {Env: func(key string) string { return map[string]string{"TREELINE_TOKEN_FILE": file}[key] }},
			"stdin":       {Args: []string{"--token-file=-"}, Stdin: strings.NewReader(text)},
		} {
			src.Warn = func(text string) { t.Errorf("%s: warned of %s", what, text) }
			cfg, err := Load("d", secrets{}, src)
			if err != nil || cfg.Token.Reveal() != "TL1.secret" {
				t.Errorf("%s: the token is %q (%v), want TL1.secret", what, cfg.Token.Reveal(), err)
			}
		}
	}
	if err := os.WriteFile(file, bytes.Repeat([]byte("x"), 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{file, filepath.Join(dir, "none"), os.DevNull} {
		if cfg, err := Load("d", secrets{}, Source{Args: []string{"--token-file", at}}); !errors.Is(err, api.ErrInvalid) {
			t.Errorf("token file %s: %q, %v, want ErrInvalid", at, cfg.Token.Reveal(), err)
		}
	}
}

func TestSecretsThatOthersCanReadAreWarnedOf(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		what, text string
		mode       os.FileMode
		args       []string
		want       string
	}{
		{"an argument", "", 0o600, []string{"--token", "x"}, "--token-file"},
		{"a file that all may read", "token: x\n", 0o644, nil, "chmod 600"},
		{"a file that all may read, of a list", "hosts:\n  - password: x\n", 0o604, nil, "chmod 600"},
		{"the same without a secret", "hosts:\n  - password: \"\"\n", 0o644, nil, ""},
		{"a file of the owner's", "token: x\n", 0o600, nil, ""},
		{"a file that the daemon's group may read", "token: x\n", 0o640, nil, ""},
		{"a file that the daemon's group may write", "token: x\n", 0o660, nil, "chmod 600"},
	} {
		file := filepath.Join(dir, "d.yaml")
		_ = os.Remove(file)
		if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(file, c.mode); err != nil {
			t.Fatal(err)
		}
		warned := ""
		_, err := Load("d", secrets{}, Source{Args: append(c.args, "--config", file), Warn: func(text string) { warned += text + "\n" }})
		if err != nil || !strings.Contains(warned, c.want) || c.want == "" && warned != "" || strings.Contains(warned, "x\n") {
			t.Errorf("%s: warned %q, %v", c.what, warned, err)
		}
	}
}

// A former key sets the same value in the file, the environment and a flag. The current key takes
// precedence if both are set. A list can be one text in the file, too, as in the environment.
func TestFormerSpellingsAreAccepted(t *testing.T) {
	for name, c := range map[string]struct {
		file string
		env  map[string]string
		args []string
		want string
	}{
		"current key":      {file: "names: [a, b]", want: "[a b]"},
		"former key":       {file: "aliases: [a, b]", want: "[a b]"},
		"both keys":        {file: "aliases: [a]\nnames: [b]", want: "[b]"},
		"former variable":  {env: map[string]string{"TREELINE_ALIASES": "a,b"}, want: "[a b]"},
		"current variable": {env: map[string]string{"TREELINE_NAMES": "a,b"}, want: "[a b]"},
		"former flag":      {args: []string{"--aliases=a", "--aliases=b"}, want: "[a b]"},
		"current flag":     {args: []string{"--names=a"}, want: "[a]"},
		"one text":         {file: "names: a", want: "[a]"},
		"text with commas": {file: "names: a,b", want: "[a b]"},
		"empty text":       {file: `names: ""`, want: "[]"},
		"both flags":       {args: []string{"--names=a", "--aliases=b"}, want: "[a]"},
	} {
		got, _, err := load(t, c.file, c.env, c.args...)
		if err != nil || fmt.Sprint(got.Names) != c.want {
			t.Errorf("%s: names %v, %v, want %s", name, got.Names, err, c.want)
		}
	}
	if _, help, _ := load(t, "", nil, "--help"); strings.Contains(help, "aliases") {
		t.Errorf("help lists a former spelling:\n%s", help)
	}
}
