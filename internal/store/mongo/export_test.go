package mongo

// ScansAs is for tests, which have one server.
var ScansAs = scansAs
