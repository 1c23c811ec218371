package snapshot

import "fmt"

// Config is the part of a daemon's configuration about snapshots.
type Config struct {
	Recipients []string `yaml:"recipients" usage:"recipients, age1…, to which snapshots of this daemon may be encrypted, and those of snapshots without another one. Empty: administrators choose them"`
}

// Validate returns ErrInvalid for the first invalid setting.
func (c Config) Validate() error {
	if len(c.Recipients) > 0 {
		if _, err := Recipients(c.Recipients); err != nil {
			return fmt.Errorf("snapshot.recipients: %w", err)
		}
	}
	return nil
}
