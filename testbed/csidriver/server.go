package csidriver

import (
	"context"
	"encoding/base64"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"path"
	"reflect"
	"slices"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Fault is what is wrong with one method. The zero Fault is nothing.
type Fault struct {
	Code  codes.Code // it fails with this code
	Hang  bool       // it does not answer
	Lie   bool       // it does nothing and reports success
	Late  bool       // it hangs or fails after it was carried out, not before
	Times int        // how many calls; 0: all
	Echo  bool       // its error has the secrets of the call
}

// Server serves a storage on one node. The fault of one server does not affect others.
type Server struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedNodeServer

	*Storage
	node     string
	segments map[string]string
	grpc     *grpc.Server
	done     chan struct{}

	faultMu sync.Mutex // guards the fields below
	faults  map[string]Fault
	calls   map[string]int
	hanging map[string]int // calls that hang now
	changed chan struct{}  // closed when faults change
}

// Serve serves the driver at a unix socket, which it replaces.
func Serve(socket string, s *Storage, node string, segments map[string]string) (*Server, error) {
	if err := os.Remove(socket); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	ln, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.nodes[node] = true
	s.mu.Unlock()
	d := &Server{
		Storage: s, node: node, segments: maps.Clone(segments), done: make(chan struct{}),
		faults: map[string]Fault{}, calls: map[string]int{}, hanging: map[string]int{}, changed: make(chan struct{}),
	}
	d.grpc = grpc.NewServer(grpc.UnaryInterceptor(d.intercept))
	csi.RegisterIdentityServer(d.grpc, d)
	if !s.opt.NodeOnly {
		csi.RegisterControllerServer(d.grpc, d)
	}
	csi.RegisterNodeServer(d.grpc, d)
	go func() {
		defer close(d.done)
		_ = d.grpc.Serve(ln)
	}()
	return d, nil
}

// Close ends the server. Mounts stay.
func (s *Server) Close() {
	s.grpc.Stop()
	<-s.done
}

// Set replaces the fault of a method ("NodeStageVolume"). Calls that hang are decided anew.
func (s *Server) Set(method string, f Fault) {
	s.faultMu.Lock()
	defer s.faultMu.Unlock()
	s.faults[method] = f
	close(s.changed)
	s.changed = make(chan struct{})
}

// Calls returns how often a method was called.
func (s *Server) Calls(method string) int {
	s.faultMu.Lock()
	defer s.faultMu.Unlock()
	return s.calls[method]
}

// Hanging returns how many calls of a method hang now. Those that hang late are carried out.
func (s *Server) Hanging(method string) int {
	s.faultMu.Lock()
	defer s.faultMu.Unlock()
	return s.hanging[method]
}

func (s *Server) hangs(method string, calls int) {
	s.faultMu.Lock()
	defer s.faultMu.Unlock()
	s.hanging[method] += calls
}

// take returns the fault of a call.
func (s *Server) take(method string) (f Fault, changed chan struct{}) {
	s.faultMu.Lock()
	defer s.faultMu.Unlock()
	s.calls[method]++
	f = s.faults[method]
	if f.Times == 1 {
		delete(s.faults, method)
	} else if f.Times > 1 {
		f.Times--
		s.faults[method] = f
	}
	return f, s.changed
}

func (s *Server) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	method := path.Base(info.FullMethod)
	f, changed := s.take(method)
	got, err := s.authenticate(method, req)
	if err != nil {
		return nil, err
	}
	var out any
	switch {
	case f.Late:
		out, err = handle(ctx, req)
	case f.Lie:
		return emptyAnswer(s, method), nil
	}
	if f.Hang {
		s.hangs(method, 1)
		defer s.hangs(method, -1)
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-changed:
		}
	}
	switch {
	case f.Echo:
		return nil, status.Errorf(f.Code, "told to fail%s", echo(got))
	case f.Code != codes.OK:
		return nil, status.Error(f.Code, "told to fail")
	case f.Late:
		return out, err
	}
	return handle(ctx, req)
}

// emptyAnswer returns the zero answer of a method.
func emptyAnswer(s *Server, method string) any {
	m := reflect.ValueOf(s).MethodByName(method)
	return reflect.New(m.Type().Out(0).Elem()).Interface()
}

// authenticate compares the secrets of a call with those that it must have. Its error has those that it
// got, as careless drivers do.
func (s *Server) authenticate(method string, req any) (map[string]string, error) {
	r, ok := req.(interface{ GetSecrets() map[string]string })
	if !ok {
		return nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if want := s.secrets[method]; want != nil && !maps.Equal(want, r.GetSecrets()) {
		return nil, status.Errorf(codes.Unauthenticated, "wrong secrets%s", echo(r.GetSecrets()))
	}
	return r.GetSecrets(), nil
}

// echo writes secrets in several ways.
func echo(secrets map[string]string) (out string) {
	for _, k := range slices.Sorted(maps.Keys(secrets)) {
		v := secrets[k]
		out += fmt.Sprintf(", %s=%s, %s, %s", k, v, base64.StdEncoding.EncodeToString([]byte(v)), url.QueryEscape(v))
	}
	return out
}
