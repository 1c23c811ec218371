package installer

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"path"
	"strings"
	"sync/atomic"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/problem"
)

const flood = "TestDownloadsOfOneAddressLeaveRoomForOthers"

var (
	downloads = fairshare.Bound{
		Per:    "subnet, then address; of each port",
		Beyond: "the oldest of the largest subnet is cut off, and a machine continues where it was; within an address's own share one is cut off after a minute, else 429",
		Attack: flood,
	}.Declare("downloads of programs and scripts under way", 64, 32, 16)
	downloadRates = fairshare.RateBound("subnet; of each port", "240 downloads of programs at once and 1 in 5 s per address, then 429", "address of the largest subnet", flood).
			Declare("addresses remembered for downloads of programs", 16384)
)

const (
	programsAtOnce  = 240
	programsASecond = 0.2
	cutOffAfter     = time.Minute
)

// ScriptPath is the path of install.sh at a daemon's port, FilesPath the prefix of the files.
const (
	ScriptPath = "/install.sh"
	FilesPath  = "/install/"
)

// Server serves a release to everybody: the programs are public, and a machine that does not trust
// the server yet must not show it a secret. It is safe for concurrent use.
type Server struct {
	release *Release
	role    Role
	url     string
	log     *slog.Logger
	places  *fairshare.Pool
	rates   *fairshare.Rates
	now     func() time.Time
}

// NewServer returns a server for machines that join as role and reach it at url.
func NewServer(r *Release, role Role, url string, log *slog.Logger) *Server {
	return &Server{
		release: r, role: role, url: url, log: log, now: time.Now,
		places: fairshare.NewPool(downloads, fairshare.Policy{Renew: true, RenewAfter: cutOffAfter}),
		rates:  fairshare.NewRates(downloadRates, programsASecond, programsAtOnce),
	}
}

// Offer returns where machines get install.sh, and its hash; nil: the programs are not there.
func (s *Server) Offer() *api.Installer {
	if s == nil {
		return nil
	}
	script, err := s.release.Install(s.role, s.url)
	if err != nil {
		s.log.Info("join tokens are printed without a line that installs the programs", "err", err)
		return nil
	}
	return &api.Installer{URL: s.url, SHA256: Sum([]byte(script))}
}

// Serves reports whether the request is for the server.
func Serves(r *http.Request) bool {
	return r.URL.Path == ScriptPath || strings.HasPrefix(r.URL.Path, FilesPath)
}

// ServeHTTP serves ScriptPath and the files below FilesPath.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := s.serve(w, r); err != nil {
		problem.Write(w, problem.Of(err, "the daemon's log"))
	}
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) error {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return fmt.Errorf("%s %s: only GET is possible: %w", r.Method, r.URL.Path, api.ErrInvalid)
	}
	now, from := s.now(), fairshare.Remote(r.RemoteAddr)
	name, isFile := strings.CutPrefix(r.URL.Path, FilesPath)
	if isFile && strings.HasPrefix(name, "linux-") && r.Method == http.MethodGet {
		if err := s.rates.Allow(now, from[0], from[1]); err != nil {
			return err
		}
	}
	control := http.NewResponseController(w)
	var cut atomic.Bool // another download has its place
	place, err := s.places.Take(now, from, func() {
		cut.Store(true)
		_ = control.SetWriteDeadline(time.Unix(1, 0)) // a blocked Write ends at once
	})
	if err != nil {
		return err
	}
	defer place.Release()
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-cache")
	if !isFile {
		script, err := s.release.Install(s.role, s.url)
		if err != nil {
			return err
		}
		w.Header().Set("Content-Type", "text/x-shellscript; charset=utf-8")
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(script))
		return nil
	}
	file, f, err := s.release.open(name)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrInvalid) {
		return fmt.Errorf("no file %q to install: %w", path.Base(name), api.ErrNotFound)
	}
	if err != nil {
		return err
	}
	defer file.Close()
	w.Header().Set("Content-Type", "application/octet-stream")
	if f.SHA256 != "" {
		w.Header().Set("ETag", `"`+f.SHA256+`"`)
	}
	http.ServeContent(w, r, "", time.Time{}, cuttable{file, &cut})
	return nil
}

// cuttable is a file that cannot be read to its end after cut.
type cuttable struct {
	io.ReadSeeker
	cut *atomic.Bool
}

func (c cuttable) Read(b []byte) (int, error) {
	if c.cut.Load() {
		return 0, errCut
	}
	return c.ReadSeeker.Read(b)
}

var errCut = errors.New("cut off to make room for another download")
