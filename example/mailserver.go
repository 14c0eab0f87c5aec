package main

import (
	"cmp"
	"fmt"
	"io"
	"log"
	"mime"
	"mime/multipart"
	"net"
	"net/mail"
	"slices"
	"strings"
	"sync"

	"github.com/emersion/go-smtp"
)

// closedMailbox is an address that the server refuses for good.
const closedMailbox = "closed@example.com"

// MailServer is an SMTP server on loopback, which keeps the mails that it takes for the tour to look at.
type MailServer struct {
	Port int         // of loopback
	Held chan string // the Message-ID of a mail whose acceptance is being held back

	server *smtp.Server
	ended  chan struct{}

	mu      sync.Mutex
	outages int           // how many of the next conversations end without a mail taken
	hold    chan struct{} // acceptance waits until it is closed; nil: it does not
	mails   []Mail        // what was taken
	told    int           // how many of them News has given
}

// Mail is what arrived.
type Mail struct {
	To        string // mailbox
	Subject   string // one line
	Text      string // the plain one of its bodies
	MessageID string // the header
}

func startMailServer() (*MailServer, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &MailServer{
		Port: listener.Addr().(*net.TCPAddr).Port, Held: make(chan string), ended: make(chan struct{}),
	}
	s.server = smtp.NewServer(smtp.BackendFunc(func(*smtp.Conn) (smtp.Session, error) {
		return &conversation{server: s}, nil
	}))
	s.server.Domain = "mail.example.com"
	s.server.ErrorLog = log.New(io.Discard, "", 0) // clients that are killed are part of the tour
	go func() { _ = s.server.Serve(listener) }()   // ends with Close
	return s, nil
}

// Close ends the server at once.
func (s *MailServer) Close() error {
	close(s.ended)
	return s.server.Close()
}

// BeDown has the next n conversations find the server unable to take mail.
func (s *MailServer) BeDown(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.outages = n
}

// Hold has the server take mails without saying so until release is called.
func (s *MailServer) Hold() (release func()) {
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

// Count is how many mails that fit arrived.
func (s *MailServer) Count(fits func(Mail) bool) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, m := range s.mails {
		if fits(m) {
			n++
		}
	}
	return n
}

// Total is how many mails arrived, and of how many messages: all copies of one have the same Message-ID.
func (s *MailServer) Total() (mails, messages int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := map[string]bool{}
	for _, m := range s.mails {
		ids[m.MessageID] = true
	}
	return int64(len(s.mails)), int64(len(ids))
}

// News gives the mails that arrived since it was last asked, by subject.
func (s *MailServer) News() []Mail {
	s.mu.Lock()
	defer s.mu.Unlock()
	news := slices.Clone(s.mails[s.told:])
	s.told = len(s.mails)
	slices.SortStableFunc(news, func(a, b Mail) int { return cmp.Compare(a.Subject, b.Subject) })
	return news
}

// conversation is one client's. Its methods answer the client's commands, nil with a yes.
type conversation struct {
	server *MailServer
	to     string
}

// Mail answers MAIL FROM.
func (c *conversation) Mail(string, *smtp.MailOptions) error {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	if c.server.outages > 0 {
		c.server.outages--
		return &smtp.SMTPError{Code: 451, EnhancedCode: smtp.EnhancedCode{4, 3, 2}, Message: "Not now"}
	}
	return nil
}

// Rcpt answers RCPT TO.
func (c *conversation) Rcpt(to string, _ *smtp.RcptOptions) error {
	if to == closedMailbox {
		return &smtp.SMTPError{Code: 550, EnhancedCode: smtp.EnhancedCode{5, 1, 1}, Message: "No such mailbox"}
	}
	c.to = to
	return nil
}

// Data takes the mail itself. As soon as it is kept it will be in the mailbox, whether the client hears so or not.
func (c *conversation) Data(r io.Reader) error {
	m, err := readMail(r)
	if err != nil {
		return err
	}
	m.To = c.to
	s := c.server
	s.mu.Lock()
	s.mails = append(s.mails, m)
	hold := s.hold
	s.mu.Unlock()
	if hold == nil {
		return nil
	}
	select {
	case s.Held <- m.MessageID:
	case <-s.ended:
	}
	select {
	case <-hold:
	case <-s.ended:
	}
	return nil
}

// Reset is between two mails.
func (c *conversation) Reset() { c.to = "" }

// Logout is the end.
func (c *conversation) Logout() error { return nil }

// readMail reads a mail with two bodies, of which the plain one comes first.
func readMail(r io.Reader) (Mail, error) {
	message, err := mail.ReadMessage(r)
	if err != nil {
		return Mail{}, err
	}
	subject, err := new(mime.WordDecoder).DecodeHeader(message.Header.Get("Subject"))
	if err != nil {
		return Mail{}, err
	}
	kind, params, err := mime.ParseMediaType(message.Header.Get("Content-Type"))
	if err != nil || kind != "multipart/alternative" {
		return Mail{}, fmt.Errorf("a mail of type %q, should have two bodies: %w", kind, err)
	}
	part, err := multipart.NewReader(message.Body, params["boundary"]).NextPart()
	if err != nil {
		return Mail{}, err
	}
	text, err := io.ReadAll(part)
	return Mail{
		Subject: subject, Text: strings.TrimSpace(string(text)), MessageID: message.Header.Get("Message-ID"),
	}, err
}
