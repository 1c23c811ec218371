package mqtt_test

import (
	"crypto/tls"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api/topic"
	"github.com/treeline-edge/treeline/internal/bus/bustest"
)

const shippedMosquitto = "../../../deploy/mosquitto"

func TestMosquitto(t *testing.T) {
	bustest.Run(t, bustest.Deviations{SilentRefusal: true}, func(t *testing.T) bustest.System {
		return bustest.StartMosquitto(t, shippedMosquitto)
	})
}

// TestMosquittoACLFollowsTopics compares the shipped access list with api/topic, which may get new
// leaves.
func TestMosquittoACLFollowsTopics(t *testing.T) {
	text, err := os.ReadFile(shippedMosquitto + "/acl")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"user cluster", "topic readwrite nodes/#"}
	for _, up := range []bool{false, true} {
		for _, l := range topic.All {
			if l.Up == up {
				want = append(want, fmt.Sprintf("pattern %s %s", map[bool]string{false: "read", true: "write"}[up], l.Of("%u")))
			}
		}
	}
	var have []string
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			have = append(have, line)
		}
	}
	if got, want := strings.Join(have, "\n"), strings.Join(want, "\n"); got != want {
		t.Errorf("deploy/mosquitto/acl grants\n%s\n\napi/topic has\n%s", got, want)
	}
}

func TestMosquittoRefusesTLS12(t *testing.T) {
	m := bustest.StartMosquitto(t, shippedMosquitto)
	for _, c := range []struct {
		version uint16
		works   bool
	}{{tls.VersionTLS12, false}, {tls.VersionTLS13, true}} {
		cfg := m.CA.Client(t, "n1")
		cfg.MinVersion, cfg.MaxVersion = c.version, c.version
		conn, err := tls.Dial("tcp", m.Addr, cfg)
		if err == nil {
			err = conn.Close()
		}
		if (err == nil) != c.works {
			t.Errorf("a client with %s: %v", tls.VersionName(c.version), err)
		}
	}
}
