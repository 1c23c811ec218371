package rootlink

import (
	"bufio"
	"bytes"
	"fmt"
	"io"

	"github.com/treeline-edge/treeline/api"
)

// maxEvent bounds one event: a whole desired set.
const maxEvent = 64 << 20

// event is one server-sent event.
type event struct {
	name string
	data []byte
}

// readEvents calls fn with each event of the stream until it ends, and alive
// with each line, comments included.
func readEvents(r io.Reader, alive func(), fn func(event)) error {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 0, 64<<10), maxEvent)
	var e event
	for s.Scan() {
		alive()
		line := s.Bytes()
		if len(line) == 0 {
			if e.name != "" || e.data != nil {
				fn(e)
			}
			e = event{}
			continue
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "event":
			e.name = string(value)
		case "data":
			if e.data != nil {
				e.data = append(e.data, '\n')
			}
			e.data = append(e.data, value...)
			if len(e.data) > maxEvent {
				return fmt.Errorf("an event of the root has more than %d bytes: %w", maxEvent, api.ErrTooLarge)
			}
		}
	}
	return s.Err()
}
