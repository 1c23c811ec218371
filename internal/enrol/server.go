package enrol

import (
	"context"
	"net/http"

	"github.com/treeline-edge/treeline/internal/apishare"
	"github.com/treeline-edge/treeline/internal/call"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/refusals"
)

// Server answers join requests. Admit must be idempotent, because a join whose answer was lost is
// repeated with the same key.
type Server[Request, Answer any] struct {
	Shares  *apishare.Shares
	Refused *refusals.Log
	Admit   func(context.Context, Request) (Answer, error)
	// Describe returns key-value pairs about a refused request, for the log.
	Describe func(Request) []any
	// Fail writes an error; nil: call.Write.
	Fail func(http.ResponseWriter, *http.Request, error)
}

// ServeHTTP admits a member, or refuses it and logs the refusal.
func (s *Server[Request, Answer]) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var req Request
	var out Answer
	err := s.Shares.Do(r, apishare.Join(r.RemoteAddr), func(r *http.Request) error {
		err := call.ReadJSON(w, r, &req)
		if err == nil {
			out, err = s.Admit(r.Context(), req)
		}
		return err
	})
	if err == nil {
		call.WriteJSON(w, out)
		return
	}
	s.Refused.Warn(fairshare.Remote(r.RemoteAddr), append(s.Describe(req), "from", r.RemoteAddr, "err", err)...)
	if s.Fail != nil {
		s.Fail(w, r, err)
		return
	}
	call.Write(w, err)
}
