package wayfinder

import (
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/fairshare"
)

var messagePlaces = fairshare.Declare(fairshare.Bound{
	Resource: "messages from and to peers that wait for the path manager of a node", Total: 1024, Per: "peer",
	Beyond: "the message is lost, as on the network; a peer gets a further place only while more are free than it holds. Of each kind of event of a peer the newest waits",
	Attack: "TestMessagesOfOnePeerLeaveRoomForOthers",
})

// kind is what a task is about. Of each kind but message one task of a peer waits.
type kind uint8

const (
	selfSet kind = iota
	peerSet
	peerDropped
	measure
	established
	traffic
	silence
	relayFound
	message
)

// slot is where a task waits; a task replaces the one that waits in its slot.
type slot struct {
	kind  kind
	peer  api.PeerKey
	relay string // relayFound
	no    uint64 // message
}

type task struct {
	run   func() // nil: it has no effect any more
	place *fairshare.Place
}

// inbox keeps what Run has yet to do, in order. It has a bounded number of messages,
// shared among peers, and of each peer that is known one task of each other kind.
type inbox struct {
	filled chan struct{} // has an element when there are tasks
	room   *fairshare.Pool

	mu    sync.Mutex // guards the fields below
	tasks []*task
	at    map[slot]*task
	no    uint64
}

func newInbox() *inbox {
	return &inbox{
		filled: make(chan struct{}, 1), at: map[slot]*task{},
		room: fairshare.NewPool(messagePlaces, fairshare.Policy{Fixed: true}),
	}
}

// put adds a task, in place of the one that waits in the slot.
func (b *inbox) put(s slot, run func()) {
	b.mu.Lock()
	b.add(s, &task{run: run})
	b.mu.Unlock()
	b.wake()
}

// message adds a task for a message of or to the peer, or drops it where there is no
// room. make makes the task if there is.
func (b *inbox) message(k api.PeerKey, make func() func()) {
	place, err := b.room.Take(time.Now(), []string{string(k[:])}, nil)
	if err != nil {
		return
	}
	t := &task{run: make(), place: place}
	b.mu.Lock()
	b.no++
	b.add(slot{kind: message, peer: k, no: b.no}, t)
	b.mu.Unlock()
	b.wake()
}

// drop adds a task after which nothing before counts for the peer.
func (b *inbox) drop(k api.PeerKey, run func()) {
	b.mu.Lock()
	for _, of := range []kind{peerSet, peerDropped, measure, established, traffic, silence} {
		s := slot{kind: of, peer: k}
		if t := b.at[s]; t != nil {
			t.run = nil
			delete(b.at, s)
		}
	}
	b.add(slot{kind: peerDropped, peer: k}, &task{run: run})
	b.mu.Unlock()
	b.wake()
}

// add is called with mu held.
func (b *inbox) add(s slot, t *task) {
	if waits := b.at[s]; waits != nil {
		waits.run = t.run
		return
	}
	b.tasks = append(b.tasks, t)
	b.at[s] = t
}

func (b *inbox) wake() {
	select {
	case b.filled <- struct{}{}:
	default:
	}
}

// take empties the inbox.
func (b *inbox) take() []*task {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := b.tasks
	b.tasks = nil
	clear(b.at)
	return all
}

// size is the number of tasks that wait.
func (b *inbox) size() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.tasks)
}

func (t *task) carryOut() {
	if t.place != nil {
		t.place.Release()
	}
	if t.run != nil {
		t.run()
	}
}
