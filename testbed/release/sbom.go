package main

import (
	"context"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"

	"github.com/treeline-edge/treeline/internal/installer"
)

// sbom writes a CycloneDX bill of materials: the programs, and the Go modules that each contains as
// the toolchain recorded them, with the npm packages of the dashboard.
func (r *release) sbom(context.Context) error {
	components := map[string]cdx.Component{}
	var dependencies []cdx.Dependency
	arch := r.arches[0]
	for _, p := range installer.Programs {
		info, err := buildinfo.ReadFile(r.program(arch, p))
		if err != nil {
			return fmt.Errorf("read the modules of %s: %w", p, err)
		}
		ref := "treeline/" + p
		components[ref] = cdx.Component{BOMRef: ref, Type: cdx.ComponentTypeApplication, Name: p, Version: r.version}
		on := []string{module(components, "std", strings.TrimPrefix(info.GoVersion, "go"), "")}
		for _, m := range info.Deps {
			if m.Replace != nil {
				m = m.Replace
			}
			on = append(on, module(components, m.Path, m.Version, m.Sum))
		}
		if strings.HasSuffix(p, "-orchestrator") {
			npm, err := packages(components)
			if err != nil {
				return err
			}
			on = append(on, npm...)
		}
		slices.Sort(on)
		dependencies = append(dependencies, cdx.Dependency{Ref: ref, Dependencies: &on})
	}
	all := make([]cdx.Component, 0, len(components))
	for _, c := range components {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b cdx.Component) int { return strings.Compare(a.BOMRef, b.BOMRef) })
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{
		Timestamp: r.time.Format("2006-01-02T15:04:05Z07:00"),
		Component: &cdx.Component{BOMRef: "treeline", Type: cdx.ComponentTypeApplication, Name: "treeline", Version: r.version},
	}
	bom.Components, bom.Dependencies = &all, &dependencies
	f, err := r.create("treeline_%s.cdx.json", r.version)
	if err != nil {
		return err
	}
	return errors.Join(cdx.NewBOMEncoder(f, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom), f.Close())
}

// module adds a Go module and returns its package URL. The sum is that of go.sum.
func module(to map[string]cdx.Component, name, version, sum string) string {
	purl := "pkg:golang/" + name + "@" + version
	c := cdx.Component{BOMRef: purl, Type: cdx.ComponentTypeLibrary, Name: name, Version: version, PackageURL: purl}
	if sum != "" {
		c.Properties = &[]cdx.Property{{Name: "treeline:go.sum", Value: sum}}
	}
	to[purl] = c
	return purl
}

// packages adds the npm packages of the dashboard and returns their package URLs.
func packages(to map[string]cdx.Component) (urls []string, err error) {
	vendored := os.DirFS("web/third_party")
	err = fs.WalkDir(vendored, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || path.Base(name) != "package.json" {
			return err
		}
		text, err := fs.ReadFile(vendored, name)
		if err != nil {
			return err
		}
		var p struct{ Name, Version, License string }
		if err := json.Unmarshal(text, &p); err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
		if p.Version == "" {
			return nil // a part of a package
		}
		purl := "pkg:npm/" + strings.Replace(p.Name, "@", "%40", 1) + "@" + p.Version
		to[purl] = cdx.Component{
			BOMRef: purl, Type: cdx.ComponentTypeLibrary, Name: p.Name, Version: p.Version, PackageURL: purl,
			Licenses: &cdx.Licenses{{License: &cdx.License{ID: p.License}}},
		}
		urls = append(urls, purl)
		return nil
	})
	return urls, err
}
