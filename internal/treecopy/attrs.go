package treecopy

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
)

// kept reports whether an extended attribute is copied: not those of the security modules and of overlays.
func kept(name string) bool {
	return strings.HasPrefix(name, "user.") || name == "system.posix_acl_access" || name == "system.posix_acl_default"
}

// attrs returns the extended attributes of a file or directory that are copied.
func attrs(f *os.File) (out []attr, err error) {
	fd := int(f.Fd())
	names := make([]byte, 64<<10)
	n, err := unix.Flistxattr(fd, names)
	if errors.Is(err, unix.ENOTSUP) {
		return nil, nil
	}
	if err != nil {
		return nil, os.NewSyscallError("list attributes", err)
	}
	total := 0
	for name := range bytes.SplitSeq(names[:n], []byte{0}) {
		if !kept(string(name)) {
			continue
		}
		v := make([]byte, 64<<10)
		k, err := unix.Fgetxattr(fd, string(name), v)
		if errors.Is(err, unix.ENODATA) {
			continue
		}
		if err != nil {
			return nil, os.NewSyscallError("get an attribute", err)
		}
		if total += len(name) + k; total > maxAttrs {
			return nil, fmt.Errorf("its extended attributes have more than %d bytes: %w", maxAttrs, api.ErrInvalid)
		}
		out = append(out, attr{name, v[:k]})
	}
	return out, nil
}

// setAttrs makes the extended attributes of a file those of want.
func setAttrs(f *os.File, want []attr) error {
	have, err := attrs(f)
	if err != nil {
		return err
	}
	fd := int(f.Fd())
	for _, a := range have {
		if !slices.ContainsFunc(want, func(w attr) bool { return bytes.Equal(w.Name, a.Name) }) {
			err = errors.Join(err, unix.Fremovexattr(fd, string(a.Name)))
		}
	}
	total := 0
	for _, a := range want {
		if total += len(a.Name) + len(a.Value); !kept(string(a.Name)) || total > maxAttrs {
			return fmt.Errorf("attribute %.100q cannot be copied: %w", a.Name, api.ErrInvalid)
		}
		err = errors.Join(err, unix.Fsetxattr(fd, string(a.Name), a.Value, 0))
	}
	return err
}
