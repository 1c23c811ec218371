package httpapi_test

import (
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
)

func TestNetworkIsAskedOfTheNode(t *testing.T) {
	r := newRig(t)
	r.join("n1")
	ours := api.ServiceID("acme/shop.prod.web.v1").Instance(0)
	r.want(1, instance(ours, 10))

	r.answer = `{"items":[{"key":"` + api.PeerKey{7}.String() + `","path":"relay"}]}`
	var peers api.Page[api.PeerStatus]
	r.ask("otto", "GET", "/v1/nodes/n1/net/peers", nil, 200, &peers)
	if len(peers.Items) != 1 || peers.Items[0].Path != api.PathRelay || r.asked.Kind != "net" || r.asked.Path != "/v1/peers" {
		t.Errorf("%+v, asked %+v", peers, r.asked)
	}
	r.ask("alice", "GET", "/v1/nodes/n1/net/peers", nil, 403, nil)
	r.ask("otto", "GET", "/v1/nodes/n9/net/peers", nil, 404, nil)
	r.answer = "no JSON"
	r.ask("otto", "GET", "/v1/nodes/n1/net/routes", nil, 503, nil)

	r.answer = `{"from":"` + string(ours) + `","to":"x","ok":true,"steps":[]}`
	var trace api.NetTrace
	path := "/v1/instances/" + api.PathOf(ours)
	r.ask("alice", "GET", path+"/trace?to=any.rr.cart%26instance%3Dother", nil, 200, &trace)
	if !trace.OK || r.asked.Path != "/v1/trace?from=acme%2Fshop.prod.web.v1%230&to=any.rr.cart%26instance%3Dother" {
		t.Errorf("%+v, asked %+v", trace, r.asked)
	}
	r.ask("alice", "GET", path+"/trace", nil, 422, nil)
	r.ask("rival", "GET", path+"/trace?to=x", nil, 404, nil) // it must not learn that the instance exists

	r.answer = "packets"
	w := r.raw("alice", "GET", path+"/capture?seconds=5", "")
	if w.Code != 200 || w.Body.String() != "packets" || !strings.Contains(r.asked.Path, "seconds=5") || w.Header().Get("Content-Type") != "application/vnd.tcpdump.pcap" {
		t.Errorf("%d %s, asked %+v", w.Code, w.Body, r.asked)
	}
	r.ask("otto", "GET", path+"/capture", nil, 403, nil) // packets contain the tenant's data, like logs
	r.ask("alice", "GET", path+"/capture?seconds=0", nil, 422, nil)
}
