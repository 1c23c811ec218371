package api

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"unicode"
)

// The grammar of image references, as in registries and containerd:
// [host[:port]/]path[:tag][@algorithm:digest].
var (
	hostRE   = regexp.MustCompile(`^(?:[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?(?:\.[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?)*|\[[0-9a-fA-F:]+\])(?::[0-9]{1,5})?$`)
	pathRE   = regexp.MustCompile(`^[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*$`)
	tagRE    = regexp.MustCompile(`^[a-zA-Z0-9_][a-zA-Z0-9_.-]{0,127}$`)
	digestRE = regexp.MustCompile(`^sha(?:256:[0-9a-f]{64}|384:[0-9a-f]{96}|512:[0-9a-f]{128})$`)
)

const maxImageName = 255

func imageFault(ref string) (wrong, fix string) {
	if wrong, fix = unclean(ref); wrong != "" {
		return wrong, fix
	}
	if strings.HasPrefix(ref, fileScheme) {
		return "is a file, but a container needs an image", "push the image to a registry, or have its archive put into containerd.image_dirs of the nodes, and write the image's name; to run a program of the node use virtualization: process"
	}
	if scheme, _, ok := strings.Cut(ref, "://"); ok {
		return "has a scheme, " + shorten(scheme) + "://", "write the reference alone: registry.example.org/shop/web:1.2"
	}
	name, digest, ok := strings.Cut(ref, "@")
	if ok && !digestRE.MatchString(digest) {
		return "has a malformed digest", "sha256: and 64 hexadecimal digits"
	}
	if host, rest, ok := strings.Cut(name, "/"); ok && isHost(host) {
		if !hostRE.MatchString(host) {
			return "has a malformed registry, " + shorten(host), "host or host:port"
		}
		name = rest
	}
	path, tag, ok := strings.Cut(name, ":")
	switch {
	case ok && !tagRE.MatchString(tag):
		return "has a malformed tag, " + shorten(tag), "letters, digits, _ . -"
	case len(path) > maxImageName:
		return "has a path of more than 255 bytes", "shorten it"
	case pathRE.MatchString(path):
		return "", ""
	case pathRE.MatchString(strings.ToLower(path)):
		return "has capital letters in its path", "write " + shorten(strings.ToLower(path))
	}
	return "is not an image reference", "[registry/]path[:tag][@digest]"
}

// isHost reports whether the first part of an image's path is a registry. Registry clients use the
// same rule.
func isHost(s string) bool { return s == "localhost" || strings.ContainsAny(s, ".:[") }

// archivesFault returns what is wrong with a unikernel's list of archives, or "".
func archivesFault(list string, archs int) (wrong, fix string) {
	if wrong, fix = unclean(list); wrong != "" {
		return wrong, fix
	}
	all := strings.Split(list, ",")
	if len(all) != max(archs, 1) {
		return fmt.Sprintf("has %d URLs for %d architectures", len(all), archs), "one URL for each entry of arch, in its order, separated by commas"
	}
	for _, text := range all {
		u, err := url.Parse(text)
		if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
			return shorten(text) + " is no URL of an archive", "https://example.org/unikernel.tar.gz, or an image reference"
		}
		if u.User != nil {
			return "has a password in a URL", "put the unikernel into an image, whose registry's account is a secret"
		}
	}
	return "", ""
}

// ImageRegistry returns the host of the registry of a service's image, "docker.io" if the reference
// has none, and "" if the service has no image.
func ImageRegistry(m *Microservice) string {
	if m.Virtualization == "process" || m.Code == "" || strings.Contains(m.Code, "://") {
		return ""
	}
	if host, _, ok := strings.Cut(m.Code, "/"); ok && isHost(host) {
		return host
	}
	return "docker.io"
}

// ValidRegistry reports whether s is the host of a registry, as ImageRegistry returns it.
func ValidRegistry(s string) bool { return isHost(s) && len(s) <= 255 && hostRE.MatchString(s) }

// fileScheme is an optional prefix of the path of a process's program.
const fileScheme = "file://"

// fileFault returns what is wrong with the program of a process, or "".
func fileFault(ref string) (wrong, fix string) {
	if wrong, fix = unclean(ref); wrong != "" {
		return wrong, fix
	}
	path := strings.TrimPrefix(ref, fileScheme)
	if !strings.HasPrefix(path, "/") || strings.HasSuffix(path, "/") {
		return "is not the path of a program", "an absolute path: /usr/local/bin/web or file:///usr/local/bin/web"
	}
	return "", ""
}

// unclean returns what is wrong with an image reference or a program's path, or "".
func unclean(ref string) (wrong, fix string) {
	switch {
	case ref == "":
		return "is empty", "give an image, or the program of a process"
	case strings.ContainsFunc(ref, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }):
		return "contains white space or a control character", "remove it"
	case strings.Contains(ref, ".."):
		return "contains \"..\"", "write the path without .."
	}
	return "", ""
}
