package httpapi

import (
	"net/url"
	"reflect"
	"strconv"
)

func typeOf[T any]() reflect.Type { return reflect.TypeFor[T]() }

// nextLink is the Link header of the next page.
func nextLink(path string, in *ListInput, cursor string) string {
	q := url.Values{"cursor": {cursor}, "limit": {strconv.Itoa(in.Limit)}}
	if in.Tenant != "" {
		q.Set("tenant", string(in.Tenant))
	}
	if in.Under != "" {
		q.Set("under", in.Under)
	}
	return "<" + path + "?" + q.Encode() + `>; rel="next"`
}
