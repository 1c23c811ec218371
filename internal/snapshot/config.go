package snapshot

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/cron"
)

// DefaultKeep and MaxKeep are how many scheduled snapshots are kept.
const (
	DefaultKeep = 7
	MaxKeep     = 366
)

// bucketScheme begins the URL of a bucket.
const bucketScheme = "s3://"

// Config is the part of a daemon's configuration about snapshots.
type Config struct {
	Recipients []string `yaml:"recipients" usage:"recipients, age1…, to which snapshots of this daemon may be encrypted, and those of snapshots without another one. Empty: administrators choose them"`

	Schedule string `yaml:"schedule" usage:"when this daemon takes a snapshot for the recipients by itself, as a cron expression (0 3 * * *). Empty: never"`
	TimeZone string `yaml:"time_zone" usage:"time zone of schedule, such as Europe/Berlin. Empty: UTC"`
	To       string `yaml:"to" usage:"where scheduled snapshots are written: the absolute path of a directory, or s3://BUCKET/PREFIX/ of an S3-compatible server, with the credentials of this daemon's environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, …)"`
	Endpoint string `yaml:"endpoint" usage:"https://host:port of the S3-compatible server. Empty: that of the environment (AWS_ENDPOINT_URL_S3), otherwise Amazon's"`
	Keep     int    `yaml:"keep" usage:"how many scheduled snapshots are kept: older ones are deleted after a new one is written and read again. 0: 7"`
}

// Validate returns ErrInvalid for the first invalid setting.
func (c Config) Validate() error {
	if len(c.Recipients) > 0 {
		if _, err := Recipients(c.Recipients); err != nil {
			return fmt.Errorf("snapshot.recipients: %w", err)
		}
	}
	if c.Schedule == "" {
		if c.To != "" || c.TimeZone != "" || c.Endpoint != "" || c.Keep != 0 {
			return fmt.Errorf("snapshot.to, time_zone, endpoint and keep apply to snapshot.schedule, which is missing: %w", api.ErrInvalid)
		}
		return nil
	}
	if _, err := cron.Parse(c.Schedule, c.TimeZone); err != nil {
		return fmt.Errorf("snapshot.schedule: %w: %w", err, api.ErrInvalid)
	}
	if len(c.Recipients) == 0 {
		return fmt.Errorf("snapshot.schedule needs snapshot.recipients (treeline snapshot keygen creates one): %w", api.ErrInvalid)
	}
	bucket := strings.HasPrefix(c.To, bucketScheme)
	switch {
	case !bucket && !filepath.IsAbs(c.To):
		return fmt.Errorf("snapshot.to: %q is neither the absolute path of a directory nor s3://BUCKET/PREFIX/: %w", c.To, api.ErrInvalid)
	case bucket && (strings.HasPrefix(c.To, bucketScheme+"/") || !strings.HasSuffix(c.To, "/")):
		return fmt.Errorf("snapshot.to: %q is not s3://BUCKET/ or s3://BUCKET/PREFIX/, with / at its end: %w", c.To, api.ErrInvalid)
	case !bucket && c.Endpoint != "":
		return fmt.Errorf("snapshot.endpoint is for s3://BUCKET/PREFIX/, and snapshot.to is %q: %w", c.To, api.ErrInvalid)
	case c.Keep < 0 || c.Keep > MaxKeep:
		return fmt.Errorf("snapshot.keep: %d, want 1 to %d, or 0 for %d: %w", c.Keep, MaxKeep, DefaultKeep, api.ErrInvalid)
	}
	return nil
}
