package outbox

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// maxProviderKey is the longest key that providers take: Resend's limit, the lowest known.
const maxProviderKey = 256

var escapeTenant = strings.NewReplacer("%", "%25", ":", "%3A")

// providerKey is what a provider is handed to recognise a repeat: the same on every attempt and every worker, and
// different for any two messages. Without an idempotency key it is the message id; with one it is tenant:key, whose
// first colon always ends the tenant, or a hash of that where a header could not carry it. The three forms cannot
// meet: only the second has a colon, and the other two differ in length.
func providerKey(tenant, key, messageID string) string {
	if key == "" {
		return messageID
	}
	full := escapeTenant.Replace(tenant) + ":" + key
	if len(full) <= maxProviderKey && visibleASCII(full) {
		return full
	}
	sum := sha256.Sum256([]byte(full))
	return hex.EncodeToString(sum[:])
}

func visibleASCII(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] < '!' || s[i] > '~' {
			return false
		}
	}
	return true
}
