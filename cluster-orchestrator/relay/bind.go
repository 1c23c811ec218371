package relay

import (
	"net/netip"
	"time"

	"github.com/treeline-edge/treeline/internal/relaywire"
	"github.com/treeline-edge/treeline/internal/udp"
)

// bind handles a binding request. A request that is not authentic is ignored.
func (r *Relay) bind(c *udp.Conn, from netip.AddrPort, b []byte) {
	req, err := relaywire.ParseRequest(b)
	if err != nil {
		r.n[Malformed].Add(1)
		return
	}
	s := r.slot(req.Slot)
	if s == nil {
		r.n[Strangers].Add(1)
		return
	}
	ans := relaywire.Answer{Slot: req.Slot, Seq: req.Seq, Addr: from, Alt: r.alt.Local().Port()}
	s.mu.Lock()
	secret := s.secret
	if !relaywire.Authentic(b, secret) {
		s.mu.Unlock()
		r.n[Strangers].Add(1)
		return
	}
	var replaced *stream
	switch {
	case req.Seq <= s.last:
		ans.Result = relaywire.Stale
	default:
		s.last = req.Seq
		if req.Bind && c == r.main {
			ans.Result = relaywire.Bound
			replaced, s.conn, s.addr = s.conn, nil, from
		}
		if req.Late > 0 {
			r.answerLater(c, s, req.Late, from, ans)
		}
	}
	ans.Last = s.last
	s.mu.Unlock()
	if replaced != nil {
		replaced.close()
	}
	if ans.Result == relaywire.Bound {
		r.n[Bindings].Add(1)
	}
	r.answer(c, from, ans, secret)
}

// answerLater schedules a second answer through the same socket. If the node receives it, its NAT
// keeps mappings at least that long. A slot has at most one such answer scheduled. The caller
// holds s.mu.
func (r *Relay) answerLater(c *udp.Conn, s *slot, wait time.Duration, to netip.AddrPort, ans relaywire.Answer) {
	if s.late != nil {
		s.late.Stop()
	}
	ans.Late, ans.Result, ans.Last = true, relaywire.Seen, s.last
	secret := s.secret
	s.late = time.AfterFunc(wait, func() { r.answer(c, to, ans, secret) })
}

func (r *Relay) answer(c *udp.Conn, to netip.AddrPort, ans relaywire.Answer, secret []byte) {
	msg := ans.Append(make([]byte, 0, relaywire.AnswerLen), secret)
	r.answers.Lock()
	defer r.answers.Unlock()
	sender := r.sender
	if c == r.alt {
		sender = r.altSender
	}
	if sender.Send(to, msg, len(msg)) != nil {
		r.n[Failed].Add(1)
	}
}
