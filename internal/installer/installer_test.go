package installer_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/deploy"
	"github.com/treeline-edge/treeline/internal/build"
	"github.com/treeline-edge/treeline/internal/installer"
)

const script = "#!/bin/sh\nversion='' from='' list=''\n#@ list\necho \"$list\"\n"

var files = fstest.MapFS{"systemd/a.service": {Data: []byte("[Unit]\n")}, "config/node.yaml": {Data: []byte("#x\n")}}

// release returns a release whose programs are this test, and its directory.
func release(t *testing.T, programs ...string) (*installer.Release, string) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("releases have programs for Linux")
	}
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range programs {
		if err := os.Symlink(self, filepath.Join(dir, p)); err != nil {
			t.Fatal(err)
		}
	}
	return installer.Open(installer.Options{Dir: dir, Script: script, Files: files, Version: build.Current().Version}), dir
}

func TestScriptHasTheHashesOfAllFiles(t *testing.T) {
	r, dir := release(t, installer.Programs...)
	text, err := r.Install(installer.Node, "https://c1.example:7444")
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.ReadFile(filepath.Join(dir, "netmanager"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"from='https://c1.example:7444'\n",
		fmt.Sprintf("%s %d linux-%s/netmanager\n", installer.Sum(self), len(self), runtime.GOARCH),
		installer.Sum([]byte("#x\n")) + " 3 config/node.yaml\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("install.sh has no %q:\n%s", want, text)
		}
	}
	if _, err := installer.Open(installer.Options{Dir: dir, Script: deploy.Script, Files: deploy.Files}).Install(installer.Root, ""); err != nil {
		t.Errorf("the real script: %v", err)
	}
}

func TestReleasesLackWhatIsOfAnotherVersionOrMissing(t *testing.T) {
	r, _ := release(t, "node-engine", "treeline")
	if _, err := r.Install(installer.Node, ""); !errors.Is(err, api.ErrNotFound) || !strings.Contains(err.Error(), "netmanager") {
		t.Errorf("without netmanager: %v", err)
	}
	_, dir := release(t, installer.Programs...)
	other := installer.Open(installer.Options{Dir: dir, Script: script, Files: files, Version: "v0.0.0-other"})
	if _, err := other.Install(installer.Node, ""); !errors.Is(err, api.ErrNotFound) || !strings.Contains(err.Error(), "has the version") {
		t.Errorf("another version: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, "netmanager")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "netmanager"), []byte("#!/bin/sh\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := installer.Open(installer.Options{Dir: dir, Script: script, Files: files}).Install(installer.Node, ""); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("no program of Go: %v", err)
	}
}

func TestServerServesTheFilesOfTheRelease(t *testing.T) {
	r, dir := release(t, installer.Programs...)
	secret := filepath.Join(dir, "root-ca.pem")
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := installer.NewServer(r, installer.Node, "https://c1.example", slog.Default())
	get := func(method, path string, header ...string) *httptest.ResponseRecorder {
		req := httptest.NewRequest(method, "https://c1.example/", http.NoBody)
		req.URL.Path = path
		for i := 0; i < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		w := httptest.NewRecorder()
		s.ServeHTTP(w, req)
		return w
	}
	text := get("GET", "/install.sh").Body.Bytes()
	if offer := s.Offer(); offer == nil || offer.SHA256 != installer.Sum(text) || offer.URL != "https://c1.example" {
		t.Errorf("offered %+v, want the hash of the script that is served", offer)
	}
	program := "/install/linux-" + runtime.GOARCH + "/node-engine"
	self, err := os.ReadFile(filepath.Join(dir, "node-engine"))
	if err != nil {
		t.Fatal(err)
	}
	if w := get("GET", program); w.Code != 200 || !bytes.Equal(w.Body.Bytes(), self) {
		t.Errorf("%s: status %d and %d bytes, want %d", program, w.Code, w.Body.Len(), len(self))
	}
	if w := get("GET", program, "Range", "bytes=100-"); w.Code != 206 || !bytes.Equal(w.Body.Bytes(), self[100:]) {
		t.Errorf("the rest of a program: status %d and %d bytes", w.Code, w.Body.Len())
	}
	if w := get("GET", "/install/config/node.yaml"); w.Code != 200 || w.Body.String() != "#x\n" {
		t.Errorf("a configuration: %d %q", w.Code, w.Body)
	}
	for _, path := range []string{
		"/install/", "/install/config", "/install/linux-mips/node-engine", "/install/linux-amd64/root-ca.pem", "/install/root-ca.pem",
		"/install/../" + filepath.Base(secret), "/install/linux-amd64/../root-ca.pem", "/install//etc/passwd", "/install/" + secret,
	} {
		if w := get("GET", path); w.Code != 404 {
			t.Errorf("%s: status %d, want 404", path, w.Code)
		}
	}
	if w := get("POST", "/install.sh"); w.Code < 400 {
		t.Errorf("POST: status %d", w.Code)
	}
}

// blocked is a client that does not read.
type blocked struct {
	*httptest.ResponseRecorder
	started, cut chan struct{}
}

func (b blocked) Write([]byte) (int, error) {
	b.started <- struct{}{}
	<-b.cut
	return 0, errors.New("cut off")
}

func TestDownloadsOfOneAddressLeaveRoomForOthers(t *testing.T) {
	r, _ := release(t, installer.Programs...)
	s := installer.NewServer(r, installer.Node, "https://c1.example", slog.Default())
	request := func(w http.ResponseWriter, from string) {
		req := httptest.NewRequest("GET", "https://c1.example/install/linux-"+runtime.GOARCH+"/node-engine", http.NoBody)
		req.RemoteAddr = from
		s.ServeHTTP(w, req)
	}
	b := blocked{httptest.NewRecorder(), make(chan struct{}), make(chan struct{})}
	done := make(chan struct{})
	for range 16 {
		go func() {
			request(b, "192.0.2.1:1000")
			done <- struct{}{}
		}()
		<-b.started
	}
	w := httptest.NewRecorder()
	if request(w, "192.0.2.1:1000"); w.Code != 429 {
		t.Errorf("the 17th download of an address: status %d, want 429", w.Code)
	}
	w = httptest.NewRecorder()
	if request(w, "198.51.100.1:1000"); w.Code != 200 {
		t.Errorf("a download of another address: status %d, want 200", w.Code)
	}
	close(b.cut)
	for range 16 {
		<-done
	}
	refused := 0
	for range 300 {
		w := httptest.NewRecorder()
		req := httptest.NewRequest("GET", "https://c1.example/install/linux-"+runtime.GOARCH+"/node-engine", http.NoBody)
		req.RemoteAddr = "203.0.113.9:1"
		req.Header.Set("Range", "bytes=0-0")
		if s.ServeHTTP(w, req); w.Code == 429 {
			refused++
		}
	}
	if refused < 40 {
		t.Errorf("%d of 300 downloads of an address were refused, want those after 240", refused)
	}
}

func TestBundlesAreTheSameEachTime(t *testing.T) {
	r, dir := release(t, installer.Programs...)
	image := filepath.Join(dir, "shop.tar")
	if err := os.WriteFile(image, []byte("an image"), 0o600); err != nil {
		t.Fatal(err)
	}
	var first, second bytes.Buffer
	for _, b := range []*bytes.Buffer{&first, &second} {
		if _, err := r.WriteBundle(b, image); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("two bundles of the same files differ")
	}
	sums, all := "", map[string]string{}
	for archive := tar.NewReader(&first); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimPrefix(h.Name, "treeline/")
		if name == "SHA256SUMS" {
			sums = string(text)
			continue
		}
		all[name] = installer.Sum(text)
	}
	for name, sum := range all {
		if !strings.Contains(sums, sum+"  "+name+"\n") {
			t.Errorf("SHA256SUMS has no %s with %s", name, sum)
		}
	}
	if len(all) != len(installer.Programs)+len(files)+2 {
		t.Errorf("the bundle has %d files: %v", len(all), all)
	}
	if _, err := r.WriteBundle(io.Discard, image, image); !errors.Is(err, api.ErrInvalid) {
		t.Errorf("two images of one name: %v, want ErrInvalid", err)
	}
	if _, err := r.WriteBundle(io.Discard, filepath.Join(dir, "it's.tar")); !errors.Is(err, api.ErrInvalid) {
		t.Errorf("an image with a quote in its name: %v, want ErrInvalid", err)
	}
}
