package whatsapp

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/gorm-outbox/outbox/policy"
)

// refusal is what an answer says of itself. Its texts are read for what they mean and go no further: they may quote the
// recipient.
type refusal struct {
	coded     bool   // code is there
	code      int    // Meta's
	name      string // Kapso's own code; empty: none
	text      string // lower case
	transient bool   // Meta says that another try may succeed
}

// name is Kapso's form of a code. Without digits it cannot be somebody's number.
var name = regexp.MustCompile(`^[a-z_]{1,64}$`)

// readRefusal reads the body of a refusal, whatever it is. The error is an object if Meta made it and a text if Kapso
// did; nothing is relied on.
func readRefusal(body []byte) refusal {
	var outer struct{ Error, Code, Message json.RawMessage }
	_ = json.Unmarshal(body, &outer) // a proxy's page is no JSON
	var inner struct {
		Code, Message json.RawMessage
		Transient     json.RawMessage `json:"is_transient"`
	}
	_ = json.Unmarshal(outer.Error, &inner)
	var r refusal
	for _, raw := range []json.RawMessage{inner.Code, outer.Code} {
		r.readCode(raw)
	}
	for _, raw := range []json.RawMessage{outer.Error, outer.Message, inner.Message} {
		r.text += strings.ToLower(text(raw)) + "\n"
	}
	if said := text(outer.Error); r.name == "" && name.MatchString(said) {
		r.name = said
	}
	r.transient = string(inner.Transient) == "true"
	return r
}

// readCode takes a code over unless one is there. It may be a number, a number written as a text, or a word.
func (r *refusal) readCode(raw json.RawMessage) {
	said := written(raw)
	if code, err := strconv.Atoi(said); err == nil && !r.coded {
		r.coded, r.code = true, code
	}
	if r.name == "" && name.MatchString(said) && said != "null" {
		r.name = said
	}
}

// text gives a JSON text, or nothing if it is none.
func text(raw json.RawMessage) string {
	var s string
	_ = json.Unmarshal(raw, &s)
	return s
}

// failure is what a refusal means for a message. It has no text of the provider's.
func (r refusal) failure(status int, header http.Header, m Message, now time.Time) *policy.Failure {
	found := r.rule(status)
	if r.coded && r.code == codeMediumUpload && m.Template.Header.Link != "" && m.Attempt < 2 {
		found.class = policy.Transient
	}
	f := &policy.Failure{
		Category: found.category, Class: found.class, Code: r.named(status), RetryAfter: found.wait, RetryAlone: found.alone,
		Err: fmt.Errorf("whatsapp: the provider answered with HTTP status %d", status),
	}
	if policy.Classify(f) == policy.Transient {
		f.RetryAfter = max(f.RetryAfter, retryAfter(header, now))
		f.OutcomeUnknown = found.unknown && (status >= 500 || status == http.StatusRequestTimeout)
	}
	return f
}

// rule finds what the refusal means: by its code, else by its status.
func (r refusal) rule(status int) rule {
	if r.coded {
		if found, ok := metaRule(r.code); ok {
			return found
		}
	}
	if found, ok := names[r.name]; ok {
		return found
	}
	found, ok := statusRule(status)
	switch {
	case ok:
		return found
	case r.transient:
		return rule{category: policy.CategoryNetwork}
	case r.coded:
		return statusOr(unknownCode, status, otherUnknownCode)
	default:
		return r.uncoded(status)
	}
}

func metaRule(code int) (rule, bool) {
	if found, ok := metaCodes[code]; ok {
		return found, true
	}
	for _, block := range metaRanges {
		if block.from <= code && code <= block.to {
			return block.rule, true
		}
	}
	return rule{}, false
}

func statusOr(rules map[int]rule, status int, other rule) rule {
	if found, ok := rules[status]; ok {
		return found
	}
	return other
}

// uncoded judges by the status, and where that is too broad by words of the text.
func (r refusal) uncoded(status int) rule {
	if status == http.StatusBadRequest || status == http.StatusUnprocessableEntity {
		for _, w := range words {
			if strings.Contains(r.text, w.word) {
				return w.rule
			}
		}
	}
	return statusOr(uncoded, status, otherUncoded)
}

// named gives the failure's code: the provider's, or one that is made of the status.
func (r refusal) named(status int) string {
	switch {
	case r.coded:
		return strconv.Itoa(r.code)
	case r.name != "":
		return r.name
	case status >= 300 && status < 400:
		return "redirect"
	default:
		return "http_" + strconv.Itoa(status)
	}
}

// maxRetryAfter bounds what a header may ask for; the rules' own waits are no longer.
const maxRetryAfter = 24 * time.Hour

// retryAfter reads the header, which gives seconds or a date. Zero: it does not say.
func retryAfter(header http.Header, now time.Time) time.Duration {
	said := strings.TrimSpace(header.Get("Retry-After"))
	seconds, err := strconv.ParseUint(said, 10, 31)
	if err == nil || errors.Is(err, strconv.ErrRange) { // then it is the largest there is
		return min(time.Duration(seconds)*time.Second, maxRetryAfter)
	}
	if date, err := http.ParseTime(said); err == nil {
		return min(max(date.Sub(now), 0), maxRetryAfter)
	}
	return 0
}

// readID finds the provider's id in an answer that says yes. One that cannot be read still said yes.
func readID(body []byte) string {
	var answer struct{ Messages json.RawMessage }
	_ = json.Unmarshal(body, &answer)
	var messages []struct{ ID json.RawMessage }
	_ = json.Unmarshal(answer.Messages, &messages)
	if len(messages) == 0 {
		return ""
	}
	return text(messages[0].ID)
}
