package outbox

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"net"
	"strings"
)

// The sentinels behind every error of this package that is the caller's to mend; test with errors.Is.
var (
	// ErrNoTransaction: the handle is not inside a live transaction. A message may only be written together with the
	// fact that causes it, so begin a transaction and pass its handle.
	ErrNoTransaction = errors.New("outbox: no transaction")
	// ErrNotInstalled: the handle's database has no such outbox. Call db.Use(outbox.Plugin{…}) once at start.
	ErrNotInstalled = errors.New("outbox: not installed")
	// ErrInvalid: a message, an option or a filter is unusable. The text lists everything that is wrong, of a message the
	// first thing; nothing was written.
	ErrInvalid = errors.New("outbox: invalid")
)

// invalid gives an ErrInvalid with the reason.
func invalid(format string, args ...any) error { return because(ErrInvalid, format, args...) }

// because gives an error that is the sentinel and says why; what the format wraps with %w stays reachable too.
func because(sentinel error, format string, args ...any) error {
	return fmt.Errorf("%w: %w", sentinel, fmt.Errorf(format, args...))
}

// reason is what invalid was told, without the sentinel in front.
func reason(err error) error {
	if parts, ok := err.(interface{ Unwrap() []error }); ok && len(parts.Unwrap()) == 2 && parts.Unwrap()[0] == ErrInvalid {
		return parts.Unwrap()[1]
	}
	return err
}

// problems collects what is wrong with a configuration, so that it is reported in one go.
type problems []error

func (p *problems) addf(format string, args ...any) { *p = append(*p, fmt.Errorf(format, args...)) }

func (p *problems) add(err error) {
	if err != nil {
		*p = append(*p, err)
	}
}

// err is nil without problems, else an ErrInvalid that lists all of them.
func (p problems) err(subject string) error {
	if len(p) == 0 {
		return nil
	}
	texts := make([]string, len(p))
	for i, e := range p {
		texts[i] = strings.ReplaceAll(reason(e).Error(), "\n", "; ") // a joined error of another package
	}
	return invalid("%s: %s", subject, strings.Join(texts, "; "))
}

// errorCode names a database failure for operators without quoting it: drivers' messages can hold parameters. It is
// the SQLSTATE where the driver gives one, else the driver's own number, else the kind of failure.
func errorCode(err error) string {
	var state interface{ SQLState() string }
	var number interface{ Code() int }
	var network net.Error
	switch {
	case errors.As(err, &state):
		return state.SQLState()
	case errors.As(err, &number):
		return fmt.Sprintf("code %d", number.Code())
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	case errors.Is(err, driver.ErrBadConn):
		return "bad connection"
	case errors.As(err, &network):
		return "network"
	default:
		return "unknown"
	}
}
