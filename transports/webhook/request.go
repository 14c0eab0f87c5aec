package webhook

import (
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/gorm-outbox/outbox/transports/wire"
)

// checkURL refuses a recipient that is not the URL of an endpoint. Its addresses are checked when it is connected to.
func (t *transport) checkURL(recipient string) error {
	u, err := url.Parse(recipient)
	switch {
	case err != nil || u.Opaque != "" || u.User != nil || !plainHost(u.Hostname()):
		return refused("bad_url")
	case u.Scheme != "https" && u.Scheme != "http":
		return refused("bad_url")
	case u.Scheme == "http" && !t.AllowHTTP:
		return refused("scheme_not_allowed")
	case !slices.Contains(t.Ports, portOf(u)):
		return refused("port_not_allowed")
	default:
		return nil
	}
}

// portOf gives 0, which is never allowed, for one that is no number.
func portOf(u *url.URL) int {
	switch {
	case u.Port() != "":
		port, _ := strconv.Atoi(u.Port())
		return port
	case u.Scheme == "http":
		return 80
	default:
		return 443
	}
}

// plainHost is false for a host that some resolvers take for an address and others for a name: 2130706433, 0x7f.1 and
// 127.1 are all spellings of 127.0.0.1. As in browsers, a host whose last label is a number is an IPv4 address or none.
func plainHost(host string) bool {
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	labels := strings.Split(strings.TrimSuffix(strings.ToLower(host), "."), ".")
	last := labels[len(labels)-1]
	hex, isHex := strings.CutPrefix(last, "0x")
	return last != "" && strings.Trim(last, "0123456789") != "" && !(isHex && strings.Trim(hex, "0123456789abcdef") == "")
}

// encode makes the body, under guard: the format may be the app's.
func (t *transport) encode(d outbox.Delivery) (w wire.Wire, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &policy.Failure{Category: policy.CategoryRejected, Code: "format_error", Err: panicked("Format", v)}
		}
	}()
	w, err = t.Format.Encode(d)
	if _, said := policy.AsFailure(err); err != nil && !said {
		err = &policy.Failure{Category: policy.CategoryRejected, Code: "format_error", Err: err}
	}
	if err == nil && len(w.Body) > t.MaxBody {
		err = refused("body_too_large")
	}
	return w, err
}

// setHeaders sets all but the signature. Attributes are CloudEvents', in the binding for HTTP.
func (t *transport) setHeaders(h http.Header, w wire.Wire) error {
	if !printable(w.ContentType) {
		return refused("format_error")
	}
	h.Set("User-Agent", t.UserAgent)
	if w.ContentType != "" {
		h.Set("Content-Type", w.ContentType)
	}
	for name, value := range w.Attributes {
		if name == "" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789") != "" {
			return refused("format_error")
		}
		h.Set("ce-"+name, percentEncode(value))
	}
	return nil
}

// percentEncode escapes what CloudEvents does not let stand in an HTTP header: space, quotation mark, percent sign and
// all beyond visible ASCII.
func percentEncode(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if c := s[i]; c <= ' ' || c > '~' || c == '"' || c == '%' {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// refused is for what is not sent at all, and never will be.
func refused(code string) error {
	return &policy.Failure{Category: policy.CategoryRejected, Code: code}
}

// panicked names the type alone: the value may be private.
func panicked(what string, v any) error { return fmt.Errorf("webhook: %s panicked with a %T", what, v) }
