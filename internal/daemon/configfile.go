package daemon

import "strings"

// ConfigFile returns the configuration file that Load reads, or "" for none.
func ConfigFile(args []string, getenv func(string) string) string {
	file := getenv(EnvPrefix + "CONFIG")
	for i, a := range args {
		if v, ok := strings.CutPrefix(a, "--config="); ok {
			file = v
		} else if a == "--config" && i+1 < len(args) {
			file = args[i+1]
		}
	}
	return file
}
