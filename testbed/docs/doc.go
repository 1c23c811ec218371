// Package docs tests README.md and docs/: it runs every command in them, and checks that every link
// has a target and every module an explanation.
//
// The info string of a fenced block determines how its commands are run:
//
//	```sh test       by TestCommands, in order within its document, against
//	                 `treeline dev` with two clusters and three nodes
//	```sh scripts    by scripts/test itself: commands that start and end an installation
//	```sh backup     by TestBackupAsDocumented, on a separate root
//	```sh restore    by the same test, after the backup
//	```sh of TestX   by TestX, with other names: it needs machines, volumes or networks that
//	                 `treeline dev` does not have
//
// Other fenced blocks are not run, must not be marked as sh, and have no commands of treeline in
// how-to guides.
package docs

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Block is a fenced block of a document.
type Block struct {
	File string // relative to the repository's top
	Line int    // of its first line of text
	Info string // the info string
	Text string
}

func (b Block) String() string { return fmt.Sprintf("%s:%d", b.File, b.Line) }

// Documents returns the pages of documentation, relative to the repository's top.
func Documents(top string) ([]string, error) {
	files := []string{"README.md"}
	for _, pattern := range []string{"CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "docs/*.md", "docs/*/*.md", "deploy/*.md", "deploy/*/*.md", "deploy/*/*/*.md"} {
		found, err := filepath.Glob(filepath.Join(top, pattern))
		if err != nil {
			return nil, err
		}
		for _, f := range found {
			rel, err := filepath.Rel(top, f)
			if err != nil {
				return nil, err
			}
			files = append(files, rel)
		}
	}
	return files, nil
}

// Blocks returns the fenced blocks of a document.
func Blocks(top, file string) ([]Block, error) {
	f, err := os.Open(filepath.Join(top, file))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []Block
	var open *Block
	var text strings.Builder
	in := bufio.NewScanner(f)
	for n := 1; in.Scan(); n++ {
		line := in.Text()
		info, fence := strings.CutPrefix(line, "```")
		switch {
		case !fence && open == nil && strings.HasPrefix(strings.TrimSpace(line), "```"):
			return nil, fmt.Errorf("%s:%d: the block is indented, so that no test sees its commands", file, n)
		case fence && open == nil:
			open = &Block{File: file, Line: n + 1, Info: strings.TrimSpace(info)}
			text.Reset()
		case fence:
			open.Text = text.String()
			out = append(out, *open)
			open = nil
		case open != nil:
			text.WriteString(line + "\n")
		}
	}
	if open != nil {
		return nil, fmt.Errorf("%s: the block has no end", open)
	}
	return out, in.Err()
}
