package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/treeline-edge/treeline/testbed/ociimage/image"
)

// images writes the container images of the programs that need nothing of their machine. Node engine
// and netmanager manage the machine itself, and are installed there.
func (r *release) images(context.Context) error {
	ca, err := os.ReadFile(r.ca)
	if err != nil {
		return fmt.Errorf("read CA certificates for the images: %w: install ca-certificates, or name a file with --ca", err)
	}
	for _, p := range []string{"root-orchestrator", "cluster-orchestrator", "treeline"} {
		var platforms []image.Image
		for _, arch := range r.arches {
			img := image.Image{
				Ref: "treeline.local/" + p + ":" + r.tag(), Arch: arch, Version: r.version, Compress: true,
				Executables: map[string]string{p: r.program(arch, p)},
				Files:       map[string][]byte{"etc/ssl/certs/ca-certificates.crt": ca},
				Entrypoint:  []string{"/" + p},
			}
			if p != "treeline" {
				img.Dirs = []string{"var/lib/treeline"} // a volume that is mounted here gets this owner
			}
			platforms = append(platforms, img)
		}
		f, err := r.create("%s_%s_oci.tar", p, r.version)
		if err != nil {
			return err
		}
		if err := errors.Join(image.Write(f, platforms...), f.Close()); err != nil {
			return err
		}
	}
	return nil
}
