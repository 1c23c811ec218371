// Command report reads `go test -json` and says what a person wants to know of
// it: a line for each package, the output of what failed and nothing else, every
// skipped test by name with its reason, and the count in the last line.
//
//	go test -json ./... | go run ./testbed/report -allow testbed/report/skips.txt
//
// It fails when a test or a package failed, when a test was skipped that the
// allow list does not name, and when there was nothing to read: silence is no
// success.
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	allow := flag.String("allow", "", "file of the skips that are allowed: package, test and reason in each line; without it all are")
	flag.Parse()
	ok, err := report(*allow)
	if err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(2)
	}
	if !ok {
		os.Exit(1)
	}
}

func report(allow string) (bool, error) {
	var allowed *Allowed
	if allow != "" {
		f, err := os.Open(allow)
		if err != nil {
			return false, err
		}
		defer f.Close()
		if allowed, err = ReadAllowed(f); err != nil {
			return false, fmt.Errorf("%s: %w", allow, err)
		}
	}
	t := Tally{Out: os.Stdout}
	if err := t.Read(os.Stdin); err != nil {
		return false, err
	}
	return t.Close(allowed), nil
}
