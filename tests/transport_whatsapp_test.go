package tests

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/gorm-outbox/outbox/transports/whatsapp"
	"github.com/stretchr/testify/require"
)

// whatsappAPI is a double of the provider's API on loopback. What it answers depends on the recipient.
type whatsappAPI struct {
	*httptest.Server
	mu      sync.Mutex
	answers map[string]http.HandlerFunc // by recipient; others are accepted
	asked   map[string]int              // by recipient
}

func newWhatsAppAPI(t *testing.T) *whatsappAPI {
	a := &whatsappAPI{answers: map[string]http.HandlerFunc{}, asked: map[string]int{}}
	a.Server = httptest.NewServer(http.HandlerFunc(a.serve))
	t.Cleanup(a.Close)
	return a
}

func (a *whatsappAPI) serve(w http.ResponseWriter, r *http.Request) {
	var message struct{ To string }
	body, _ := io.ReadAll(r.Body)
	_ = json.Unmarshal(body, &message)
	a.mu.Lock()
	a.asked[message.To]++
	answer := a.answers[message.To]
	a.mu.Unlock()
	if answer == nil {
		_, _ = io.WriteString(w, `{"messages":[{"id":"wamid.`+message.To+`"}]}`)
		return
	}
	answer(w, r)
}

func (a *whatsappAPI) timesAsked(recipient string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.asked[recipient]
}

// transport sends the template that the message's type names, through the double.
func (a *whatsappAPI) transport(t *testing.T) map[string]outbox.Transport {
	t.Helper()
	sender, err := whatsapp.Cloud(whatsapp.CloudConfig{BaseURL: a.URL})
	require.NoError(t, err)
	transport, err := whatsapp.New(whatsapp.Config{
		Sender: sender,
		Credentials: func(context.Context, string) (*whatsapp.Credentials, error) {
			return &whatsapp.Credentials{PhoneNumberID: "1055", Token: secret}, nil
		},
		Params: func(context.Context, outbox.Delivery) (whatsapp.Template, error) {
			return whatsapp.Template{Language: "es_AR"}, nil
		},
	})
	require.NoError(t, err)
	return map[string]outbox.Transport{"whatsapp": transport}
}

// refuses answers with one of Meta's codes.
func refuses(status, code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = fmt.Fprintf(w, `{"error":{"message":"(#%[1]d) no","type":"OAuthException","code":%[1]d,"fbtrace_id":"x"}}`, code)
	}
}

// sendWhatsApps runs one round that sends a message to each recipient, and gives the records by recipient.
func (r *rig) sendWhatsApps(cfg outbox.ProcessorConfig, recipients ...string) map[string]outbox.Record {
	r.Helper()
	for _, recipient := range recipients {
		r.enqueue(1, outbox.Message{Topic: "whatsapp", Type: "welcome", Recipient: recipient})
	}
	summary := r.processor(r.open(), cfg).ProcessOnce(r.Context())
	require.Equal(r, len(recipients), summary.Claimed)
	require.Zero(r, summary.Errors)
	records := map[string]outbox.Record{}
	for _, record := range r.records() {
		records[record.Recipient] = record
	}
	return records
}

func TestC38_WhatsAppCodesAreToldApart(t *testing.T) {
	t.Parallel()
	const backoff = 10 * time.Second
	tests := []struct {
		status, code int
		want         outbox.Status
		category     policy.Category
		wait         time.Duration // until the next attempt, at least
	}{
		{400, 130429, outbox.StatusPending, policy.CategoryRateLimited, 0},
		{400, 131056, outbox.StatusPending, policy.CategoryRateLimited, time.Minute},
		{400, 131048, outbox.StatusPending, policy.CategoryRateLimited, time.Hour},
		{400, 80007, outbox.StatusPending, policy.CategoryRateLimited, 0},
		{500, 131000, outbox.StatusPending, policy.CategoryNetwork, 0},
		{404, 134101, outbox.StatusPending, policy.CategoryTemplate, 10 * time.Minute},
		{400, 987654, outbox.StatusPending, policy.CategoryRejected, 0}, // new
		{400, 131026, outbox.StatusDiscarded, policy.CategoryNumber, 0},
		{400, 131047, outbox.StatusDiscarded, policy.CategoryWindow, 0},
		{404, 132001, outbox.StatusDiscarded, policy.CategoryTemplate, 0},
		{400, 132000, outbox.StatusDiscarded, policy.CategoryTemplate, 0},
		{401, 190, outbox.StatusDiscarded, policy.CategoryCredentials, 0},
		{500, 3, outbox.StatusDiscarded, policy.CategoryCredentials, 0}, // whatever the status says
		{400, 131042, outbox.StatusDiscarded, policy.CategoryBilling, 0},
	}
	r, api := newRig(t), newWhatsAppAPI(t)
	to := func(code int) string { return fmt.Sprintf("5491%07d", code) }
	recipients := []string{"5491122334455"}
	for _, tt := range tests {
		recipients = append(recipients, to(tt.code))
		api.answers[to(tt.code)] = refuses(tt.status, tt.code)
	}
	cfg := outbox.ProcessorConfig{Transports: api.transport(t), Backoff: policy.Backoff{Base: backoff}}
	records := r.sendWhatsApps(cfg, recipients...)

	for _, tt := range tests {
		record := records[to(tt.code)]
		require.Equal(t, tt.want, record.Status, tt.code)
		require.Equal(t, string(tt.category), *record.LastErrorCategory, tt.code)
		require.Equal(t, fmt.Sprint(tt.code), *record.LastErrorCode)
		require.Equal(t, 1, api.timesAsked(to(tt.code)), "one attempt is one request")
		if wait := record.DueAt.Sub(record.UpdatedAt); tt.want == outbox.StatusPending {
			require.InDelta(t, max(tt.wait, backoff).Seconds(), wait.Seconds(), 0.2*backoff.Seconds()+0.001, tt.code)
		}
	}
	sent := records["5491122334455"]
	require.Equal(t, outbox.StatusSent, sent.Status)
	require.Equal(t, "wamid.5491122334455", *sent.ExternalID)
}

// TestC35_AWhatsAppWhoseAnswerIsLost: the provider has no keys to tell a repeat by. Delivered at most once, the message
// ends; a known refusal is tried again all the same.
func TestC35_AWhatsAppWhoseAnswerIsLost(t *testing.T) {
	t.Parallel()
	const lost, cut, busy, unreadable = "5491100000001", "5491100000002", "5491100000003", "5491100000004"
	for _, once := range []bool{true, false} {
		t.Run(fmt.Sprintf("at most once %v", once), func(t *testing.T) {
			t.Parallel()
			r, api := newRig(t), newWhatsAppAPI(t)
			api.answers[lost] = func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
			api.answers[cut] = func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
			api.answers[busy] = refuses(http.StatusTooManyRequests, 130429)
			api.answers[unreadable] = func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") }
			cfg := outbox.ProcessorConfig{
				Transports: api.transport(t), AtMostOnce: map[string]bool{"whatsapp": once}, Lease: 5 * time.Second, Timeout: time.Second,
			}
			records := r.sendWhatsApps(cfg, lost, cut, busy, unreadable)
			for recipient, code := range map[string]string{lost: "timeout", cut: "no_answer"} {
				record := records[recipient]
				require.Equal(t, code, *record.LastErrorCode)
				require.NotNil(t, record.UnknownSince)
				if once {
					require.Equal(t, outbox.StatusFailed, record.Status)
					require.Equal(t, string(policy.CategoryOutcomeUnknown), *record.LastErrorCategory)
				} else {
					require.Equal(t, outbox.StatusPending, record.Status)
				}
			}
			require.Equal(t, outbox.StatusPending, records[busy].Status)
			require.Nil(t, records[busy].UnknownSince)
			require.Equal(t, outbox.StatusSent, records[unreadable].Status, "a yes that cannot be read is one")
			r.makeDue()
			r.processor(r.open(), cfg).ProcessOnce(t.Context())
			require.Equal(t, 2, api.timesAsked(busy))
			require.Equal(t, map[bool]int{true: 1, false: 2}[once], api.timesAsked(cut))
		})
	}
}

// TestC38_WhatIsAcceptedMayStillFail: the refusal comes by webhook, many times and side by side.
func TestC38_WhatIsAcceptedMayStillFail(t *testing.T) {
	t.Parallel()
	r, api := newRig(t), newWhatsAppAPI(t)
	r.sendWhatsApps(outbox.ProcessorConfig{Transports: api.transport(t)}, "5491100000001", "5491100000002")
	handler, err := whatsapp.StatusHandler(whatsapp.StatusConfig{DB: r.open(), Secrets: []string{secret}})
	require.NoError(t, err)
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)

	statuses := []string{
		`{"id":"wamid.5491100000001","status":"delivered","timestamp":"1730000000"}`,
		`{"id":"wamid.5491100000001","status":"read","timestamp":"1730000060"}`,
		`{"id":"wamid.5491100000002","status":"sent","timestamp":"1730000000"}`,
		`{"id":"wamid.5491100000002","status":"failed","timestamp":"1730000030","errors":[{"code":131049}]}`,
		`{"id":"wamid.of another system","status":"delivered","timestamp":"1730000000"}`,
	}
	var posts sync.WaitGroup
	var failures atomic.Int32
	for i := range 16 {
		posts.Go(func() {
			first := i % len(statuses) // in another order each time
			if postStatuses(server.URL, append(statuses[first:len(statuses):len(statuses)], statuses[:first]...)) != http.StatusOK {
				failures.Add(1)
			}
		})
	}
	posts.Wait()
	require.Zero(t, failures.Load())

	read, failed := r.records()[0], r.records()[1]
	require.Equal(t, outbox.ReceiptDelivered, *read.ReceiptStatus)
	require.EqualValues(t, 1730000060, read.ReceiptAt.Unix())
	require.Equal(t, outbox.ReceiptFailed, *failed.ReceiptStatus)
	require.Equal(t, "131049", *failed.ReceiptCode)
	require.Equal(t, outbox.StatusSent, failed.Status)
	var markers int64
	require.NoError(t, r.db.Table("outbox_processed").Count(&markers).Error)
	require.EqualValues(t, 3, markers)
}

// postStatuses delivers a webhook as Meta does, and gives the status of the answer, 0 for none.
func postStatuses(url string, statuses []string) int {
	body := `{"entry":[{"changes":[{"value":{"statuses":[` + strings.Join(statuses, ",") + `]}}]}]}`
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(body))
	request, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return 0
	}
	request.Header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(mac.Sum(nil)))
	request.Close = true // or the test's own client would leave goroutines
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0
	}
	defer response.Body.Close()
	return response.StatusCode
}
