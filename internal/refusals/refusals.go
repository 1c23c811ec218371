// Package refusals logs refused requests at a limited rate: a few lines per address, and once a
// minute the number of omitted lines.
//
//	refused := refusals.New(log, "sign-in refused")
//	refused.Warn(fairshare.Remote(r.RemoteAddr), "user", name)
package refusals

import (
	"cmp"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/internal/fairshare"
)

const (
	ownBurst, ownRate = 10, 1.0 / 60 // lines of one address: burst, and rate per second
	allBurst, allRate = 200, 2       // likewise of all addresses
	summaryEvery      = time.Minute
	maxCounted        = 1024 // addresses whose omitted lines are counted
	maxValue          = 256  // bytes of one value
)

var addresses = fairshare.Declare(fairshare.Bound{
	Resource: "addresses remembered for refusals in the log", Total: 4096, Per: "subnet; of each message",
	Beyond: "10 lines at once and 1 a minute per address, 200 at once and 2 a second in all; once a minute a line has the number of those left out",
	Attack: "TestAFloodOfRefusalsIsAFewLines",
})

// Log logs one kind of refusal. It is safe for concurrent use.
type Log struct {
	log *slog.Logger
	msg string
	own *fairshare.Rates
	all *fairshare.Rates

	mu      sync.Mutex     // guards the fields below
	omitted int            // lines since the last summary
	counted map[string]int // the omitted lines by address
}

// New returns a Log with the message msg. A nil log is slog.Default.
func New(log *slog.Logger, msg string) *Log {
	log = cmp.Or(log, slog.Default())
	one := addresses
	one.Total = 1
	return &Log{
		log: log, msg: msg, counted: map[string]int{},
		own: fairshare.NewRates(addresses, ownRate, ownBurst), all: fairshare.NewRates(one, allRate, allBurst),
	}
}

// Warn logs a line with args, key-value pairs, unless the address has logged too many lines. path
// is fairshare.Address of the refused address. Values are cut after 256 bytes.
func (l *Log) Warn(path []string, args ...any) {
	now := time.Now()
	subnet, address := path[0], path[len(path)-1]
	if l.own.Allow(now, subnet, address) != nil || l.all.Allow(now, "", "") != nil {
		l.omit(address)
		return
	}
	line := make([]any, len(args))
	for i, a := range args {
		if line[i] = a; i%2 == 1 {
			line[i] = clip(fmt.Sprint(a))
		}
	}
	l.log.Warn(l.msg, line...)
}

// omit counts an omitted line. The first one after a summary schedules the next summary.
func (l *Log) omit(address string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.omitted++; l.omitted == 1 {
		time.AfterFunc(summaryEvery, l.summary)
	}
	if _, ok := l.counted[address]; ok || len(l.counted) < maxCounted {
		l.counted[address]++
	}
}

func (l *Log) summary() {
	l.mu.Lock()
	omitted, counted := l.omitted, l.counted
	l.omitted, l.counted = 0, map[string]int{}
	l.mu.Unlock()
	most, n := "", 0
	for a, k := range counted {
		if k > n || k == n && a < most {
			most, n = a, k
		}
	}
	l.log.Warn(l.msg+": lines left out of the log", "count", omitted, "most_from", most, "of_these", n, "addresses", len(counted))
}

func clip(s string) string {
	if len(s) <= maxValue {
		return s
	}
	return strings.ToValidUTF8(s[:maxValue], "") + "…"
}
