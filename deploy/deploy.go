// Package deploy contains the files that an installation consists of besides the programs.
package deploy

import "embed"

// Script is the text of install.sh, without its list of files.
//
//go:embed install.sh
var Script string

// Files are the units and sample configurations, by their paths below this directory.
//
//go:embed systemd openrc config
var Files embed.FS

// Mosquitto has mosquitto.conf and acl, for Mosquitto as the broker of a cluster.
//
//go:embed mosquitto/mosquitto.conf mosquitto/acl
var Mosquitto embed.FS
