package command_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
)

// TestAMoveSaysHowItEnded covers each course of a requested move, by the states of the instance that are read in turn.
func TestAMoveSaysHowItEnded(t *testing.T) {
	const id = api.InstanceID("acme/shop.prod.web.v1#0")
	state := func(epoch api.Epoch, s api.State, detail string) api.Instance {
		return api.Instance{ID: id, Service: id.Service(), Epoch: epoch, State: s, Detail: detail}
	}
	old := api.EpochOf(1, 1)
	for _, tt := range []struct {
		name   string
		args   string
		answer api.Instance
		looks  []api.Instance // the last one is repeated
		to     string         // in the request
		code   int
		says   string
	}{
		{"it moves", "shop/web#0 --to munich/n2", state(old, api.NodeScheduled, ""), []api.Instance{state(old, api.Running, "being copied"), state(old+1, api.Created, ""), state(old+1, api.Running, "not available for 3 ms")}, "n2", 0, "has moved; not available for 3 ms"},
		{"its earlier placement continues", "shop/web#0 --away", state(old, api.NodeScheduled, ""), []api.Instance{{ID: id, Epoch: old + 1, State: api.Running, Reason: api.ReasonMoved, Detail: "moves"}, state(old+1, api.Running, "it is ready")}, "", 0, "has moved; it is ready"},
		{"away", "shop/web#0 --away", state(old, api.NodeScheduled, ""), []api.Instance{state(old+1, api.Running, "")}, "", 0, "has moved"},
		{"it does not wait", "shop/web#0 --away --detach", state(old, api.NodeScheduled, ""), nil, "", 0, "is being moved"},
		{"it is there", "shop/web#0 --to n2", api.Instance{ID: id, Node: "n2", State: api.Running}, nil, "n2", 0, "is on node n2"},
		{"the copy fails", "shop/web#0 --to n2", state(old, api.NodeScheduled, ""), []api.Instance{state(old, api.Running, api.NotMoved+"the disk is full")}, "n2", 7, "was not moved: the disk is full"},
		{"it was stopped and goes on", "shop/web#0 --away", state(old, api.NodeScheduled, ""), []api.Instance{state(old+1, api.Running, api.NotMoved+"the other node takes no work any more")}, "", 7, "was not moved: the other node"},
		{"it takes too long", "shop/web#0 --away --timeout 1ms", state(old, api.NodeScheduled, ""), []api.Instance{state(old, api.Running, "")}, "", 4, "has not moved yet"},
		{"of another tenant", "rival/mill.prod.web.v1#0 --to n2", state(old, api.NodeScheduled, ""), nil, "n2", 0, "is being moved"},
		{"both", "shop/web#0 --to n2 --away", api.Instance{}, nil, "", 2, "one of --to NODE and --away"},
		{"neither", "shop/web#0", api.Instance{}, nil, "", 2, "one of --to NODE and --away"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			looks := tt.looks
			r := canned(t, func(w http.ResponseWriter, req *http.Request) {
				switch {
				case req.Method == http.MethodPost:
					var got api.MoveRequest
					if err := json.NewDecoder(req.Body).Decode(&got); err != nil || string(got.To) != tt.to || !strings.HasSuffix(req.URL.Path, "/move") {
						t.Errorf("request: got %s %+v (%v), want to %q", req.URL.Path, got, err, tt.to)
					}
					say(t, w, tt.answer)
				case req.URL.Path == "/v1/instances":
					say(t, w, api.Page[api.Instance]{Items: []api.Instance{state(old, api.Running, "")}})
				case len(looks) == 0:
					w.WriteHeader(http.StatusNotFound)
				default:
					say(t, w, looks[0])
					if len(looks) > 1 {
						looks = looks[1:]
					}
				}
			})
			_, said, code := r.run("", append([]string{"move", "instance"}, strings.Fields(tt.args)...)...)
			if code != tt.code || !strings.Contains(said, tt.says) {
				t.Errorf("exit %d: %s; want %d and %q", code, said, tt.code, tt.says)
			}
		})
	}
}
