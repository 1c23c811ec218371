package sim

import (
	"fmt"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// call is a client's packet, which it repeats until an instance takes its flows.
type call struct {
	wanted
	since, until moment
}

func (c *Console) call(id api.ServiceID) error {
	s, ok := c.w.root.core.Service(id)
	if !ok {
		return fmt.Errorf("service %s: %w", id, api.ErrNotFound)
	}
	k := &call{wanted: wanted{service: s}, since: c.w.now}
	c.calls = append(c.calls, k)
	var send, look func()
	send = func() {
		if c.w.call(&k.wanted); !k.answered {
			c.w.after(callEvery, send)
		}
	}
	look = func() { // the kernel holds the packet, and forwards it as soon as there is a route
		if k.answered = k.answered || c.w.answers(&k.wanted); k.answered {
			k.until = c.w.now
			c.w.note("client", "has an answer of %s", id)
			return
		}
		c.w.after(10*time.Millisecond, look)
	}
	send()
	look()
	return nil
}

func (k *call) standing() string {
	if k.answered {
		return fmt.Sprintf("answered after %s", k.until-k.since)
	}
	return "waits"
}
