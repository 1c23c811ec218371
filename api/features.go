package api

import "cmp"

// The features of an SLA that a node announces in NodeInfo.Features. A node or cluster of an
// earlier release announces none and would ignore the fields, so that it does not get such instances.
const (
	FeatureFiles = "files" // files besides those of the image
)

// featureTexts are the names of features for people.
var featureTexts = map[string]string{
	FeatureFiles: "files of the SLA",
}

// FeatureText returns the name of a feature for people.
func FeatureText(feature string) string { return cmp.Or(featureTexts[feature], feature) }

// Features returns the features that a node needs for the service, sorted.
func (m Microservice) Features() []string {
	var out []string
	if len(m.Files) > 0 {
		out = append(out, FeatureFiles)
	}
	return out
}
