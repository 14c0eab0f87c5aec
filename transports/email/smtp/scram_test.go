package smtp_test

import (
	"context"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"hash"
	"strings"
	"testing"

	"github.com/emersion/go-sasl"
	gosmtp "github.com/emersion/go-smtp"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/gorm-outbox/outbox/transports/email/smtp"
	"github.com/stretchr/testify/require"
)

// scramServer speaks RFC 5802, which go-sasl has no server for.
type scramServer struct {
	*session
	hash  func() hash.Hash
	first string // the client's and the server's first words
	nonce string
	ended bool
}

// A server that asks for years of hashing would hold the client beyond the end of its context.
func TestScramWithTooManyRounds(t *testing.T) {
	port := startScript(t, func(s script) {
		s.say("220 mail.example")
		s.hear("EHLO")
		s.say("250-mail.example", "250 AUTH SCRAM-SHA-256")
		s.hear("AUTH")
		s.say("334 ")
		line, _ := s.Reader.ReadString('\n')
		first, _ := base64.StdEncoding.DecodeString(strings.TrimSpace(line))
		_, nonce, _ := strings.Cut(string(first), "r=")
		s.say("334 " + base64.StdEncoding.EncodeToString([]byte("r="+nonce+"x,s=c2FsdA==,i=2000000000")))
		s.silence()
	})
	sender := newSender(t, smtp.Config{Port: port, TLS: smtp.NoTLS, Username: username, Password: password})
	ctx := briefly(t)
	_, err := sender.Send(ctx, mail())
	require.ErrorIs(t, ctx.Err(), context.DeadlineExceeded, "the server was told that the client gives up, and said nothing")
	requireFailure(t, err, policy.Transient, policy.Failure{Category: policy.CategoryTimeout, Code: "timeout"})
}

const scramSalt = "salt of the server"

func (s *scramServer) Next(response []byte) (challenge []byte, done bool, err error) {
	switch {
	case s.ended:
		return nil, true, nil
	case response == nil: // the client waits to be asked
		return nil, false, nil
	case s.first == "":
		bare := strings.TrimPrefix(string(response), "n,,")
		name, nonce, _ := strings.Cut(strings.TrimPrefix(bare, "n="), ",r=")
		s.letter.user, s.nonce = name, nonce+"server"
		reply := "r=" + s.nonce + ",s=" + base64.StdEncoding.EncodeToString([]byte(scramSalt)) + ",i=4096"
		s.first = bare + "," + reply
		return []byte(reply), false, nil
	}
	unproven, proof, _ := strings.Cut(string(response), ",p=")
	sum := func(key, text []byte) []byte {
		mac := hmac.New(s.hash, key)
		mac.Write(text)
		return mac.Sum(nil)
	}
	salted, err := pbkdf2.Key(s.hash, password, []byte(scramSalt), 4096, s.hash().Size())
	if err != nil {
		return nil, true, err
	}
	words := []byte(s.first + "," + unproven)
	clientKey := sum(salted, []byte("Client Key"))
	stored := s.hash()
	stored.Write(clientKey)
	expected := sum(stored.Sum(nil), words)
	for i := range expected {
		expected[i] ^= clientKey[i]
	}
	if given, _ := base64.StdEncoding.DecodeString(proof); !hmac.Equal(given, expected) || !strings.Contains(unproven, s.nonce) {
		return nil, true, gosmtp.ErrAuthFailed
	}
	s.ended = true
	return []byte("v=" + base64.StdEncoding.EncodeToString(sum(sum(salted, []byte("Server Key")), words))), false, nil
}

func TestSendLogsInWithScram(t *testing.T) {
	for mechanism, hash := range map[smtp.Mechanism]func() hash.Hash{smtp.ScramSHA1: sha1.New, smtp.ScramSHA256: sha256.New} {
		server := startServer(t, false, nil)
		server.auth = map[string]func(s *session) sasl.Server{
			string(mechanism): func(s *session) sasl.Server { return &scramServer{session: s, hash: hash} },
			"PLAIN": func(*session) sasl.Server { // the best is chosen, not the first
				return sasl.NewPlainServer(func(_, _, _ string) error { return gosmtp.ErrAuthFailed })
			},
		}
		cfg := smtp.Config{Port: server.port, TLSConfig: server.roots, Username: username, Password: password}
		_, err := newSender(t, cfg).Send(context.Background(), mail())
		require.NoError(t, err, mechanism)
		require.Equal(t, username, server.got()[0].user)

		cfg.Password = "wrong"
		_, err = newSender(t, cfg).Send(context.Background(), mail())
		requireFailure(t, err, policy.Permanent, policy.Failure{Category: policy.CategoryCredentials, Code: "535 5.7.8"})
	}
}
