// Command ociimage builds a Go program statically and writes it as a container
// image in an OCI archive:
//
//	go run ./testbed/ociimage -o hello.tar -ref treeline.local/hello:1 ./testbed/workload
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/treeline-edge/treeline/testbed/ociimage/image"
)

func main() {
	out := flag.String("o", "", "archive to write")
	ref := flag.String("ref", "", "name of the image, such as treeline.local/hello:1")
	arch := flag.String("arch", runtime.GOARCH, "architecture (GOARCH)")
	user := flag.String("user", "", "uid:gid that the image runs as (default 65532:65532)")
	env := flag.String("env", "", "KEY=value pairs separated by commas")
	var programs []string
	flag.Func("program", "path of a program of this machine to add to the root directory, with its libraries; may be repeated", func(path string) error {
		programs = append(programs, path)
		return nil
	})
	flag.Parse()
	if *out == "" || *ref == "" || flag.NArg() < 1 {
		fmt.Fprintln(os.Stderr, "usage: ociimage -o ARCHIVE -ref NAME:TAG PACKAGE [ARGUMENT ...]")
		os.Exit(2)
	}
	img := image.Image{Ref: *ref, Arch: *arch, User: *user, Cmd: flag.Args()[1:], Programs: programs}
	if *env != "" {
		img.Env = strings.Split(*env, ",")
	}
	if err := build(context.Background(), *out, flag.Arg(0), img); err != nil {
		fmt.Fprintln(os.Stderr, "ociimage:", err)
		os.Exit(1)
	}
}

func build(ctx context.Context, out, pkg string, img image.Image) error {
	dir, err := os.MkdirTemp("", "ociimage-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if img.Binary, err = image.Compile(ctx, dir, pkg, img.Arch); err != nil {
		return err
	}
	return image.WriteFile(out, img)
}
