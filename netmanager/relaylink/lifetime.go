package relaylink

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"time"

	"github.com/treeline-edge/treeline/internal/relaywire"
)

// test determines whether the NAT keeps a mapping during a silence. It sends a request on its own socket,
// which the relay answers after the silence.
func (v *owner) test(silence time.Duration) {
	v.b.seq = max(v.b.seq+1, uint64(time.Now().UnixNano()))
	req := relaywire.Request{Slot: v.b.slot, Seq: v.b.seq, Late: silence}
	relay, secret, epoch := v.b.relays[0], v.b.secret, v.b.epoch
	v.all.Go(func() {
		survived, err := v.survives(relay, req, secret)
		if err != nil {
			v.l.opt.Log.Debug("test of the NAT's mapping failed", "err", err)
			pause(v.ctx, silence) // before tested begins the test again
		}
		_ = v.l.do(v.ctx, func(v *owner) { v.b.tested(epoch, survived, err) })
	})
}

// survives reports whether the late answer arrived, which means that the NAT kept the mapping. An error of
// the socket is no result: the relay or the network may have failed.
func (v *owner) survives(relay netip.AddrPort, req relaywire.Request, secret []byte) (bool, error) {
	conn, err := v.l.opt.Probe(relay)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	defer context.AfterFunc(v.ctx, func() { _ = conn.Close() })()
	if _, err := conn.Write(req.Append(nil, secret)); err != nil {
		return false, err
	}
	_ = conn.SetReadDeadline(time.Now().Add(req.Late + 5*time.Second))
	buf := make([]byte, relaywire.AnswerLen+1)
	for {
		n, err := conn.Read(buf)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return false, nil
		case err != nil:
			return false, err
		}
		if ans, err := relaywire.ParseAnswer(buf[:n], secret); err == nil && ans.Late && ans.Seq == req.Seq {
			return true, nil
		}
	}
}
