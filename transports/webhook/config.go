package webhook

import (
	"fmt"
	"strings"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/transports/wire"
)

// check gives an ErrInvalid with everything that is wrong.
func (c Config) check() error {
	var problems []string
	wrong := func(is bool, format string, args ...any) {
		if is {
			problems = append(problems, fmt.Sprintf(format, args...))
		}
	}
	wrong(c.Secrets == nil, "Secrets is required")
	wrong(c.MaxBody < 0, "MaxBody must not be negative, is %d", c.MaxBody)
	wrong(!printable(c.UserAgent), "UserAgent must be printable ASCII")
	wrong(c.Timeout != 0 && c.Timeout < minTimeout, "Timeout must be at least %v, is %v", minTimeout, c.Timeout)
	wrong(c.MaxRetryAfter < 0, "MaxRetryAfter must not be negative, is %v", c.MaxRetryAfter)
	for _, status := range c.PermanentStatuses {
		wrong(status < 300 || status > 599, "PermanentStatuses must be from 300 to 599, one is %d", status)
	}
	for _, port := range c.Ports {
		wrong(port < 1 || port > 65535, "Ports must be from 1 to 65535, one is %d", port)
	}
	for _, network := range c.AllowedNetworks {
		wrong(!network.IsValid(), "AllowedNetworks: one is the zero Prefix")
		wrong(network.Addr().Is4In6(), "AllowedNetworks: %v is an IPv4 network and must be written as one", network)
	}
	wrong(c.RoundTripper != nil && (c.AllowedNetworks != nil || c.Resolver != nil || c.TLS != nil),
		"RoundTripper replaces AllowedNetworks, Resolver and TLS, so these would do nothing beside it")
	if problems == nil {
		return nil
	}
	return fmt.Errorf("%w: webhook: %s", outbox.ErrInvalid, strings.Join(problems, "; "))
}

// withDefaults gives a copy that later changes of the app's slices do not reach.
func (c Config) withDefaults() Config {
	if c.Format == nil {
		c.Format = wire.StandardWebhooks
	}
	if c.MaxBody == 0 {
		c.MaxBody = DefaultMaxBody
	}
	if c.UserAgent == "" {
		c.UserAgent = DefaultUserAgent
	}
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	if c.MaxRetryAfter == 0 {
		c.MaxRetryAfter = DefaultMaxRetryAfter
	}
	if c.PermanentStatuses == nil {
		c.PermanentStatuses = DefaultPermanentStatuses()
	}
	switch {
	case len(c.Ports) > 0:
		c.Ports = append([]int(nil), c.Ports...)
	case c.AllowHTTP:
		c.Ports = []int{443, 80}
	default:
		c.Ports = []int{443}
	}
	return c
}

// printable says whether s may stand in a header as it is.
func printable(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r < ' ' || r > '~' }) < 0
}
