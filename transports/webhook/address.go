package webhook

import (
	"errors"
	"net/netip"
)

// errBlocked marks an address that must not be connected to.
var errBlocked = errors.New("webhook: blocked address")

// globalUnicast is all of IPv6 that is handed out for the internet. What lies outside is refused as a whole: unspecified
// and loopback (::/127), IPv4-compatible (::/96) and IPv4-mapped (::ffff:0:0/96), NAT64 (64:ff9b::/96, 64:ff9b:1::/48),
// discard and dummy (100::/64, 100:0:0:1::/64), segment routing (5f00::/16), unique local (fc00::/7), link-local
// (fe80::/10), site-local (fec0::/10) and multicast (ff00::/8).
var globalUnicast = netip.MustParsePrefix("2000::/3")

// special are the networks of the IANA registries iana-ipv4-special-registry and iana-ipv6-special-registry, and
// multicast. Some are globally reachable, and refused all the same: no endpoint lives there.
var special = prefixes(
	"0.0.0.0/8",       // this network
	"10.0.0.0/8",      // private
	"100.64.0.0/10",   // shared, carrier-grade NAT
	"127.0.0.0/8",     // loopback
	"169.254.0.0/16",  // link-local, with the clouds' metadata service
	"172.16.0.0/12",   // private
	"192.0.0.0/24",    // IETF protocol assignments
	"192.0.2.0/24",    // documentation
	"192.31.196.0/24", // AS112
	"192.52.193.0/24", // AMT
	"192.88.99.0/24",  // 6to4 relays
	"192.168.0.0/16",  // private
	"192.175.48.0/24", // AS112
	"198.18.0.0/15",   // benchmarks
	"198.51.100.0/24", // documentation
	"203.0.113.0/24",  // documentation
	"224.0.0.0/4",     // multicast
	"240.0.0.0/4",     // reserved, with broadcast

	"2001::/23",         // IETF protocol assignments: Teredo, benchmarks, ORCHID and others
	"2001:db8::/32",     // documentation
	"2002::/16",         // 6to4: an IPv4 address, perhaps a private one, in disguise
	"2620:4f:8000::/48", // AS112
	"3fff::/20",         // documentation
)

func prefixes(texts ...string) []netip.Prefix {
	all := make([]netip.Prefix, len(texts))
	for i, text := range texts {
		all[i] = netip.MustParsePrefix(text)
	}
	return all
}

// reachable says whether an address may be connected to: one of the public internet, or of a network that is allowed.
func reachable(a netip.Addr, allowed []netip.Prefix) bool {
	a = a.Unmap().WithZone("") // a prefix contains no address with a zone, so that one would get past the table
	if !a.IsValid() {
		return false
	}
	if within(a, allowed) {
		return true
	}
	return (a.Is4() || globalUnicast.Contains(a)) && !within(a, special)
}

func within(a netip.Addr, networks []netip.Prefix) bool {
	for _, network := range networks {
		if network.Contains(a) {
			return true
		}
	}
	return false
}
