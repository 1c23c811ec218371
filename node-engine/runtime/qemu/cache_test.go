package qemu

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/node-engine/runtime"
)

const mib = 1 << 20

// kernel returns how to unpack an image that has a kernel of a size.
func kernel(t *testing.T, size int) func(*extraction) error {
	return func(x *extraction) error {
		return x.read(archiveOf(t, map[string][]byte{"kernel": make([]byte, size)}))
	}
}

// put unpacks an image that no workload uses, and reports whether it was in the cache already.
func put(t *testing.T, c *cache, tenant api.Tenant, image string, size int) (had bool) {
	t.Helper()
	had = true
	_, done, err := c.get(tenant, image, func(x *extraction) error {
		had = false
		return kernel(t, size)(x)
	})
	if err != nil {
		t.Fatalf("image %s of tenant %s: %v", image, tenant, err)
	}
	done()
	return had
}

// TestImagesOfOneTenantLeaveRoomForOthers fills the cache with the images of one tenant, which are many,
// large, and unpacked at the same time.
func TestImagesOfOneTenantLeaveRoomForOthers(t *testing.T) {
	c := newCache(t, 16*mib)
	put(t, c, "quiet", "a", 2*mib)
	put(t, c, "quiet", "b", mib)
	for n := range 20 {
		put(t, c, "greedy", fmt.Sprint(n), 3*mib)
	}
	for n := range 100 { // smaller than what an image counts at least
		put(t, c, "tiny", fmt.Sprint(n), 1)
	}
	full := 0
	for n := range 8 { // unpacked at the same time
		var done func()
		_, done, err := c.get("greedy", fmt.Sprint("held", n), kernel(t, 3*mib))
		switch {
		case err == nil:
			defer done()
		case runtime.Reason(err) == api.ReasonDiskFull && strings.Contains(err.Error(), "greedy"):
			full++
		default:
			t.Errorf("image beyond the share: got %v, want disk_full with the tenant's name", err)
		}
	}
	if full != 6 {
		t.Errorf("images of 3 MiB in use by a tenant that may have 8 MiB: got %d, want 2", 8-full)
	}
	for image, size := range map[string]int{"a": 2 * mib, "b": mib} {
		if !put(t, c, "quiet", image, size) {
			t.Errorf("image %s of another tenant was removed", image)
		}
	}
	put(t, c, "new", "a", 4*mib) // takes room of the tenant with most
	if !put(t, c, "quiet", "a", 2*mib) {
		t.Error("image of a tenant with few was removed for a newcomer")
	}
	total := int64(0)
	err := filepath.Walk(c.dir, func(_ string, info os.FileInfo, err error) error {
		total += info.Size()
		return err
	})
	if err != nil || total > c.max+mib {
		t.Errorf("bytes in the directory: got %d, %v, want at most %d and the directories themselves", total, err, c.max)
	}
}

// TestImagesOfTenantsAreSeparate: what a tenant's archive contained when it was fetched is of no concern to
// others.
func TestImagesOfTenantsAreSeparate(t *testing.T) {
	c := newCache(t, maxImages)
	put(t, c, "a", "http://example.org/x.tar.gz", 1)
	if put(t, c, "b", "http://example.org/x.tar.gz", 1) {
		t.Error("a tenant got the image that another fetched")
	}
}

// TestImagesInUseStay: the longest unused image goes first, and none that a creation needs.
func TestImagesInUseStay(t *testing.T) {
	c := newCache(t, 8*mib)
	dir, done, err := c.get("t", "held", kernel(t, 2*mib))
	if err != nil {
		t.Fatal(err)
	}
	for n := range 4 {
		put(t, c, "t", fmt.Sprint(n), 2*mib)
	}
	if err := c.collect(time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, kernelFile)); err != nil {
		t.Errorf("image in use: %v", err)
	}
	done()
	if err := c.collect(time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if all, _ := os.ReadDir(c.dir); len(all) > 0 {
		t.Errorf("images after all were collected: got %v, want none", all)
	}
}

// TestCacheIsFoundAgain opens a cache again that a killed engine left, with an unfinished image.
func TestCacheIsFoundAgain(t *testing.T) {
	c := newCache(t, maxImages)
	put(t, c, "t", "whole", 3*mib)
	for _, name := range []string{unfinished + "x", "0123"} {
		if err := os.MkdirAll(filepath.Join(c.dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	again, err := openCache(c.dir, maxImages)
	if err != nil {
		t.Fatal(err)
	}
	if all, err := os.ReadDir(c.dir); err != nil || len(all) != 1 {
		t.Errorf("directories: got %v, %v, want one", all, err)
	}
	if !put(t, again, "t", "whole", 3*mib) {
		t.Error("the image was unpacked again")
	}
	if i := again.images[filepath.Base(onlyDir(t, c.dir))]; i == nil || i.tenant != "t" || i.bytes != 3*mib {
		t.Errorf("image: got %+v, want 3 MiB of tenant t", i)
	}
}

func onlyDir(t *testing.T, dir string) string {
	t.Helper()
	all, err := os.ReadDir(dir)
	if err != nil || len(all) != 1 {
		t.Fatalf("%s: got %v, %v, want one directory", dir, all, err)
	}
	return all[0].Name()
}

// TestConcurrentFetchesOfOneImage: each gets the image, and one copy stays.
func TestConcurrentFetchesOfOneImage(t *testing.T) {
	c := newCache(t, maxImages)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			dir, done, err := c.get("t", "x", kernel(t, 10))
			if err == nil {
				_, err = os.Stat(filepath.Join(dir, kernelFile))
				done()
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	onlyDir(t, c.dir)
	if _, _, err := c.get("t", "y", func(*extraction) error { return errors.New("broken") }); err == nil {
		t.Error("failed fetch: got no error")
	}
	onlyDir(t, c.dir)
}
