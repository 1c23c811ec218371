package embedded

import "os"

// Usage describes the contents of a store's file.
type Usage struct {
	Kinds map[string]Kind
	Used  int64 // bytes of the pages that hold documents
	File  int64 // bytes of the file, which never shrinks; free pages are reused
}

// Kind counts documents of one kind.
type Kind struct {
	Documents int
	Bytes     int64 // of keys, versions, checksums and data
}

func (u *Usage) add(kind string, bytes int) {
	k := u.Kinds[kind]
	k.Documents++
	k.Bytes += int64(bytes)
	u.Kinds[kind] = k
}

// Measure reads the store in the file at path. It takes no lock and writes nothing, so that
// another process may have the store open. If that process writes at the same time, Measure may
// fail with store.ErrCorrupt; then measure again.
func Measure(path string) (Usage, error) {
	f, err := os.Open(path)
	if err != nil {
		return Usage{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return Usage{}, err
	}
	u, err := inspect(f, info.Size())
	if err != nil {
		return Usage{}, corrupt(path, err)
	}
	return u, nil
}
