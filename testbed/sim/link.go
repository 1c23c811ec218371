package sim

import (
	"time"

	"github.com/treeline-edge/treeline/internal/bus/redial"
)

// Quality describes the faults of a link.
type Quality struct {
	// Hostile links carry each message separately, so that it may be lost, duplicated and
	// reordered. Other links are like TCP: complete and in order within a connection, and
	// messages in flight are lost when the connection breaks.
	Hostile bool
	Loss    float64       // hostile: share of messages that are lost
	Double  float64       // hostile: share of messages that arrive twice
	Delay   time.Duration // minimum
	Jitter  time.Duration // maximum in addition to Delay
	Silence time.Duration // after which an end closes a connection that carries nothing
}

// direction of a message on a link: the lower tier dials the upper.
type direction int

const (
	up direction = iota
	down
)

// end is one side of a link.
type end struct {
	name    string
	alive   func() bool
	running func() bool // alive and not paused
	linked  func(bool)  // called when the connection is established or lost
}

// link connects two machines and carries one connection at a time.
type link struct {
	w            *World
	lower, upper end
	q            Quality

	cut     [2]bool
	lose    int // how many of the next messages down are lost
	conn    int // the present connection; 0: none
	conns   int // total
	dialing bool
	stream  int // the connection on which the upper end was asked for a stream
	fifo    [2]moment
	stalled [2][]func()
	trouble int // counts obstacles, so that a timeout belongs to one

	pace  *redial.Pace // of the lower end; nil: any
	hurry func() bool  // the lower end does
	tries int          // since the connection was lost
}

// redialPause is how long the lower end waits before it dials again.
func (l *link) redialPause(least, most time.Duration) time.Duration {
	if l.pace == nil || !l.w.Restless {
		return l.w.between(least, most)
	}
	l.tries++
	return l.pace.Wait(l.tries-1, l.hurry(), l.w.chance.Float64())
}

func (l *link) name() string { return l.lower.name + " ⇄ " + l.upper.name }

// carry delivers a message to the other end, unless it is lost.
func (l *link) carry(dir direction, what any, deliver func()) {
	from, to := l.lower.name, l.upper.name
	if dir == down {
		from, to = to, from
	}
	if l.conn == 0 && (!l.q.Hostile || l.w.chance.IntN(2) == 0) {
		l.w.said(from, to, "✗ no connection: ", what)
		return
	}
	if dir == down && l.lose > 0 {
		l.lose--
		l.w.said(from, to, "✗ lost: ", what)
		return
	}
	copies := 1
	if l.q.Hostile {
		if l.cut[dir] || l.w.chance.Float64() < l.q.Loss {
			l.w.said(from, to, "✗ lost: ", what)
			return
		}
		if l.w.chance.Float64() < l.q.Double {
			copies = 2
		}
	}
	for range copies {
		l.carryOne(dir, from, to, what, deliver)
	}
}

func (l *link) carryOne(dir direction, from, to string, what any, deliver func()) {
	conn, at := l.conn, l.w.now+l.delay()
	if !l.q.Hostile {
		at = max(at, l.fifo[dir])
		l.fifo[dir] = at
	}
	var arrive func()
	arrive = func() {
		switch {
		case l.q.Hostile:
		case l.conn != conn:
			l.w.said(from, to, "✗ connection broke: ", what)
			return
		case l.cut[dir]:
			l.stalled[dir] = append(l.stalled[dir], arrive)
			return
		}
		l.w.said(from, to, "", what)
		deliver()
	}
	l.w.at(at, arrive)
}

func (l *link) delay() time.Duration {
	d := l.q.Delay
	if l.q.Jitter > 0 {
		d += time.Duration(l.w.chance.Int64N(int64(l.q.Jitter)))
	}
	return max(d, time.Microsecond)
}

// sever cuts or restores one or both directions.
func (l *link) sever(upCut, downCut bool) {
	l.cut = [2]bool{upCut, downCut}
	l.changed()
	for dir := range l.cut {
		if l.cut[dir] {
			continue
		}
		held := l.stalled[dir]
		l.stalled[dir] = nil
		for _, arrive := range held {
			l.w.at(l.w.now, arrive) // before later messages
		}
	}
}

func (l *link) obstructed() bool {
	return l.cut[up] || l.cut[down] || !l.lower.running() || !l.upper.running()
}

// changed starts or stops the timeouts of both ends for a connection that carries nothing.
func (l *link) changed() {
	l.trouble++
	if l.conn == 0 || !l.obstructed() {
		return
	}
	trouble := l.trouble
	wait := l.q.Silence + time.Duration(l.w.chance.Int64N(int64(l.q.Silence/2+1)))
	l.w.after(wait, func() {
		if l.trouble == trouble && l.conn != 0 && l.obstructed() {
			l.reset(0, time.Duration(l.w.chance.Int64N(int64(time.Second))))
		}
	})
}

// reset breaks the connection; each end detects it after its own delay.
func (l *link) reset(lowerLearns, upperLearns time.Duration) {
	if l.conn == 0 {
		return
	}
	conn := l.conn
	l.conn, l.stream = 0, 0
	l.trouble++
	l.stalled = [2][]func(){}
	l.fifo = [2]moment{}
	l.w.note(l.name(), "connection %d breaks", conn)
	l.w.after(lowerLearns, func() {
		if l.conn != 0 {
			return
		}
		l.lower.linked(false)
		l.tries = 0
		l.dial(l.redialPause(50*time.Millisecond, 2*time.Second))
	})
	l.w.after(upperLearns, func() {
		// A broker may send a will of the old connection after the new one is up;
		// on a link that keeps order it does not.
		if l.conn == 0 || l.q.Hostile {
			l.upper.linked(false)
		}
	})
}

// dial makes the lower end dial until it has a connection or ends.
func (l *link) dial(in time.Duration) {
	if l.dialing || l.conn != 0 {
		return
	}
	l.dialing = true
	l.w.after(in, func() {
		l.dialing = false
		switch {
		case l.conn != 0 || !l.lower.alive():
		case l.obstructed():
			l.dial(l.redialPause(300*time.Millisecond, 3*time.Second))
		default:
			l.conns++
			l.conn = l.conns
			l.trouble++
			l.w.note(l.name(), "connection %d is up", l.conn)
			l.upper.linked(true)
			l.lower.linked(true)
		}
	})
}
