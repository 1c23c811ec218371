package api

import (
	"maps"
	"slices"
	"strings"
)

// fileRule checks one file of a service.
func fileRule(c checker, at string, v *value) {
	if p := v.get("path"); p.kind == StringField {
		if wrong, fix := pathFault(p.text); wrong != "" {
			c.fault(at+"/path", fix, "path %q %s", shorten(p.text), wrong)
		}
	}
	var sources []string
	for _, name := range []string{"content", "config", "secret"} {
		if v.get(name).kind != "" {
			sources = append(sources, name)
		}
	}
	switch {
	case len(sources) == 0:
		c.fault(at, "add one of them", "a file needs content, config or secret")
	case len(sources) > 1:
		c.fault(at, "keep one of them", "a file cannot have both %s", strings.Join(sources, " and "))
	case sources[0] == "content" && !neutral(v.get("on_change")):
		c.fault(at+"/on_change", "leave it out: a change of content is a new SLA, which replaces the instances",
			"on_change applies to files from a config or secret")
	}
}

// filesRule checks what concerns all files of a service.
func filesRule(c checker, at string, v *value) {
	paths, content := map[string]string{}, 0
	for _, list := range []string{"files", "added_files"} {
		files := v.get(list).items
		if virt := v.get("virtualization").text; len(files) > 0 && (virt == Process || isVM(virt)) {
			c.fault(at+"/"+list, "use virtualization: container", "virtualization %s cannot have files", virt)
			continue
		}
		for i := range files {
			here, p := at+"/"+list+"/"+itoa(i), files[i].get("path").text
			content += len(files[i].get("content").text)
			if first, again := paths[p]; again && p != "" {
				c.fault(here+"/path", "keep one of them", "%s is given twice, first at %s", shorten(p), first)
				continue
			}
			paths[p] = here
		}
		c.mountsRule(at, list, v)
	}
	if content > MaxAllContent {
		c.fault(at+"/files", "put them into a config", "the content of all files has %d bytes, want at most %d", content, MaxAllContent)
	}
	for _, p := range slices.Sorted(maps.Keys(paths)) {
		here := paths[p]
		for dir := beforeLast(p, '/'); dir != ""; dir = beforeLast(dir, '/') {
			if other, ok := paths[dir]; ok {
				c.fault(here+"/path", "choose another path", "%s is below %s, which is the file of %s", shorten(p), shorten(dir), other)
			}
		}
	}
}

// mountsRule refuses files that a volume of the service would hide.
func (c checker) mountsRule(at, list string, v *value) {
	files, volumes := v.get(list).items, v.get("volumes").items
	for i := range files {
		p := files[i].get("path").text
		for k := range volumes {
			if dir := volumes[k].get("mount_path").text; dir != "" && (p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")) {
				c.fault(at+"/"+list+"/"+itoa(i)+"/path", "choose a path outside of it", "%s is in the volume at %s", shorten(p), shorten(dir))
			}
		}
	}
}
