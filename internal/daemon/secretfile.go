package daemon

import (
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"
)

// maxSecret bounds the file of a secret, in bytes.
const maxSecret = 64 << 10

// readSecret sets a secret to the contents of a file, without surrounding white space.
func (l *loader) readSecret(f field, path string) {
	in := l.stdin
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			l.fault("%s: read the secret: %v", f.path, err)
			return
		}
		defer file.Close()
		in = file
	} else if in == nil {
		in = os.Stdin
	}
	text, err := io.ReadAll(io.LimitReader(in, maxSecret+1))
	secret := strings.TrimSpace(string(text))
	switch {
	case err != nil:
		l.fault("%s: read the secret from %s: %v", f.path, path, err)
	case len(text) > maxSecret:
		l.fault("%s: %s has more than %d bytes", f.path, path, maxSecret)
	case secret == "":
		l.fault("%s: %s is empty", f.path, path)
	default:
		f.value.SetString(secret)
	}
}

// holdsSecret reports whether a Secret is set anywhere in the value.
func holdsSecret(v reflect.Value) bool {
	switch {
	case v.Type() == reflect.TypeFor[Secret]():
		return v.Len() > 0
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() && holdsSecret(v.Field(i)) {
				return true
			}
		}
	case v.Kind() == reflect.Slice || v.Kind() == reflect.Array:
		for i := range v.Len() {
			if holdsSecret(v.Index(i)) {
				return true
			}
		}
	case v.Kind() == reflect.Map:
		for it := v.MapRange(); it.Next(); {
			if holdsSecret(it.Value()) {
				return true
			}
		}
	case v.Kind() == reflect.Pointer:
		return !v.IsNil() && holdsSecret(v.Elem())
	}
	return false
}

// checkMode warns of a configuration file with secrets that users other than its owner and the
// daemon's group can read, or other users can write. It is no error, so that daemons still start
// after an upgrade.
func (l *loader) checkMode(path string) {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() {
		return
	}
	mode := info.Mode().Perm()
	if open := mode & 0o066; open == 0 || open == 0o040 && groupOf(info) == os.Getegid() {
		return
	}
	l.warn(fmt.Sprintf("configuration file %s holds secrets and has mode %04o: other users can read or change it; chmod 600 %[1]s, or 640 with the group of the daemon", path, mode))
}
