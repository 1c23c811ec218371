package output

import (
	"strconv"
	"strings"

	"github.com/treeline-edge/treeline/api"
)

var rollOutStyles = map[api.RollOutState]Style{
	api.RollOutHealthy: Good, api.RollOutFailed: Bad, api.RollOutRolledBack: Bad,
	api.RollOutProgressing: Busy, api.RollOutRollingBack: Busy, api.RollOutCanary: Busy, api.RollOutPaused: Busy,
}

// RollOuts is the table of roll-outs.
var RollOuts = Table[api.RollOut]{
	Kind: "rollouts",
	Name: func(r api.RollOut) string { return string(r.Service) },
	Columns: []Column[api.RollOut]{
		{Header: "SERVICE", Cell: func(p Printer, r api.RollOut) string { return p.Short(string(r.Service)) }},
		{Header: "STATE", Cell: func(_ Printer, r api.RollOut) string { return string(r.State) }, Style: func(r api.RollOut) Style { return rollOutStyles[r.State] }},
		{Header: "VERSION", Cell: func(_ Printer, r api.RollOut) string { return strconv.FormatUint(uint64(r.Version), 10) }},
		{Header: "UPDATED", Cell: func(_ Printer, r api.RollOut) string {
			return strconv.Itoa(r.Updated) + "/" + strconv.Itoa(r.Replicas+r.Extra)
		}},
		{Header: "HEALTHY", Cell: func(_ Printer, r api.RollOut) string { return strconv.Itoa(r.Succeeded) }},
		{Header: "READY", Cell: func(_ Printer, r api.RollOut) string { return strconv.Itoa(r.Ready) }},
		{Header: "AGE", Cell: func(p Printer, r api.RollOut) string { return p.Age(r.Began) }},
		{Header: "DETAIL", Cell: func(_ Printer, r api.RollOut) string { return r.Detail }},
		{Header: "POLICY", Wide: true, Cell: func(_ Printer, r api.RollOut) string { return r.Policy }},
	},
}

// Versions is the table of the versions of a service.
var Versions = Table[api.RollOutVersion]{
	Kind: "versions",
	Columns: []Column[api.RollOutVersion]{
		{Header: "VERSION", Cell: func(_ Printer, v api.RollOutVersion) string { return strconv.FormatUint(uint64(v.Version), 10) }},
		{Header: "RESULT", Cell: func(_ Printer, v api.RollOutVersion) string { return string(v.Result) }, Style: func(v api.RollOutVersion) Style { return rollOutStyles[v.Result] }},
		{Header: "CODE", Cell: func(_ Printer, v api.RollOutVersion) string { return v.Code }},
		{Header: "BY", Cell: func(_ Printer, v api.RollOutVersion) string { return v.By }},
		{Header: "AGE", Cell: func(p Printer, v api.RollOutVersion) string { return p.Age(v.Began) }},
		{Header: "CHANGED", Cell: func(_ Printer, v api.RollOutVersion) string { return changedFields(v) }},
		{Header: "DETAIL", Wide: true, Cell: func(_ Printer, v api.RollOutVersion) string { return v.Detail }},
	},
}

// changedFields returns the names of the fields that differ from the version before.
func changedFields(v api.RollOutVersion) string {
	var names []string
	for _, c := range v.Changes {
		_, field, _ := strings.Cut(c.Path, "/")
		names = append(names, field)
	}
	return strings.Join(names, ", ")
}
