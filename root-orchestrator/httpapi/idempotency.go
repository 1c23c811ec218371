package httpapi

import (
	"bytes"
	"cmp"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/internal/apishare"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/identity/docs"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/problem"
	"github.com/treeline-edge/treeline/internal/store"
)

// Limits of the answers kept for repeated requests.
const (
	keepAnswer = 24 * time.Hour
	maxAnswer  = 64 << 10
	maxKey     = 255
	maxBody    = 1 << 20
	answerUnit = 8 << 10 // bytes of an answer per place in answerPlaces
)

var answerPlaces = fairshare.Declare(fairshare.Bound{
	Resource: "answers kept for Idempotency-Keys", Total: 8192, Unit: "× 8 KiB", Share: []int{2048, 512}, Per: "tenant, then person",
	Beyond: "the oldest answer of the same person or tenant is forgotten; when all is taken, the oldest of the largest tenant",
	Attack: "TestIdempotencyKeysOfOneTenantDoNotEvictAnothers",
})

// KindAnswer is the kind of the answers' documents in the store.
const KindAnswer = "answer"

// answers keeps the answers to POST requests with an Idempotency-Key, per user and across restarts,
// so that a client can repeat a request. An answer may contain a secret, so it is encrypted with a
// key derived from the Idempotency-Key, which is not stored.
type answers struct {
	now   func() time.Time
	log   *slog.Logger
	pool  *fairshare.Pool
	table *docs.Table[answerDoc]

	mu    sync.Mutex // guards the fields below; not held while the table is written
	kept  map[string]*keptAnswer
	stale []string // ids whose documents may differ from kept
}

// answerDoc is the document of an answer. It is written before the request takes effect, and again
// with the answer.
type answerDoc struct {
	Tenant  string    `json:"tenant"`
	User    string    `json:"user"`
	Request []byte    `json:"request"` // SHA-256 of method, path and body
	At      time.Time `json:"at"`
	Done    bool      `json:"done,omitempty"`
	Sealed  []byte    `json:"sealed,omitempty"` // the encrypted JSON of answered
}

// answered is the answer that was sent to the client.
type answered struct {
	Status int         `json:"status"`
	Header http.Header `json:"header"`
	Body   []byte      `json:"body"`
}

// keptAnswer is guarded by answers.mu.
type keptAnswer struct {
	id     string
	doc    answerDoc
	busy   bool // this process is serving the request
	places []*fairshare.Place
}

func newAnswers(st store.Store, loaded []store.Doc, now func() time.Time, log *slog.Logger) (*answers, error) {
	a := &answers{
		now: now, log: log, kept: map[string]*keptAnswer{}, table: docs.New[answerDoc](KindAnswer, st),
		pool: fairshare.NewPool(answerPlaces, fairshare.Replace),
	}
	if err := a.table.Load(loaded); err != nil {
		return nil, fmt.Errorf("restore the answers to Idempotency-Keys: %w", err)
	}
	var restored []*keptAnswer
	for _, d := range loaded {
		if doc, ok := a.table.Get(d.Key); ok && d.Kind == KindAnswer {
			restored = append(restored, &keptAnswer{id: d.Key, doc: doc})
		}
	}
	slices.SortFunc(restored, func(x, y *keptAnswer) int { return x.doc.At.Compare(y.doc.At) })
	for _, n := range restored {
		a.kept[n.id] = n
		if a.grow(n, len(n.doc.Sealed)) != nil {
			a.drop(n)
		}
	}
	return a, nil
}

// wrap makes POST requests with the same Idempotency-Key take effect once.
func (a *answers) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key, p := r.Header.Get("Idempotency-Key"), principal(r.Context())
		// Requests without a token would share keys, and their answers, of sign-ins, contain
		// secrets.
		if r.Method != http.MethodPost || key == "" || p.User == "" {
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
		// The key, which is not stored, keeps readers of the store from guessing values in the body.
		sum := sha256.Sum256(append([]byte(key+"\n"+r.Method+" "+r.URL.RequestURI()+"\n"), body...))

		mine, old, refused := a.begin(p, key, sum[:])
		switch {
		case refused != nil:
			problem.Write(w, refused)
			return
		case old != nil:
			a.replay(w, p.User, key, old)
			return
		}
		rec := &recorder{ResponseWriter: w, status: http.StatusOK}
		finished := false
		defer func() { a.end(r.Context(), mine, p.User, key, rec, finished) }() // also after a panic, to release the key
		if err := a.save(r.Context(), mine.id); err != nil {
			a.log.Error("request refused: its Idempotency-Key was not saved", "user", p.User, "err", err)
			problem.Write(rec, problem.New(http.StatusServiceUnavailable, "the Idempotency-Key was not saved; try again"))
			return
		}
		next.ServeHTTP(rec, r)
		finished = true
	})
}

func idOf(user, key string) string {
	sum := sha256.Sum256([]byte(user + "\x00" + key))
	return hex.EncodeToString(sum[:16])
}

// begin returns the sealed answer to an earlier request (old), or reserves the key for this request
// (mine), or refuses it.
func (a *answers) begin(p rights.Principal, key string, sum []byte) (mine *keptAnswer, old []byte, refused *problem.Problem) {
	id, path, now := idOf(p.User, key), apishare.Path(p), a.now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if had := a.kept[id]; had != nil && (had.busy || now.Sub(had.doc.At) < keepAnswer) {
		switch {
		case !bytes.Equal(had.doc.Request, sum):
			return nil, nil, problem.New(http.StatusUnprocessableEntity, "the Idempotency-Key was used for another request")
		case had.busy:
			return nil, nil, problem.New(http.StatusConflict, "the request with this Idempotency-Key is being served")
		case !had.doc.Done:
			return nil, nil, problem.New(http.StatusConflict,
				"the root stopped while it served the request with this Idempotency-Key; check whether it took effect, and repeat it with a new key if not")
		}
		return nil, had.doc.Sealed, nil
	} else if had != nil {
		a.drop(had)
	}
	mine = &keptAnswer{id: id, busy: true, doc: answerDoc{Tenant: path[0], User: path[1], Request: sum, At: now}}
	if err := a.grow(mine, 0); err != nil {
		return nil, nil, problemOf(err)
	}
	a.kept[id] = mine
	return mine, nil, nil
}

// grow takes the places for an answer of the given size. mu must be held; the pool's calls of drop
// run under it too.
func (a *answers) grow(n *keptAnswer, bytes int) error {
	for len(n.places) < 1+bytes/answerUnit {
		place, err := a.pool.Take(n.doc.At, []string{n.doc.Tenant, n.doc.User}, func() { a.drop(n) })
		if err != nil {
			return err
		}
		n.places = append(n.places, place)
	}
	return nil
}

// drop removes the answer. mu must be held.
func (a *answers) drop(n *keptAnswer) {
	for _, p := range n.places {
		p.Release()
	}
	n.places = nil
	if a.kept[n.id] == n {
		delete(a.kept, n.id)
		a.stale = append(a.stale, n.id)
	}
}

// save writes the state of the answers with the given ids, and deletes the documents of dropped
// answers.
func (a *answers) save(ctx context.Context, ids ...string) error {
	a.mu.Lock()
	ids = append(ids, a.stale...)
	a.stale = nil
	a.mu.Unlock()
	for i, id := range ids {
		err := a.table.Update(ctx, id, func(answerDoc, bool) (answerDoc, error) {
			a.mu.Lock()
			defer a.mu.Unlock()
			if n := a.kept[id]; n != nil {
				return n.doc, nil
			}
			return answerDoc{}, docs.ErrDelete
		})
		if err != nil {
			a.mu.Lock()
			a.stale = append(a.stale, ids[i:]...)
			a.mu.Unlock()
			return fmt.Errorf("save the answer %s: %w", id, err)
		}
	}
	return nil
}

func (a *answers) sweep(ctx context.Context) error {
	now := a.now()
	a.mu.Lock()
	for _, n := range a.kept {
		if !n.busy && now.Sub(n.doc.At) >= keepAnswer {
			a.drop(n)
		}
	}
	a.mu.Unlock()
	return a.save(ctx)
}

// end stores the answer. It drops server errors, 429 and answers that are too large, so that the
// client can repeat the request.
func (a *answers) end(ctx context.Context, mine *keptAnswer, user, key string, rec *recorder, finished bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	var sealed []byte
	keep := finished && rec.status < 500 && rec.status != http.StatusTooManyRequests && rec.body.Len() <= maxAnswer
	if keep {
		text, err := json.Marshal(answered{rec.status, rec.Header(), rec.body.Bytes()})
		if err != nil {
			a.log.Error("answer to an Idempotency-Key not kept", "user", user, "err", err)
			keep = false
		}
		sealed = sealer(user, key).Seal(nil, nil, text, nil)
	}
	a.mu.Lock()
	mine.busy = false
	mine.doc.Done, mine.doc.Sealed = keep, sealed
	if !keep || a.kept[mine.id] != mine || a.grow(mine, len(sealed)) != nil {
		a.drop(mine)
	}
	a.mu.Unlock()
	if err := a.save(ctx, mine.id); err != nil {
		a.log.Error("answer to an Idempotency-Key not saved: it is lost if the root restarts", "user", user, "err", err)
	}
}

func (a *answers) replay(w http.ResponseWriter, user, key string, sealed []byte) {
	var m answered
	text, err := sealer(user, key).Open(nil, nil, sealed, nil)
	if err == nil {
		err = json.Unmarshal(text, &m)
	}
	if err != nil {
		a.log.Error("answer to an Idempotency-Key cannot be read", "user", user, "err", err)
		problem.Write(w, problem.New(http.StatusConflict, "the request with this Idempotency-Key was served, but its stored answer is damaged; check whether it took effect"))
		return
	}
	for k, v := range m.Header {
		w.Header()[k] = v
	}
	w.Header().Set("Idempotency-Replayed", "true")
	w.WriteHeader(cmp.Or(m.Status, http.StatusOK))
	_, _ = w.Write(m.Body) // fails only if the client is gone
}

// sealer returns the cipher for the answer to a user's Idempotency-Key. It puts the nonce before
// the text.
func sealer(user, key string) cipher.AEAD {
	sum := sha256.Sum256([]byte("treeline answer\x00" + user + "\x00" + key))
	block, err := aes.NewCipher(sum[:])
	if err != nil {
		panic(err) // the key has the length of an AES-256 key
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err) // AES has the block size of GCM
	}
	return aead
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
