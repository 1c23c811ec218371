package wiring

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// On a full disk a workload reaches services that are new to its node, a killed netmanager
// restarts, and becomes ready when the disk has room.
func TestAFullDiskStopsNoFlow(t *testing.T) {
	w := newWorld(t, 0)
	for i := range 2 {
		w.host(i, w.tag+"-sw", nil)
	}
	h := w.hosts[0]
	data := filepath.Join(h.dir, "net")
	if err := errors.Join(os.Mkdir(data, 0o700), unix.Mount("tmpfs", data, "tmpfs", 0, "size=4m")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(data, unix.MNT_DETACH) }) // open files may delay the unmount
	for _, h := range w.hosts {
		h.start()
	}
	client := h.run("client", 0, 1)
	for n := range 2 {
		w.hosts[1].run(fmt.Sprint("web", n), 0, 2+n).serve(80)
	}
	ballast := must[*os.File](t)(os.Create(filepath.Join(data, "ballast")))
	defer ballast.Close()
	for err := error(nil); err == nil; {
		_, err = ballast.Write(make([]byte, 4096))
	}
	attach := func(n int) error {
		ctx, cancel := context.WithTimeout(t.Context(), testTime)
		defer cancel()
		k := wire.Key{Instance: service("more").Instance(n), Epoch: 1}
		_, err := h.sock.Attach(ctx, wire.Attach{Key: k, NetNS: nsPath(w.netns(fmt.Sprint("more", n)))})
		return err
	}
	n, err := 0, error(nil)
	for ; err == nil && n < 50; n++ { // the store has free pages in its file
		err = attach(n)
	}
	if !errors.Is(err, api.ErrFull) {
		t.Fatalf("attachment %d on a full disk: %v, want ErrFull", n, err)
	}
	if who := client.ask(vip(2), 80); who != string(service("web0").Instance(0)) {
		t.Errorf("%s answered, want the service's own instance", who)
	}
	h.kill()
	ready := make(chan struct{})
	go func() {
		defer close(ready)
		h.start()
	}()
	if who := client.ask(vip(3), 80); who != string(service("web1").Instance(0)) {
		t.Errorf("%s answered, want the service's own instance", who)
	}
	if err := ballast.Truncate(0); err != nil {
		t.Fatal(err)
	}
	<-ready
	if err := attach(n); err != nil {
		t.Errorf("attachment when the disk has room again: %v", err)
	}
}
