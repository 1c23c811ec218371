// Package vmimage builds images of virtual machines for tests: Debian's kernel with an initial file system
// that contains testbed/guest as init and a program, and a unikernel of a few bytes.
package vmimage

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/treeline-edge/treeline/node-engine/runtime/qemu/guest"
	"github.com/treeline-edge/treeline/testbed/gobuild"
	"github.com/treeline-edge/treeline/testbed/ociimage/image"
)

// Program is the path of the program in a Linux machine.
const Program = "/app"

// Linux returns the files of an image that boots Linux and runs the program, which is at path on this
// machine. Its first start on a machine downloads the kernel.
func Linux(ctx context.Context, program string) (map[string][]byte, error) {
	root, err := gobuild.Root(ctx)
	if err != nil {
		return nil, err
	}
	out, err := exec.CommandContext(ctx, filepath.Join(root, "scripts", "guest-kernel")).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("get the kernel of virtual machines: %w\n%s", err, out)
	}
	dir := strings.TrimSpace(string(out))
	build, err := os.MkdirTemp("", "guest-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(build)
	init, err := image.Compile(ctx, build, "github.com/treeline-edge/treeline/testbed/guest", "amd64")
	if err != nil {
		return nil, err
	}
	const directory, executable = 0o040755, 0o100755
	entries := []guest.Entry{{Name: "modules", Mode: directory}, {Name: "dev", Mode: directory}}
	modules, err := filepath.Glob(filepath.Join(dir, "*.ko"))
	if err != nil {
		return nil, err
	}
	files := map[string]string{"init": init, Program[1:]: program}
	for _, m := range modules {
		files["modules/"+filepath.Base(m)] = m
	}
	for name, path := range files {
		b, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		entries = append(entries, guest.Entry{Name: name, Mode: executable, Data: b})
	}
	kernel, err := os.ReadFile(filepath.Join(dir, "vmlinuz"))
	if err != nil {
		return nil, err
	}
	return map[string][]byte{
		"boot/vmlinuz": kernel, "boot/initrd.img": guest.Archive(entries),
		"boot/cmdline": []byte("cryptomgr.notests nokaslr mitigations=off\n"), // emulated, they take a second
	}, nil
}
