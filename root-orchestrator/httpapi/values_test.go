package httpapi_test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/seal"
	"github.com/treeline-edge/treeline/internal/store"
)

// newSealer returns a sealer with a new key.
func newSealer(t *testing.T) *seal.Sealer {
	t.Helper()
	dir, err := os.OpenRoot(t.TempDir())
	check(t, err)
	defer dir.Close()
	keys, err := seal.KeyFile(dir, "secrets.key", false)
	check(t, err)
	return seal.New(keys)
}

const marked = "marked-value-of-a-test"

func newValues(name string) api.NewValues {
	return api.NewValues{Name: name, Data: map[string][]byte{"password": []byte(marked)}}
}

func TestSecretsAreWrittenOnly(t *testing.T) {
	r := newRig(t)
	c := r.client(r.user("acme/dora", rights.ApplicationProvider))
	ctx := t.Context()
	made, err := c.CreateValues(ctx, api.KindSecret, "", newValues("db"))
	check(t, err)
	if made.ID != "acme/db" || made.Version != 1 || len(made.Keys) != 1 || made.Keys[0] != (api.ValueKey{Name: "password", Bytes: len(marked)}) {
		t.Errorf("created %+v, want version 1 of acme/db with one key", made)
	}
	_, err = c.CreateValues(ctx, api.KindConfig, "", newValues("web"))
	check(t, err)
	config, err := c.Values(ctx, api.KindConfig, "acme/web")
	check(t, err)
	if string(config.Data["password"]) != marked {
		t.Errorf("the config has %q, want its value", config.Data)
	}

	token := r.user("acme/eve", rights.ApplicationProvider)
	for _, path := range []string{"/v1/secrets", "/v1/secrets/acme~db", "/v1/configs", "/v1/events"} {
		status, _, text := r.raw("GET", path, token, "")
		if status != 200 || strings.Contains(text, marked) || strings.Contains(text, base64.StdEncoding.EncodeToString([]byte(marked))) {
			t.Errorf("GET %s: %d, want an answer without values: %s", path, status, text)
		}
	}
	docs, err := store.Load(ctx, r.store)
	check(t, err)
	for _, d := range docs {
		if strings.Contains(string(d.Data), marked) || strings.Contains(string(d.Data), base64.StdEncoding.EncodeToString([]byte(marked))[:16]) {
			t.Errorf("the store has the value in %s %s", d.Kind, d.Key)
		}
	}

	// The same values are no new version; others are.
	same, err := c.ReplaceValues(ctx, api.KindSecret, "acme/db", newValues(""), made.Revision)
	check(t, err)
	other := newValues("")
	other.Data["password"] = []byte("another")
	next, err := c.ReplaceValues(ctx, api.KindSecret, "acme/db", other, made.Revision)
	check(t, err)
	if same.Version != 1 || next.Version != 2 || next.Digest == made.Digest {
		t.Errorf("versions %d and %d, want 1 and 2 with another digest", same.Version, next.Version)
	}
	if _, err := c.ReplaceValues(ctx, api.KindSecret, "acme/db", newValues(""), made.Revision); !errors.Is(err, api.ErrPrecondition) {
		t.Errorf("replace an old revision: %v, want ErrPrecondition", err)
	}

	r.restart()
	c = r.client(r.user("acme/frank", rights.ApplicationProvider))
	again, err := c.Values(ctx, api.KindSecret, "acme/db")
	if err != nil || again.Version != 2 {
		t.Errorf("after a restart: %+v, %v, want version 2", again, err)
	}
	check(t, c.DeleteValues(ctx, api.KindSecret, "acme/db", again.Revision, false))
	if all, _, err := c.ValuesList(ctx, api.KindSecret, client.ListOptions{}); err != nil || len(all) > 0 {
		t.Errorf("after its deletion: %v, %v", all, err)
	}
}

func TestConditionsOfSecrets(t *testing.T) {
	r := newRig(t)
	dora, infra, evil := r.user("acme/dora", rights.ApplicationProvider), r.user("acme/ian", rights.InfrastructureProvider), r.user("evil/eve", rights.OrganizationAdmin)
	body := func(n api.NewValues) string {
		b, err := json.Marshal(n)
		check(t, err)
		return string(b)
	}
	large := newValues("large")
	large.Data["password"] = make([]byte, api.MaxValueBytes+1)
	huge := newValues("huge")
	huge.Data["password"] = make([]byte, 2*api.MaxValueBytes)
	many := newValues("many")
	for i := range api.MaxValueKeys + 1 {
		many.Data[fmt.Sprint("k", i)] = nil
	}
	key := newValues("key")
	key.Data["a/b"] = nil
	account := api.NewValues{Name: "pull", Type: api.TypeRegistry, Registry: "registry.example:5000", Data: map[string][]byte{"username": []byte("u"), "password": []byte("p")}}
	lacks := account
	lacks.Data = map[string][]byte{"password": nil}
	place := account
	place.Registry = "https://registry.example"
	for _, tt := range []struct {
		name, method, path, token, body string
		header                          []string
		want                            int
	}{
		{"create", "POST", "/v1/secrets", dora, body(newValues("db")), nil, 201},
		{"create again", "POST", "/v1/secrets", dora, body(newValues("db")), nil, 409},
		{"a bad name", "POST", "/v1/secrets", dora, body(newValues("DB")), nil, 422},
		{"a bad key", "POST", "/v1/secrets", dora, body(key), nil, 422},
		{"no keys", "POST", "/v1/secrets", dora, `{"name":"x"}`, nil, 422},
		{"many keys", "POST", "/v1/secrets", dora, body(many), nil, 422},
		{"no JSON", "POST", "/v1/secrets", dora, `{"name":"x","data":{"password":"` + marked + `"}`, nil, 422},
		{"a large value", "POST", "/v1/secrets", dora, body(large), nil, 413},
		{"a huge value", "POST", "/v1/secrets", dora, body(huge), nil, 413},
		{"many objects", "POST", "/v1/secrets", dora, `{"name":"x","data":` + strings.Repeat(`{"a":`, 100) + `1` + strings.Repeat("}", 100) + "}", nil, 413},
		{"an account", "POST", "/v1/secrets", dora, body(account), nil, 201},
		{"an account without a name", "POST", "/v1/secrets", dora, body(lacks), nil, 422},
		{"an account of a URL", "POST", "/v1/secrets", dora, body(place), nil, 422},
		{"an account as a config", "POST", "/v1/configs", dora, body(account), nil, 422},
		{"without a token", "POST", "/v1/secrets", "", body(newValues("x")), nil, 401},
		{"a large body without a token", "POST", "/v1/secrets", "", body(large), nil, 413},
		{"without the right", "POST", "/v1/secrets", infra, body(newValues("x")), nil, 403},
		{"of another tenant", "POST", "/v1/secrets?tenant=acme", evil, body(newValues("x")), nil, 404},
		{"read another tenant's", "GET", "/v1/secrets/acme~db", evil, "", nil, 404},
		{"read what another tenant does not have", "GET", "/v1/secrets/acme~none", evil, "", nil, 404},
		{"as a config", "GET", "/v1/configs/acme~db", dora, "", nil, 404},
		{"replace without a condition", "PUT", "/v1/secrets/acme~db", dora, body(newValues("")), nil, 428},
		{"replace what does not exist", "PUT", "/v1/secrets/acme~none", dora, body(newValues("")), []string{"If-Match", "*"}, 404},
		{"replace an old revision", "PUT", "/v1/secrets/acme~db", dora, body(newValues("")), []string{"If-Match", `"1"`}, 412},
		{"change its type", "PUT", "/v1/secrets/acme~db", dora, body(account), []string{"If-Match", "*"}, 409},
		{"delete without a condition", "DELETE", "/v1/secrets/acme~db", dora, "", nil, 428},
		{"delete another tenant's", "DELETE", "/v1/secrets/acme~db", evil, "", []string{"If-Match", "*"}, 404},
		{"delete", "DELETE", "/v1/secrets/acme~db", dora, "", []string{"If-Match", "*"}, 204},
		{"delete again", "DELETE", "/v1/secrets/acme~db", dora, "", []string{"If-Match", "*"}, 404},
	} {
		status, _, text := r.raw(tt.method, tt.path, tt.token, tt.body, tt.header...)
		if status != tt.want {
			t.Errorf("%s: %d, want %d: %s", tt.name, status, tt.want, text)
		}
		if strings.Contains(text, marked) {
			t.Errorf("%s: the answer has the value: %s", tt.name, text)
		}
	}
	// The answers about another tenant's secret do not depend on whether it exists.
	_, _, has := r.raw("GET", "/v1/secrets/acme~pull", evil, "")
	_, _, none := r.raw("GET", "/v1/secrets/acme~none", evil, "")
	if strings.ReplaceAll(has, "pull", "none") != none {
		t.Errorf("another tenant's secret: %s\none that does not exist: %s\nwant the same", has, none)
	}
}
