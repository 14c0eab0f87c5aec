package outbox

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox/policy"
	"github.com/stretchr/testify/require"
)

func accept(context.Context, Delivery) (string, error) { return "", nil }

func TestProcessorConfigReportsEverythingAtOnce(t *testing.T) {
	some := map[string]Transport{"email": TransportFunc(accept)}
	tests := []struct {
		name string
		cfg  ProcessorConfig
		want []string
	}{
		{"defaults", ProcessorConfig{Transports: some}, nil},
		{"shortest lease", ProcessorConfig{Transports: some, Lease: 5 * time.Second}, nil},
		{"no transports", ProcessorConfig{}, []string{"Transports is empty"}},
		{"nil transport", ProcessorConfig{Transports: map[string]Transport{"sms": nil}}, []string{`topic "sms" is nil`}},
		{"nil function", ProcessorConfig{Transports: map[string]Transport{"sms": TransportFunc(nil)}}, []string{`topic "sms" is nil`}},
		{"empty topic", ProcessorConfig{Transports: map[string]Transport{"": TransportFunc(accept)}}, []string{"Topic is empty"}},
		{"batch below", ProcessorConfig{Transports: some, BatchSize: -1}, []string{"BatchSize is -1, must be 1 to 1000"}},
		{"batch above", ProcessorConfig{Transports: some, BatchSize: 1001}, []string{"BatchSize is 1001"}},
		{"concurrency", ProcessorConfig{Transports: some, Concurrency: -1}, []string{"Concurrency is -1"}},
		{"lease too short", ProcessorConfig{Transports: some, Lease: 4 * time.Second}, []string{"Lease is 4s, must be 5s to 24h"}},
		{"timeout over half the lease", ProcessorConfig{Transports: some, Lease: 10 * time.Second, Timeout: 6 * time.Second}, []string{"Timeout is 6s", "half the Lease, 5s"}},
		{"timeout too short", ProcessorConfig{Transports: some, Timeout: time.Millisecond}, []string{"Timeout is 1ms, must be at least 1s"}},
		{"poll interval", ProcessorConfig{Transports: some, PollInterval: -1}, []string{"PollInterval is -1ns"}},
		{"owner", ProcessorConfig{Transports: some, Owner: "a\x00b"}, []string{"Owner must be valid"}},
		{"backoff", ProcessorConfig{Transports: some, Backoff: policy.Backoff{Factor: 0.5}}, []string{"Backoff: backoff factor is 0.5"}},
		{
			"many", ProcessorConfig{BatchSize: -1, Lease: 1, Backoff: policy.Backoff{Base: -1, Jitter: 2}},
			[]string{"Transports is empty", "BatchSize", "Lease", "base", "jitter"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.cfg.withDefaults().validate()
			if tt.want == nil {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, ErrInvalid)
			require.NotContains(t, err.Error(), "\n")
			for _, text := range tt.want {
				require.ErrorContains(t, err, text)
			}
		})
	}
}

func TestTimeoutDefaultsToWhatTheLeaseAllows(t *testing.T) {
	require.Equal(t, time.Minute, ProcessorConfig{}.withDefaults().Timeout)
	require.Equal(t, 2500*time.Millisecond, ProcessorConfig{Lease: 5 * time.Second}.withDefaults().Timeout)
	require.Equal(t, time.Minute, ProcessorConfig{Lease: time.Hour}.withDefaults().Timeout)
}

func TestLongestRound(t *testing.T) {
	// The arithmetic of the warning: Timeout × ⌈BatchSize ÷ Concurrency⌉ + 1 s.
	require.Equal(t, 301*time.Second, ProcessorConfig{}.withDefaults().longestRound())
	require.Equal(t, 11*time.Second, ProcessorConfig{BatchSize: 21, Concurrency: 20, Timeout: 5 * time.Second}.longestRound())
}

func TestPluginReportsEverythingAtOnce(t *testing.T) {
	tests := []struct {
		name   string
		plugin Plugin
		want   []string
	}{
		{"defaults", Plugin{}, nil},
		{"schema", Plugin{Table: "App_X.avisos"}, nil},
		{"longest name", Plugin{Table: strings.Repeat("t", 50)}, nil},
		{"injection", Plugin{Table: `outbox"; DROP TABLE users; --`}, []string{"Table"}},
		{"two dots", Plugin{Table: "a.b.c"}, []string{"Table"}},
		{"digit first", Plugin{Table: "1box"}, []string{"Table"}},
		{"too long", Plugin{Table: strings.Repeat("t", 51)}, []string{"at most 50"}},
		{"not ASCII", Plugin{Table: "correo_ñ"}, []string{"Table"}},
		{"tenant injection", Plugin{Tenant: TenantColumn{Name: "a b"}}, []string{"Tenant.Name"}},
		{"tenant meets a column", Plugin{Tenant: TenantColumn{Name: "Topic"}}, []string{"Tenant.Name"}},
		{"tenant type", Plugin{Tenant: TenantColumn{Type: "varchar(10)"}}, []string{"text, uuid or bigint"}},
		{"attempts", Plugin{MaxAttempts: -1}, []string{"MaxAttempts is -1"}},
		{"payload", Plugin{MaxPayload: 65 << 20}, []string{"MaxPayload"}},
		{"many", Plugin{Table: "-", MaxAttempts: 1001, MaxPayload: -1}, []string{"Table", "MaxAttempts", "MaxPayload"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.plugin.withDefaults().validate()
			if tt.want == nil {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, ErrInvalid)
			for _, text := range tt.want {
				require.ErrorContains(t, err, text)
			}
		})
	}
}

func TestMigrationSQLRefusesWhatUseRefuses(t *testing.T) {
	for _, tt := range []struct {
		dialect string
		plugin  Plugin
	}{{"oracle", Plugin{}}, {"sqlite", Plugin{Table: "app.outbox"}}, {"postgres", Plugin{Table: "-"}}} {
		_, err := MigrationSQL(tt.dialect, tt.plugin)
		require.ErrorIs(t, err, ErrInvalid)
	}
}

func TestLeftBelievesTheClockThatSaysLess(t *testing.T) {
	now := time.Now()
	fresh := claim{asked: now, terms: &terms{Lease: time.Minute}}
	require.InDelta(t, time.Minute, fresh.left(), float64(time.Second))
	// After a suspend the monotonic clock has stood still and the wall clock has not.
	suspended := claim{asked: now.Add(-time.Hour).Round(0), terms: &terms{Lease: time.Minute}}
	require.Negative(t, suspended.left())
}

func TestChunkLen(t *testing.T) {
	small := make([]row, 2500)
	require.Equal(t, insertRows, chunkLen(small))
	require.Equal(t, 3, chunkLen(small[:3]))
	big := []row{{Payload: make([]byte, insertBytes+1)}, {Payload: make([]byte, 1)}}
	require.Equal(t, 1, chunkLen(big), "one that is too big goes alone")
	half := []row{{Payload: make([]byte, insertBytes/2)}, {Payload: make([]byte, insertBytes/2)}, {}, {Payload: []byte{1}}}
	require.Equal(t, 3, chunkLen(half))
}

type sqlState struct{ error }

func (sqlState) SQLState() string { return "40001" }

type numbered struct{ error }

func (numbered) Code() int { return 5 }

func TestErrorCodeQuotesNothing(t *testing.T) {
	secret := errors.New("ana@example.test")
	tests := []struct {
		err  error
		want string
	}{
		{fmt.Errorf("x: %w", sqlState{secret}), "40001"},
		{fmt.Errorf("x: %w", numbered{secret}), "code 5"},
		{fmt.Errorf("%w %w", context.DeadlineExceeded, secret), "timeout"},
		{fmt.Errorf("%w %w", driver.ErrBadConn, secret), "bad connection"},
		{&net.OpError{Op: "dial", Err: secret}, "network"},
		{secret, "unknown"},
	}
	for _, tt := range tests {
		require.Equal(t, tt.want, errorCode(tt.err))
	}
}

// coded is an error with a SQLSTATE.
type coded string

func (c coded) Error() string    { return "SQLSTATE " + string(c) }
func (c coded) SQLState() string { return string(c) }

// constraint is SQLite's error of a trigger.
type constraint struct{ error }

func (constraint) Code() int { return 1811 }

func TestRefusals(t *testing.T) {
	for _, moment := range []error{
		coded("08006"), coded("25006"), coded("40001"), coded("53300"), coded("55P03"), coded("57P01"), coded("58030"),
		coded("26000"), coded("28000"), coded("3D000"), coded("XX000"),
		context.DeadlineExceeded, errors.New("23514"), numbered{errors.New("busy")},
	} {
		require.False(t, refuses(moment), moment)
	}
	for _, values := range []error{coded("23514"), coded("22001"), coded("54000"), coded("P0001"), constraint{errors.New("trigger")}} {
		err := fmt.Errorf("x: %w", values)
		require.True(t, refuses(err) && refusesValues(err), err)
	}
	for _, schema := range []error{coded("42P01"), coded("42703"), coded("42501")} {
		require.True(t, refuses(schema) && !refusesValues(schema), schema)
	}
}

func TestDecodeHeadersIsLenient(t *testing.T) {
	require.Nil(t, decodeHeaders(nil))
	require.Nil(t, decodeHeaders([]byte(`null`)))
	require.Nil(t, decodeHeaders([]byte(`[1]`)))
	require.Nil(t, decodeHeaders([]byte(`{`)))
	require.Equal(t, map[string]string{"a": "b", "n": "1", "o": `{"x":true}`}, decodeHeaders([]byte(`{"a":"b","n":1,"o":{"x":true}}`)))
}

func TestOutageWaitGrowsToThePollInterval(t *testing.T) {
	p := &Processor{cfg: ProcessorConfig{PollInterval: time.Second}}
	require.Equal(t, 50*time.Millisecond, p.outageWait(1))
	require.Equal(t, 100*time.Millisecond, p.outageWait(2))
	require.Equal(t, time.Second, p.outageWait(10))
	require.Equal(t, time.Second, p.outageWait(1<<30))
}

func TestAheadFollowsThePace(t *testing.T) {
	l := &line{size: 20}
	l.terms.Store(ProcessorConfig{BatchSize: 100}.withDefaults().terms())
	for average, want := range map[time.Duration]int{
		unknownDuration:        0,   // nothing is known yet: fill the slots and no more
		time.Minute:            0,   // what waits here could be begun elsewhere
		time.Second:            20,  // one more each
		100 * time.Millisecond: 200, // ten more each
		time.Nanosecond:        400, // four batches are the most
	} {
		l.average.Store(int64(average))
		require.Equal(t, want, l.ahead(), average)
	}
}
