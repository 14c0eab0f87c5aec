package whatsapp_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/transports/transporttest"
	"github.com/gorm-outbox/outbox/transports/whatsapp"
	"github.com/stretchr/testify/require"
)

// request is what the double was sent.
type request struct {
	method, path string
	header       http.Header
	body         []byte
}

// reference is what the provider would give back with a status.
func (r request) reference() string {
	var body struct {
		Reference string `json:"biz_opaque_callback_data"`
	}
	_ = json.Unmarshal(r.body, &body)
	return body.Reference
}

// double is a provider on loopback.
type double struct {
	*httptest.Server
	mu     sync.Mutex
	answer http.HandlerFunc
	got    []request
}

const accepted = `{"messaging_product":"whatsapp","contacts":[{"input":"1","wa_id":"1"}],"messages":[{"id":"wamid.one","message_status":"accepted"}]}`

func newDouble(t *testing.T) *double {
	t.Helper()
	d := &double{answer: says(http.StatusOK, accepted)}
	d.Server = httptest.NewServer(http.HandlerFunc(d.serve))
	t.Cleanup(d.Close)
	return d
}

func (d *double) serve(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	d.mu.Lock()
	d.got = append(d.got, request{r.Method, r.URL.Path, r.Header.Clone(), body})
	answer := d.answer
	d.mu.Unlock()
	answer(w, r)
}

// answers has the double answer like this from now on.
func (d *double) answers(answer http.HandlerFunc) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.answer = answer
}

func (d *double) requests() []request {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]request(nil), d.got...)
}

func says(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// quotes refuses with a code, and repeats all it was sent, as careless providers do.
func quotes(status, code int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		text, _ := json.Marshal(fmt.Sprintf("cannot send to %s with %s", recipient, r.Header))
		w.Header().Set("X-Quote", recipient)
		says(status, fmt.Sprintf(`{"error":{"code":%d,"message":%s,"error_user_title":%[2]s}}`, code, text))(w, r)
	}
}

// hangs until the caller is gone.
func hangs(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// at gives a transport to a server.
func at(t *testing.T, cfg whatsapp.CloudConfig) outbox.Transport {
	t.Helper()
	sender, err := whatsapp.Cloud(cfg)
	require.NoError(t, err)
	return newTransport(t, whatsapp.Config{Sender: sender})
}

// wire is a server that answers each request with bytes of the test's choosing, or hangs up.
type wire struct {
	url      string
	requests chan int // a connection's how many-th request it was, from 1
}

// newWire answers the n-th request of a connection with answer(n), and then hangs up unless told to keep it.
func newWire(t *testing.T, answer func(n int) (bytes string, keep bool)) *wire {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	w := &wire{url: "http://" + listener.Addr().String(), requests: make(chan int, 100)}
	var connections sync.WaitGroup
	t.Cleanup(connections.Wait)
	t.Cleanup(func() { _ = listener.Close() })
	connections.Add(1)
	go func() {
		defer connections.Done()
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			connections.Add(1)
			go func() {
				defer connections.Done()
				defer conn.Close()
				w.serve(conn, answer)
			}()
		}
	}()
	return w
}

func (w *wire) serve(conn net.Conn, answer func(n int) (string, bool)) {
	in := bufio.NewReader(conn)
	for n := 1; ; n++ {
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		w.requests <- n
		bytes, keep := answer(n)
		_, _ = io.WriteString(conn, bytes)
		if !keep {
			return
		}
	}
}

func TestContract(t *testing.T) {
	transporttest.Run(t, transporttest.Case{
		Delivery: delivery, Secrets: []string{token, "Ana the private"},
		New: func(t *testing.T) (outbox.Transport, *transporttest.Provider) {
			d := newDouble(t)
			return at(t, whatsapp.CloudConfig{BaseURL: d.URL}), &transporttest.Provider{
				Accept: func() { d.answers(says(http.StatusOK, accepted)) },
				Refuse: func() { d.answers(quotes(http.StatusNotFound, 132001)) },
				Fail:   func() { d.answers(quotes(http.StatusInternalServerError, 131000)) },
				Hang:   func() { d.answers(hangs) },
				Keys: func() []string { // no key, but the nearest to one that there is
					var references []string
					for _, r := range d.requests() {
						references = append(references, r.reference())
					}
					return references
				},
			}
		},
	})
}
