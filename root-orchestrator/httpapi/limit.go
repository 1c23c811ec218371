package httpapi

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/internal/problem"
)

// bodyWait is how long a body may take to come.
const bodyWait = 30 * time.Second

// maxSmallBody bounds the bodies of all operations but those that take an SLA.
const maxSmallBody = 64 << 10

// bodyLimit returns the most bytes that a request's body may have. Only SLA
// documents are large. Bodies of other operations are parsed as they come, some
// of them before anybody has signed in.
func bodyLimit(r *http.Request) int64 {
	if r.URL.Path == "/v1/apps" || r.URL.Path == "/v1/apps:plan" {
		return maxBody
	}
	return maxSmallBody
}

// readBody reads the body, within bodyLimit, before anything parses it. A body
// whose declared length is larger is refused before a byte is read.
func readBody(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		limit := bodyLimit(r)
		large := problem.New(http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is larger than %d KiB", limit>>10))
		if r.ContentLength > limit {
			problem.Write(w, large)
			return
		}
		if r.ContentLength != 0 {
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyWait))
			body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
			var tooLarge *http.MaxBytesError
			if errors.As(err, &tooLarge) {
				problem.Write(w, large)
				return
			}
			if err != nil {
				problem.Write(w, problem.New(http.StatusBadRequest, "the body could not be read"))
				return
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
			r.ContentLength = int64(len(body))
		}
		next.ServeHTTP(w, r)
	})
}

const maxBuckets = 10_000

// buckets are token buckets, one per key: generous for people and scripts, a
// wall for loops that ran wild and for guessers of passwords.
type buckets struct {
	rate, burst float64 // requests a second, at once
	now         func() time.Time

	mu sync.Mutex // guards m
	m  map[string]*bucket
}

type bucket struct {
	left float64
	at   time.Time
}

func newBuckets(rate, burst float64, now func() time.Time) *buckets {
	return &buckets{rate: rate, burst: burst, now: now, m: map[string]*bucket{}}
}

// take reports whether the key has a request left, and else when it will.
func (b *buckets) take(key string) (ok bool, wait time.Duration) {
	now := b.now()
	b.mu.Lock()
	defer b.mu.Unlock()
	k := b.m[key]
	if k == nil {
		if len(b.m) >= maxBuckets {
			b.forgetFull(now)
		}
		k = &bucket{left: b.burst, at: now}
		b.m[key] = k
	}
	k.left = min(b.burst, k.left+now.Sub(k.at).Seconds()*b.rate)
	k.at = now
	if k.left >= 1 {
		k.left--
		return true, 0
	}
	return false, time.Duration((1 - k.left) / b.rate * float64(time.Second))
}

// forgetFull drops the buckets that are full again, which are as good as new;
// if that is none, all: a flood of keys shall not fill the memory.
func (b *buckets) forgetFull(now time.Time) {
	for key, k := range b.m {
		if k.left+now.Sub(k.at).Seconds()*b.rate >= b.burst {
			delete(b.m, key)
		}
	}
	if len(b.m) >= maxBuckets {
		clear(b.m)
	}
}

// wrap limits by principal, and those who are nobody by address.
func (b *buckets) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := principal(r.Context()).User
		if key == "" {
			key = "@" + hostOf(r.RemoteAddr)
		}
		if ok, wait := b.take(key); !ok {
			tooMany(w, wait)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func tooMany(w http.ResponseWriter, wait time.Duration) {
	w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(wait.Seconds()))))
	problem.Write(w, problem.New(http.StatusTooManyRequests, "too many requests, wait a moment"))
}

func hostOf(addr string) string {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	return host
}
