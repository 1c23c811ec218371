package root

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/root-orchestrator/root/custom"
)

// The root may crash after it deleted a kind, and before it deleted the resources of it.
func TestResourcesWithoutAKindAreDeletedAtTheStart(t *testing.T) {
	data, err := json.Marshal(custom.Resource{ID: "acme/sensor:roof", Spec: json.RawMessage(`{}`)})
	if err != nil {
		t.Fatal(err)
	}
	c := New(Config{})
	if err := c.Restore([]store.Doc{{Kind: kindCustom, Key: "acme/sensor:roof", Version: 3, Data: data}}); err != nil {
		t.Fatal(err)
	}
	eff := c.Step(time.Unix(1_800_000_000, 0), Start{})
	for _, d := range eff.Save {
		if d.Kind == kindCustom && d.Key == "acme/sensor:roof" && d.Data == nil && d.Version == 4 {
			return
		}
	}
	t.Errorf("saved %+v, want the resource deleted", eff.Save)
}
