package httpapi_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/internal/identity/rights"
)

// Of 24 concurrent documents of one tenant, two are parsed at a time, and another tenant's document
// is parsed meanwhile.
func TestDocumentsOfOneTenantLeaveRoomForOthers(t *testing.T) {
	r := newRig(t)
	greedy := r.client(r.user("acme/eve", rights.ApplicationProvider))
	other := r.client(r.user("umbrella/bob", rights.ApplicationProvider))

	var mu sync.Mutex
	busy, most := 0, 0
	started, release := make(chan struct{}, 100), make(chan struct{})
	r.web.OnParse(func(doc []byte) {
		if !strings.Contains(string(doc), "hold") {
			return
		}
		mu.Lock()
		busy++
		most = max(most, busy)
		mu.Unlock()
		started <- struct{}{}
		<-release
		mu.Lock()
		busy--
		mu.Unlock()
	})
	results := make(chan error, 24)
	for range 24 {
		go func() {
			_, err := greedy.Apply(context.Background(), []byte(slaOf("hold", 1)), client.ApplyOptions{})
			results <- err
		}()
	}
	<-started
	<-started
	if _, err := other.Apply(t.Context(), []byte(slaOf("shop", 1)), client.ApplyOptions{}); err != nil {
		t.Errorf("another tenant's document was not parsed meanwhile: %v", err)
	}
	close(release)
	for range 24 {
		check(t, <-results)
	}
	if most != 2 {
		t.Errorf("%d documents of one tenant were parsed at the same time, want 2", most)
	}
}

// Documents above the queue's limit are refused and take no memory.
func TestTooManyWaitingDocumentsAreRefused(t *testing.T) {
	r := newRig(t)
	c := r.client(r.user("acme/eve", rights.ApplicationProvider))
	release := make(chan struct{})
	r.web.OnParse(func([]byte) { <-release })
	const n = 100
	results := make(chan error, n)
	for range n {
		go func() {
			_, err := c.Apply(context.Background(), []byte(slaOf("shop", 1)), client.ApplyOptions{})
			results <- err
		}()
	}
	refused := 0
	for range n - 66 { // 2 are parsed and 64 wait
		var p *api.Problem
		if err := <-results; !errors.As(err, &p) || p.Status != http.StatusTooManyRequests {
			t.Fatalf("want 429, got %v", err)
		}
		refused++
	}
	close(release)
	for range n - refused {
		check(t, <-results)
	}
}

// Only SLA documents may have 1 MiB. Other bodies are small, because they are accepted before
// sign-in.
func TestBodiesOfOtherOperationsAreLimitedTo64KiB(t *testing.T) {
	r := newRig(t)
	body := `{"user":"acme/eve","password":"` + strings.Repeat("x", 65<<10) + `"}`
	resp, err := r.server.Client().Post(r.server.URL+"/v1/auth/login", "application/json", strings.NewReader(body))
	check(t, err)
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusRequestEntityTooLarge {
		t.Fatalf("a sign-in of 65 KiB was answered with %s, want 413", resp.Status)
	}
}
