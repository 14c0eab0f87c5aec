package whatsapp

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	"github.com/gorm-outbox/outbox"
	"gorm.io/gorm"
)

// StatusConfig configures a [StatusHandler].
type StatusConfig struct {
	// DB is where the outbox is. Required.
	DB *gorm.DB
	// Plugin names the outbox where the database has several. Nil: the only one.
	Plugin *outbox.Plugin
	// Secrets are what the provider signs with: Meta's app secret, or the secret key of Kapso's webhook. Any of them will
	// do, so that one can be replaced. At least one is required.
	Secrets []string
	// VerifyToken is what Meta has to show when the webhook is registered. Empty: such a request is refused. Kapso makes
	// none.
	VerifyToken string
	// Consumer is under what name statuses are remembered, at most 200 characters; see outbox.ConsumeOnce. Empty:
	// "whatsapp_status".
	Consumer string
	// Logger gets what keeps statuses from being recorded, without their content. Nil: silent.
	Logger *slog.Logger
}

const (
	defaultConsumer = "whatsapp_status"
	maxWebhook      = 4 << 20 // Meta sends up to 3 MB
)

// StatusHandler gives the handler of the provider's status webhooks, which notes on the records what became of their
// messages: delivered (also when read), or failed with the provider's code. It takes Meta's own webhooks, sent by Meta
// or forwarded by Kapso, and Kapso's, payload version v2, of the events whatsapp.message.delivered, .read and .failed.
//
// A webhook that is not signed with one of the secrets gets 401, and one that is no JSON object 400. Anything else in it
// than statuses of the outbox's messages is ignored: an account may have other uses. A status that comes again changes
// nothing. When the database fails the answer is 500, and the provider sends the webhook again.
//
// Bound what a client may take its time for, as any server should: ReadTimeout of http.Server. The error is
// [outbox.ErrInvalid], with everything that is wrong.
func StatusHandler(cfg StatusConfig) (http.Handler, error) {
	var problems []string
	if cfg.DB == nil {
		problems = append(problems, "DB is nil")
	}
	if len(cfg.Secrets) == 0 || slices.Contains(cfg.Secrets, "") {
		problems = append(problems, "Secrets is empty, or one of them is")
	}
	if len([]rune(cfg.Consumer)) > 200 {
		problems = append(problems, "Consumer has more than 200 characters")
	}
	if err := invalid(problems); err != nil {
		return nil, err
	}
	if cfg.Consumer == "" {
		cfg.Consumer = defaultConsumer
	}
	cfg.Secrets = slices.Clone(cfg.Secrets)
	return http.HandlerFunc(statusHandler{cfg}.serve), nil // a function, since printing one shows no secret
}

type statusHandler struct{ cfg StatusConfig }

func (h statusHandler) serve(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodGet:
		h.register(w, r)
	case http.MethodPost:
		w.WriteHeader(h.receive(w, r))
	default:
		w.Header().Set("Allow", "GET, POST")
		w.WriteHeader(http.StatusMethodNotAllowed)
	}
}

// register answers the challenge by which Meta makes sure that the address is the app's.
func (h statusHandler) register(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	if h.cfg.VerifyToken == "" || query.Get("hub.mode") != "subscribe" || !same(query.Get("hub.verify_token"), h.cfg.VerifyToken) {
		w.WriteHeader(http.StatusForbidden)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff") // the challenge comes from outside
	_, _ = io.WriteString(w, query.Get("hub.challenge"))
}

// same compares in a time that tells nothing of either text.
func same(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return hmac.Equal(x[:], y[:])
}

// receive gives the status of the answer.
func (h statusHandler) receive(w http.ResponseWriter, r *http.Request) int {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxWebhook))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return http.StatusRequestEntityTooLarge
	case err != nil:
		return http.StatusBadRequest
	case !h.signed(r.Header, body):
		return http.StatusUnauthorized
	}
	receipts, ok := readReceipts(body)
	if !ok {
		return http.StatusBadRequest
	}
	for _, receipt := range receipts {
		if err := h.record(r, receipt); err != nil {
			h.log("whatsapp: a status could not be recorded; the provider will send it again", err)
			return http.StatusInternalServerError
		}
	}
	return http.StatusOK
}

// signed reports whether one of the secrets made the signature: Meta's, or Kapso's, which only go by other names.
func (h statusHandler) signed(header http.Header, body []byte) bool {
	for _, name := range []string{"X-Hub-Signature-256", "X-Webhook-Signature"} {
		given, err := hex.DecodeString(strings.TrimPrefix(header.Get(name), "sha256="))
		if err != nil || len(given) == 0 {
			continue
		}
		for _, secret := range h.cfg.Secrets {
			mac := hmac.New(sha256.New, []byte(secret))
			mac.Write(body)
			if hmac.Equal(mac.Sum(nil), given) {
				return true
			}
		}
	}
	return false
}

// errForeign undoes the marker of a status whose message is not the outbox's.
var errForeign = errors.New("whatsapp: not a message of this outbox")

// record notes a receipt the first time that it comes. Each has a transaction of its own: webhooks come side by side and
// with the same messages in them, and would wait for each other in circles.
func (h statusHandler) record(r *http.Request, receipt receipt) error {
	consume, note := outbox.ConsumeOnce, outbox.RecordReceipt
	if h.cfg.Plugin != nil {
		consume, note = h.cfg.Plugin.ConsumeOnce, h.cfg.Plugin.RecordReceipt
	}
	db := h.cfg.DB.Session(&gorm.Session{NewDB: true, Context: r.Context()})
	err := db.Transaction(func(tx *gorm.DB) error {
		_, err := consume(tx, h.cfg.Consumer, receipt.key, func(tx *gorm.DB) error {
			found, err := note(tx, receipt.ProviderReceipt)
			if err == nil && !found {
				return errForeign
			}
			return err
		})
		return err
	})
	switch {
	case errors.Is(err, errForeign):
		return nil
	case errors.Is(err, outbox.ErrInvalid): // will be no better the next time
		h.log("whatsapp: a status is ignored, since it cannot be recorded", err)
		return nil
	default:
		return err
	}
}

// log names the kind of an error; its text may quote what it was about.
func (h statusHandler) log(text string, err error) {
	if h.cfg.Logger == nil {
		return
	}
	kind := fmt.Sprintf("%T", err)
	var state interface{ SQLState() string }
	if errors.As(err, &state) {
		kind = state.SQLState()
	}
	h.cfg.Logger.Error(text, "error", kind)
}
