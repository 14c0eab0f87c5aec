package resend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/gorm-outbox/outbox"
	"gorm.io/gorm"
)

// Consumer is the name under which [StatusHandler] remembers the webhooks that it has seen; see outbox.ConsumeOnce.
const Consumer = "resend"

// maxEvent is how large a webhook may be; Resend's are a few kilobytes.
const maxEvent = 1 << 20

// StatusConfig says how to take Resend's webhooks. DB and Secrets are required.
type StatusConfig struct {
	// DB is the database of the outbox whose messages the webhooks are about.
	DB *gorm.DB
	// Secrets are the signing secrets of the webhook endpoint, "whsec_…". One signature that fits is enough, so while a
	// secret is changed both are given.
	Secrets []string
	// Plugin is the outbox, where DB has more than one. Nil: the only one.
	Plugin *outbox.Plugin
	// OnError, where given, learns why a webhook was answered with 500. The error may hold private data.
	OnError func(context.Context, error)
}

// StatusHandler gives the endpoint to which Resend reports what became of a mail after it was accepted. It checks the
// signature, and in one transaction remembers the webhook and notes the report on its record, as outbox.RecordReceipt
// does: email.delivered, email.bounced, email.complained, and as failed email.failed and email.suppressed. A webhook that
// comes again changes nothing.
//
// It answers 200 when the report is noted, or is about something else: another event, or a mail of somebody else's;
// 401 for a signature that is missing, wrong or older than five minutes; 400 for what is no event; and 500 when the
// database fails, so that Resend tries again. The error is an [outbox.ErrInvalid] with everything that is wrong with cfg.
func StatusHandler(cfg StatusConfig) (http.Handler, error) {
	var problems []error
	if cfg.DB == nil {
		problems = append(problems, errors.New("DB is nil"))
	}
	keys, err := parseSecrets(cfg.Secrets)
	if err != nil {
		problems = append(problems, err)
	}
	if len(problems) > 0 {
		return nil, fmt.Errorf("%w: resend status handler: %w", outbox.ErrInvalid, errors.Join(problems...))
	}
	h := &statusHandler{
		db: cfg.DB, keys: keys, consumeOnce: outbox.ConsumeOnce, recordReceipt: outbox.RecordReceipt, onError: cfg.OnError,
	}
	if cfg.Plugin != nil {
		plugin := *cfg.Plugin
		h.consumeOnce, h.recordReceipt = plugin.ConsumeOnce, plugin.RecordReceipt
	}
	return h, nil
}

type statusHandler struct {
	db            *gorm.DB
	keys          []signingKey
	consumeOnce   func(*gorm.DB, string, string, func(*gorm.DB) error) (bool, error)
	recordReceipt func(*gorm.DB, outbox.ProviderReceipt) (bool, error)
	onError       func(context.Context, error)
}

// ServeHTTP takes one webhook.
func (h *statusHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "post a webhook", http.StatusMethodNotAllowed)
		return
	}
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxEvent))
	if err != nil {
		status := http.StatusBadRequest
		if tooLarge := new(http.MaxBytesError); errors.As(err, &tooLarge) {
			status = http.StatusRequestEntityTooLarge
		}
		http.Error(w, "cannot be read", status)
		return
	}
	if err := verify(h.keys, r.Header, text, time.Now()); err != nil {
		http.Error(w, err.Error(), http.StatusUnauthorized)
		return
	}
	receipt, relevant, err := parseEvent(text)
	switch {
	case err != nil:
		http.Error(w, err.Error(), http.StatusBadRequest)
	case !relevant:
		w.WriteHeader(http.StatusOK)
	default:
		h.record(w, r, receipt)
	}
}

// errNotOurs undoes the marker of a webhook that is about no record here: those of others would only pile up.
var errNotOurs = errors.New("resend: no record of this outbox")

func (h *statusHandler) record(w http.ResponseWriter, r *http.Request, receipt outbox.ProviderReceipt) {
	err := h.db.WithContext(r.Context()).Transaction(func(tx *gorm.DB) error {
		_, err := h.consumeOnce(tx, Consumer, r.Header.Get(idHeader), func(tx *gorm.DB) error {
			found, err := h.recordReceipt(tx, receipt)
			if err == nil && !found {
				return errNotOurs
			}
			return err
		})
		return err
	})
	switch {
	case err == nil, errors.Is(err, errNotOurs):
		w.WriteHeader(http.StatusOK)
	case errors.Is(err, outbox.ErrInvalid): // an id or a time that the outbox cannot hold will not fit next time either
		http.Error(w, "no usable event", http.StatusBadRequest)
	default:
		if h.onError != nil {
			h.onError(r.Context(), err)
		}
		http.Error(w, "not recorded", http.StatusInternalServerError)
	}
}
