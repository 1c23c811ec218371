package httpapi

import (
	"bytes"
	"crypto/sha256"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/internal/problem"
)

// Bounds of what is kept for requests that are repeated.
const (
	keepAnswer  = 24 * time.Hour
	maxAnswers  = 4096
	maxAnswer   = 64 << 10
	maxKey      = 255
	maxBody     = 1 << 20
	noMoreSpace = "too many requests with an Idempotency-Key are under way, try again"
)

// answers remembers what POSTs with an Idempotency-Key were answered, per
// principal, so that a client whose answer was lost may ask again. The memory is
// the process's: after a restart of the root a key counts as new.
type answers struct {
	now func() time.Time

	mu   sync.Mutex // guards both
	kept map[answerKey]*answer
	age  []answerKey // oldest first
}

type answerKey struct{ who, key string }

type answer struct {
	request [sha256.Size]byte // method, path and body
	done    bool
	at      time.Time
	status  int
	header  http.Header
	body    []byte
}

func newAnswers(now func() time.Time) *answers {
	return &answers{now: now, kept: map[answerKey]*answer{}}
}

// wrap serves each POST with an Idempotency-Key once.
func (a *answers) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := r.Header.Get("Idempotency-Key")
		who := principal(r.Context()).User
		// Those who are nobody share no key, and sign-ins leave no secrets here.
		if r.Method != http.MethodPost || key == "" || who == "" {
			next.ServeHTTP(w, r)
			return
		}
		if len(key) > maxKey {
			problem.Write(w, problem.New(http.StatusUnprocessableEntity, "the Idempotency-Key is longer than 255 bytes"))
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			problem.Write(w, problem.New(http.StatusBadRequest, "the body could not be read"))
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		sum := sha256.Sum256(append([]byte(r.Method+" "+r.URL.RequestURI()+"\n"), body...))
		id := answerKey{who, key}

		mine, p := a.begin(id, sum)
		if p != nil {
			problem.Write(w, p)
			return
		}
		if mine.done {
			mine.replay(w)
			return
		}
		rec := &recorder{ResponseWriter: w, status: http.StatusOK}
		finished := false
		defer func() { a.end(id, mine, rec, finished) }() // after a panic too: the key is free again
		next.ServeHTTP(rec, r)
		finished = true
	})
}

// begin finds the answer of an earlier request, or takes the key for this one.
func (a *answers) begin(id answerKey, sum [sha256.Size]byte) (*answer, *problem.Problem) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.expire()
	if old, ok := a.kept[id]; ok {
		switch {
		case old.request != sum:
			return nil, problem.New(http.StatusUnprocessableEntity, "the Idempotency-Key was used for another request")
		case !old.done:
			return nil, problem.New(http.StatusConflict, "the request with this Idempotency-Key is under way")
		}
		return old, nil
	}
	if len(a.kept) >= maxAnswers {
		return nil, problem.New(http.StatusServiceUnavailable, noMoreSpace)
	}
	n := &answer{request: sum, at: a.now()}
	a.kept[id] = n
	a.age = append(a.age, id)
	return n, nil
}

// expire forgets what is too old, and of what is answered the oldest where
// there is no room.
func (a *answers) expire() {
	now := a.now()
	for len(a.age) > 0 {
		id := a.age[0]
		old, ok := a.kept[id]
		if ok && (!old.done || now.Sub(old.at) < keepAnswer && len(a.kept) < maxAnswers) {
			return
		}
		delete(a.kept, id)
		a.age = a.age[1:]
	}
}

// end keeps the answer, unless it was our fault or too large: then the same
// request may try again.
func (a *answers) end(id answerKey, mine *answer, rec *recorder, finished bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !finished || rec.status >= 500 || rec.status == http.StatusTooManyRequests || rec.body.Len() > maxAnswer {
		if a.kept[id] == mine {
			delete(a.kept, id)
		}
		return
	}
	mine.done, mine.status, mine.header, mine.body = true, rec.status, rec.Header().Clone(), rec.body.Bytes()
}

func (m *answer) replay(w http.ResponseWriter) {
	for k, v := range m.header {
		w.Header()[k] = v
	}
	w.Header().Set("Idempotency-Replayed", "true")
	w.WriteHeader(m.status)
	_, _ = w.Write(m.body) // who asked is gone
}

type recorder struct {
	http.ResponseWriter
	status int
	body   bytes.Buffer
}

func (r *recorder) WriteHeader(status int) {
	r.status = status
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(b []byte) (int, error) {
	if r.body.Len() <= maxAnswer {
		r.body.Write(b)
	}
	return r.ResponseWriter.Write(b)
}

func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }
