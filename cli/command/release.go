package command

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/treeline-edge/treeline/cli/output"
	"github.com/treeline-edge/treeline/deploy"
	"github.com/treeline-edge/treeline/internal/installer"
)

func (c *cli) bundleCmd() *cobra.Command {
	var programs string
	var images []string
	cmd := &cobra.Command{
		Use: "bundle FILE", Short: "Write a file from which machines without a network are installed", Args: cobra.ExactArgs(1),
		Long: `Write install.sh, the programs of this release and their checksums to a tar archive.
On a machine without a network, or without a way to a server that has the programs:

  tar -xf FILE && echo TOKEN | sh treeline/install.sh node --token-file -

install.sh in the archive checks each file before it uses it. Compare the SHA-256 of the
archive, which this command prints, before you unpack it.

The programs are those beside this one, or in --programs: for one architecture, or for
several in linux-amd64 and linux-arm64. --image adds an image, an OCI archive as
docker save and ctr images export write them, which the machine then need not pull.`,
		Example: `  treeline bundle treeline.tar --image shop.tar`,
		RunE: func(_ *cobra.Command, args []string) error {
			p, err := c.printer()
			if err != nil {
				return err
			}
			f, err := os.OpenFile(args[0], os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644) //nolint:gosec // programs are no secret
			if err != nil {
				return usage("create the bundle: %v", err)
			}
			sum := sha256.New()
			r := installer.Open(installer.Options{Dir: programs, Script: deploy.Script, Files: deploy.Files})
			files, err := r.WriteBundle(io.MultiWriter(f, sum), images...)
			if err = errors.Join(err, f.Close()); err != nil {
				return errors.Join(err, os.Remove(args[0]))
			}
			c.say("%s with %s:", args[0], output.Plural(len(files)+2, "file"))
			p.Printf("%s  %s", hex.EncodeToString(sum.Sum(nil)), args[0])
			return nil
		},
	}
	cmd.Flags().StringVar(&programs, "programs", "", "directory of the programs (default: that of this program)")
	cmd.Flags().StringArrayVar(&images, "image", nil, "OCI archive of an image to add; repeatable")
	return cmd
}
