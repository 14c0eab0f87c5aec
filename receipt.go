package outbox

import (
	"database/sql"
	"strconv"
	"strings"
	"time"

	"github.com/gorm-outbox/outbox/policy"
	"gorm.io/gorm"
)

// ReceiptStatus is what a provider reports of a message after it has accepted it.
type ReceiptStatus string

// The reports. "Sent" means only that the provider took the message; these say what became of it.
const (
	ReceiptDelivered  ReceiptStatus = "delivered"  // it has reached the recipient
	ReceiptFailed     ReceiptStatus = "failed"     // the provider gave up on it
	ReceiptBounced    ReceiptStatus = "bounced"    // the recipient's server refused it
	ReceiptComplained ReceiptStatus = "complained" // the recipient called it spam
)

// ProviderReceipt is one report, as a provider's status webhook brings it.
type ProviderReceipt struct {
	Reference  string        // Delivery.Reference, where the provider gives it back; else empty
	ExternalID string        // the provider's id of the message; required without a Reference
	Status     ReceiptStatus // required
	Code       string        // the provider's reason, cut to 64 characters; empty: none
	At         time.Time     // when it happened, by the provider's clock; required
}

// RecordReceipt notes a provider's report on the record of its message, in the columns receipt_status, receipt_code and
// receipt_at, and says whether there is such a record: a provider's account may be shared with others. Reports come
// late, twice and in any order; one that is older than what is noted changes nothing. The status of the record stays:
// what the provider accepted is not sent again by itself.
//
// A report may come before the worker has recorded the provider's id, so a Reference finds its record better than an
// ExternalID. tx must be a transaction ([ErrNoTransaction]), so that it can be one with [ConsumeOnce].
func RecordReceipt(tx *gorm.DB, r ProviderReceipt) (found bool, err error) {
	s, err := transactional(tx, theOutbox)
	if err != nil {
		return false, err
	}
	return s.recordReceipt(tx, r)
}

// RecordReceipt is the package's RecordReceipt for the plugin's table.
func (p Plugin) RecordReceipt(tx *gorm.DB, r ProviderReceipt) (found bool, err error) {
	s, err := transactional(tx, p.installed)
	if err != nil {
		return false, err
	}
	return s.recordReceipt(tx, r)
}

// receiptSQL leaves updated_at alone, which is about the outbox's own writes.
const receiptSQL = `
UPDATE {table} SET
	receipt_status = CASE WHEN {newer} THEN ? ELSE receipt_status END,
	receipt_code = CASE WHEN {newer} THEN ? ELSE receipt_code END,
	receipt_at = CASE WHEN {newer} THEN ? ELSE receipt_at END
WHERE `

func (s *store) recordReceipt(tx *gorm.DB, r ProviderReceipt) (found bool, err error) {
	id, messageID, err := r.check()
	if err != nil {
		return false, err
	}
	at, err := s.instant("At", r.At)
	if err != nil {
		return false, err
	}
	var code any
	if r.Code != "" {
		code = policy.Clean(r.Code, maxReceiptCode)
	}
	statement := s.render(strings.ReplaceAll(receiptSQL, "{newer}", "receipt_at IS NULL OR receipt_at <= ?"), s.holes()...)
	args := []any{at, string(r.Status), at, code, at, at}
	if r.Reference != "" {
		statement, args = statement+"id = ? AND CAST(message_id AS text) = ? RETURNING id", append(args, id, messageID)
	} else {
		statement, args = statement+"external_id = ? RETURNING id", append(args, policy.Clean(r.ExternalID, maxExternalID))
	}
	err = collect(session(tx.Statement.Context, tx), func(rows *sql.Rows) error {
		found = true
		return rows.Scan(new(int64))
	}, statement, args...)
	return found, wrap("record a receipt", err)
}

// maxReceiptCode is how many characters of a provider's reason are kept, as of other codes.
const maxReceiptCode = 64

// check judges a receipt, and takes its reference apart. One that is not of an outbox's making finds nothing and is no
// error: it comes from outside.
func (r ProviderReceipt) check() (id int64, messageID string, err error) {
	var found problems
	switch r.Status {
	case ReceiptDelivered, ReceiptFailed, ReceiptBounced, ReceiptComplained:
	default:
		found.addf("Status is %q, must be delivered, failed, bounced or complained", r.Status)
	}
	if r.Reference == "" && r.ExternalID == "" {
		found.addf("Reference and ExternalID are both empty")
	}
	if r.At.IsZero() {
		found.addf("At is zero; it is when the provider says that it happened")
	}
	number, messageID, _ := strings.Cut(r.Reference, "-")
	if id, err = strconv.ParseInt(number, 10, 64); err != nil {
		id, messageID = 0, ""
	}
	return id, policy.Clean(messageID, maxName), found.err("receipt")
}
