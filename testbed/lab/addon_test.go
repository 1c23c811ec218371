package lab_test

import (
	"context"
	"crypto/pbkdf2"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
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

// addonAndCrash kills the root at three moments of an installation. After the restart, all of the addon exists, or nothing.
func addonAndCrash(t *testing.T, l *lab.Lab) {
	const resources = 40
	n := api.NewAddon{Package: api.AddonPackage{
		Name: "garden", Version: "1.0.0", Kinds: []api.NewCustomKind{{Name: "bed", Schema: json.RawMessage(`{"type":"object"}`)}},
		SLA: json.RawMessage(`{"sla_version":"v2.0","applications":[{"application_name":"garden","application_namespace":"addon","microservices":[
			{"microservice_name":"pump","microservice_namespace":"addon","virtualization":"container","code":"example.org/pump:1","memory":16,"replicas":0}]}]}`),
		Webhooks: []api.AddonWebhook{{URL: "https://hooks.invalid/"}},
	}}
	for i := range resources {
		n.Package.Resources = append(n.Package.Resources, api.NewCustomResource{Kind: "bed", Name: fmt.Sprintf("bed-%d", i), Spec: json.RawMessage(`{}`)})
	}
	// found returns how many of the addon's record, application, kind, first and last resource, and webhook exist.
	found := func() (n int, err error) {
		ctx := t.Context()
		for _, get := range []func() error{
			func() error { _, err := l.API.Addon(ctx, l.Tenant.Addon("garden")); return err },
			func() error { _, err := l.API.App(ctx, l.Tenant.App("garden", "addon")); return err },
			func() error { _, err := l.API.CustomKind(ctx, l.Tenant.CustomKind("bed")); return err },
			func() error {
				_, err := l.API.CustomResource(ctx, l.Tenant.CustomKind("bed").Resource("bed-0"))
				return err
			},
			func() error {
				_, err := l.API.CustomResource(ctx, l.Tenant.CustomKind("bed").Resource(fmt.Sprintf("bed-%d", resources-1)))
				return err
			},
		} {
			if err := get(); err == nil {
				n++
			} else if !errors.Is(err, api.ErrNotFound) {
				return 0, err
			}
		}
		hooks, err := l.API.Webhooks(ctx)
		return n + len(hooks), err
	}
	const all = 6
	settled := func(want ...int) (n int) {
		t.Helper()
		lab.Within(t, time.Minute, fmt.Sprintf("of the %d parts of the addon, one of %v exist", all, want), func() error {
			var err error
			if n, err = found(); err == nil && !slices.Contains(want, n) {
				err = fmt.Errorf("%d exist", n)
			}
			return err
		})
		return n
	}
	remove := func() {
		t.Helper()
		if _, err := l.API.RemoveAddon(t.Context(), l.Tenant.Addon("garden"), client.AddonOptions{}); err != nil {
			t.Fatal(err)
		}
		settled(0)
	}
	took := lab.Stopwatch()
	if _, err := l.API.InstallAddon(t.Context(), l.Tenant, n); err != nil {
		t.Fatal(err)
	}
	whole := took()
	settled(all)
	remove()
	for part := range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := l.API.InstallAddon(ctx, l.Tenant, n)
			ended <- err
		}()
		time.Sleep(whole * time.Duration(part+1) / 6) // the moment of the crash
		l.Root.Kill9()
		cancel() // the client would repeat it at the next root
		said := <-ended
		l.StartRoot()
		switch n := settled(0, all); {
		case n == 0 && said == nil:
			t.Error("the root has confirmed the installation, and nothing of it is left after the crash")
		case n == all:
			remove()
		}
		t.Logf("killed after %d/6 of %s: the installation ended with %v", part+1, whole, said)
	}
}
