package outbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"github.com/gorm-outbox/outbox/policy"
	"github.com/stretchr/testify/require"
)

func TestSummaryReadsWell(t *testing.T) {
	require.Equal(t, "nothing due", Summary{Warnings: []string{"w"}}.String())
	s := Summary{Claimed: 3, Sent: 2, Errors: 1, LastError: "57P01"}
	require.Equal(t, "claimed 3, sent 2, errors 1, last error 57P01", fmt.Sprint(s))
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("round", "summary", s)
	require.Contains(t, log.String(), "summary.claimed=3 summary.sent=2 summary.errors=1 summary.last_error=57P01")
}

func TestTimedOut(t *testing.T) {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	network := policy.Failure{Category: policy.CategoryNetwork, Code: "reset", Err: errors.New("reset by peer")}
	late := policy.Failure{Category: policy.CategoryNetwork, Err: context.DeadlineExceeded}
	refused := policy.Failure{Category: policy.CategoryRejected, Err: context.DeadlineExceeded}
	tests := []struct {
		name string
		ctx  context.Context
		err  error
		want policy.Category
	}{
		{"in time", context.Background(), late, policy.CategoryNetwork},
		{"plain error after the end", ended, errors.New("use of closed connection"), policy.CategoryTimeout},
		{"the end reported as a network fault", ended, late, policy.CategoryTimeout},
		{"a network fault of its own", ended, network, policy.CategoryNetwork},
		{"a refusal stands", ended, refused, policy.CategoryRejected},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f, _ := policy.AsFailure(timedOut(tt.ctx, tt.err))
			require.Equal(t, tt.want, f.Category)
		})
	}
	require.NoError(t, timedOut(ended, nil))
}
