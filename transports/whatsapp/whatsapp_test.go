package whatsapp_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/gorm-outbox/outbox/transports/whatsapp"
	"github.com/stretchr/testify/require"
)

const (
	token     = "secret-token-4711"
	recipient = "5491122334455"
)

var (
	account  = whatsapp.Credentials{PhoneNumberID: "1055", Token: token}
	greeting = whatsapp.Template{Language: "es_AR", Body: whatsapp.Text("Ana the private")}
	delivery = outbox.Delivery{
		ID: 7, TenantID: "club", Topic: "whatsapp", Type: "welcome", Recipient: recipient, Payload: json.RawMessage(`{"who":"Ana the private"}`),
		MessageID: "0190b5a4-7c1e-7d2a-9f00-a1b2c3d4e5f6", ProviderKey: "club:welcome 7", Attempt: 1, MaxAttempts: 8,
	}
)

func credentials(context.Context, string) (*whatsapp.Credentials, error) {
	c := account
	return &c, nil
}

func params(context.Context, outbox.Delivery) (whatsapp.Template, error) { return greeting, nil }

// kept is a sender that keeps what it is given.
type kept struct {
	credentials whatsapp.Credentials
	messages    []whatsapp.Message
}

func (k *kept) Send(_ context.Context, c whatsapp.Credentials, m whatsapp.Message) (string, error) {
	k.credentials, k.messages = c, append(k.messages, m)
	return "wamid.kept", nil
}

func newTransport(t *testing.T, cfg whatsapp.Config) outbox.Transport {
	t.Helper()
	if cfg.Credentials == nil {
		cfg.Credentials = credentials
	}
	if cfg.Params == nil {
		cfg.Params = params
	}
	transport, err := whatsapp.New(cfg)
	require.NoError(t, err)
	return transport
}

func failure(t *testing.T, err error) policy.Failure {
	t.Helper()
	require.Error(t, err)
	f, ok := policy.AsFailure(err)
	require.True(t, ok, "%v is no Failure", err)
	return f
}

func TestNewSaysAllThatIsMissing(t *testing.T) {
	_, err := whatsapp.New(whatsapp.Config{})
	require.ErrorIs(t, err, outbox.ErrInvalid)
	for _, name := range []string{"Credentials", "Params", "Sender"} {
		require.ErrorContains(t, err, name)
	}
	_, err = whatsapp.New(whatsapp.Config{Credentials: credentials, Params: params, Sender: whatsapp.SenderFunc(nil)})
	require.ErrorIs(t, err, outbox.ErrInvalid)
}

func TestMessage(t *testing.T) {
	var got kept
	id, err := newTransport(t, whatsapp.Config{Sender: &got}).Send(context.Background(), delivery)
	require.NoError(t, err)
	require.Equal(t, "wamid.kept", id)
	require.Equal(t, account.PhoneNumberID, got.credentials.PhoneNumberID)
	want := greeting
	want.Name = "welcome" // the delivery's type
	require.Equal(t, []whatsapp.Message{{To: recipient, Template: want, Reference: delivery.Reference(), Attempt: 1}}, got.messages)
}

func TestNameOfTheTemplateMayDifferFromTheType(t *testing.T) {
	var got kept
	named := func(context.Context, outbox.Delivery) (whatsapp.Template, error) {
		return whatsapp.Template{Name: "welcome_v2", Language: "en"}, nil
	}
	_, err := newTransport(t, whatsapp.Config{Params: named, Sender: &got}).Send(context.Background(), delivery)
	require.NoError(t, err)
	require.Equal(t, "welcome_v2", got.messages[0].Template.Name)
}

func TestCredentials(t *testing.T) {
	own := errors.New("vault is sealed")
	tests := []struct {
		name  string
		found *whatsapp.Credentials
		err   error
		class policy.Class
		code  string
	}{
		{"none", nil, nil, policy.Permanent, "no_credentials"},
		{"without a number", &whatsapp.Credentials{Token: token}, nil, policy.Permanent, "invalid_credentials"},
		{"without a token", &whatsapp.Credentials{PhoneNumberID: "1"}, nil, policy.Permanent, "invalid_credentials"},
		{"a path", &whatsapp.Credentials{PhoneNumberID: "../1", Token: token}, nil, policy.Permanent, "invalid_credentials"},
		{"a header", &whatsapp.Credentials{PhoneNumberID: "1", Token: token + "\r\nX: y"}, nil, policy.Permanent, "invalid_credentials"},
		{"an error", nil, own, policy.Transient, "credentials_error"},
		{"an error and credentials", &whatsapp.Credentials{PhoneNumberID: "1", Token: token}, own, policy.Transient, "credentials_error"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got kept
			lookup := func(_ context.Context, tenant string) (*whatsapp.Credentials, error) {
				require.Equal(t, "club", tenant)
				return tt.found, tt.err
			}
			_, err := newTransport(t, whatsapp.Config{Credentials: lookup, Sender: &got}).Send(context.Background(), delivery)
			f := failure(t, err)
			require.Equal(t, policy.CategoryCredentials, f.Category)
			require.Equal(t, tt.class, policy.Classify(err))
			require.Equal(t, tt.code, f.Code)
			require.False(t, f.OutcomeUnknown)
			require.Empty(t, got.messages)
			require.NotContains(t, err.Error(), token)
			if tt.err != nil {
				require.ErrorIs(t, err, own)
			}
		})
	}
}

func TestParamsThatFail(t *testing.T) {
	own := errors.New("no such order")
	tests := []struct {
		name string
		fail func() error
		want policy.Failure
	}{
		{"an error", func() error { return own }, policy.Failure{Category: policy.CategoryTemplate, Code: "render"}},
		{"a panic", func() error { panic("Ana the private") }, policy.Failure{Category: policy.CategoryTemplate, Code: "render"}},
		{"a nil pointer", func() error { return errors.New(*(*string)(nil)) }, policy.Failure{Category: policy.CategoryTemplate, Code: "render"}},
		{"its own failure", func() error { return &policy.Failure{Category: policy.CategoryNetwork, Code: "db"} }, policy.Failure{Category: policy.CategoryNetwork, Code: "db"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got kept
			fill := func(context.Context, outbox.Delivery) (whatsapp.Template, error) { return greeting, tt.fail() }
			_, err := newTransport(t, whatsapp.Config{Params: fill, Sender: &got}).Send(context.Background(), delivery)
			f := failure(t, err)
			require.Equal(t, tt.want.Category, f.Category)
			require.Equal(t, tt.want.Code, f.Code)
			require.Empty(t, f.Class, "the category decides")
			require.Empty(t, got.messages)
			require.NotContains(t, fmt.Sprintf("%v %+v", err, f.Err), "Ana the private")
		})
	}
}

func TestPayloadThatDoesNotFit(t *testing.T) {
	fill := func(_ context.Context, d outbox.Delivery) (whatsapp.Template, error) {
		_, err := outbox.Decode[struct{ Who int }](d)
		return greeting, err
	}
	_, err := newTransport(t, whatsapp.Config{Params: fill, Sender: &kept{}}).Send(context.Background(), delivery)
	require.Equal(t, policy.CategoryPayload, failure(t, err).Category)
	require.Equal(t, policy.Permanent, policy.Classify(err))
}

func TestCredentialsPanic(t *testing.T) {
	lookup := func(context.Context, string) (*whatsapp.Credentials, error) { panic(token) }
	_, err := newTransport(t, whatsapp.Config{Credentials: lookup, Sender: &kept{}}).Send(context.Background(), delivery)
	f := failure(t, err)
	require.Equal(t, "credentials_error", f.Code)
	require.Equal(t, policy.Transient, policy.Classify(err))
	require.ErrorContains(t, f.Err, "TestCredentialsPanic", "the stack shows where")
	require.NotContains(t, f.Err.Error(), token)
}

// TestTimeIsUpInTheAppsCode: the message is not to blame, and the provider has not been asked.
func TestTimeIsUpInTheAppsCode(t *testing.T) {
	tests := []struct {
		name string
		cfg  func(end func()) whatsapp.Config
	}{
		{"Credentials give the context's error", func(end func()) whatsapp.Config {
			return whatsapp.Config{Credentials: func(ctx context.Context, _ string) (*whatsapp.Credentials, error) { end(); return nil, ctx.Err() }}
		}},
		{"Params give the context's error", func(end func()) whatsapp.Config {
			return whatsapp.Config{Params: func(ctx context.Context, _ outbox.Delivery) (whatsapp.Template, error) {
				end()
				return greeting, ctx.Err()
			}}
		}},
		{"Params take too long", func(end func()) whatsapp.Config {
			return whatsapp.Config{Params: func(context.Context, outbox.Delivery) (whatsapp.Template, error) { end(); return greeting, nil }}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			var got kept
			cfg := tt.cfg(cancel)
			cfg.Sender = &got
			_, err := newTransport(t, cfg).Send(ctx, delivery)
			f := failure(t, err)
			require.Equal(t, policy.CategoryTimeout, f.Category)
			require.Equal(t, "canceled", f.Code)
			require.False(t, f.OutcomeUnknown)
			require.Empty(t, got.messages)
		})
	}
}

func TestRecipient(t *testing.T) {
	for text, digits := range map[string]string{
		"5491122334455":                "5491122334455",
		"+5491122334455":               "5491122334455",
		" +54 9 (11) 2233-4455 ":       "5491122334455",
		"+54.9.11/2233.4455":           "5491122334455",
		"1234567":                      "1234567",
		"123456789012345":              "123456789012345",
		"":                             "",
		"+":                            "",
		"123456":                       "",
		"1234567890123456":             "",
		"0054 9 11 2233 4455":          "",
		"011 2233 4455":                "",
		"++5491122334455":              "",
		"5491122334455x":               "",
		"549+1122334455":               "",
		"ana@example.test":             "",
		"٥٤٩١١٢٢٣٣٤٤٥":                 "",
		"5491122334455\n5491122334456": "",
		"5491122334455\x00":            "",
		"\xff5491122334455":            "",
	} {
		t.Run(text, func(t *testing.T) {
			var got kept
			d := delivery
			d.Recipient = text
			_, err := newTransport(t, whatsapp.Config{Sender: &got}).Send(context.Background(), d)
			if digits != "" {
				require.NoError(t, err)
				require.Equal(t, digits, got.messages[0].To)
				return
			}
			f := failure(t, err)
			require.Equal(t, policy.CategoryNumber, f.Category)
			require.Equal(t, "invalid_number", f.Code)
			require.Equal(t, policy.Permanent, policy.Classify(err))
			require.Empty(t, got.messages)
		})
	}
}

func TestCredentialsDoNotShow(t *testing.T) {
	c := account
	inner := struct{ C *whatsapp.Credentials }{&c}
	var log bytes.Buffer
	for _, handler := range []slog.Handler{slog.NewTextHandler(&log, nil), slog.NewJSONHandler(&log, nil)} {
		slog.New(handler).Info("x", "value", c, "pointer", &c, "inside", inner)
	}
	asJSON, err := json.Marshal(map[string]any{"value": c, "inside": inner})
	require.NoError(t, err)
	shown := log.String() + string(asJSON) + c.String() + c.GoString()
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		shown += fmt.Sprintf(verb, c) + fmt.Sprintf(verb, &c) + fmt.Sprintf(verb, inner) + fmt.Sprintf(verb, []whatsapp.Credentials{c})
	}
	require.Contains(t, shown, "redacted")
	require.NotContains(t, shown, token)
	require.NotContains(t, shown, fmt.Sprintf("%x", token))
}
