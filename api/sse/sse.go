// Package sse reads and writes server-sent events.
//
//	err := sse.Read(resp.Body, nil, func(e sse.Event) error { … })
package sse

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/treeline-edge/treeline/api"
)

// MaxEvent limits the data of an event, in bytes. The largest event is a whole desired set of a
// cluster.
const MaxEvent = 64 << 20

// Event is one event. Data has the lines of its data fields, joined by "\n".
type Event struct {
	Name, ID string
	Data     []byte
}

// Encode returns the text of an event with data as JSON. An empty id is left out.
func Encode(name, id string, data any) ([]byte, error) {
	b, err := json.Marshal(data)
	if err != nil {
		return nil, fmt.Errorf("encode a %s event: %w", name, err)
	}
	if id != "" {
		id = "id: " + id + "\n"
	}
	return fmt.Appendf(nil, "event: %s\n%sdata: %s\n\n", name, id, b), nil
}

// Read calls fn with each event until the stream ends or fn fails, and returns fn's error. It calls
// line, if not nil, for each line, including comments. Errors: ErrUnavailable (the stream broke),
// ErrTooLarge (see MaxEvent). It drops an incomplete event at the end.
func Read(r io.Reader, line func(), fn func(Event) error) error {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 0, 64<<10), MaxEvent)
	var e Event
	for s.Scan() {
		if line != nil {
			line()
		}
		if len(s.Bytes()) == 0 {
			if e.Name != "" || e.Data != nil {
				if err := fn(e); err != nil {
					return err
				}
			}
			e = Event{}
			continue
		}
		field, value, _ := bytes.Cut(s.Bytes(), []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "event":
			e.Name = string(value)
		case "id":
			e.ID = string(value)
		case "data":
			if e.Data != nil {
				e.Data = append(e.Data, '\n')
			}
			if e.Data = append(e.Data, value...); len(e.Data) > MaxEvent {
				return tooLarge()
			}
		}
	}
	switch err := s.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return tooLarge()
	case err != nil:
		return fmt.Errorf("the stream broke: %w: %w", err, api.ErrUnavailable)
	}
	return nil
}

func tooLarge() error {
	return fmt.Errorf("an event has more than %d bytes: %w", MaxEvent, api.ErrTooLarge)
}
