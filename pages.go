// Package treeline embeds the pages of documentation, with the files that they link to, for the
// daemons that serve them.
package treeline

import "embed"

// Pages has README.md and the like, docs/, and the examples and configurations of deploy/, with the
// paths of the repository. The OpenAPI documents are not in it: a daemon serves its own.
//
//go:embed *.md LICENSE docs/*.md docs/*/*.md docs/reference/sla.schema.json
//go:embed deploy/config deploy/examples deploy/mosquitto deploy/prometheus scheduler-plugins/examples/README.md
var Pages embed.FS
