package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"
)

// closedMailbox is an address that the service refuses for good.
const closedMailbox = "closed@example.com"

// MailService stands in for an e-mail provider: an HTTP API on loopback. As the good ones do, it knows idempotency
// keys: a repeat is answered as the first request was, and no second mail goes out.
type MailService struct {
	URL  string      // where mails are posted
	Held chan string // the idempotency key of a request that is being held

	server *http.Server

	mu       sync.Mutex
	outages  int               // how many of the next requests find it down
	hold     chan struct{}     // requests wait until it is closed; nil: they do not
	mails    []Mail            // what went out
	ids      map[string]string // of mails, by idempotency key
	requests map[string]int    // how many came, by idempotency key
}

func startMailService() (*MailService, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &MailService{
		URL: "http://" + listener.Addr().String() + "/mails", Held: make(chan string),
		ids: map[string]string{}, requests: map[string]int{},
	}
	s.server = &http.Server{Handler: http.HandlerFunc(s.post), ReadHeaderTimeout: time.Second}
	go func() { _ = s.server.Serve(listener) }() // ends with Close
	return s, nil
}

// Close ends the service at once.
func (s *MailService) Close() error { return s.server.Close() }

// BeDown has the next n requests find the service down.
func (s *MailService) BeDown(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.outages = n
}

// Hold has the service take in requests without an answer until release is called.
func (s *MailService) Hold() (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hold = make(chan struct{})
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		close(s.hold)
		s.hold = nil
	})
}

// Count is how many mails with this subject went out.
func (s *MailService) Count(subject string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, mail := range s.mails {
		if mail.Subject == subject {
			n++
		}
	}
	return n
}

// Requests is how many requests came with this idempotency key.
func (s *MailService) Requests(key string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests[key]
}

type mailAnswer struct {
	ID   string `json:"id,omitempty"`
	Code string `json:"code,omitempty"`
}

func (s *MailService) post(w http.ResponseWriter, r *http.Request) {
	var mail Mail
	if err := json.NewDecoder(r.Body).Decode(&mail); err != nil {
		http.Error(w, "not JSON", http.StatusBadRequest)
		return
	}
	key := r.Header.Get("Idempotency-Key")
	status, answer, hold := s.take(key, mail)
	if hold != nil {
		select {
		case s.Held <- key:
		case <-r.Context().Done():
			return
		}
		select {
		case <-hold:
		case <-r.Context().Done(): // the client is gone
			return
		}
	}
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(answer) // a client that is gone will ask again
}

func (s *MailService) take(key string, mail Mail) (status int, answer mailAnswer, hold chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests[key]++
	switch {
	case s.outages > 0:
		s.outages--
		return http.StatusServiceUnavailable, mailAnswer{}, nil
	case mail.To == closedMailbox:
		return http.StatusUnprocessableEntity, mailAnswer{Code: "mailbox_closed"}, nil
	}
	id, repeat := s.ids[key]
	if !repeat || key == "" {
		s.mails = append(s.mails, mail)
		id = fmt.Sprintf("mail-%d", len(s.mails))
		s.ids[key] = id
	}
	return http.StatusOK, mailAnswer{ID: id}, s.hold
}
