// Command report reads `go test -json` and prints a summary: a line for each package, the output of
// failed tests, every skipped test with its reason, and the counts in the last line.
//
//	go test -json ./... | go run ./testbed/report -allow testbed/report/skips.txt
//
// It fails if a test or a package failed, if a test was skipped that the list of allowed skips does
// not name, and if there was no event.
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
