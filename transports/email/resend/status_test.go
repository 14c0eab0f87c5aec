package resend_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/outboxtest/sqlitetest"
	"github.com/gorm-outbox/outbox/transports/email/resend"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
)

var (
	secret    = "whsec_" + base64.StdEncoding.EncodeToString([]byte("the secret of the endpoint"))
	oldSecret = "whsec_" + base64.StdEncoding.EncodeToString([]byte("the one that it had before"))
)

// sign signs as Svix does.
func sign(secret, id, timestamp, body string) string {
	key, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(id + "." + timestamp + "." + body))
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// webhook is what Resend posts.
type webhook struct{ id, timestamp, signature, body string }

func signed(id, body string) webhook {
	timestamp := strconv.FormatInt(time.Now().Unix(), 10)
	return webhook{id, timestamp, sign(secret, id, timestamp, body), body}
}

func (w webhook) post(t testing.TB, h http.Handler) int {
	t.Helper()
	r := httptest.NewRequest(http.MethodPost, "/webhooks/resend", strings.NewReader(w.body))
	for name, value := range map[string]string{"svix-id": w.id, "svix-timestamp": w.timestamp, "svix-signature": w.signature} {
		if value != "" {
			r.Header.Set(name, value)
		}
	}
	answer := httptest.NewRecorder()
	h.ServeHTTP(answer, r)
	require.NotContains(t, answer.Body.String(), "ana@example.test")
	return answer.Code
}

// desk is an outbox with one message, which was sent, and the endpoint.
type desk struct {
	http.Handler
	db        *gorm.DB
	reference string
}

func openDesk(t testing.TB, change func(*resend.StatusConfig), plugins ...outbox.Plugin) desk {
	t.Helper()
	d := desk{db: sqlitetest.Open(t, plugins...)}
	p := outbox.Plugin{}
	if len(plugins) > 0 {
		p = plugins[len(plugins)-1]
	}
	require.NoError(t, d.db.Transaction(func(tx *gorm.DB) error {
		_, err := p.Enqueue(tx, outbox.Message{Topic: "email", Type: "welcome", Recipient: "ana@example.test", Payload: 1})
		return err
	}))
	processor, err := p.NewProcessor(d.db, outbox.ProcessorConfig{Transports: map[string]outbox.Transport{
		"email": outbox.TransportFunc(func(_ context.Context, delivery outbox.Delivery) (string, error) {
			d.reference = delivery.Reference()
			return "mail-1", nil
		}),
	}})
	require.NoError(t, err)
	require.Equal(t, 1, processor.ProcessOnce(context.Background()).Sent)
	cfg := resend.StatusConfig{DB: d.db, Secrets: []string{oldSecret, secret}}
	if change != nil {
		change(&cfg)
	}
	d.Handler, err = resend.StatusHandler(cfg)
	require.NoError(t, err)
	return d
}

func (d desk) record(t testing.TB, table string) outbox.Record {
	t.Helper()
	var records []outbox.Record
	require.NoError(t, d.db.Table(table).Find(&records).Error)
	require.Len(t, records, 1)
	return records[0]
}

func (d desk) markers(t testing.TB) int64 {
	t.Helper()
	var n int64
	require.NoError(t, d.db.Table("outbox_processed").Count(&n).Error)
	return n
}

// report is an event as Resend's documents show it, with the tags as given.
func report(kind, at, tags, more string) string {
	return fmt.Sprintf(`{"type":%q,"created_at":%q,"data":{"created_at":"2026-01-02T03:00:00.5+00:00","email_id":"mail-1",
		"from":"Shop <orders@shop.example>","to":["ana@example.test"],"subject":"Hi"%s,"tags":%s}}`, kind, at, more, tags)
}

func TestStatusHandlerRecords(t *testing.T) {
	for name, c := range map[string]struct {
		kind, more, tags string
		status           outbox.ReceiptStatus
		code             string
	}{
		"delivered":      {"email.delivered", "", `{"outbox":%q,"category":"x"}`, outbox.ReceiptDelivered, ""},
		"tags in a list": {"email.delivered", "", `[{"name":"a","value":"b"},{"name":"outbox","value":%q}]`, outbox.ReceiptDelivered, ""},
		"by external id": {"email.delivered", "", `{"category":"%.0s"}`, outbox.ReceiptDelivered, ""},
		"no tags":        {"email.delivered", "", `null%.0s`, outbox.ReceiptDelivered, ""},
		"complained":     {"email.complained", "", `{"outbox":%q}`, outbox.ReceiptComplained, ""},
		"bounced": {"email.bounced", `,"bounce":{"message":"no ana@example.test","diagnosticCode":["smtp; 550 ana@example.test"],"type":"Permanent","subType":"Suppressed"}`,
			`{"outbox":%q}`, outbox.ReceiptBounced, "Permanent/Suppressed"},
		"bounced, no word": {"email.bounced", `,"bounce":{"type":"no ana@example.test"}`, `{"outbox":%q}`, outbox.ReceiptBounced, ""},
		"failed":           {"email.failed", `,"failed":{"reason":"reached_daily_quota"}`, `{"outbox":%q}`, outbox.ReceiptFailed, "reached_daily_quota"},
		"suppressed":       {"email.suppressed", `,"suppressed":{"message":"on the list"}`, `{"outbox":%q}`, outbox.ReceiptFailed, "suppressed"},
	} {
		t.Run(name, func(t *testing.T) {
			d := openDesk(t, nil)
			body := report(c.kind, "2026-01-02T03:04:05.123Z", fmt.Sprintf(c.tags, d.reference), c.more)
			require.Equal(t, http.StatusOK, signed("msg_1", body).post(t, d))
			r := d.record(t, "outbox")
			require.NotNil(t, r.ReceiptStatus)
			require.Equal(t, c.status, *r.ReceiptStatus)
			require.Equal(t, time.Date(2026, 1, 2, 3, 4, 5, 123e6, time.UTC), r.ReceiptAt.UTC())
			if c.code == "" {
				require.Nil(t, r.ReceiptCode)
			} else {
				require.Equal(t, c.code, *r.ReceiptCode)
			}
			require.EqualValues(t, 1, d.markers(t))
		})
	}
}

func TestStatusHandlerTakesAReplayOnce(t *testing.T) {
	d := openDesk(t, nil)
	tags := fmt.Sprintf(`{"outbox":%q}`, d.reference)
	first := signed("msg_1", report("email.delivered", "2026-01-02T03:04:05Z", tags, ""))
	require.Equal(t, http.StatusOK, first.post(t, d))
	require.Equal(t, http.StatusOK, signed("msg_2", report("email.complained", "2026-01-03T03:04:05Z", tags, "")).post(t, d))
	require.Equal(t, http.StatusOK, first.post(t, d))
	// The same id with another content is a replay too.
	require.Equal(t, http.StatusOK, signed("msg_1", report("email.bounced", "2026-01-04T03:04:05Z", tags, "")).post(t, d))

	require.Equal(t, outbox.ReceiptComplained, *d.record(t, "outbox").ReceiptStatus)
	require.EqualValues(t, 2, d.markers(t))
}

func TestStatusHandlerLeavesAloneWhatIsNotOurs(t *testing.T) {
	d := openDesk(t, nil)
	ours := fmt.Sprintf(`{"outbox":%q}`, d.reference)
	for _, body := range []string{
		report("email.sent", "2026-01-02T03:04:05Z", ours, ""), report("email.opened", "2026-01-02T03:04:05Z", ours, ""),
		report("email.clicked", "2026-01-02T03:04:05Z", ours, ""), report("email.delivery_delayed", "2026-01-02T03:04:05Z", ours, ""),
		report("email.received", "2026-01-02T03:04:05Z", ours, ""), `{"type":"contact.created","data":[]}`, `{"type":"email.invented","data":17}`,
		report("email.delivered", "2026-01-02T03:04:05Z", `{"outbox":"7-0190b5a4-7c1e-7d2a-9f00-000000000000"}`, ""),
		report("email.delivered", "2026-01-02T03:04:05Z", `{"outbox":"another use of the name"}`, ""),
		strings.ReplaceAll(report("email.delivered", "2026-01-02T03:04:05Z", `{}`, ""), "mail-1", "mail-of-another-app"),
	} {
		require.Equal(t, http.StatusOK, signed("msg_1", body).post(t, d), body)
	}
	require.Nil(t, d.record(t, "outbox").ReceiptStatus)
	require.Zero(t, d.markers(t), "the webhooks of others leave nothing behind")
}

func TestStatusHandlerRefuses(t *testing.T) {
	d := openDesk(t, nil)
	body := report("email.delivered", "2026-01-02T03:04:05Z", fmt.Sprintf(`{"outbox":%q}`, d.reference), "")
	good := signed("msg_1", body)
	old := strconv.FormatInt(time.Now().Add(-6*time.Minute).Unix(), 10)
	early := strconv.FormatInt(time.Now().Add(6*time.Minute).Unix(), 10)
	stranger := "whsec_" + base64.StdEncoding.EncodeToString([]byte("the secret of somebody else"))
	for name, w := range map[string]webhook{
		"no headers":      {body: body},
		"no id":           {"", good.timestamp, good.signature, body},
		"no timestamp":    {good.id, "", good.signature, body},
		"no signature":    {good.id, good.timestamp, "", body},
		"empty signature": {good.id, good.timestamp, "v1,", body},
		"half of it":      {good.id, good.timestamp, good.signature[:20], body},
		"version 2":       {good.id, good.timestamp, "v2," + strings.TrimPrefix(good.signature, "v1,"), body},
		"another body":    {good.id, good.timestamp, good.signature, body + " "},
		"another id":      {"msg_2", good.timestamp, good.signature, body},
		"another time":    {good.id, strconv.FormatInt(time.Now().Unix()+1, 10), good.signature, body},
		"another secret":  {good.id, good.timestamp, sign(stranger, good.id, good.timestamp, body), body},
		"too old":         {good.id, old, sign(secret, good.id, old, body), body},
		"from the future": {good.id, early, sign(secret, good.id, early, body), body},
		"no number":       {good.id, "now", sign(secret, good.id, "now", body), body},
	} {
		require.Equal(t, http.StatusUnauthorized, w.post(t, d), name)
	}
	for _, garbage := range []string{
		"", "{", "null", "[]", "17", `{}`, `{"type":17}`, `{"type":"email.delivered"}`, `{"type":"email.delivered","data":17}`,
		report("email.delivered", "yesterday", `{}`, ""), `{"type":"email.delivered","created_at":"2026-01-02T03:04:05Z","data":{}}`,
	} {
		require.Equal(t, http.StatusBadRequest, signed("msg_1", garbage).post(t, d), garbage)
	}
	require.Equal(t, http.StatusBadRequest, signed(strings.Repeat("m", 300), body).post(t, d), "no such id can be remembered")
	require.Equal(t, http.StatusRequestEntityTooLarge, signed("msg_1", strings.Repeat(" ", 2<<20)).post(t, d))
	require.Nil(t, d.record(t, "outbox").ReceiptStatus)
	require.Zero(t, d.markers(t))

	answer := httptest.NewRecorder()
	d.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/", nil))
	require.Equal(t, http.StatusMethodNotAllowed, answer.Code)
	answer = httptest.NewRecorder()
	d.ServeHTTP(answer, httptest.NewRequest(http.MethodPost, "/", io.MultiReader(bytes.NewReader([]byte("{")), broken{})))
	require.Equal(t, http.StatusBadRequest, answer.Code)
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errors.New("gone") }

func TestStatusHandlerTakesBothSecrets(t *testing.T) {
	d := openDesk(t, nil)
	body := report("email.delivered", "2026-01-02T03:04:05Z", fmt.Sprintf(`{"outbox":%q}`, d.reference), "")
	w := signed("msg_1", body)
	w.signature = "v1a,bm90aGluZw== v1,d3Jvbmc= " + sign(oldSecret, w.id, w.timestamp, body)
	require.Equal(t, http.StatusOK, w.post(t, d))
	require.NotNil(t, d.record(t, "outbox").ReceiptStatus)
}

func TestStatusHandlerWhenTheDatabaseFails(t *testing.T) {
	var failed error
	d := openDesk(t, func(c *resend.StatusConfig) { c.OnError = func(_ context.Context, err error) { failed = err } })
	w := signed("msg_1", report("email.delivered", "2026-01-02T03:04:05Z", fmt.Sprintf(`{"outbox":%q}`, d.reference), ""))
	require.NoError(t, d.db.Exec("ALTER TABLE outbox RENAME TO away").Error)

	require.Equal(t, http.StatusInternalServerError, w.post(t, d))
	require.Error(t, failed)

	require.NoError(t, d.db.Exec("ALTER TABLE away RENAME TO outbox").Error)
	require.Equal(t, http.StatusOK, w.post(t, d), "Resend tries again")
	require.NotNil(t, d.record(t, "outbox").ReceiptStatus)
}

func TestStatusHandlerOfASecondOutbox(t *testing.T) {
	mails := outbox.Plugin{Table: "mails"}
	d := openDesk(t, func(c *resend.StatusConfig) { c.Plugin = &mails }, outbox.Plugin{}, mails)
	body := report("email.delivered", "2026-01-02T03:04:05Z", fmt.Sprintf(`{"outbox":%q}`, d.reference), "")
	require.Equal(t, http.StatusOK, signed("msg_1", body).post(t, d))
	require.Equal(t, outbox.ReceiptDelivered, *d.record(t, "mails").ReceiptStatus)
}

func TestStatusHandlerConfig(t *testing.T) {
	db := sqlitetest.Open(t)
	for name, cfg := range map[string]resend.StatusConfig{
		"nothing": {}, "no database": {Secrets: []string{secret}}, "no secret": {DB: db}, "empty": {DB: db, Secrets: []string{""}},
		"no prefix": {DB: db, Secrets: []string{strings.TrimPrefix(secret, "whsec_")}}, "nothing behind it": {DB: db, Secrets: []string{"whsec_"}},
		"no base64": {DB: db, Secrets: []string{secret, "whsec_!!!secret!!!secret!!!"}}, "short": {DB: db, Secrets: []string{"whsec_c2hvcnQ="}},
	} {
		_, err := resend.StatusHandler(cfg)
		require.ErrorIs(t, err, outbox.ErrInvalid, name)
		require.NotContains(t, err.Error(), "!!!secret", name)
	}
	_, err := resend.StatusHandler(resend.StatusConfig{})
	require.ErrorContains(t, err, "DB")
	require.ErrorContains(t, err, "Secrets")
}
