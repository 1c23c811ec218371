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
	rows  string // names or patterns, with commas; empty: all
	quick bool   // one short sample of each: that everything works, and nothing about speed
	svg   string // file for the drawing
}

// figure is what is measured of one path under one load.
type figure struct{ path, load string }

// String is the figure's name in records.
func (f figure) String() string { return f.path + "." + f.load }

// network measures the network's data paths from container to container, beside
// what the kernel and others do with the same wire. Each round takes a sample of
// every figure, so that whatever the machine does meanwhile is done to all.
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
			break // what there is is worth having
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
		return fmt.Errorf("%d figures could not be measured as often as they should", n)
	}
	return nil
}

// samplesOf is how many samples, or slices of them, a round takes.
func samplesOf(figures []figure) (n int) {
	for _, f := range figures {
		n += max(1, netLoads[f.load].slices)
	}
	return n
}

// short is how many figures have fewer samples than there were rounds, but for those
// of paths that this machine cannot make.
func (s *session) short(figures []figure, rounds int) (n int) {
	for _, f := range figures {
		if got := s.taken[f]; s.without[f.path] == nil && (got == nil || len(got.values) < rounds) {
			n++
		}
	}
	return n
}

// selectRows finds rows by their names or by patterns of them, each once.
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
			return nil, fmt.Errorf("there is no row %q; there are %s", pattern, strings.Join(all, ", "))
		}
	}
	return out, nil
}

// figuresOf are the figures that rows need, once each, those of a load together:
// what is compared is measured right after one another. What is only shown beside
// is left out of quick runs.
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

// session is a run of the benchmark on its way.
type session struct {
	*run
	dir        string // for what is built
	netmanager string // the program
	beds       map[string]*bedInUse
	taken      map[figure]*series
	notes      map[figure]string
	failed     map[figure]int   // times
	without    map[string]error // paths that this machine cannot make, and why
	retries    int              // polluted samples that may still be taken again
	patience   time.Time        // and until when
	polluted   int
}

// bedInUse is a bed with its path up and its servers running.
type bedInUse struct {
	*netbench.Bed
	path   netbench.Path
	rested func() (*rest, error) // its processes, once they had their rest; waits for that
	made   time.Time
}

func (s *session) close() {
	for _, b := range s.beds {
		if err := b.Close(); err != nil {
			s.logf("close a bed: %v", err)
		}
	}
}

// round takes a sample of each figure. Those of processes at rest are taken of new
// ones, which are left alone while others are measured.
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
			s.logf("%s: %v", f, err) // and again when its sample is due
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

// sameLoad is how many figures at the beginning have the first one's load.
func sameLoad(figures []figure) int {
	n := slices.IndexFunc(figures, func(f figure) bool { return f.load != figures[0].load })
	if n < 0 {
		return len(figures)
	}
	return n
}

// wake makes the bed of a figure, so that its processes can come to rest.
func (s *session) wake(f figure) error {
	ctx, cancel := context.WithTimeout(s.ctx, sampleTime)
	defer cancel()
	b, err := s.bed(ctx, f.path, false)
	if err == nil {
		go func() { _, _ = b.rested() }() // who wants to know asks again
	}
	return err
}

// due reports whether the figure can be taken without waiting.
func (s *session) due(f figure) bool {
	b := s.beds[f.path]
	return b == nil || time.Since(b.made) > restTime+idleTime
}

// forget ends a bed, if there is one of that name.
func (s *session) forget(name string) {
	if b := s.beds[name]; b != nil {
		delete(s.beds, name)
		if err := b.Close(); err != nil {
			s.logf("close a bed: %v", err)
		}
	}
}

// retryTime is for how long samples are taken again: a run ends.
const retryTime = 20 * time.Minute

// sampleTime bounds one sample.
const sampleTime = 2 * time.Minute

// mostFailed is after how many failures, in all rounds, a figure is given up.
const mostFailed = 3

// triesEach is how often one polluted sample is taken again.
const triesEach = 3

// sample takes one sample of each of some figures of one load. Where the load is
// measured in slices, the figures take turns, there and back, and a sample is the
// median of its slices: the machine's speed changes from second to second, and what is
// compared shall have had the same of it.
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
		if len(slicesOf[i]) > 0 { // the others are worth having all the same
			s.keep(f, slicesOf[i])
		}
	}
	return nil
}

// keep makes a sample of its slices. It is disturbed if one of them is.
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
		disturbed = fmt.Sprintf(", while others used %.0f %% of the machine", all.Foreign*100)
	}
	s.logf("  %s: %s %s%s", f, number(all.Value), netLoads[f.load].unit, disturbed)
	if s.taken[f] == nil {
		s.taken[f] = &series{}
	}
	s.taken[f].add(all.Value, all.Polluted())
}

// take measures a figure once: the first time that is not polluted, or else the one
// that is least. One that fails is taken again, on a new bed.
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
		chosen = chosen && !l.rest // who rests is not to be asked
		if chosen {
			if err := d.Settle(ctx, b.Bed); err != nil {
				return netbench.Sample{}, "", err
			}
		}
		got, note, err := l.measure(ctx, b, s.net.quick)
		if chosen && err == nil {
			if why := d.Check(ctx); why != nil { // a sample of another path
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

// strayed is how often a sample is taken again whose packets went another way.
const strayed = 10

// bedName tells the beds of a path apart: with the slow wire there is another.
func bedName(path string, slow bool) string {
	if slow {
		return path + " (slow wire)"
	}
	return path
}

// bed is the bed of a path, made where it is needed first.
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
	if err != nil { // what is half made serves nobody
		return nil, errors.Join(fmt.Errorf("set up %s: %w", key, err), bed.Close())
	}
	b.made = time.Now()
	b.rested = sync.OnceValues(func() (*rest, error) { return b.comeToRest(s.ctx, s.net.quick) })
	s.beds[key] = b
	return b, nil
}
