package outbox

import (
	"encoding/json"
	"strconv"
	"time"

	"github.com/gorm-outbox/outbox/policy"
	"gorm.io/datatypes"
)

// Status is where a record stands in its life.
type Status = policy.Status

// The states of a record: pending → processing → sent, discarded or failed, and back to pending on a retry, a release
// or a redrive; or, before a worker has it, cancelled or expired.
const (
	StatusPending    = policy.StatusPending    // waits for its due time
	StatusProcessing = policy.StatusProcessing // claimed: a worker holds its lease
	StatusSent       = policy.StatusSent       // the transport accepted it; terminal
	StatusDiscarded  = policy.StatusDiscarded  // permanently refused; terminal
	StatusFailed     = policy.StatusFailed     // its attempts are spent; terminal
	StatusCancelled  = policy.StatusCancelled  // withdrawn by Cancel; terminal
	StatusExpired    = policy.StatusExpired    // its ExpiresAt passed before it was sent; terminal
)

// Message is what the app enqueues.
type Message struct {
	// Topic selects the transport that delivers it: "email", "orders". Required, at most 200 characters.
	Topic string
	// Type is the template's name or the event's type: "order_confirmation", "evt.order.created.v1". At most 200
	// characters.
	Type string
	// Recipient is the address inside the topic: a mailbox, a phone number, a URL. Empty for events. At most 2000
	// characters.
	Recipient string
	// TenantID says whose message it is. Empty where the app has no tenants; required where the tenant column is
	// uuid or bigint. At most 200 characters.
	TenantID string
	// IdempotencyKey is the app's own name for the fact, 1 to 200 characters: enqueued twice for the same tenant, it
	// is one message. Empty: every call is a message of its own. The key holds for as long as the record is kept.
	IdempotencyKey string
	// Payload is marshalled to JSON; json.RawMessage is taken as it is, and nil is JSON's null, which Decode gives as the
	// zero value. What the database could not store and give
	// back (a NUL character, invalid UTF-8, a lone surrogate) is refused.
	Payload any
	// Headers travel beside the payload: trace context, content language. At most 16 KiB as JSON.
	Headers map[string]string
	// ScheduledFor is when it is first due. Zero, or in the past: at once.
	ScheduledFor time.Time
	// Delay, instead of ScheduledFor, counts from now by the database's clock.
	Delay time.Duration
	// ExpiresAt is from when on it must not be sent any more: a one-time password an hour late is worse than none. A
	// message that has not been sent by then ends as expired when its turn comes. Zero: never.
	ExpiresAt time.Time
	// MaxAttempts is how often it is tried before it is failed, 1 to 1000. Zero: the Plugin's.
	MaxAttempts int
}

// Receipt says which record holds the message.
type Receipt struct {
	ID        int64  // the record's id, in order of enqueue; a repeated key leaves a gap
	MessageID string // what consumers deduplicate on
	New       bool   // false: the key was enqueued before, and this is the earlier record
}

// Delivery is what a transport gets: one attempt at one message. It is a copy; changing it changes nothing.
type Delivery struct {
	ID          int64             // the record's id
	TenantID    string            // empty where the app has no tenants
	Topic       string            // the topic that selected this transport
	Type        string            // template name or event type
	Recipient   string            // address inside the topic
	Payload     json.RawMessage   // JSON; see [Decode]
	Headers     map[string]string // nil without headers
	MessageID   string            // UUIDv7 given at enqueue, the same on every attempt
	ProviderKey string            // what to hand the provider as idempotency key: visible ASCII, 1 to 256 bytes, the same on every attempt
	Attempt     int               // this attempt, from 1
	MaxAttempts int               // the last one
	EnqueuedAt  time.Time         // by the database's clock

	// UnknownSince is when the first of the earlier attempts whose outcome is unknown began, by the database's clock: one
	// that timed out, or whose worker died. A provider forgets idempotency keys after a while, and an attempt after that
	// may double the message. Zero: there is none.
	UnknownSince time.Time
}

// Reference names the record to a provider that gives it back in what it later reports, such as a status webhook; see
// [RecordReceipt]. It has ASCII letters, digits and hyphens, 60 at most.
func (d Delivery) Reference() string { return strconv.FormatInt(d.ID, 10) + "-" + d.MessageID }

// Record is the stored row, the GORM model that the plugin registers. Apps read it, with the outbox's own table:
//
//	db.Table("outbox").Where("topic = ?", "email").Find(&records)
//
// They never write it: every write of the outbox is fenced by the lease, and one that is not can lose or double a
// message. With a tenant column of another name TenantID stays empty; select that column as tenant_id.
type Record struct {
	ID             int64             `gorm:"column:id;type:bigint;primaryKey;autoIncrement:false"` // in order of enqueue
	TenantID       string            `gorm:"column:tenant_id;type:text;not null"`                  // whose message it is
	Topic          string            `gorm:"column:topic;type:text;not null"`                      // selects the transport
	Type           string            `gorm:"column:type;type:text;not null"`                       // template name or event type
	Recipient      string            `gorm:"column:recipient;type:text;not null"`                  // address inside the topic
	Payload        datatypes.JSON    `gorm:"column:payload;type:jsonb;not null"`                   // the message's data
	Headers        datatypes.JSONMap `gorm:"column:headers;type:jsonb"`                            // null without headers
	MessageID      string            `gorm:"column:message_id;type:uuid;not null"`                 // what consumers deduplicate on
	IdempotencyKey *string           `gorm:"column:idempotency_key;type:text"`                     // null where the app gave none

	Status      Status     `gorm:"column:status;type:text;not null"`          // where it stands
	Attempts    int        `gorm:"column:attempts;type:integer;not null"`     // claims for delivery so far
	MaxAttempts int        `gorm:"column:max_attempts;type:integer;not null"` // how many there may be
	DueAt       time.Time  `gorm:"column:due_at;type:timestamptz;not null"`   // when it may be tried next; a lease never moves it
	ExpiresAt   *time.Time `gorm:"column:expires_at;type:timestamptz"`        // from when on it must not be sent; null: never

	LeaseToken  *string    `gorm:"column:lease_token;type:text"`         // the fence; null unless processing
	LeaseOwner  *string    `gorm:"column:lease_owner;type:text"`         // for operators; null unless processing
	LeasedUntil *time.Time `gorm:"column:leased_until;type:timestamptz"` // null unless processing

	LastErrorCategory *string `gorm:"column:last_error_category;type:text"` // of the last failed attempt
	LastErrorCode     *string `gorm:"column:last_error_code;type:text"`     // never the raw error
	ExternalID        *string `gorm:"column:external_id;type:text"`         // the provider's id

	UnknownSince  *time.Time     `gorm:"column:unknown_since;type:timestamptz"` // when the first attempt of unknown outcome began
	ReceiptStatus *ReceiptStatus `gorm:"column:receipt_status;type:text"`       // what the provider reported later; see RecordReceipt
	ReceiptCode   *string        `gorm:"column:receipt_code;type:text"`         // the provider's reason, where it gave one
	ReceiptAt     *time.Time     `gorm:"column:receipt_at;type:timestamptz"`    // when it happened, by the provider's clock

	SentAt    *time.Time `gorm:"column:sent_at;type:timestamptz"`             // when it ended sent
	DeadAt    *time.Time `gorm:"column:dead_at;type:timestamptz"`             // when it ended unsent
	CreatedAt time.Time  `gorm:"column:created_at;type:timestamptz;not null"` // when it was enqueued
	UpdatedAt time.Time  `gorm:"column:updated_at;type:timestamptz;not null"` // when it was last written
}

// TableName is the default outbox's table; name another with db.Table.
func (Record) TableName() string { return DefaultTable }
