package whatsapp_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/outboxtest"
	"github.com/gorm-outbox/outbox/outboxtest/sqlitetest"
	"github.com/gorm-outbox/outbox/transports/whatsapp"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
)

const appSecret = "app-secret-0815"

// hook is a database with one sent message, and the handler for its statuses.
type hook struct {
	*testing.T
	db      *gorm.DB
	handler http.Handler
	ref     string
}

const wamid = "wamid.HBgNNTQ5MTEyMjMzNDQ1NQ=="

func newHook(t *testing.T, cfg whatsapp.StatusConfig) *hook {
	t.Helper()
	h := &hook{T: t, db: sqlitetest.Open(t)}
	if cfg.DB == nil {
		cfg.DB = h.db
	}
	if cfg.Secrets == nil {
		cfg.Secrets = []string{appSecret}
	}
	var err error
	h.handler, err = whatsapp.StatusHandler(cfg)
	require.NoError(t, err)
	require.NoError(t, h.db.Transaction(func(tx *gorm.DB) error {
		receipt, err := outbox.Enqueue(tx, outbox.Message{Topic: "whatsapp", Type: "welcome", Recipient: recipient})
		h.ref = outbox.Delivery{ID: receipt.ID, MessageID: receipt.MessageID}.Reference()
		return err
	}))
	send := outbox.TransportFunc(func(context.Context, outbox.Delivery) (string, error) { return wamid, nil })
	require.Equal(t, 1, outboxtest.Drain(t, h.db, map[string]outbox.Transport{"whatsapp": send}).Sent)
	return h
}

func signature(secret, body string) string {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(body))
	return hex.EncodeToString(mac.Sum(nil))
}

// post delivers a webhook as Meta does, and gives the status of the answer.
func (h *hook) post(body string) int {
	return h.postWith(body, "X-Hub-Signature-256", "sha256="+signature(appSecret, body))
}

func (h *hook) postWith(body, header, value string) int {
	h.Helper()
	r := httptest.NewRequest(http.MethodPost, "/status", strings.NewReader(body))
	r.Header.Set(header, value)
	w := httptest.NewRecorder()
	h.handler.ServeHTTP(w, r)
	require.Empty(h, w.Body.String())
	return w.Code
}

func (h *hook) record() outbox.Record {
	h.Helper()
	var record outbox.Record
	require.NoError(h, h.db.Table("outbox").Take(&record).Error)
	return record
}

// receipt is what is noted, in one line; empty: nothing.
func (h *hook) receipt() string {
	h.Helper()
	r := h.record()
	if r.ReceiptStatus == nil {
		require.Nil(h, r.ReceiptAt)
		return ""
	}
	code := "-"
	if r.ReceiptCode != nil {
		code = *r.ReceiptCode
	}
	return fmt.Sprint(*r.ReceiptStatus, " ", code, " ", r.ReceiptAt.Unix())
}

func (h *hook) markers() int64 {
	h.Helper()
	var n int64
	require.NoError(h, h.db.Table("outbox_processed").Count(&n).Error)
	return n
}

// meta wraps statuses as Meta does.
func meta(statuses ...string) string {
	return `{"object":"whatsapp_business_account","entry":[{"id":"WABA","changes":[{"field":"messages","value":{
		"messaging_product":"whatsapp","metadata":{"phone_number_id":"1055"},"statuses":[` + strings.Join(statuses, ",") + `]}}]}]}`
}

func state(id, name string, at int, more string) string {
	return fmt.Sprintf(`{"id":"%s","status":"%s","timestamp":"%d","recipient_id":"%s"%s}`, id, name, at, recipient, more)
}

func TestStatusConfig(t *testing.T) {
	_, err := whatsapp.StatusHandler(whatsapp.StatusConfig{Consumer: strings.Repeat("x", 201)})
	require.ErrorIs(t, err, outbox.ErrInvalid)
	for _, name := range []string{"DB", "Secrets", "Consumer"} {
		require.ErrorContains(t, err, name)
	}
	_, err = whatsapp.StatusHandler(whatsapp.StatusConfig{DB: sqlitetest.Open(t), Secrets: []string{appSecret, ""}})
	require.ErrorContains(t, err, "Secrets")
	require.NotContains(t, err.Error(), appSecret)
}

func TestStatuses(t *testing.T) {
	failed := `,"errors":[{"code":131026,"title":"Undeliverable","error_data":{"details":"5491122334455"}}]`
	tests := []struct{ name, status, want string }{
		{"delivered", state(wamid, "delivered", 100, ""), "delivered - 100"},
		{"read", state(wamid, "read", 100, ""), "delivered - 100"},
		{"failed", state(wamid, "failed", 100, failed), "failed 131026 100"},
		{"failed, code as a text", state(wamid, "failed", 100, `,"errors":[{"code":"131049"}]`), "failed 131049 100"},
		{"failed, code that is a text", state(wamid, "failed", 100, `,"errors":[{"code":"No 5491122334455"}]`), "failed - 100"},
		{"failed without a reason", state(wamid, "failed", 100, ""), "failed - 100"},
		{"sent says nothing", state(wamid, "sent", 100, ""), ""},
		{"another state", state(wamid, "deleted", 100, ""), ""},
		{"time as a number", `{"id":"` + wamid + `","status":"read","timestamp":100}`, "delivered - 100"},
		{"no time", `{"id":"` + wamid + `","status":"read"}`, ""},
		{"a time before all", state(wamid, "read", -100, ""), ""},
		{"a time after all", state(wamid, "read", 253402300800, ""), ""},
		{"another's message", state("wamid.other", "read", 100, ""), ""},
		{"no message", state("", "read", 100, ""), ""},
		{"a message with a NUL", state(`\u0000`, "read", 100, ""), ""},
		{"a long id", state(strings.Repeat("w", 9000), "read", 100, ""), ""},
		{"of no shape", `7`, ""},
		{"of another shape", `{"id":{"a":1},"status":["read"],"timestamp":{}}`, ""},
		{"another's reference", state(wamid, "read", 100, `,"biz_opaque_callback_data":"campaign-7"`), "delivered - 100"},
		{"another outbox's reference", state(wamid, "read", 100, `,"biz_opaque_callback_data":"7-0190b5a4-7c1e-7d2a-9f00-a1b2c3d4e5f6"`), ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := newHook(t, whatsapp.StatusConfig{})
			require.Equal(t, http.StatusOK, h.post(meta(tt.status)))
			require.Equal(t, tt.want, h.receipt())
			require.Equal(t, tt.want != "", h.markers() == 1, "what is another's leaves no marker")
			require.Equal(t, outbox.StatusSent, h.record().Status)
		})
	}
}

// TestStatusBeforeTheWorkersOwnRecord finds the record by its reference, under an id that it does not know.
func TestStatusBeforeTheWorkersOwnRecord(t *testing.T) {
	h := newHook(t, whatsapp.StatusConfig{})
	require.Equal(t, http.StatusOK, h.post(meta(state("wamid.unheard", "read", 100, `,"biz_opaque_callback_data":"`+h.ref+`"`))))
	require.Equal(t, "delivered - 100", h.receipt())
}

func TestStatusesInBatches(t *testing.T) {
	h := newHook(t, whatsapp.StatusConfig{})
	failed := state(wamid, "failed", 300, `,"errors":[{"code":131026}]`)
	batch := meta(state("wamid.other", "read", 90, ""), `null`, state(wamid, "sent", 100, ""), state(wamid, "delivered", 200, ""), failed)
	require.Equal(t, http.StatusOK, h.post(batch))
	require.Equal(t, "failed 131026 300", h.receipt())
	require.EqualValues(t, 2, h.markers())
	require.Equal(t, http.StatusOK, h.post(batch), "again")
	require.Equal(t, "failed 131026 300", h.receipt())
	require.EqualValues(t, 2, h.markers())
}

// TestAReplayChangesNothing resets what was noted, so that a second note would show.
func TestAReplayChangesNothing(t *testing.T) {
	h := newHook(t, whatsapp.StatusConfig{Consumer: "hooks"})
	body := meta(state(wamid, "read", 100, ""))
	require.Equal(t, http.StatusOK, h.post(body))
	require.NoError(t, h.db.Exec("UPDATE outbox SET receipt_status = NULL, receipt_at = NULL").Error)
	require.Equal(t, http.StatusOK, h.post(body))
	require.Empty(t, h.receipt())
	var marker struct{ Consumer, MessageID string }
	require.NoError(t, h.db.Table("outbox_processed").Take(&marker).Error)
	require.Equal(t, "hooks", marker.Consumer)
	require.Equal(t, wamid+":read:100", marker.MessageID)
}

func TestKapsosWebhooks(t *testing.T) {
	event := func(id, statuses string) string {
		return `{"message":{"id":"` + id + `","timestamp":"100","type":"template","kapso":{"direction":"outbound","status":"x",
			"statuses":[` + statuses + `]}},"conversation":{"id":"c","phone_number":"+1"},"phone_number_id":"1055"}`
	}
	history := state(wamid, "sent", 100, "") + "," + state(wamid, "delivered", 200, "")
	tests := []struct{ name, body, want string }{
		{"one event", event(wamid, history), "delivered - 200"},
		{"a failure", event(wamid, state(wamid, "failed", 300, `,"errors":[{"code":131047}]`)), "failed 131047 300"},
		{"a batch", `{"type":"x","batch":true,"data":[` + event("wamid.other", state("wamid.other", "read", 1, "")) + "," + event(wamid, history) + `]}`, "delivered - 200"},
		{"an inbound message", `{"message":{"id":"wamid.in","kapso":{"direction":"inbound","status":"received"}}}`, ""},
		{"another event", `{"event":"workflow.execution.failed","message":"text","data":{"a":1}}`, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := newHook(t, whatsapp.StatusConfig{})
			require.Equal(t, http.StatusUnauthorized, h.postWith(tt.body, "X-Webhook-Signature", signature("other", tt.body)))
			require.Empty(t, h.receipt())
			require.Equal(t, http.StatusOK, h.postWith(tt.body, "X-Webhook-Signature", signature(appSecret, tt.body)))
			require.Equal(t, tt.want, h.receipt())
		})
	}
}

func TestSignature(t *testing.T) {
	body := meta(state(wamid, "read", 100, ""))
	tests := []struct {
		name, header, value string
		want                int
	}{
		{"none", "X-Other", "", http.StatusUnauthorized},
		{"empty", "X-Hub-Signature-256", "", http.StatusUnauthorized},
		{"only its scheme", "X-Hub-Signature-256", "sha256=", http.StatusUnauthorized},
		{"no hex", "X-Hub-Signature-256", "sha256=zz", http.StatusUnauthorized},
		{"another secret's", "X-Hub-Signature-256", "sha256=" + signature("other", body), http.StatusUnauthorized},
		{"another body's", "X-Hub-Signature-256", "sha256=" + signature(appSecret, body+" "), http.StatusUnauthorized},
		{"the first bytes", "X-Hub-Signature-256", "sha256=" + signature(appSecret, body)[:32], http.StatusUnauthorized},
		{"SHA-1", "X-Hub-Signature", "sha1=" + signature(appSecret, body), http.StatusUnauthorized},
		{"the new secret", "X-Hub-Signature-256", "sha256=" + signature(appSecret, body), http.StatusOK},
		{"the old secret", "X-Hub-Signature-256", "sha256=" + signature("old", body), http.StatusOK},
		{"in capitals", "X-Hub-Signature-256", "sha256=" + strings.ToUpper(signature(appSecret, body)), http.StatusOK},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := newHook(t, whatsapp.StatusConfig{Secrets: []string{appSecret, "old"}})
			require.Equal(t, tt.want, h.postWith(body, tt.header, tt.value))
			require.Equal(t, tt.want == http.StatusOK, h.receipt() != "")
		})
	}
}

func TestGarbage(t *testing.T) {
	h := newHook(t, whatsapp.StatusConfig{})
	for _, body := range []string{``, `null`, ` null`, `7`, `"x"`, `[]`, `[{"entry":[]}]`, `{`, "\xff\xfe", `{"entry":`} {
		require.Equal(t, http.StatusBadRequest, h.post(body), body)
	}
	for _, body := range []string{`{}`, `{"entry":7}`, `{"entry":[7,null,{"changes":7},{"changes":[null,{"value":7}]}]}`, `{"data":"x"}`} {
		require.Equal(t, http.StatusOK, h.post(body), body)
	}
	require.Equal(t, http.StatusRequestEntityTooLarge, h.post(`{"a":"`+strings.Repeat("x", 4<<20)+`"}`))
	require.Empty(t, h.receipt())
}

func TestRegistration(t *testing.T) {
	const good = "hub.mode=subscribe&hub.verify_token=v-token&hub.challenge=%3Cb%3E1158201444"
	tests := []struct {
		name, token, query string
		want               int
	}{
		{"right", "v-token", good, http.StatusOK},
		{"wrong token", "other", good, http.StatusForbidden},
		{"no token", "v-token", "hub.mode=subscribe&hub.challenge=1", http.StatusForbidden},
		{"no token here either", "", "hub.mode=subscribe&hub.challenge=1", http.StatusForbidden},
		{"another mode", "v-token", strings.Replace(good, "subscribe", "unsubscribe", 1), http.StatusForbidden},
		{"nothing", "v-token", "", http.StatusForbidden},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			handler, err := whatsapp.StatusHandler(whatsapp.StatusConfig{DB: sqlitetest.Open(t), Secrets: []string{appSecret}, VerifyToken: tt.token})
			require.NoError(t, err)
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/status?"+tt.query, nil))
			require.Equal(t, tt.want, w.Code)
			if tt.want == http.StatusOK {
				require.Equal(t, "<b>1158201444", w.Body.String())
				require.Contains(t, w.Header().Get("Content-Type"), "text/plain")
				require.Equal(t, "nosniff", w.Header().Get("X-Content-Type-Options"))
				return
			}
			require.Empty(t, w.Body.String())
		})
	}
}

func TestOtherMethods(t *testing.T) {
	h := newHook(t, whatsapp.StatusConfig{})
	w := httptest.NewRecorder()
	h.handler.ServeHTTP(w, httptest.NewRequest(http.MethodDelete, "/status", nil))
	require.Equal(t, http.StatusMethodNotAllowed, w.Code)
	require.Equal(t, "GET, POST", w.Header().Get("Allow"))
}

// TestDatabaseFails: the provider is asked to come again, and then the status is noted, once.
func TestDatabaseFails(t *testing.T) {
	var log bytes.Buffer
	h := newHook(t, whatsapp.StatusConfig{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	fail := true
	require.NoError(t, h.db.Callback().Row().Before("gorm:row").Register("test:fail", func(tx *gorm.DB) {
		if fail && strings.Contains(tx.Statement.SQL.String(), "receipt_status") {
			_ = tx.AddError(errors.New("broken pipe to " + recipient))
		}
	}))
	body := meta(state(wamid, "read", 100, ""))
	require.Equal(t, http.StatusInternalServerError, h.post(body))
	require.Empty(t, h.receipt())
	require.Zero(t, h.markers(), "the marker is undone with the note")
	require.Contains(t, log.String(), "could not be recorded")
	require.NotContains(t, log.String(), recipient)
	require.NotContains(t, log.String(), wamid)
	fail = false
	require.Equal(t, http.StatusOK, h.post(body))
	require.Equal(t, "delivered - 100", h.receipt())
}

// TestCallerIsGone: the transaction ends with the request.
func TestCallerIsGone(t *testing.T) {
	h := newHook(t, whatsapp.StatusConfig{})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	body := meta(state(wamid, "read", 100, ""))
	r := httptest.NewRequest(http.MethodPost, "/status", strings.NewReader(body)).WithContext(ctx)
	r.Header.Set("X-Hub-Signature-256", "sha256="+signature(appSecret, body))
	w := httptest.NewRecorder()
	h.handler.ServeHTTP(w, r)
	require.Equal(t, http.StatusInternalServerError, w.Code)
	require.Empty(t, h.receipt())
}

func TestSecondOutbox(t *testing.T) {
	notices := outbox.Plugin{Table: "notices"}
	db := sqlitetest.Open(t, outbox.Plugin{}, notices)
	var receipt outbox.Receipt
	require.NoError(t, db.Transaction(func(tx *gorm.DB) (err error) {
		receipt, err = notices.Enqueue(tx, outbox.Message{Topic: "whatsapp", Type: "welcome", Recipient: recipient})
		return err
	}))
	h := newHook(t, whatsapp.StatusConfig{DB: db, Plugin: &notices})
	ref := outbox.Delivery{ID: receipt.ID, MessageID: receipt.MessageID}.Reference()
	require.Equal(t, http.StatusOK, h.post(meta(state("wamid.x", "read", 100, `,"biz_opaque_callback_data":"`+ref+`"`))))
	var record outbox.Record
	require.NoError(t, db.Table("notices").Take(&record).Error)
	require.NotNil(t, record.ReceiptStatus)
	require.Equal(t, time.Unix(100, 0).UTC(), record.ReceiptAt.UTC())
}

func TestTheHandlerShowsNoSecret(t *testing.T) {
	h := newHook(t, whatsapp.StatusConfig{VerifyToken: "v-token"})
	shown := fmt.Sprintf("%v %+v %#v", h.handler, h.handler, h.handler)
	require.NotContains(t, shown, appSecret)
	require.NotContains(t, shown, "v-token")
}
