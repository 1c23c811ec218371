package fairshare

import (
	"fmt"
	"strings"
)

// Table returns the bounds as a Markdown table.
func Table(bounds []Bound) string {
	var b strings.Builder
	b.WriteString("| Resource | Bound in total | Share, per | Beyond | Where | Attack |\n| --- | --- | --- | --- | --- | --- |\n")
	for _, d := range bounds {
		total := fmt.Sprint(d.Total)
		if d.Unit != "" {
			total += " " + d.Unit
		}
		share := d.Per
		if len(d.Share) > 0 {
			share = strings.Trim(fmt.Sprint(d.Share), "[]")
			share = strings.ReplaceAll(share, " ", ", then ") + ", per " + d.Per
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | `%s` | `%s` |\n", d.Resource, total, share, d.Beyond, d.Where, d.Attack)
	}
	return b.String()
}
