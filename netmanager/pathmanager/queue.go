package pathmanager

import (
	"slices"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/fairshare"
)

// maxMessages and maxPeerMessages bound the messages that wait for Run: of all peers, and of one.
const (
	maxMessages     = 1024
	maxPeerMessages = 256
)

var messageBound = fairshare.Declare(fairshare.Bound{
	Resource: "messages from and to peers that wait for the path manager of a node", Total: maxMessages, Share: []int{maxPeerMessages}, Per: "peer",
	Beyond: "the message is lost, as on the network; a peer gets a further place only while more are free than it holds. Of each kind of event of a peer the newest waits",
	Attack: "TestMessagesOfOnePeerLeaveRoomForOthers",
})

// kind is the kind of a task. At most one task of each kind waits per peer, except messages.
type kind uint8

const (
	setSelf kind = iota
	peerSet
	peerDropped
	measure
	established
	traffic
	silence
	relayFound
	message
)

// peerKinds are the kinds of tasks that DropPeer cancels. Messages are not cancelled.
var peerKinds = [...]kind{peerSet, peerDropped, measure, established, traffic, silence}

// slot identifies a task. A new task replaces the waiting task with the same slot.
type slot struct {
	kind   kind
	peer   api.PeerKey
	relay  string // relayFound
	number uint64 // message
}

type task struct {
	slot
	run   func() // nil: cancelled
	place *fairshare.Place
}

// queue holds the tasks of Run in order. It is bounded: maxPeerMessages messages of a peer and
// maxMessages of all, and one task of each other kind for each peer that the core has or that Run has not
// dropped yet.
type queue struct {
	filled chan struct{} // has an element if there are tasks
	room   *fairshare.Pool

	mu        sync.Mutex // guards the fields below
	tasks     []*task
	waiting   map[slot]*task
	known     map[api.PeerKey]bool // peers that were set and not dropped since, according to the tasks taken
	cancelled int                  // tasks without run
	number    uint64               // of the last message
}

func newQueue() *queue {
	return &queue{
		filled: make(chan struct{}, 1), waiting: map[slot]*task{}, known: map[api.PeerKey]bool{},
		room: fairshare.NewPool(messageBound, fairshare.Policy{Fixed: true}),
	}
}

// put adds a task, or replaces the waiting task with the same slot.
func (q *queue) put(s slot, run func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.add(&task{slot: s, run: run})
}

// message adds a task, which prepare returns, for a message from or to the peer. At the bound the message
// is lost and prepare is not called.
func (q *queue) message(k api.PeerKey, prepare func() func()) {
	place, err := q.room.Take(time.Now(), []string{string(k[:])}, nil)
	if err != nil {
		return
	}
	t := &task{slot: slot{kind: message, peer: k}, run: prepare(), place: place}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.number++
	t.number = q.number
	q.add(t)
}

// drop cancels the peer's tasks, and adds run if Run has the peer.
func (q *queue) drop(k api.PeerKey, run func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, of := range peerKinds {
		s := slot{kind: of, peer: k}
		if t := q.waiting[s]; t != nil {
			t.run = nil
			q.cancelled++
			delete(q.waiting, s)
		}
	}
	if q.known[k] {
		q.add(&task{slot: slot{kind: peerDropped, peer: k}, run: run})
	}
	// Bound the memory of cancelled tasks.
	if 2*q.cancelled > len(q.tasks) {
		q.tasks, q.cancelled = slices.DeleteFunc(q.tasks, func(t *task) bool { return t.run == nil }), 0
	}
}

// add adds a task. q.mu is held.
func (q *queue) add(t *task) {
	if waits := q.waiting[t.slot]; waits != nil {
		waits.run = t.run
		return
	}
	q.tasks = append(q.tasks, t)
	q.waiting[t.slot] = t
	select {
	case q.filled <- struct{}{}:
	default:
	}
}

func (q *queue) take() []*task {
	q.mu.Lock()
	defer q.mu.Unlock()
	all := q.tasks
	q.tasks, q.cancelled = nil, 0
	clear(q.waiting)
	for _, t := range all {
		switch {
		case t.run == nil:
		case t.kind == peerSet:
			q.known[t.peer] = true
		case t.kind == peerDropped:
			delete(q.known, t.peer)
		}
	}
	return all
}

func (t *task) carryOut() {
	if t.place != nil {
		t.place.Release()
	}
	if t.run != nil {
		t.run()
	}
}
