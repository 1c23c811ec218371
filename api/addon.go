package api

import (
	"encoding/json"
	"time"
)

// Limits of addons.
const (
	MaxAddonBytes     = 256 << 10 // of a package as JSON, and of its SLA and resources with the values filled in
	MaxAddonValues    = 16 << 10  // of the values of its parameters as JSON, in bytes
	MaxAddonKinds     = 16
	MaxAddonResources = 100
	MaxAddonWebhooks  = 8
)

// AddonMediaType is the media type of a package in an OCI artifact.
const AddonMediaType = "application/vnd.treeline.addon.v1+json"

// AddonID names an installed addon: "<tenant>/<name>".
type AddonID string

// Addon returns the id of an addon of the tenant.
func (t Tenant) Addon(name string) AddonID { return AddonID(string(t) + "/" + name) }

// Tenant returns the tenant that has installed the addon.
func (a AddonID) Tenant() Tenant { return Tenant(beforeLast(string(a), '/')) }

// Name returns the addon's name without its tenant.
func (a AddonID) Name() string { return afterLast(string(a), '/') }

// AddonPackage is what an addon consists of. In the strings of SLA, Resources and Webhooks, ${{ name }} stands for the
// value of a parameter; a string that is nothing else becomes the value with its type.
type AddonPackage struct {
	Name        string              `json:"name" maxLength:"63" doc:"Lower-case letters, digits and inner hyphens. A tenant has at most one addon of a name."`
	Version     string              `json:"version" maxLength:"64" doc:"A semantic version, such as 1.4.0."`
	Description string              `json:"description,omitempty" maxLength:"500"`
	MinTreeline string              `json:"min_treeline,omitempty" maxLength:"64" doc:"The oldest version of the root that may install it."`
	Parameters  json.RawMessage     `json:"parameters,omitempty" doc:"A JSON Schema of the values. Its properties are the parameters, and their defaults are used."`
	SLA         json.RawMessage     `json:"sla,omitempty" doc:"An SLA of one application."`
	Kinds       []NewCustomKind     `json:"kinds,omitempty" maxItems:"16"`
	Resources   []NewCustomResource `json:"resources,omitempty" maxItems:"100" doc:"Of its kinds."`
	Webhooks    []AddonWebhook      `json:"webhooks,omitempty" maxItems:"8"`
}

// AddonWebhook is a webhook of an addon. It sends events of the tenant that has installed the addon.
type AddonWebhook struct {
	URL     string   `json:"url" maxLength:"2048"`
	Kinds   []string `json:"kinds,omitempty" maxItems:"16"`
	Reasons []Reason `json:"reasons,omitempty" maxItems:"32"`
}

// NewAddon is the request to install an addon or to replace it by another version.
type NewAddon struct {
	Package AddonPackage               `json:"package"`
	Values  map[string]json.RawMessage `json:"values,omitempty" doc:"Of parameters. An upgrade keeps those that were given before; null returns to the default."`
	Source  string                     `json:"source,omitempty" maxLength:"512" doc:"Where the client read the package, for people."`
	Digest  string                     `json:"digest,omitempty" maxLength:"71" pattern:"^sha256:[0-9a-f]{64}$" doc:"Of the OCI artifact that the client read, for people."`
}

// Addon is an installed addon. Its application, kinds and resources are changed with it only.
type Addon struct {
	ID          AddonID                    `json:"id"`
	Tenant      Tenant                     `json:"tenant"`
	Name        string                     `json:"name"`
	Version     string                     `json:"version"`
	Description string                     `json:"description,omitempty"`
	Source      string                     `json:"source,omitempty"`
	Digest      string                     `json:"digest,omitempty"`
	Values      map[string]json.RawMessage `json:"values,omitempty"` // as given, without defaults
	App         AppID                      `json:"app,omitempty"`
	Kinds       []KindID                   `json:"kinds,omitempty"`
	Resources   []CustomID                 `json:"resources,omitempty"`
	Webhooks    []string                   `json:"webhooks,omitempty"` // ids
	Created     time.Time                  `json:"created"`
	Changed     time.Time                  `json:"changed"`
	By          string                     `json:"by,omitempty"` // the user who changed it last
	Revision    Revision                   `json:"revision"`
}

// AddonApplied is the answer to an installation or upgrade.
type AddonApplied struct {
	Addon    Addon         `json:"addon"`
	Changes  []AddonChange `json:"changes"`
	Webhooks []Webhook     `json:"webhooks,omitempty"` // new ones, with their secrets, which are shown once
}

// AddonChange is what an installation, upgrade or removal did to an object.
type AddonChange struct {
	Action string `json:"action" enum:"create,update,delete,release,none" doc:"release: it stays and no longer belongs to the addon."`
	Kind   string `json:"kind" enum:"app,kind,resource,webhook"`
	ID     string `json:"id"`
}

// ValidAddonName reports whether s may name an addon: a DNS label in lower case.
func ValidAddonName(s string) bool { return machineRE.MatchString(s) }
