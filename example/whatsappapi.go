package main

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gorm-outbox/outbox/transports/whatsapp"
)

// WhatsAppAPI stands in for the WhatsApp Cloud API: it takes messages, and reports by webhook what became of them.
type WhatsAppAPI struct {
	URL   string       // what whatsapp.CloudConfig calls BaseURL
	Close func() error // ends it at once

	tokens map[string]string // by the id of the number

	mu       sync.Mutex
	lost     int        // how many of the next answers are lost
	messages []WhatsApp // what was taken
	told     int        // how many of them News has given
}

// WhatsApp is what arrived.
type WhatsApp struct {
	ID        string   // the API's own
	From      string   // the id of the number it was sent from
	To        string   // the number it was sent to, in digits
	Template  string   // its name
	Params    []string // what fills it in
	Reference string   // the sender's, which reports give back
}

func startWhatsAppAPI(accounts map[string]*whatsapp.Credentials) (*WhatsAppAPI, error) {
	api := &WhatsAppAPI{tokens: map[string]string{}}
	for _, account := range accounts {
		api.tokens[account.PhoneNumberID] = account.Token
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /{number}/messages", api.post)
	var err error
	api.URL, api.Close, err = serve(mux)
	return api, err
}

// LoseAnswers has the API take the next n messages, and the connection break before it can say so.
func (api *WhatsAppAPI) LoseAnswers(n int) {
	api.mu.Lock()
	defer api.mu.Unlock()
	api.lost = n
}

// To gives what arrived for a number.
func (api *WhatsAppAPI) To(digits string) []WhatsApp {
	api.mu.Lock()
	defer api.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(api.messages), func(m WhatsApp) bool { return m.To != digits })
}

// Total is how many messages arrived.
func (api *WhatsAppAPI) Total() int64 {
	api.mu.Lock()
	defer api.mu.Unlock()
	return int64(len(api.messages))
}

// News gives the messages that arrived since it was last asked, by their id.
func (api *WhatsAppAPI) News() []WhatsApp {
	api.mu.Lock()
	defer api.mu.Unlock()
	news := slices.Clone(api.messages[api.told:])
	api.told = len(api.messages)
	slices.SortFunc(news, func(a, b WhatsApp) int { return cmp.Compare(a.ID, b.ID) })
	return news
}

func (api *WhatsAppAPI) post(w http.ResponseWriter, r *http.Request) {
	number := r.PathValue("number")
	if token := api.tokens[number]; token == "" || r.Header.Get("X-API-Key") != token {
		http.Error(w, `{"error":"no such number in this project"}`, http.StatusUnauthorized)
		return
	}
	m, err := readWhatsApp(r)
	if err != nil {
		http.Error(w, `{"error":{"code":100}}`, http.StatusBadRequest)
		return
	}
	m.From = number
	id, lost := api.take(m)
	if lost {
		panic(http.ErrAbortHandler) // the way to break the connection
	}
	_, _ = fmt.Fprintf(w, `{"messages":[{"id":%q}]}`, id)
}

func (api *WhatsAppAPI) take(m WhatsApp) (id string, lost bool) {
	api.mu.Lock()
	defer api.mu.Unlock()
	count := 1
	for _, earlier := range api.messages {
		if earlier.From == m.From {
			count++
		}
	}
	m.ID = fmt.Sprintf("wamid.%s.%d", m.From, count)
	api.messages = append(api.messages, m)
	lost = api.lost > 0
	api.lost = max(api.lost-1, 0)
	return m.ID, lost
}

func readWhatsApp(r *http.Request) (WhatsApp, error) {
	var body struct {
		To        string
		Reference string `json:"biz_opaque_callback_data"`
		Template  struct {
			Name       string
			Components []struct{ Parameters []struct{ Text string } }
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		return WhatsApp{}, err
	}
	m := WhatsApp{To: body.To, Template: body.Template.Name, Reference: body.Reference}
	for _, component := range body.Template.Components {
		for _, parameter := range component.Parameters {
			m.Params = append(m.Params, parameter.Text)
		}
	}
	return m, nil
}

// statusJSON is a status webhook as Meta sends it.
const statusJSON = `{"object":"whatsapp_business_account","entry":[{"changes":[{"field":"messages","value":{"statuses":[
	{"id":%q,"status":%q,"timestamp":"%d","biz_opaque_callback_data":%q}]}}]}]}`

// Report posts a status of a message, signed, to the app's webhook.
func (api *WhatsAppAPI) Report(ctx context.Context, webhook, secret string, m WhatsApp, status string) error {
	body := fmt.Sprintf(statusJSON, m.ID, status, time.Now().Unix(), m.Reference)
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(body))
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, webhook, strings.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(mac.Sum(nil)))
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	return same("the answer to a webhook", response.StatusCode, http.StatusOK)
}

// serve serves a handler on a free port of loopback.
func serve(handler http.Handler) (url string, end func() error, err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	server := &http.Server{Handler: handler, ReadTimeout: 10 * time.Second}
	go func() { _ = server.Serve(listener) }() // ends with Close
	return "http://" + listener.Addr().String(), server.Close, nil
}
