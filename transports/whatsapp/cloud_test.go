package whatsapp_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/gorm-outbox/outbox/transports/whatsapp"
	"github.com/stretchr/testify/require"
)

func TestCloudConfig(t *testing.T) {
	tests := []struct {
		name string
		cfg  whatsapp.CloudConfig
		want string // part of the error; empty: none
	}{
		{"Kapso", whatsapp.CloudConfig{}, ""},
		{"Meta", whatsapp.CloudConfig{BaseURL: whatsapp.MetaURL, Auth: whatsapp.AuthBearer}, ""},
		{"Meta with Kapso's header", whatsapp.CloudConfig{BaseURL: whatsapp.MetaURL}, "AuthBearer"},
		{"a slash at the end", whatsapp.CloudConfig{BaseURL: "https://example.test/v24.0/"}, ""},
		{"loopback", whatsapp.CloudConfig{BaseURL: "http://127.0.0.1:8080"}, ""},
		{"loopback by name", whatsapp.CloudConfig{BaseURL: "http://localhost:8080"}, ""},
		{"loopback, version 6", whatsapp.CloudConfig{BaseURL: "http://[::1]:8080"}, ""},
		{"in the clear", whatsapp.CloudConfig{BaseURL: "http://example.test"}, "https"},
		{"another scheme", whatsapp.CloudConfig{BaseURL: "ftp://127.0.0.1"}, "https"},
		{"no scheme", whatsapp.CloudConfig{BaseURL: "api.kapso.ai"}, "absolute"},
		{"no host", whatsapp.CloudConfig{BaseURL: "https:///x"}, "absolute"},
		{"a user", whatsapp.CloudConfig{BaseURL: "https://u:" + token + "@example.test"}, "absolute"},
		{"a query", whatsapp.CloudConfig{BaseURL: "https://example.test/?token=" + token}, "absolute"},
		{"no URL", whatsapp.CloudConfig{BaseURL: "https://[::1/%zz"}, "absolute"},
		{"a token as Auth", whatsapp.CloudConfig{Auth: token}, "Auth"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := whatsapp.Cloud(tt.cfg)
			if tt.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, outbox.ErrInvalid)
			require.ErrorContains(t, err, tt.want)
			require.NotContains(t, err.Error(), token)
		})
	}
	_, err := whatsapp.Cloud(whatsapp.CloudConfig{BaseURL: "http://example.test", Auth: "basic"})
	require.ErrorContains(t, err, "https")
	require.ErrorContains(t, err, "Auth", "all of it at once")
}

func TestRequest(t *testing.T) {
	for _, auth := range []whatsapp.Auth{"", whatsapp.AuthAPIKey, whatsapp.AuthBearer} {
		t.Run(string(auth), func(t *testing.T) {
			d := newDouble(t)
			id, err := at(t, whatsapp.CloudConfig{BaseURL: d.URL + "/v24.0/", Auth: auth}).Send(context.Background(), delivery)
			require.NoError(t, err)
			require.Equal(t, "wamid.one", id)
			require.Len(t, d.requests(), 1)
			r := d.requests()[0]
			require.Equal(t, "POST /v24.0/1055/messages", r.method+" "+r.path)
			require.Equal(t, "application/json", r.header.Get("Content-Type"))
			require.Equal(t, delivery.Reference(), r.reference())
			require.LessOrEqual(t, len(r.reference()), 512)
			key, bearer := token, ""
			if auth == whatsapp.AuthBearer {
				key, bearer = "", "Bearer "+token
			}
			require.Equal(t, key, r.header.Get("X-API-Key"))
			require.Equal(t, bearer, r.header.Get("Authorization"))
		})
	}
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	elsewhere, d := newDouble(t), newDouble(t)
	transport := at(t, whatsapp.CloudConfig{BaseURL: d.URL})
	for _, status := range []int{301, 302, 303, 307, 308} {
		d.answers(func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, elsewhere.URL, status) })
		_, err := transport.Send(context.Background(), delivery)
		f := failure(t, err)
		require.Equal(t, "redirect", f.Code)
		require.Equal(t, policy.Transient, policy.Classify(err))
		require.False(t, f.OutcomeUnknown)
	}
	require.Empty(t, elsewhere.requests())
	require.Len(t, d.requests(), 5)
}

// TestTheCallersClientIsLeftAlone also has redirects refused with a client that would follow them.
func TestTheCallersClientIsLeftAlone(t *testing.T) {
	elsewhere, d := newDouble(t), newDouble(t)
	d.answers(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
	})
	asked := false
	client := &http.Client{Transport: &http.Transport{}, CheckRedirect: func(*http.Request, []*http.Request) error { asked = true; return nil }}
	defer client.CloseIdleConnections()
	_, err := at(t, whatsapp.CloudConfig{BaseURL: d.URL, Client: client}).Send(context.Background(), delivery)
	require.Equal(t, "redirect", failure(t, err).Code)
	require.Empty(t, elsewhere.requests())
	require.False(t, asked)
	require.NoError(t, client.CheckRedirect(nil, nil))
	require.True(t, asked, "it is still the caller's")
}

// TestAnswersThatAreCutShort says what is known of the message when the connection ends at some point of the answer.
func TestAnswersThatAreCutShort(t *testing.T) {
	const length = "Content-Length: 100\r\n\r\n"
	tests := []struct {
		name, answer string
		sent         bool
		unknown      bool
	}{
		{"before it", "", false, true},
		{"in its status", "HTTP/1.1 20", false, true},
		{"no HTTP", "SSH-2.0-x\r\n", false, true},
		{"in the body of a yes", "HTTP/1.1 200 OK\r\n" + length + `{"messages":[{"id":"wa`, true, false},
		{"in the body of a refusal", "HTTP/1.1 400 Bad Request\r\n" + length + `{"error":{"code":1310`, false, false},
		{"in the body of a failure", "HTTP/1.1 500 Oops\r\n" + length + `{"error":{"code":1310`, false, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWire(t, func(int) (string, bool) { return tt.answer, false })
			id, err := at(t, whatsapp.CloudConfig{BaseURL: w.url}).Send(context.Background(), delivery)
			require.Empty(t, id)
			if tt.sent {
				require.NoError(t, err)
				return
			}
			f := failure(t, err)
			require.Equal(t, policy.CategoryNetwork, f.Category)
			require.Equal(t, policy.Transient, policy.Classify(err))
			require.Equal(t, tt.unknown, f.OutcomeUnknown)
		})
	}
}

// TestOneAttemptIsOneRequest has a server that hangs up on connections that are in use again: with the request read,
// when its outcome is unknown, or while they were idle.
func TestOneAttemptIsOneRequest(t *testing.T) {
	const yes = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
	t.Run("the second request is read and not answered", func(t *testing.T) {
		w := newWire(t, func(n int) (string, bool) {
			if n == 1 {
				return yes, true
			}
			return "", false
		})
		transport := at(t, whatsapp.CloudConfig{BaseURL: w.url})
		_, err := transport.Send(context.Background(), delivery)
		require.NoError(t, err)
		_, err = transport.Send(context.Background(), delivery)
		require.True(t, failure(t, err).OutcomeUnknown)
		require.Equal(t, 1, <-w.requests)
		require.Equal(t, 2, <-w.requests, "the connection was used again")
		require.Empty(t, w.requests, "and nothing was repeated")
	})
	t.Run("the connection ends while it is idle", func(t *testing.T) {
		w := newWire(t, func(int) (string, bool) { return yes, false })
		transport := at(t, whatsapp.CloudConfig{BaseURL: w.url})
		sent := 0
		for range 20 {
			if _, err := transport.Send(context.Background(), delivery); err == nil {
				sent++
			}
		}
		require.LessOrEqual(t, len(w.requests), 20)
		require.GreaterOrEqual(t, len(w.requests), sent, "no yes without a request")
		require.Positive(t, sent)
	})
}

func TestNothingWasSent(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	d := newDouble(t)
	unresolved := &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", Name: "api.kapso.ai"}}
	}}}
	for name, cfg := range map[string]whatsapp.CloudConfig{
		"refused":       {BaseURL: "http://" + closed.Addr().String()},
		"not TLS":       {BaseURL: strings.Replace(d.URL, "http:", "https:", 1)},
		"no such host":  {Client: unresolved},
		"proxy is away": {Client: &http.Client{Transport: &http.Transport{Proxy: proxyAt(closed.Addr().String())}}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := at(t, cfg).Send(context.Background(), delivery)
			f := failure(t, err)
			require.Equal(t, policy.CategoryNetwork, f.Category)
			require.Equal(t, "no_connection", f.Code)
			require.Equal(t, policy.Transient, policy.Classify(err))
			require.False(t, f.OutcomeUnknown)
			require.Error(t, f.Err)
			require.NotContains(t, f.Err.Error(), account.PhoneNumberID)
		})
	}
	require.Empty(t, d.requests())
}

// tripper is a client that does not report its progress.
type tripper func(*http.Request) (*http.Response, error)

func (f tripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestAClientThatDoesNotSayHowFarItGot(t *testing.T) {
	client := &http.Client{Transport: tripper(func(r *http.Request) (*http.Response, error) {
		body, _ := io.ReadAll(r.Body)
		return nil, fmt.Errorf("lost %s %s", r.Header, body)
	})}
	_, err := at(t, whatsapp.CloudConfig{Client: client}).Send(context.Background(), delivery)
	f := failure(t, err)
	require.True(t, f.OutcomeUnknown)
	require.Equal(t, "no_answer", f.Code)
	require.NotContains(t, fmt.Sprintf("%+v %v", f, f.Err), token)
	require.NotContains(t, fmt.Sprintf("%+v %v", f, f.Err), recipient)
}

func TestTimeIsUp(t *testing.T) {
	d := newDouble(t)
	d.answers(hangs)
	stuck := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}}
	impatient := &http.Client{Transport: &http.Transport{}, Timeout: 50 * time.Millisecond}
	defer impatient.CloseIdleConnections()
	tests := []struct {
		name    string
		cfg     whatsapp.CloudConfig
		limit   time.Duration // of the context
		unknown bool
	}{
		{"waiting for the answer", whatsapp.CloudConfig{BaseURL: d.URL}, 50 * time.Millisecond, true},
		{"connecting", whatsapp.CloudConfig{Client: stuck}, 50 * time.Millisecond, false},
		{"by the client's own clock", whatsapp.CloudConfig{BaseURL: d.URL, Client: impatient}, time.Minute, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), tt.limit)
			defer cancel()
			_, err := at(t, tt.cfg).Send(ctx, delivery)
			f := failure(t, err)
			require.Equal(t, policy.CategoryTimeout, f.Category)
			require.Equal(t, "timeout", f.Code)
			require.Equal(t, tt.unknown, f.OutcomeUnknown)
			require.False(t, errors.Is(err, context.DeadlineExceeded), "the processor would hold the outcome to be unknown")
		})
	}
}

// TestAnswersWithoutEnd are read only so far, and a yes stays one.
func TestAnswersWithoutEnd(t *testing.T) {
	d := newDouble(t)
	transport := at(t, whatsapp.CloudConfig{BaseURL: d.URL})
	endless := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(status)
			for r.Context().Err() == nil {
				if _, err := io.WriteString(w, strings.Repeat(" ", 1<<16)); err != nil {
					return
				}
			}
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	d.answers(endless(http.StatusOK))
	_, err := transport.Send(ctx, delivery)
	require.NoError(t, err)
	d.answers(endless(http.StatusServiceUnavailable))
	_, err = transport.Send(ctx, delivery)
	require.Equal(t, "http_503", failure(t, err).Code)
	require.NoError(t, ctx.Err())
}

// TestAYesThatDribbles: the message is sent, whatever the rest of the answer would have said.
func TestAYesThatDribbles(t *testing.T) {
	d := newDouble(t)
	d.answers(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		_, _ = io.WriteString(w, `{"messages":`)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	id, err := at(t, whatsapp.CloudConfig{BaseURL: d.URL}).Send(ctx, delivery)
	require.NoError(t, err)
	require.Empty(t, id)
}

func TestRetryAfterOfTheProvider(t *testing.T) {
	d := newDouble(t)
	transport := at(t, whatsapp.CloudConfig{BaseURL: d.URL})
	d.answers(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "60")
		says(http.StatusTooManyRequests, `{"error":"Rate limit exceeded"}`)(w, r)
	})
	_, err := transport.Send(context.Background(), delivery)
	f := failure(t, err)
	require.Equal(t, policy.CategoryRateLimited, f.Category)
	require.Equal(t, "http_429", f.Code)
	require.Equal(t, time.Minute, f.RetryAfter)
	require.False(t, f.RetryAlone || f.OutcomeUnknown)
}

func proxyAt(address string) func(*http.Request) (*url.URL, error) {
	return http.ProxyURL(&url.URL{Scheme: "http", Host: address})
}

// TestOneAttemptIsOneRequestOverHTTP2 has the server end the stream after it has read the request.
func TestOneAttemptIsOneRequestOverHTTP2(t *testing.T) {
	var requests atomic.Int32
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if requests.Add(1) > 1 {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(http.StatusOK)
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	transport := at(t, whatsapp.CloudConfig{BaseURL: server.URL, Client: server.Client()})
	_, err := transport.Send(context.Background(), delivery)
	require.NoError(t, err)
	_, err = transport.Send(context.Background(), delivery)
	f := failure(t, err)
	require.Equal(t, "no_answer", f.Code)
	require.True(t, f.OutcomeUnknown)
	require.EqualValues(t, 2, requests.Load())
}
