package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/testbed/bench/netbench"
)

// netOptions are the flags of the benchmark net.
type netOptions struct {
	rows  string // names or patterns, separated by commas; empty: all
	quick bool   // one short sample of each, without limits
	svg   string // file for the drawing
}

// figure is a measurement of one path under one load.
type figure struct{ path, load string }

// String returns the figure's name in records.
func (f figure) String() string { return f.path + "." + f.load }

// network measures the data paths between containers, and what the kernel and other programs
// achieve on the same link. Each round takes a sample of every figure, so that changes of the
// machine affect all.
func network(r *run) error {
	rows, err := selectRows(r.net.rows)
	if err != nil {
		return err
	}
	if r.net.quick && r.net.rows == "" {
		rows = slices.DeleteFunc(slices.Clone(rows), func(w row) bool { return !w.quick })
	}
	if os.Getuid() != 0 {
		return errors.New("network namespaces need root")
	}
	if err := netbench.CheckPrograms(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "bench-net-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	s := &session{run: r, dir: dir, beds: map[string]*bedInUse{}, taken: map[figure]*series{}, notes: map[figure]string{}, failed: map[figure]int{}, without: map[string]error{}}
	defer s.close()
	if s.netmanager, err = netbench.Build(s.dir); err != nil {
		return err
	}
	figures := figuresOf(rows, !r.net.quick)
	rounds := r.n
	if r.net.quick {
		rounds = 1
	}
	s.retries = max(2, samplesOf(figures)*rounds/10)
	s.patience = time.Now().Add(retryTime)
	for i := range rounds {
		r.logf("round %d of %d, %d figures", i+1, rounds, len(figures))
		if err = s.round(figures); err != nil {
			break // report the finished rounds
		}
	}
	if err == nil {
		s.inUse(figures)
	}
	if s.polluted > 0 {
		r.logf("others used the machine during %d samples that could not be taken again", s.polluted)
	}
	if err := errors.Join(err, s.report(rows, figures)); err != nil {
		return err
	}
	if n := s.short(figures, rounds); n > 0 {
		return fmt.Errorf("%d figures have fewer samples than rounds", n)
	}
	return nil
}

// samplesOf returns how many samples, or slices of them, a round takes.
func samplesOf(figures []figure) (n int) {
	for _, f := range figures {
		n += max(1, netLoads[f.load].slices)
	}
	return n
}

// short returns how many figures have fewer samples than rounds, without those of paths that
// this machine does not support.
func (s *session) short(figures []figure, rounds int) (n int) {
	for _, f := range figures {
		if got := s.taken[f]; s.without[f.path] == nil && (got == nil || len(got.values) < rounds) {
			n++
		}
	}
	return n
}

// selectRows returns the rows with these names or patterns, each once.
func selectRows(names string) ([]row, error) {
	if names == "" {
		return netRows, nil
	}
	var out []row
	for _, pattern := range strings.Split(names, ",") {
		found := false
		for _, w := range netRows {
			if ok, err := path.Match(strings.TrimSpace(pattern), w.name); err != nil {
				return nil, err
			} else if !ok {
				continue
			}
			found = true
			if !slices.ContainsFunc(out, func(o row) bool { return o.name == w.name }) {
				out = append(out, w)
			}
		}
		if !found {
			all := make([]string, len(netRows))
			for i, w := range netRows {
				all[i] = w.name
			}
			return nil, fmt.Errorf("unknown row %q, want one of %s", pattern, strings.Join(all, ", "))
		}
	}
	return out, nil
}

// figuresOf returns the figures of rows, each once. Those of a load are together, because
// figures that are compared are measured directly after one another. Quick runs leave out
// figures without a limit.
func figuresOf(rows []row, beside bool) []figure {
	need := map[figure]bool{}
	for _, w := range rows {
		all := []figure{w.of, w.base}
		if beside {
			all = append(all, w.beside...)
		}
		for _, f := range all {
			if f != (figure{}) {
				need[f] = true
			}
		}
	}
	return slices.SortedFunc(maps.Keys(need), func(a, b figure) int {
		if a.load != b.load {
			return strings.Compare(a.load, b.load)
		}
		return strings.Compare(a.path, b.path)
	})
}

// session is a run of the benchmark.
type session struct {
	*run
	dir        string // for binaries
	netmanager string // path of the program
	beds       map[string]*bedInUse
	taken      map[figure]*series
	notes      map[figure]string
	failed     map[figure]int   // times
	without    map[string]error // paths that this machine does not support, and why
	retries    int              // how many disturbed samples may still be repeated
	patience   time.Time        // until when they may be repeated
	polluted   int
}

// bedInUse is a bed with its path up and its servers running.
type bedInUse struct {
	*netbench.Bed
	path   netbench.Path
	rested func() (*rest, error) // its processes; waits until they are idle
	made   time.Time
}

func (s *session) close() {
	for _, b := range s.beds {
		if err := b.Close(); err != nil {
			s.logf("close a bed: %v", err)
		}
	}
}

// round takes a sample of each figure. Idle processes are started again for each sample and left
// alone while other figures are measured.
func (s *session) round(figures []figure) error {
	var resting []figure
	for _, f := range figures {
		if l := netLoads[f.load]; l.rest {
			resting = append(resting, f)
			s.forget(f.path)
		}
	}
	for _, f := range resting {
		if err := s.wake(f); err != nil {
			s.logf("%s: %v", f, err) // repeated when its sample is due
		}
	}
	for len(figures) > 0 {
		n := sameLoad(figures)
		alike := figures[:n]
		figures = figures[n:]
		l := netLoads[alike[0].load]
		if l.rest || l.measure == nil {
			continue
		}
		for len(resting) > 0 && s.due(resting[0]) {
			if err := s.sample(resting[:1]); err != nil {
				return err
			}
			resting = resting[1:]
		}
		if l.slices == 0 {
			for i := range alike {
				if err := s.sample(alike[i : i+1]); err != nil {
					return err
				}
			}
		} else if err := s.sample(alike); err != nil {
			return err
		}
	}
	for i := range resting {
		if err := s.sample(resting[i : i+1]); err != nil {
			return err
		}
	}
	return nil
}

// sameLoad returns how many figures at the beginning have the load of the first.
func sameLoad(figures []figure) int {
	n := slices.IndexFunc(figures, func(f figure) bool { return f.load != figures[0].load })
	if n < 0 {
		return len(figures)
	}
	return n
}

// wake sets up the bed of a figure, so that its processes can become idle.
func (s *session) wake(f figure) error {
	ctx, cancel := context.WithTimeout(s.ctx, sampleTime)
	defer cancel()
	b, err := s.bed(ctx, f.path, false)
	if err == nil {
		go func() { _, _ = b.rested() }() // the result is cached
	}
	return err
}

// due reports whether the figure can be measured without waiting.
func (s *session) due(f figure) bool {
	b := s.beds[f.path]
	return b == nil || time.Since(b.made) > restTime+idleTime
}

// forget closes the bed of that name, if there is one.
func (s *session) forget(name string) {
	if b := s.beds[name]; b != nil {
		delete(s.beds, name)
		if err := b.Close(); err != nil {
			s.logf("close a bed: %v", err)
		}
	}
}

// retryTime bounds the time in which samples are repeated.
const retryTime = 20 * time.Minute

// sampleTime bounds one sample.
const sampleTime = 2 * time.Minute

// mostFailed is the number of failures, in all rounds, after which a figure is given up.
const mostFailed = 3

// triesEach is how often one disturbed sample is repeated.
const triesEach = 3

// sample takes one sample of each figure of one load. If the load is measured in slices, the
// slices of the figures alternate in both orders, and a sample is the median of its slices. The
// speed of the machine changes within seconds, and must affect all figures equally.
func (s *session) sample(figures []figure) error {
	l := netLoads[figures[0].load]
	slicesOf := make([][]netbench.Sample, len(figures))
	for turn := range max(1, l.slices) {
		for i := range figures {
			if turn%2 == 1 {
				i = len(figures) - 1 - i
			}
			got, ok, err := s.take(figures[i])
			if err != nil {
				return err
			}
			if ok {
				slicesOf[i] = append(slicesOf[i], got)
			}
		}
		if s.net.quick {
			break
		}
	}
	for i, f := range figures {
		if len(slicesOf[i]) > 0 { // use the slices that succeeded
			s.keep(f, slicesOf[i])
		}
	}
	return nil
}

// keep computes a sample from its slices. It is disturbed if one of them is.
func (s *session) keep(f figure, parts []netbench.Sample) {
	var values []float64
	foreign := 0.0
	for _, p := range parts {
		values, foreign = append(values, p.Value), max(foreign, p.Foreign)
	}
	all := netbench.Sample{Value: quantile(values, 0.5), Foreign: foreign}
	disturbed := ""
	if all.Polluted() {
		s.polluted++
		disturbed = fmt.Sprintf(", while other processes used %.0f %% of the machine", all.Foreign*100)
	}
	s.logf("  %s: %s %s%s", f, number(all.Value), netLoads[f.load].unit, disturbed)
	if s.taken[f] == nil {
		s.taken[f] = &series{}
	}
	s.taken[f].add(all.Value, all.Polluted())
}

// take measures a figure once. It returns the first sample that is not disturbed, or else the
// least disturbed. A failed sample is repeated on a new bed.
func (s *session) take(f figure) (best netbench.Sample, ok bool, _ error) {
	l := netLoads[f.load]
	n := 0
	for s.without[f.path] == nil && s.failed[f] < mostFailed {
		got, note, err := s.once(f, l)
		switch {
		case errors.Is(err, errors.ErrUnsupported):
			s.without[f.path] = err
			s.logf("without %s: %v", f.path, err)
			continue
		case err != nil && s.ctx.Err() != nil:
			return best, false, fmt.Errorf("%s: %w", f, err)
		case err != nil:
			s.failed[f]++
			s.logf("%s: %v", f, err)
			s.forget(bedName(f.path, l.slow))
			continue
		}
		if n++; n == 1 || got.Foreign < best.Foreign {
			best, s.notes[f] = got, note
		}
		if !best.Polluted() || n > triesEach || s.retries == 0 || s.net.quick || time.Now().After(s.patience) {
			break
		}
		s.retries--
	}
	return best, n > 0, nil
}

func (s *session) once(f figure, l load) (netbench.Sample, string, error) {
	ctx, cancel := context.WithTimeout(s.ctx, sampleTime)
	defer cancel()
	b, err := s.bed(ctx, f.path, l.slow)
	if err != nil {
		return netbench.Sample{}, "", err
	}
	if err := b.SetWire(ctx, l.wire); err != nil {
		return netbench.Sample{}, "", err
	}
	for try := 0; ; try++ {
		d, chosen := b.path.(*netbench.DaemonPath)
		chosen = chosen && !l.rest // a query would disturb idle processes
		if chosen {
			if err := d.Settle(ctx, b.Bed); err != nil {
				return netbench.Sample{}, "", err
			}
		}
		got, note, err := l.measure(ctx, b, s.net.quick)
		if chosen && err == nil {
			if why := d.Check(ctx); why != nil { // the sample is of another path
				s.logf("%s: %v", f, why)
				if err := sleep(ctx, time.Second); try < strayed && err == nil {
					continue
				}
				return got, note, why
			}
		}
		return got, note, err
	}
}

// strayed is how often a sample is repeated whose packets used another path.
const strayed = 10

// bedName returns the name of a path's bed. With the slow link it is a separate one.
func bedName(path string, slow bool) string {
	if slow {
		return path + " (slow wire)"
	}
	return path
}

// bed returns the bed of a path and sets it up at the first call.
func (s *session) bed(ctx context.Context, name string, slow bool) (*bedInUse, error) {
	key := bedName(name, slow)
	if b := s.beds[key]; b != nil {
		return b, nil
	}
	p := netPaths[name]
	shape := p.shape
	shape.Slow = slow
	bed, err := netbench.NewBed(ctx, key, shape)
	if err != nil {
		return nil, err
	}
	b := &bedInUse{Bed: bed, path: p.make(s)}
	if err = b.path.Up(ctx, bed); err == nil {
		err = bed.Serve()
	}
	if err != nil { // an incomplete bed is useless
		return nil, errors.Join(fmt.Errorf("set up %s: %w", key, err), bed.Close())
	}
	b.made = time.Now()
	b.rested = sync.OnceValues(func() (*rest, error) { return b.comeToRest(s.ctx, s.net.quick) })
	s.beds[key] = b
	return b, nil
}
