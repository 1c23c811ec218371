package lab_test

import (
	"crypto/pbkdf2"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cli/artifact"
	"github.com/treeline-edge/treeline/testbed/lab"
)

// brokerImage is an image with Debian's Mosquitto as /mosquitto.
const brokerImage = "treeline.local/mosquitto:1"

// addon installs deploy/addons/mqtt, connects to its broker, upgrades it and removes it.
func (s *shop) addon(t *testing.T) {
	ctx := s.Context()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	pkg, err := artifact.ReadDirectory("../../deploy/addons/mqtt")
	check(err)
	salt := []byte("twelve bytes")
	hash, err := pbkdf2.Key(sha512.New, "correct-horse", salt, 101, 64)
	check(err)
	b64 := base64.StdEncoding.EncodeToString
	users := fmt.Sprintf("device1:$7$101$%s$%s\n", b64(salt), b64(hash)) // as mosquitto_passwd writes it
	_, err = s.API.CreateValues(ctx, api.KindSecret, s.Tenant, api.NewValues{Name: "mqtt-users", Data: map[string][]byte{"passwd": []byte(users)}})
	check(err)
	n := api.NewAddon{Package: pkg, Values: map[string]json.RawMessage{
		"image": json.RawMessage(`"` + brokerImage + `"`), "program": json.RawMessage(`"/mosquitto"`),
	}}
	did, err := s.API.InstallAddon(ctx, s.Tenant, n)
	check(err)
	id := did.Addon.App.Service("broker", "addon")
	// connect returns the code of the broker's answer: 0 accepted, 5 not authorized.
	connect := func(password string) (byte, error) {
		v, err := s.API.Service(ctx, id)
		if err != nil {
			return 0, err
		}
		conn, err := s.Inside(s.ID("client", "client", 0)).Dial(ctx, "tcp", netip.AddrPortFrom(v.Addresses.RoundRobin, 1883).String())
		if err != nil {
			return 0, err
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		text := func(s string) string { return string([]byte{0, byte(len(s))}) + s }
		body := text("MQTT") + "\x04\xc2\x00\x3c" + text("c1") + text("device1") + text(password)
		if _, err := conn.Write([]byte("\x10" + string([]byte{byte(len(body))}) + body)); err != nil {
			return 0, err
		}
		var answer [4]byte
		_, err = io.ReadFull(conn, answer[:])
		return answer[3], err
	}
	answers := func() {
		t.Helper()
		lab.Within(t, 2*time.Minute, "the broker accepts the device", func() error {
			if code, err := connect("correct-horse"); err != nil || code != 0 {
				return fmt.Errorf("code %d, %w", code, errors.Join(err, errors.New("not accepted")))
			}
			return nil
		})
		if code, err := connect("wrong"); err != nil || code != 5 {
			t.Errorf("a wrong password: code %d, %v, want 5", code, err)
		}
	}
	answers()
	n.Package.Version, n.Values = "1.0.1", map[string]json.RawMessage{"connections": json.RawMessage(`7`)}
	up, err := s.API.UpgradeAddon(ctx, did.Addon.ID, n, client.AddonOptions{At: did.Addon.Revision})
	check(err)
	lab.Within(t, 2*time.Minute, "the new version runs", func() error {
		r, err := s.API.RollOut(ctx, id)
		if err == nil && (!r.Over() || r.State != api.RollOutHealthy) {
			err = fmt.Errorf("the roll-out is %s", r.Standing())
		}
		return err
	})
	answers()
	_, err = s.API.RemoveAddon(ctx, did.Addon.ID, client.AddonOptions{At: up.Addon.Revision})
	check(err)
	lab.Within(t, time.Minute, "nothing of the addon is left", func() error {
		if _, err := s.API.App(ctx, did.Addon.App); !errors.Is(err, api.ErrNotFound) {
			return fmt.Errorf("the application: %w", errors.Join(err, errors.New("it exists")))
		}
		if _, err := s.API.CustomKind(ctx, s.Tenant.CustomKind("mqtt-topic")); !errors.Is(err, api.ErrNotFound) {
			return fmt.Errorf("the kind: %w", errors.Join(err, errors.New("it exists")))
		}
		return nil
	})
}
