package resend

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// The headers that Svix, which delivers Resend's webhooks, signs them with.
const (
	idHeader        = "Svix-Id"
	timestampHeader = "Svix-Timestamp"
	signatureHeader = "Svix-Signature"
)

// tolerance is how far the time of a signature may be from now. It bounds how long a copied webhook could be replayed;
// what comes again within it changes nothing.
const tolerance = 5 * time.Minute

// minSecret is how many bytes a secret must have. An empty one would accept anybody's signature.
const minSecret = 16

type signingKey []byte

// parseSecrets decodes "whsec_" and base64. Its errors do not quote them.
func parseSecrets(secrets []string) ([]signingKey, error) {
	if len(secrets) == 0 {
		return nil, errors.New("no secret is given in Secrets")
	}
	var problems []error
	keys := make([]signingKey, len(secrets))
	for i, secret := range secrets {
		encoded, ok := strings.CutPrefix(secret, "whsec_")
		key, err := base64.StdEncoding.DecodeString(encoded)
		if !ok || err != nil || len(key) < minSecret {
			problems = append(problems, fmt.Errorf("entry %d of Secrets must be whsec_ and the base64 of at least %d bytes", i, minSecret))
		}
		keys[i] = key
	}
	return keys, errors.Join(problems...)
}

var (
	errUnsigned = errors.New("no usable signature")
	errStale    = errors.New("signed too long ago, or in the future")
	errForged   = errors.New("wrong signature")
)

// verify checks the signature of id, timestamp and body: base64 of HMAC-SHA256, after "v1,". The header may hold several,
// of which other versions are passed over.
func verify(keys []signingKey, header http.Header, body []byte, now time.Time) error {
	id, timestamp := header.Get(idHeader), header.Get(timestampHeader)
	seconds, err := strconv.ParseInt(timestamp, 10, 64)
	if err != nil || id == "" {
		return errUnsigned
	}
	signedAt := time.Unix(seconds, 0)
	if signedAt.Before(now.Add(-tolerance)) || signedAt.After(now.Add(tolerance)) {
		return errStale
	}
	for _, key := range keys {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(id + "." + timestamp + "."))
		mac.Write(body)
		expected := mac.Sum(nil)
		for _, signature := range strings.Fields(header.Get(signatureHeader)) {
			encoded, ok := strings.CutPrefix(signature, "v1,")
			given, err := base64.StdEncoding.DecodeString(encoded)
			if ok && err == nil && hmac.Equal(given, expected) {
				return nil
			}
		}
	}
	return errForged
}
