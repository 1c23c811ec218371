package sched

// interned stores each distinct value once. Ids are small and reused.
type interned[V any] struct {
	ids  map[string]uint32
	all  []internedValue[V]
	free []uint32
}

type internedValue[V any] struct {
	value   V
	key     string
	users   int
	verdict verdict // in the present decision
}

func (in *interned[V]) at(id uint32) *V { return &in.all[id].value }

// acquire returns the id of the value with the key and increments its users.
func (in *interned[V]) acquire(key string, make func() V) uint32 {
	id, ok := in.ids[key]
	if !ok {
		if in.ids == nil {
			in.ids = map[string]uint32{}
		}
		if n := len(in.free); n > 0 {
			id, in.free = in.free[n-1], in.free[:n-1]
		} else {
			id = uint32(len(in.all))
			in.all = append(in.all, internedValue[V]{})
		}
		in.ids[key] = id
		in.all[id] = internedValue[V]{value: make(), key: key}
	}
	in.all[id].users++
	return id
}

// release decrements the users of a value and removes it after the last.
func (in *interned[V]) release(id uint32) {
	s := &in.all[id]
	if s.users--; s.users == 0 {
		delete(in.ids, s.key)
		*s = internedValue[V]{}
		in.free = append(in.free, id)
	}
}
