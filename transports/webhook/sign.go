package webhook

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
)

// What a secret looks like, by the specification.
const (
	secretPrefix = "whsec_"
	minSecret    = 24
	maxSecret    = 64
)

// sign sets the headers of Standard Webhooks: id, time of the attempt, and a signature for each secret.
func (t *transport) sign(ctx context.Context, h http.Header, d outbox.Delivery, body []byte) error {
	if d.MessageID == "" || !printable(d.MessageID) || strings.ContainsAny(d.MessageID, " .") { // a dot ends the signed id
		return refused("bad_message_id")
	}
	secrets, err := t.secrets(ctx, d)
	if err != nil {
		return err
	}
	if len(secrets) == 0 {
		return &policy.Failure{Category: policy.CategoryCredentials, Code: "no_secret"}
	}
	timestamp := strconv.FormatInt(time.Now().Unix(), 10)
	signatures := make([]string, len(secrets))
	for i, secret := range secrets {
		key, ok := decodeSecret(secret)
		if !ok {
			return &policy.Failure{Category: policy.CategoryCredentials, Code: "bad_secret"}
		}
		signatures[i] = signature(key, d.MessageID, timestamp, body)
	}
	h.Set("webhook-id", d.MessageID)
	h.Set("webhook-timestamp", timestamp)
	h.Set("webhook-signature", strings.Join(signatures, " "))
	return nil
}

// secrets looks the secrets up, under guard. A look-up that fails says nothing against the message.
func (t *transport) secrets(ctx context.Context, d outbox.Delivery) (secrets []string, err error) {
	failed := func(err error) error {
		return &policy.Failure{
			Category: policy.CategoryCredentials, Code: "secrets_error", Class: policy.Transient, Err: err,
		}
	}
	defer func() {
		if v := recover(); v != nil {
			err = failed(panicked("Secrets", v))
		}
	}()
	secrets, err = t.Secrets(ctx, d)
	if _, said := policy.AsFailure(err); err != nil && !said {
		err = failed(err)
	}
	return secrets, err
}

func decodeSecret(secret string) (key []byte, ok bool) {
	text, ok := strings.CutPrefix(secret, secretPrefix)
	if !ok {
		return nil, false
	}
	key, err := base64.StdEncoding.DecodeString(text)
	return key, err == nil && len(key) >= minSecret && len(key) <= maxSecret
}

func signature(key []byte, id, timestamp string, body []byte) string {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(id + "." + timestamp + "."))
	mac.Write(body)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}
