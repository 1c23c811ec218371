//go:build linux

package dev

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// machine is the state that the installations on one machine share: a lock, a file for each
// installation that needs IPv4 forwarding, and a file with the setting from before the first of
// them. scripts/down uses the same files.
type machine struct {
	dir    string // in /run, because a restart of the machine resets the setting
	sysctl string
}

var thisMachine = machine{dir: "/run/treeline-dev", sysctl: "/proc/sys/net/ipv4/ip_forward"}

const (
	machineLock = "lock"
	wasFile     = "forwarding-was"
	needsPrefix = "forwarding-for-"
)

// lock waits for the machine's lock. Closing the returned file releases it.
func (m machine) lock() (*os.File, error) {
	if err := os.MkdirAll(m.dir, 0o700); err != nil {
		return nil, fmt.Errorf("lock the machine's network: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(m.dir, machineLock), os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		if err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err == nil {
			return f, nil
		}
		f.Close()
	}
	return nil, fmt.Errorf("lock the machine's network: %w", err)
}

// forward enables forwarding for the installation. It is idempotent.
func (m machine) forward(tag string) error {
	lock, err := m.lock()
	if err != nil {
		return err
	}
	defer lock.Close()
	text, err := os.ReadFile(m.sysctl)
	if err != nil {
		return fmt.Errorf("read the machine's forwarding: %w", err)
	}
	now := strings.TrimSpace(string(text))
	others, err := m.needed()
	if err != nil {
		return err
	}
	if !others {
		if err := os.WriteFile(filepath.Join(m.dir, wasFile), []byte(now), 0o600); err != nil {
			return fmt.Errorf("save the machine's forwarding: %w", err)
		}
	}
	if err := os.WriteFile(filepath.Join(m.dir, needsPrefix+tag), nil, 0o600); err != nil {
		return fmt.Errorf("record that the installation needs forwarding: %w", err)
	}
	if now == "0" {
		if err := os.WriteFile(m.sysctl, []byte("1"), 0); err != nil {
			return fmt.Errorf("enable forwarding: %w", err)
		}
	}
	return nil
}

// release restores the setting from before the first installation, unless another installation
// needs forwarding.
func (m machine) release(tag string) error {
	lock, err := m.lock()
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := os.Remove(filepath.Join(m.dir, needsPrefix+tag)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("release forwarding: %w", err)
	}
	if others, err := m.needed(); err != nil || others {
		return err
	}
	was, err := os.ReadFile(filepath.Join(m.dir, wasFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = os.WriteFile(m.sysctl, was, 0)
	}
	if err == nil {
		err = os.Remove(filepath.Join(m.dir, wasFile))
	}
	if err != nil {
		return fmt.Errorf("restore the machine's forwarding: %w", err)
	}
	return nil
}

func (m machine) needed() (bool, error) {
	found, err := filepath.Glob(filepath.Join(m.dir, needsPrefix+"*"))
	return len(found) > 0, err
}
