package outbox

import (
	"strconv"
	"strings"
	"time"
)

// array is an array literal of PostgreSQL's in the making: as a parameter it is a text, which every driver and protocol
// carries, and the server reads it in half the time that JSON takes.
type array struct {
	literal []byte
	filled  bool // some element is not NULL
}

func (a *array) separate() {
	if len(a.literal) == 0 {
		a.literal = append(a.literal, '{')
	} else {
		a.literal = append(a.literal, ',')
	}
}

// text adds a text, quoted.
func (a *array) text(s string) {
	a.separate()
	a.filled = true
	literal := append(a.literal, '"')
	for i := strings.IndexAny(s, `"\`); i >= 0; i = strings.IndexAny(s, `"\`) {
		literal = append(literal, s[:i]...)
		literal = append(literal, '\\', s[i])
		s = s[i+1:]
	}
	literal = append(literal, s...)
	a.literal = append(literal, '"')
}

// textOrNull adds NULL for an empty text.
func (a *array) textOrNull(s string) {
	if s == "" {
		a.null()
	} else {
		a.text(s)
	}
}

func (a *array) null() {
	a.separate()
	a.literal = append(a.literal, "NULL"...)
}

func (a *array) number(n int64) {
	a.separate()
	a.filled = true
	a.literal = strconv.AppendInt(a.literal, n, 10)
}

// time adds an instant, or NULL for nil.
func (a *array) time(t any) {
	if at, ok := t.(time.Time); ok {
		a.text(at.Format(time.RFC3339Nano))
	} else {
		a.null()
	}
}

// param is the finished literal. An array of nothing but NULL is NULL itself, of which unnest makes as many.
func (a array) param() any {
	if !a.filled {
		return nil
	}
	return string(append(a.literal, '}'))
}

// messageArrays are the parameters of dialect.messages on PostgreSQL: an array for each column.
func messageArrays(rows []row) ([]any, error) {
	var columns [13]array
	for _, r := range rows {
		columns[0].number(int64(r.N))
		columns[1].text(r.Tenant)
		columns[2].text(r.Topic)
		columns[3].text(r.Type)
		columns[4].text(r.Recipient)
		columns[5].text(string(r.Payload))
		columns[6].textOrNull(string(r.Headers))
		columns[7].text(r.MessageID)
		columns[8].textOrNull(r.Key)
		columns[9].number(int64(r.MaxAttempts))
		columns[10].time(r.DueAt)
		columns[11].number(r.Delay)
		columns[12].time(r.ExpiresAt)
	}
	params := make([]any, len(columns))
	for i, column := range columns {
		params[i] = column.param()
	}
	return params, nil
}
