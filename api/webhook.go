package api

import "time"

// EventKinds are the kinds of events.
var EventKinds = []string{"instance", "app", "service", "cluster", "volume", "config", "secret", "kind", "resource", "user", "tenant", "token", "webhook", "node", "addon"}

// NewWebhook is a request for a webhook.
type NewWebhook struct {
	Tenant  Tenant   `json:"tenant,omitempty"`                                                                              // whose events, with those of the tenants below it; empty: the user's
	URL     string   `json:"url" maxLength:"2048" doc:"https://host/path to which events are posted."`                      // see Webhook
	Kinds   []string `json:"kinds,omitempty" maxItems:"16" doc:"Only events of these kinds; without it, all."`              // of EventKinds
	Reasons []Reason `json:"reasons,omitempty" maxItems:"32" doc:"Only events with one of these reasons; without it, all."` // of instances and others
}

// Webhook sends events to a URL.
type Webhook struct {
	ID      string    `json:"id"`
	Tenant  Tenant    `json:"tenant"`
	URL     string    `json:"url"`
	Kinds   []string  `json:"kinds,omitempty"`
	Reasons []Reason  `json:"reasons,omitempty"`
	Created time.Time `json:"created"`
	By      string    `json:"by"`               // the user whose rights decide which events are sent
	Addon   AddonID   `json:"addon,omitempty"`  // to which it belongs
	Secret  string    `json:"secret,omitempty"` // of signatures; shown once

	Delivered int          `json:"delivered"`
	Tries     int          `json:"tries,omitempty"` // failed ones of the event that is sent now
	Next      time.Time    `json:"next,omitzero"`   // the next try
	Error     string       `json:"error,omitempty"` // of the last try
	Dead      []DeadLetter `json:"dead,omitempty"`  // events that were given up, the oldest first, at most 100
	Lost      int          `json:"lost,omitempty"`  // dead letters that are not kept any more
}

// DeadLetter is an event that was not delivered after all tries.
type DeadLetter struct {
	Event Event     `json:"event"`
	Error string    `json:"error"`
	Time  time.Time `json:"time"`
}

// WebhookDelivery is the body of a request to a webhook. The header Treeline-Signature is "t=<Unix time>,v1=<hex>",
// the HMAC-SHA256 of "<Unix time>.<body>" with the webhook's secret. The header Treeline-Delivery is the
// same for each try of an event.
type WebhookDelivery struct {
	Webhook string `json:"webhook"`
	Event   Event  `json:"event"`
}
