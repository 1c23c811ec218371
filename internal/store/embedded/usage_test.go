package embedded_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/store/embedded"
)

// Documents are created and deleted, and others overwritten. The amount of data stays the same, and the
// file stops growing.
func TestFileStopsGrowingWhereDocumentsComeAndGo(t *testing.T) {
	const instances, history, cycles = 60, 200, 12
	path := filepath.Join(t.TempDir(), "root.db")
	s, err := embedded.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	versions := map[[2]string]uint64{}
	put := func(kind, key string, size int) (d store.Doc) {
		at := [2]string{kind, key}
		versions[at]++
		if d = (store.Doc{Kind: kind, Key: key, Version: versions[at]}); size > 0 {
			d.Data = make([]byte, size)
		} else {
			delete(versions, at)
		}
		return d
	}
	told := 0
	var used, file []int64
	for c := range cycles {
		for _, size := range []int{900, 1100, 1000, 0} {
			for i := range instances {
				docs := []store.Doc{put("instance", fmt.Sprintf("acme/herd.prod.web.prod#%d", i), size), put("event", fmt.Sprint(told%history), 400+told%50)}
				told++
				if err := s.Save(t.Context(), docs); err != nil {
					t.Fatal(err)
				}
			}
		}
		u, err := embedded.Measure(path)
		if err != nil {
			t.Fatal(err)
		}
		if n, m := u.Kinds["instance"].Documents, u.Kinds["event"].Documents; n != 0 || m != history {
			t.Errorf("cycle %d: the store holds %d instances and %d events, want 0 and %d", c, n, m, history)
		}
		used, file = append(used, u.Used), append(file, u.File)
	}
	if last := file[cycles-1]; last != file[cycles/2] {
		t.Errorf("the file grew in the second half of the cycles: %v", file)
	}
	if most := used[1] * 5 / 4; used[cycles-1] > most {
		t.Errorf("pages in use grew: %v", used)
	}
}

func TestMeasureCountsDocumentsOfAStoreInUse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "root.db")
	s, err := embedded.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	docs := []store.Doc{{Kind: "a", Key: "1", Version: 1, Data: make([]byte, 100)}, {Kind: "a", Key: "22", Version: 1, Data: make([]byte, 10)}, {Kind: "b", Key: "1", Version: 1, Data: []byte{}}}
	if err := s.Save(t.Context(), docs); err != nil {
		t.Fatal(err)
	}
	u, err := embedded.Measure(path)
	if err != nil {
		t.Fatal(err)
	}
	// Each key is the kind, a zero byte and the key, each value 16 bytes and the data.
	if a, b := u.Kinds["a"], u.Kinds["b"]; a != (embedded.Kind{Documents: 2, Bytes: 3 + 116 + 4 + 26}) || b != (embedded.Kind{Documents: 1, Bytes: 3 + 16}) || len(u.Kinds) != 2 {
		t.Errorf("measured %+v", u.Kinds)
	}
	if u.Used <= 0 || u.File < u.Used {
		t.Errorf("measured %d bytes in use of %d", u.Used, u.File)
	}
	if _, err := embedded.Measure(path + "x"); err == nil {
		t.Error("a file that does not exist was measured, want an error")
	}
}
