// Package access connects users with the streams to workloads (exec, attach, port-forward) and volumes
// (snapshot, restore) over WebSockets, for the APIs of root and clusters. The messages are binary, and only their contents
// matter: they are the bytes of the stream. A browser may open such a connection only from the
// server's own pages.
//
//	result := access.Serve(ctx, w, r, stream)   // until either side ends it
package access

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/coder/websocket"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/frames"
	"github.com/treeline-edge/treeline/internal/identity/grant"
	"github.com/treeline-edge/treeline/internal/streams"
	"github.com/treeline-edge/treeline/internal/wire"
)

// Protocol is the WebSocket subprotocol of the streams.
const Protocol = "treeline.v1"

// Descriptions of the operations that serve streams, and AboutCopy those of volumes by kind of stream.
const (
	AboutExec = "Run a process in the workload, over a WebSocket with the subprotocol " + Protocol + ". The bytes of its binary messages are frames: " +
		"kind (1 byte), length (2 bytes, big endian), payload. Kinds of the client: 1 input, 4 size of the terminal (columns and rows, 2 bytes each), 5 end of the input. " +
		"Kinds of the process: 2 output, 3 errors, 6 exit code (4 bytes), 7 a problem. The end of the connection kills the process. A browser may send its token as the further subprotocol treeline.token.<token>."
	AboutAttach = "What the workload writes from now on, and its exit code, over a WebSocket with the frames of exec. " +
		"With stdin, the client's input goes to the workload, whose input frame 5 ends for good; the end of the connection does not."
	AboutForward = "Connections to ports of the workload, over a WebSocket with the subprotocol " + Protocol + ": a yamux session whose streams begin with the protocol " +
		"(1 byte: 6 TCP, 17 UDP) and the port (2 bytes, big endian)."
)

var AboutCopy = map[string]string{
	"snapshot": "The files of a local volume as a tar archive with a checksum, over a WebSocket with the frames of exec: the archive as output, and the exit code 0 when it is complete. " +
		"An instance may have the volume; its writes wait until the node has copied the files on its disk.",
	"restore": "Replaces the files of a local volume by those of a snapshot, over a WebSocket with the frames of exec: the client sends the archive as input and then the end of the input; " +
		"the exit code 0 says that the files were replaced. The volume keeps its files if anything fails. A volume that an instance has is not restored.",
}

// LogsIn is the part of an input that selects what to read of a log.
type LogsIn struct {
	Follow     bool `query:"follow" doc:"Continue as the workload writes."`
	Tail       int  `query:"tail" default:"-1" minimum:"-1" doc:"Lines from the end; -1: all that are kept."`
	Since      int  `query:"since" minimum:"0" maximum:"31536000" doc:"Only lines of the last seconds, to the second; 0: all."`
	Timestamps bool `query:"timestamps" doc:"Begin each line with its time, to the second, in UTC."`
	Previous   bool `query:"previous" doc:"The output of the attempt before the last restart."`
}

// Request returns the request for the logs of an instance.
func (in LogsIn) Request(id api.InstanceID) wire.StreamRequest {
	r := wire.StreamRequest{Kind: "logs", Instance: id, Follow: in.Follow, Tail: in.Tail}
	if in.Since > 0 || in.Timestamps || in.Previous {
		r.Kind = "loglines"
		r.Lines = &wire.LogLines{Since: time.Duration(in.Since) * time.Second, Timestamps: in.Timestamps, Previous: in.Previous}
	}
	return r
}

// Upgrade is the part of an input that asks for a WebSocket.
type Upgrade struct {
	Upgrade string `header:"Upgrade" doc:"websocket."`
}

// Check returns ErrInvalid unless the request asks for a WebSocket. It is called before anything is
// started for the request.
func (u Upgrade) Check() error {
	if !strings.EqualFold(u.Upgrade, "websocket") {
		return fmt.Errorf("this operation answers WebSocket requests (RFC 6455, over HTTP/1.1) with the subprotocol %s only: %w", Protocol, api.ErrInvalid)
	}
	return nil
}

// ExecIn is the input of the operation that runs a process in a workload.
type ExecIn struct {
	Upgrade
	ID     string   `path:"id" maxLength:"512" doc:"The instance's id, with ~ for / and #."`
	Args   []string `query:"arg,explode" maxItems:"256" doc:"The program and its arguments."`
	TTY    bool     `query:"tty" doc:"Run it in a terminal."`
	Stdin  bool     `query:"stdin" doc:"Pass the client's input to it."`
	Width  uint16   `query:"width" doc:"Columns of the terminal."`
	Height uint16   `query:"height" doc:"Rows of the terminal."`
}

// Exec returns the process that the input describes.
func (in *ExecIn) Exec() *api.Exec {
	return &api.Exec{Args: in.Args, TTY: in.TTY, Stdin: in.Stdin, Width: in.Width, Height: in.Height}
}

// AttachIn is the input of the operation that attaches to a workload.
type AttachIn struct {
	Upgrade
	ID     string `path:"id" maxLength:"512" doc:"The instance's id, with ~ for / and #."`
	Stdin  bool   `query:"stdin" doc:"Pass the client's input to the workload, whose service needs stdin or tty."`
	TTY    bool   `query:"tty" doc:"Set the size of the workload's terminal, whose service needs tty."`
	Width  uint16 `query:"width" doc:"Columns of the client's terminal."`
	Height uint16 `query:"height" doc:"Rows of the client's terminal."`
}

// Request returns the request that the input describes.
func (in *AttachIn) Request() wire.StreamRequest {
	r := wire.StreamRequest{Kind: "attach"}
	if in.Stdin || in.TTY {
		r.Exec = &api.Exec{Stdin: in.Stdin, TTY: in.TTY, Width: in.Width, Height: in.Height}
	}
	return r
}

// Describe returns the text of the attach for events and logs.
func (in *AttachIn) Describe() string {
	switch {
	case in.Stdin && in.TTY:
		return "attach with input and terminal"
	case in.Stdin:
		return "attach with input"
	}
	return "attach"
}

// InstanceIn is the input of the other operations.
type InstanceIn struct {
	Upgrade
	ID string `path:"id" maxLength:"512" doc:"The instance's id, with ~ for / and #."`
}

// VolumeIn is the input of the operations that copy a volume.
type VolumeIn struct {
	Upgrade
	ID string `path:"id" maxLength:"1024" doc:"The volume's id, with ~ for / and #."`
}

// Request returns the request that the input describes. An id that is none is ErrInvalid, and so is that of a shared
// volume: those are of CSI drivers, and only local volumes are copied.
func (in *VolumeIn) Request(kind string) (wire.StreamRequest, error) {
	id, err := api.ParseVolumeID(string(api.VolumeFromPath(in.ID)))
	if err == nil && id.Shared() {
		return wire.StreamRequest{}, OfDriver(kind, id)
	}
	return wire.StreamRequest{Kind: kind, Instance: id.Instance(), Path: string(id)}, err
}

// OfDriver returns the error for a copy of the files of a CSI volume.
func OfDriver(kind string, id api.VolumeID) error {
	return fmt.Errorf("%s volume %s: its files are with its CSI driver, which takes snapshots (treeline snapshot volume %s --name NAME) and creates volumes from them (snapshot of volumes in the SLA): %w",
		kind, id, id.Name(), api.ErrInvalid)
}

// NotCreated returns the error for a restore of a volume that does not exist.
func NotCreated(id api.VolumeID) error {
	return fmt.Errorf("restore volume %s: it does not exist yet, and gets its node and size from its instance: apply its SLA, wait until %s has run, "+
		"stop it with treeline scale %s 0, and restore it then: %w", id, id.Instance(), id.Instance().Service(), api.ErrNotFound)
}

// InUse returns the error for a restore of a volume that an instance has or may have again.
func InUse(id api.VolumeID) error {
	return fmt.Errorf("restore volume %s: instance %s has it; stop it first with treeline scale %s 0, and scale it back afterwards: %w",
		id, id.Instance(), id.Instance().Service(), api.ErrConflict)
}

// Describe returns the text of an exec for events and logs.
func Describe(e *api.Exec) string {
	quoted := make([]string, len(e.Args))
	for i, a := range e.Args {
		if quoted[i] = a; a == "" || strings.ContainsFunc(a, func(r rune) bool { return r <= ' ' || r == '"' || r == '\\' || r >= 0x7f }) {
			quoted[i] = strconv.Quote(a)
		}
	}
	text := "exec " + strings.Join(quoted, " ")
	if e.TTY {
		text += " (in a terminal)"
	}
	return text
}

// Result is how a stream ended.
type Result struct {
	Down int64         // bytes to the user
	Exit *int          // the exit code that the node reported; nil: unknown
	Time time.Duration // that it lasted
	Err  error         // why it ended early; nil: one side ended it
}

// String describes the result for events and logs.
func (r Result) String() string {
	text := "ended after " + r.Time.Round(time.Millisecond).String()
	switch {
	case r.Exit != nil:
		text += fmt.Sprintf(" with exit code %d", *r.Exit)
	case r.Err != nil:
		text += ": " + r.Err.Error()
	}
	return text
}

// Serve upgrades the request and passes bytes between the user and the stream until either side or ctx
// ends. It closes the stream. It answers a request that it cannot upgrade.
func Serve(ctx context.Context, w http.ResponseWriter, r *http.Request, stream io.ReadWriteCloser) Result {
	began := time.Now()
	c, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{Protocol}, CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		_ = stream.Close()
		return Result{Err: fmt.Errorf("upgrade to a WebSocket: %w", err), Time: time.Since(began)}
	}
	var tail frames.Tail
	conn := websocket.NetConn(context.WithoutCancel(ctx), c, websocket.MessageBinary)
	err = streams.Splice(ctx, stream, conn, tail.Add, func(err error) {
		code, reason := closing(err)
		_ = c.Close(code, reason)
		_ = c.CloseNow()
	})
	if err != nil && ctx.Err() != nil { // the other side may have been told, and have ended the stream, before this one
		err = context.Cause(ctx)
	}
	out := Result{Down: tail.Len(), Err: err, Time: time.Since(began)}
	if code, ok := tail.Exit(); ok {
		out.Exit, out.Err = &code, nil
	}
	return out
}

// maxReason is the longest reason that a close frame has room for.
const maxReason = 120

// closing returns the status of the close frame.
func closing(err error) (websocket.StatusCode, string) {
	switch {
	case err == nil:
		return websocket.StatusNormalClosure, ""
	case errors.Is(err, grant.ErrEnded):
		return websocket.StatusPolicyViolation, "the authorization of this stream has ended"
	case errors.Is(err, context.Canceled):
		return websocket.StatusServiceRestart, "the server is stopping or the stream lost its place"
	}
	text := "the stream to the node broke: " + err.Error()
	return websocket.StatusInternalError, strings.ToValidUTF8(text[:min(len(text), maxReason)], "")
}
