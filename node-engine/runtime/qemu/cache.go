package qemu

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/durable"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/node-engine/runtime"
)

const (
	maxImages = 8 << 30 // bytes of all images; workloads keep the files of theirs beyond that
	minCharge = 1 << 20 // what the smallest image counts, so that the number of images is bounded

	unfinished = "new-" // prefix of directories of images that are being unpacked
)

var _ = fairshare.Declare(fairshare.Bound{
	Resource: "unpacked images of virtual machines on a node's disk", Total: maxImages >> 20, Unit: "MiB", Share: []int{maxImages / 2 >> 20}, Per: "topmost tenant",
	Beyond: "the longest unused image of the tenant with most is removed; a tenant that unpacks its share at once gets disk_full",
	Attack: "TestImagesOfOneTenantLeaveRoomForOthers",
})

// cache has the unpacked images on the node's disk: a directory for each image of each topmost tenant. It is
// safe for concurrent use.
type cache struct {
	dir string
	max int64 // bytes of all images, of which one tenant has at most half

	// mu guards the fields below, and the names in dir: it is held while an image is renamed and removed.
	mu     sync.Mutex
	images map[string]*cached // by the name of their directories
}

// cached is an image in the cache.
type cached struct {
	name   string     // of its directory
	tenant api.Tenant // the topmost
	bytes  int64
	used   time.Time
	users  int // calls that use its files, or unpack it: it is not removed
}

// openCache opens the cache in a directory, which it creates. It removes what a killed engine left.
func openCache(dir string, limit int64) (*cache, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	all, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	c := &cache{dir: dir, max: limit, images: map[string]*cached{}}
	for _, e := range all {
		text, err := os.ReadFile(filepath.Join(dir, e.Name(), configFile))
		var image imageConfig
		if err == nil {
			err = json.Unmarshal(text, &image)
		}
		info, ierr := e.Info()
		if err != nil || ierr != nil || strings.HasPrefix(e.Name(), unfinished) {
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return nil, err
			}
			continue
		}
		c.images[e.Name()] = &cached{name: e.Name(), tenant: image.Tenant, bytes: max(image.Bytes, minCharge), used: info.ModTime()}
	}
	return c, nil
}

// get returns the directory of a tenant's image, which unpack fills if it does not exist. It exists at least
// until done is called.
func (c *cache) get(t api.Tenant, image string, unpack func(*extraction) error) (dir string, done func(), err error) {
	sum := sha256.Sum256([]byte(string(t) + "\x00" + image))
	name := hex.EncodeToString(sum[:16])
	if i := c.hold(name, time.Now()); i != nil {
		return filepath.Join(c.dir, name), func() { c.release(i) }, nil
	}
	if err := c.collect(time.Now().Add(-unusedFor)); err != nil {
		return "", nil, err
	}
	tmp, err := os.MkdirTemp(c.dir, unfinished)
	if err != nil {
		return "", nil, err
	}
	i := &cached{name: filepath.Base(tmp), tenant: t, used: time.Now(), users: 1}
	if err = c.grow(i, minCharge); err == nil {
		x := &extraction{dir: tmp, rank: map[string]int{}, sizes: map[string]int64{}, grow: func(total int64) error { return c.grow(i, total) }}
		x.config.Tenant = t
		if err = unpack(x); err == nil {
			err = x.finish()
		}
	}
	if err == nil {
		i, err = c.publish(i, name)
	}
	if err != nil {
		return "", nil, errors.Join(err, c.drop(i))
	}
	return filepath.Join(c.dir, name), func() { c.release(i) }, nil
}

// hold prevents the removal of an image until release. It returns nil if there is none.
func (c *cache) hold(name string, now time.Time) *cached {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := c.images[name]
	if i == nil || os.Chtimes(filepath.Join(c.dir, name), now, now) != nil {
		return nil
	}
	i.used = now
	i.users++
	return i
}

func (c *cache) release(i *cached) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i.users--
}

// publish gives an unpacked image its name. If another call was faster, it returns the image of that.
func (c *cache) publish(i *cached, name string) (*cached, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if had := c.images[name]; had != nil {
		had.users++
		return had, c.remove(i)
	}
	to := filepath.Join(c.dir, name)
	if err := os.RemoveAll(to); err != nil { // what hold did not find complete
		return i, err
	}
	if err := os.Rename(filepath.Join(c.dir, i.name), to); err != nil {
		return i, err
	}
	delete(c.images, i.name)
	i.name = name
	c.images[name] = i
	return i, durable.SyncDir(c.dir)
}

// drop removes an image that could not be unpacked.
func (c *cache) drop(i *cached) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.remove(i)
}

// remove removes an image. It is called with mu held.
func (c *cache) remove(i *cached) error {
	delete(c.images, i.name)
	err := os.RemoveAll(filepath.Join(c.dir, i.name))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return err
}

// grow makes room for an image of total bytes, of which it may have some. It removes the images of others
// only if they have more than the image's tenant, or this is the tenant's only image.
func (c *cache) grow(i *cached, total int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.images[i.name] = i
	for total > i.bytes {
		sum, held := int64(0), map[api.Tenant]int64{}
		for _, x := range c.images {
			sum, held[x.tenant] = sum+x.bytes, held[x.tenant]+x.bytes
		}
		more, others := total-i.bytes, held[i.tenant]-i.bytes
		own := held[i.tenant] + more
		var victim *cached
		switch {
		case own > c.max/2:
			victim = c.oldest(i.tenant)
		case sum+more > c.max:
			for _, t := range slices.SortedFunc(maps.Keys(held), func(a, b api.Tenant) int {
				return cmp.Or(cmp.Compare(held[b], held[a]), cmp.Compare(a, b))
			}) {
				if victim == nil && (t == i.tenant || others == 0 || held[t] > own) {
					victim = c.oldest(t)
				}
			}
		default:
			i.bytes = total
			return nil
		}
		if victim == nil {
			return runtime.Errorf(api.ReasonDiskFull, "unpack an image for a virtual machine: tenant %s has %d MiB of images in use, this one needs %d more, and a node keeps %d of one tenant and %d of all",
				i.tenant, (own-more)>>20, max(more>>20, 1), c.max/2>>20, c.max>>20)
		}
		if err := c.remove(victim); err != nil {
			return err
		}
	}
	return nil
}

// oldest returns the longest unused image of a tenant, nil if it has none that can be removed. It is called
// with mu held.
func (c *cache) oldest(t api.Tenant) (out *cached) {
	for _, i := range c.images {
		if i.tenant == t && i.users == 0 && (out == nil || i.used.Before(out.used)) {
			out = i
		}
	}
	return out
}

// collect removes the images that are unused since a time. Workloads have links to their files.
func (c *cache) collect(before time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []error
	for _, i := range c.images {
		if i.users == 0 && i.used.Before(before) {
			all = append(all, c.remove(i))
		}
	}
	return errors.Join(all...)
}
