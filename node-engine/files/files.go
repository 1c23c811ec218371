// Package files writes the files of workloads that are not part of their images: text of the SLA, and
// values of configs and secrets, which it requests from the cluster. They are on a file system in
// memory, in a directory per placement:
//
//	<dir>/<id>/state.json     versions, owner, signals to send; no values
//	<dir>/<id>/files/v3/0     the content of the first file, in its third version
//	<dir>/<id>/files/data     a symbolic link to v3, which is replaced to change all files at once
//	<dir>/<id>/run/0/…        symbolic links, for paths below /run
//
// Containers have files/ at api.FilesDir, and symbolic links to its content at the paths of the SLA.
//
//	f, err := files.Open(files.Options{Dir: dir, Fetch: cluster.Value, Signal: rt.Signal})
//	mounts, login, err := f.Prepare(ctx, key, &spec, refs) // before the workload is created
//	f.Update(key, &spec, refs)                             // when values have changed
//	err = f.Remove(key)                                    // after the workload is removed
package files

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/runtime"
)

// Options configure a Files.
type Options struct {
	Dir string // of this node alone; absolute
	// Fetch requests a value from the cluster. It fails with ErrNotFound if the cluster does not have
	// it for this node.
	Fetch func(context.Context, wire.WantValue) (wire.Value, error)
	// Signal signals a workload's first process. It fails with ErrNotFound if that does not run.
	Signal func(context.Context, wire.Key, syscall.Signal) error
	Log    *slog.Logger

	// OnDisk permits a directory that is not in memory, for tests without root.
	OnDisk bool
}

const (
	updateTime = 30 * time.Second // for one attempt of an update
	minPause   = time.Second
	maxPause   = time.Minute

	maxPlacement = 1 << 20  // bytes of the files of a workload
	maxNode      = 64 << 20 // bytes of all files on the node
	maxTenant    = 16 << 20 // bytes of the files of a topmost tenant
)

var _ = fairshare.Declare(fairshare.Bound{
	Resource: "bytes of files of workloads in a node's memory", Total: maxNode >> 20, Unit: "MiB", Share: []int{maxTenant >> 20}, Per: "topmost tenant",
	Beyond: "the workload is not created, with the reason files_unavailable; one workload has at most 1 MiB",
	Attack: "TestFilesOfOneTenantLeaveRoomForOthers",
})

// Files writes files. It is safe for concurrent use; calls for one key wait for each other.
type Files struct {
	opt  Options
	work chan struct{} // signals entries with an update

	mu      sync.Mutex // guards the fields below
	entries map[wire.Key]*entry
}

// entry is one placement since the start of the process.
type entry struct {
	sync.Mutex // held while its files are written

	// Guarded by Files.mu.
	update *update // to be carried out; nil: none
	bytes  int
}

type update struct {
	spec *api.Microservice
	refs []wire.ValueRef
}

// state is the content of state.json.
type state struct {
	Key     wire.Key        `json:"key"`
	Refs    []wire.ValueRef `json:"refs"`
	Version int             `json:"version"` // of files/data
	Bytes   int             `json:"bytes"`
	UID     int             `json:"uid"`
	GID     int             `json:"gid"`
	// Signals are to be sent once data has this version; after a crash they are sent again.
	Signals []string `json:"signals,omitempty"`
}

// Open prepares the directory. If it is not on a file system in memory, Open mounts one there, which
// needs root.
func Open(o Options) (*Files, error) {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("create the directory for files: %w", err)
	}
	if err := os.Chmod(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("create the directory for files: %w", err)
	}
	if !o.OnDisk {
		if err := inMemory(o.Dir); err != nil {
			return nil, err
		}
	}
	return &Files{opt: o, work: make(chan struct{}, 1), entries: map[wire.Key]*entry{}}, nil
}

// Delete removes the directory with all files, and the file system that Open may have mounted there.
func Delete(dir string) error {
	_ = unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) // it is EINVAL if there is none
	return os.RemoveAll(dir)
}

// inMemory mounts a file system in memory at dir unless it is on one.
func inMemory(dir string) error {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return fmt.Errorf("examine the directory for files %s: %w", dir, err)
	}
	if s.Type == unix.TMPFS_MAGIC || s.Type == unix.RAMFS_MAGIC {
		return nil
	}
	const size = ",size=128m"
	err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700,noswap"+size)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.4
		err = unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700"+size)
	}
	if err != nil {
		return fmt.Errorf("mount a file system in memory at %s: %w", dir, err)
	}
	return nil
}

func (f *Files) entry(k wire.Key) *entry {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.entries[k]
	if e == nil {
		e = &entry{}
		f.entries[k] = e
	}
	return e
}

func (f *Files) dir(k wire.Key) string { return filepath.Join(f.opt.Dir, runtime.ID(k)) }

const stateFile = "state.json"

// load returns the state of a placement, the zero state if it has none.
func (f *Files) load(k wire.Key) (s state, err error) {
	text, err := os.ReadFile(filepath.Join(f.dir(k), stateFile))
	if errors.Is(err, fs.ErrNotExist) {
		return state{}, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	return s, err
}

func (f *Files) save(s state) error {
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return replace(filepath.Join(f.dir(s.Key), stateFile), func(tmp string) error { return os.WriteFile(tmp, text, 0o600) })
}

// replace writes a file under another name and renames it.
func replace(path string, write func(tmp string) error) error {
	tmp := path + ".new"
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	if err := write(tmp); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// failure returns err as a failure of the placement's files.
func failure(err error) error {
	if e, ok := errors.AsType[*runtime.Error](err); ok {
		return e
	}
	return runtime.Errorf(api.ReasonNoFiles, "%w", err)
}

// Prepare writes a workload's files, and returns where they are and the account for its image. It
// requests no values if the files have these versions already. Either result may be nil.
func (f *Files) Prepare(ctx context.Context, k wire.Key, spec *api.Microservice, refs []wire.ValueRef) (*runtime.Files, *runtime.Login, error) {
	login, err := f.login(ctx, k.Instance.Tenant(), refs)
	if err != nil || len(spec.Files) == 0 {
		return nil, login, failureOrNil(err)
	}
	e := f.entry(k)
	e.Lock()
	defer e.Unlock()
	f.setUpdate(e, nil)
	if _, err := f.write(ctx, k, e, spec, refs); err != nil {
		return nil, nil, failure(err)
	}
	out, err := f.describe(k, spec)
	if err != nil {
		return nil, nil, failure(err)
	}
	return out, login, nil
}

func failureOrNil(err error) error {
	if err == nil {
		return nil
	}
	return failure(err)
}

func (f *Files) setUpdate(e *entry, u *update) {
	f.mu.Lock()
	e.update = u
	f.mu.Unlock()
}

// Update rewrites the files of a workload that exists, unless they have these versions, and sends the
// signals of its SLA. It does not block: Run carries it out, and repeats it until it succeeds.
func (f *Files) Update(k wire.Key, spec *api.Microservice, refs []wire.ValueRef) {
	f.setUpdate(f.entry(k), &update{spec, refs})
	select {
	case f.work <- struct{}{}:
	default:
	}
}

// Run carries out updates until ctx ends.
func (f *Files) Run(ctx context.Context) error {
	pause := minPause
	for {
		var again <-chan time.Time
		if f.updateAll(ctx) {
			again, pause = time.After(pause), min(2*pause, maxPause)
		}
		select {
		case <-f.work:
			pause = minPause
		case <-again:
		case <-ctx.Done():
			return nil
		}
	}
}

// updateAll reports whether an update failed.
func (f *Files) updateAll(ctx context.Context) (failed bool) {
	f.mu.Lock()
	var keys []wire.Key
	for k, e := range f.entries {
		if e.update != nil {
			keys = append(keys, k)
		}
	}
	f.mu.Unlock()
	slices.SortFunc(keys, func(a, b wire.Key) int { return strings.Compare(a.String(), b.String()) })
	for _, k := range keys {
		if err := f.updateOne(ctx, k); err != nil && ctx.Err() == nil {
			f.opt.Log.Warn("files not updated, retrying", "instance", k.Instance, "epoch", k.Epoch, "err", err)
			failed = true
		}
	}
	return failed
}

func (f *Files) updateOne(ctx context.Context, k wire.Key) error {
	ctx, cancel := context.WithTimeout(ctx, updateTime)
	defer cancel()
	e := f.entry(k)
	e.Lock()
	defer e.Unlock()
	f.mu.Lock()
	u := e.update
	f.mu.Unlock()
	if u == nil {
		return nil // prepared or removed meanwhile
	}
	if old, err := f.load(k); err != nil || old.Version == 0 {
		f.done(e, u)
		return err // it has no files: they were removed
	}
	s, err := f.write(ctx, k, e, u.spec, u.refs)
	if errors.Is(err, errMissing) {
		f.opt.Log.Warn("files keep their content", "instance", k.Instance, "epoch", k.Epoch, "err", err)
		f.done(e, u)
		return nil
	}
	if err != nil {
		return err
	}
	if err := f.signal(ctx, s); err != nil {
		return err
	}
	f.done(e, u)
	return nil
}

func (f *Files) done(e *entry, u *update) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e.update == u {
		e.update = nil
	}
}

// signal sends the signals that are due, and forgets them.
func (f *Files) signal(ctx context.Context, s state) error {
	if len(s.Signals) == 0 {
		return nil
	}
	for _, name := range s.Signals {
		if err := f.opt.Signal(ctx, s.Key, unix.SignalNum(name)); err != nil && !errors.Is(err, api.ErrNotFound) {
			return fmt.Errorf("send %s: %w", name, err)
		}
	}
	s.Signals = nil
	return f.save(s)
}

// write brings the files to the versions in refs. The entry is locked.
func (f *Files) write(ctx context.Context, k wire.Key, e *entry, spec *api.Microservice, refs []wire.ValueRef) (state, error) {
	s, err := f.load(k)
	if err != nil {
		f.opt.Log.Warn("files are written anew", "instance", k.Instance, "err", err)
		s = state{}
	}
	if s.Version > 0 && slices.Equal(s.Refs, refs) {
		return s, errors.Join(f.count(k, e, s.Bytes), removeOthers(filepath.Join(f.dir(k), "files"), "v"+strconv.Itoa(s.Version)))
	}
	contents, err := f.contents(ctx, k, spec, refs)
	if err != nil {
		return s, err
	}
	size := 0
	for _, c := range contents {
		size += len(c)
	}
	if size > maxPlacement {
		return s, fmt.Errorf("its files have %d bytes, want at most %d: %w", size, maxPlacement, api.ErrTooLarge)
	}
	if err := f.count(k, e, size); err != nil {
		return s, err
	}
	base := filepath.Join(f.dir(k), "files")
	next := s
	next.Key, next.Refs, next.Version, next.Bytes = k, refs, unused(base), size
	version := func(n int) string { return "v" + strconv.Itoa(n) }
	into := filepath.Join(base, version(next.Version))
	if err := mkdirs(into, f.dir(k)); err != nil {
		return s, err
	}
	for i, c := range contents {
		if err := writeFile(filepath.Join(into, strconv.Itoa(i)), c, spec.Files[i].Permissions(), s.UID, s.GID); err != nil {
			return s, err
		}
	}
	if s.Version > 0 {
		next.Signals = merge(s.Signals, changedSignals(spec, filepath.Join(base, version(s.Version)), contents))
	}
	if err := replace(filepath.Join(base, "data"), func(tmp string) error { return os.Symlink(version(next.Version), tmp) }); err != nil {
		return s, err
	}
	// After a crash here, the files are written again under another version.
	if err := f.save(next); err != nil {
		return s, err
	}
	return next, removeOthers(base, version(next.Version))
}

// unused returns the lowest number above those of the versions in a directory.
func unused(base string) int {
	all, _ := os.ReadDir(base) // there may be none
	last := 0
	for _, d := range all {
		if n, err := strconv.Atoi(strings.TrimPrefix(d.Name(), "v")); err == nil {
			last = max(last, n)
		}
	}
	return last + 1
}

// mkdirs creates dir for the users of containers, below a directory that is the node's only.
func mkdirs(dir, private string) error {
	if err := os.MkdirAll(private, 0o700); err != nil {
		return err
	}
	for at := filepath.Dir(dir); ; at = dir {
		if err := os.Mkdir(at, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := os.Chmod(at, 0o755); err != nil { // whatever the umask is
			return err
		}
		if at == dir {
			return nil
		}
	}
}

func writeFile(path string, content []byte, mode uint32, uid, gid int) error {
	if err := os.WriteFile(path, content, 0o600); err != nil {
		return err
	}
	if err := chown(path, uid, gid); err != nil {
		return err
	}
	return os.Chmod(path, fs.FileMode(mode))
}

// chown changes the owner. Only root can, and tests without root keep theirs.
func chown(path string, uid, gid int) error {
	if os.Geteuid() != 0 && uid == 0 && gid == 0 {
		return nil
	}
	return os.Lchown(path, uid, gid)
}

// changedSignals returns the signals for the files whose content differs from that in a directory.
func changedSignals(spec *api.Microservice, dir string, contents [][]byte) (out []string) {
	for i, c := range contents {
		if s := spec.Files[i].OnChange.Signal(); s != "" {
			if old, err := os.ReadFile(filepath.Join(dir, strconv.Itoa(i))); err != nil || !bytes.Equal(old, c) {
				out = append(out, s)
			}
		}
	}
	return out
}

func merge(a, b []string) []string {
	out := slices.Concat(a, b)
	slices.Sort(out)
	return slices.Compact(out)
}

func removeOthers(base, keep string) error {
	all, err := os.ReadDir(base)
	if err != nil {
		return err
	}
	for _, d := range all {
		if d.Name() != keep && d.Name() != "data" {
			if err := os.RemoveAll(filepath.Join(base, d.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// errMissing is the error about a value that does not exist. It does not end before there are other
// versions.
var errMissing = errors.New("does not exist")

// contents returns the contents of a workload's files.
func (f *Files) contents(ctx context.Context, k wire.Key, spec *api.Microservice, refs []wire.ValueRef) ([][]byte, error) {
	fetched := map[wire.ValueRef]wire.Value{}
	out := make([][]byte, len(spec.Files))
	for i, file := range spec.Files {
		text := []byte(file.Content)
		if kind, name, key := file.Source(); kind != "" {
			n := slices.IndexFunc(refs, func(r wire.ValueRef) bool { return r.Kind == kind && r.Name == name && r.Registry == "" })
			if n < 0 {
				return nil, fmt.Errorf("file %s: %s %s %w", file.Path, kind, name, errMissing)
			}
			v, ok := fetched[refs[n]]
			if !ok {
				var err error
				if v, err = f.fetch(ctx, k.Instance.Tenant(), refs[n]); err != nil {
					return nil, fmt.Errorf("file %s: %w", file.Path, err)
				}
				fetched[refs[n]] = v
			}
			if text, ok = valueOf(v, key); !ok {
				return nil, fmt.Errorf("file %s: %s %s has the keys %q, want %s: its value %w", file.Path, kind, name, slices.Sorted(maps.Keys(v.Data)), wanted(key), errMissing)
			}
		}
		if file.Template {
			text = []byte(api.FillTemplate(string(text), k.Instance))
		}
		out[i] = text
	}
	return out, nil
}

func wanted(key string) string {
	if key == "" {
		return "one key, or a key in the SLA"
	}
	return key
}

// valueOf returns the value of a key, or the only value if the key is empty.
func valueOf(v wire.Value, key string) ([]byte, bool) {
	if key == "" && len(v.Data) == 1 {
		for _, only := range v.Data {
			return only, true
		}
	}
	text, ok := v.Data[key]
	return text, ok
}

func (f *Files) fetch(ctx context.Context, t api.Tenant, r wire.ValueRef) (wire.Value, error) {
	v, err := f.opt.Fetch(ctx, wire.ValueKey{Tenant: t, ValueRef: r}.Want())
	if err != nil {
		return v, fmt.Errorf("fetch %s: %w", r, err)
	}
	if v.Digest() != r.Digest {
		return wire.Value{}, fmt.Errorf("fetch %s: the cluster's value has another digest: %w", r, api.ErrUnavailable)
	}
	return v, nil
}

// login returns the account for a workload's image, nil if it has none.
func (f *Files) login(ctx context.Context, t api.Tenant, refs []wire.ValueRef) (*runtime.Login, error) {
	i := slices.IndexFunc(refs, func(r wire.ValueRef) bool { return r.Registry != "" })
	if i < 0 {
		return nil, nil
	}
	v, err := f.fetch(ctx, t, refs[i])
	if err != nil {
		return nil, fmt.Errorf("account of registry %s: %w", refs[i].Registry, err)
	}
	return &runtime.Login{Registry: refs[i].Registry, Username: string(v.Data[api.UsernameKey]), Password: string(v.Data[api.PasswordKey])}, nil
}

// count records how many bytes a workload's files have. It fails with ErrFull beyond the limits.
func (f *Files) count(k wire.Key, e *entry, size int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	all, tenant := size, size
	for other, o := range f.entries {
		if o == e {
			continue
		}
		all += o.bytes
		if other.Instance.Tenant().Top() == k.Instance.Tenant().Top() {
			tenant += o.bytes
		}
	}
	if size > e.bytes && (all > maxNode || tenant > maxTenant) {
		return fmt.Errorf("the files of workloads on this node have %d bytes, those of tenant %s %d; want at most %d and %d: %w",
			all, k.Instance.Tenant().Top(), tenant, maxNode, maxTenant, api.ErrFull)
	}
	e.bytes = size
	return nil
}

// describe makes the links of a workload's files and returns where its files are.
func (f *Files) describe(k wire.Key, spec *api.Microservice) (*runtime.Files, error) {
	dir := f.dir(k)
	out := &runtime.Files{Dir: filepath.Join(dir, "files"), Own: func(uid, gid int) error { return f.own(k, uid, gid) }}
	mounts := map[string]string{} // path in the workload → directory on the node
	for i, file := range spec.Files {
		target := api.FilesDir + "/data/" + strconv.Itoa(i)
		top, rest := underRun(file.Path)
		if top == "" {
			out.Links = append(out.Links, runtime.FileLink{Path: file.Path, Target: target})
			continue
		}
		at := mounts[top]
		if at == "" {
			at = filepath.Join(dir, "run", strconv.Itoa(len(mounts)))
			mounts[top] = at
			out.Mounts = append(out.Mounts, runtime.FileMount{Path: top, Dir: at})
		}
		link := filepath.Join(at, rest)
		if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
			return nil, err
		}
		for p := filepath.Dir(link); len(p) >= len(at); p = filepath.Dir(p) {
			if err := os.Chmod(p, 0o755); err != nil {
				return nil, err
			}
		}
		if err := replace(link, func(tmp string) error { return os.Symlink(target, tmp) }); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// underRun splits a path below /run or /var/run, where images have no files, into the directory to
// mount and the path in it.
func underRun(path string) (top, rest string) {
	for _, run := range []string{"/run/", "/var/run/"} {
		if below, ok := strings.CutPrefix(path, run); ok {
			name, rest, _ := strings.Cut(below, "/")
			return run + name, rest
		}
	}
	return "", ""
}

func (f *Files) own(k wire.Key, uid, gid int) error {
	e := f.entry(k)
	e.Lock()
	defer e.Unlock()
	s, err := f.load(k)
	if err != nil || s.Version == 0 || s.UID == uid && s.GID == gid {
		return err
	}
	s.UID, s.GID = uid, gid
	into := filepath.Join(f.dir(k), "files", "v"+strconv.Itoa(s.Version))
	all, err := os.ReadDir(into)
	if err != nil {
		return err
	}
	for _, d := range all {
		if err := chown(filepath.Join(into, d.Name()), uid, gid); err != nil {
			return fmt.Errorf("change the owner of a file: %w", err)
		}
	}
	return f.save(s)
}

// Remove deletes the files of a workload. It succeeds if there are none.
func (f *Files) Remove(k wire.Key) error {
	e := f.entry(k)
	e.Lock()
	defer e.Unlock()
	err := os.RemoveAll(f.dir(k))
	if err == nil {
		f.mu.Lock()
		if f.entries[k] == e {
			delete(f.entries, k)
		}
		f.mu.Unlock()
	}
	if err != nil {
		return fmt.Errorf("delete the files of %s: %w", k, err)
	}
	return nil
}

// Sweep deletes the files of workloads that neither the runtime has nor were prepared since the start
// of this process. It counts those of the others.
func (f *Files) Sweep(has []wire.Key) error {
	keep := map[string]bool{}
	f.mu.Lock()
	for k := range f.entries {
		keep[runtime.ID(k)] = true
	}
	f.mu.Unlock()
	for _, k := range has {
		if keep[runtime.ID(k)] {
			continue
		}
		keep[runtime.ID(k)] = true
		if s, err := f.load(k); err == nil && s.Version > 0 {
			e := f.entry(k)
			f.mu.Lock()
			e.bytes = s.Bytes
			f.mu.Unlock()
		}
	}
	all, err := os.ReadDir(f.opt.Dir)
	if err != nil {
		return fmt.Errorf("delete files of earlier workloads: %w", err)
	}
	var errs []error
	for _, d := range all {
		if !keep[d.Name()] {
			errs = append(errs, os.RemoveAll(filepath.Join(f.opt.Dir, d.Name())))
		}
	}
	return errors.Join(errs...)
}
