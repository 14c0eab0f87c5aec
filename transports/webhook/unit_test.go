package webhook

import (
	"net/http"
	"net/netip"
	"net/url"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox/policy"
	"github.com/stretchr/testify/require"
)

// TestSignature has the values of the specification's own example.
func TestSignature(t *testing.T) {
	key, ok := decodeSecret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	require.True(t, ok)
	got := signature(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", []byte(`{"test": 2432232314}`))
	require.Equal(t, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=", got)
}

func TestReachable(t *testing.T) {
	for _, a := range []string{
		"0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.255", "100.64.0.1", "100.127.255.255", "127.0.0.1", "127.255.255.255",
		"169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.1", "192.0.0.9", "192.0.0.170", "192.0.2.1", "192.31.196.1",
		"192.52.193.1", "192.88.99.1", "192.168.0.1", "192.175.48.1", "198.18.0.1", "198.19.255.255", "198.51.100.1",
		"203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
		"::", "::1", "::7f00:1", "::8.8.8.8", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::ffff:0:127.0.0.1",
		"64:ff9b::7f00:1", "64:ff9b::8.8.8.8", "64:ff9b:1::a00:1", "100::1", "100:0:0:1::1", "2001::1", "2001:0:7f00:1::", "2001:1::1",
		"2001:2::1", "2001:3::1", "2001:4:112::1", "2001:10::1", "2001:20::1", "2001:30::1", "2001:1ff:ffff::1", "2001:db8::1",
		"2002:7f00:1::", "2002:a00:1::1", "2620:4f:8000::1", "3fff::1", "3fff:fff:ffff::1", "5f00::1", "fc00::1", "fd00:ec2::254",
		"fe80::1", "fe80::1%eth0", "febf::1", "fec0::1", "ff02::1", "ff02::1%lo", "::1%lo", "1000::1", "4000::1", "8000::1",
	} {
		require.False(t, reachable(netip.MustParseAddr(a), nil), a)
	}
	for _, a := range []string{
		"1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255", "128.0.0.0",
		"169.253.255.255", "169.255.0.0", "172.15.255.255", "172.32.0.0", "192.0.1.0", "192.167.255.255", "192.169.0.0",
		"198.17.255.255", "198.20.0.0", "223.255.255.255", "::ffff:8.8.8.8",
		"2001:200::1", "2001:4860:4860::8888", "2001:db7:ffff::1", "2001:db9::1", "2003::1", "2606:4700::1111", "2a00:1450::1", "3ffe::1",
	} {
		require.True(t, reachable(netip.MustParseAddr(a), nil), a)
	}
	require.False(t, reachable(netip.Addr{}, nil))
}

func TestReachableAllowed(t *testing.T) {
	allowed := []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fe80::/10")}
	for a, want := range map[string]bool{
		"10.1.2.3": true, "::ffff:10.1.2.3": true, "10.2.0.1": false, "fe80::1%eth0": true, "fe80::1": true, "127.0.0.1": false,
		"64:ff9b::a01:203": false, "2002:a01:203::": false, "8.8.8.8": true,
	} {
		require.Equal(t, want, reachable(netip.MustParseAddr(a), allowed), a)
	}
}

// TestNoProxy: an address that is checked must be the endpoint's, not that of a proxy of the environment.
func TestNoProxy(t *testing.T) {
	require.Nil(t, newRoundTripper(Config{}).(*http.Transport).Proxy)
}

func TestPlainHost(t *testing.T) {
	for _, host := range []string{
		"", ".", "2130706433", "0x7f000001", "0X7F.1", "017700000001", "127.1", "127.0.1", "0177.0.0.1", "127.0.0.01", "127.0.0.1.",
		"1.2.3.4.5", "256.1.1.1", "0x", "example.0x1f", "example.123", "..",
	} {
		require.False(t, plainHost(host), host)
	}
	for _, host := range []string{
		"127.0.0.1", "::1", "fe80::1%eth0", "example.com", "example.com.", "1.example.com", "0x7f.example", "xn--nxasmq6b", "a1", "0xg", "ex-1",
	} {
		require.True(t, plainHost(host), host)
	}
}

var clock = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func TestRetryAfter(t *testing.T) {
	date := func(after time.Duration) string { return clock.Add(after).Format(http.TimeFormat) }
	for _, c := range []struct {
		name, value, date string
		want              time.Duration
	}{
		{"absent", "", "", 0},
		{"seconds", "120", "", 2 * time.Minute},
		{"spaces", " 120 ", "", 2 * time.Minute},
		{"none", "0", "", 0},
		{"at the limit", "3600", "", time.Hour},
		{"beyond", "3601", "", time.Hour},
		{"overflowing", "9223372036854775807", "", time.Hour},
		{"no number", "99999999999999999999999", "", time.Hour},
		{"negative", "-5", "", 0},
		{"fraction", "1.5", "", 0},
		{"words", "in a minute", "", 0},
		{"date", date(time.Minute), "", time.Minute},
		{"past", date(-time.Minute), "", 0},
		{"far", date(1000 * time.Hour), "", time.Hour},
		{"RFC 850", clock.Add(time.Minute).Format("Monday, 02-Jan-06 15:04:05 GMT"), "", time.Minute},
		{"asctime", clock.Add(time.Minute).Format(time.ANSIC), "", time.Minute},
		{"year 9999", "Fri, 31 Dec 9999 23:59:59 GMT", "", time.Hour},
		{"year 1", "Mon, 01 Jan 0001 00:00:00 GMT", "", 0},
		{"their clock is late", date(time.Minute - 5*time.Hour), date(-5 * time.Hour), time.Minute},
		{"their clock is early", date(time.Minute + 5*time.Hour), date(5 * time.Hour), time.Minute},
		{"their clock makes no sense", date(time.Minute), "today", time.Minute},
		{"seconds need no clock", "120", date(5 * time.Hour), 2 * time.Minute},
	} {
		h := http.Header{}
		h.Set("Retry-After", c.value)
		h.Set("Date", c.date)
		require.Equal(t, c.want, retryAfter(h, clock, time.Hour), c.name)
	}
}

func FuzzRetryAfter(f *testing.F) {
	for _, value := range []string{"120", "", "-1", "99999999999999999999", clock.Format(http.TimeFormat), clock.Format(time.ANSIC), "\x00"} {
		f.Add(value, value)
	}
	f.Fuzz(func(t *testing.T, value, date string) {
		h := http.Header{"Retry-After": {value}, "Date": {date}}
		for _, limit := range []time.Duration{1, time.Second, time.Hour, 1<<63 - 1} {
			got := retryAfter(h, clock, limit)
			require.GreaterOrEqual(t, got, time.Duration(0))
			require.LessOrEqual(t, got, limit)
		}
	})
}

func FuzzCheckURL(f *testing.F) {
	for _, recipient := range []string{"https://example.com/a?b#c", "http://u:p@[::1%25lo]:80", "//x", "https:x", "https://0x7f.1", "%", "https://é"} {
		f.Add(recipient)
	}
	transport := &transport{Config: Config{Ports: []int{443}}}
	f.Fuzz(func(t *testing.T, recipient string) {
		if err := transport.checkURL(recipient); err != nil {
			require.Equal(t, policy.Permanent, policy.Classify(err))
			return
		}
		u, err := url.Parse(recipient)
		require.NoError(t, err)
		require.Equal(t, "https", u.Scheme)
		require.Nil(t, u.User)
		require.NotEmpty(t, u.Hostname())
		require.Contains(t, []string{"", "443"}, u.Port())
		_, err = http.NewRequest(http.MethodPost, recipient, nil)
		require.NoError(t, err)
	})
}
