package outbox

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestProviderKey(t *testing.T) {
	const id = "01930000-0000-7000-8000-000000000000"
	long := strings.Repeat("k", 200)
	tests := []struct{ name, tenant, key, want string }{
		{"no key", "acme", "", id},
		{"tenant and key", "acme", "order-7", "acme:order-7"},
		{"no tenant", "", "order-7", ":order-7"},
		{"colon in the tenant", "a:b", "c", "a%3Ab:c"},
		{"colon in the key", "a", "b:c", "a:b:c"},
		{"percent in the tenant", "a%3Ab", "c", "a%253Ab:c"},
		{"exactly as long as allowed", strings.Repeat("t", 55), long, strings.Repeat("t", 55) + ":" + long},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { require.Equal(t, tt.want, providerKey(tt.tenant, tt.key, id)) })
	}
	for name, key := range map[string]string{"too long": strings.Repeat("k", 256), "not ASCII": "pedido-ñ", "a space": "order 7"} {
		t.Run(name, func(t *testing.T) { require.Regexp(t, `^[0-9a-f]{64}$`, providerKey("acme", key, id)) })
	}
}

// FuzzProviderKey: no two messages share a key, and every key can be a header.
func FuzzProviderKey(f *testing.F) {
	f.Add("a", "b:c", "a:b", "c")
	f.Add("a%3Ab", "c", "a:b", "c")
	f.Add("", "x", "x", "")
	f.Fuzz(func(t *testing.T, tenant1, key1, tenant2, key2 string) {
		one, two := providerKey(tenant1, key1, "id-1"), providerKey(tenant2, key2, "id-2")
		if same := tenant1 == tenant2 && key1 == key2 && key1 != ""; same != (one == two) {
			t.Fatalf("(%q, %q) and (%q, %q) give %q and %q", tenant1, key1, tenant2, key2, one, two)
		}
		for _, key := range []string{one, two} {
			if len(key) == 0 || len(key) > maxProviderKey || !visibleASCII(key) {
				t.Fatalf("%q is no header value", key)
			}
		}
	})
}
