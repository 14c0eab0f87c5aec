package smtp

import (
	"errors"
	"regexp"
	"slices"
	"strconv"

	gomail "github.com/wneessen/go-mail/smtp"
)

// preference is the order in which mechanisms are chosen.
var preference = []Mechanism{ScramSHA256, ScramSHA1, Plain, Login, CramMD5}

// choose takes a mechanism that the server offers; empty: there is none.
func (c Config) choose(offered []string) Mechanism {
	wanted := preference
	if c.Mechanism != "" {
		wanted = []Mechanism{c.Mechanism}
	}
	for _, m := range wanted {
		if slices.Contains(offered, string(m)) {
			return m
		}
	}
	return ""
}

// auth gives what speaks a mechanism, for one conversation; nil: it is not known. That nothing secret goes out in the
// clear is made sure by the configuration, and that the connection is encrypted by open.
func (c Config) auth(m Mechanism) gomail.Auth {
	const unencryptedToo = true
	switch m {
	case ScramSHA256:
		return scram{gomail.ScramSHA256Auth(c.Username, c.Password)}
	case ScramSHA1:
		return scram{gomail.ScramSHA1Auth(c.Username, c.Password)}
	case Plain:
		return gomail.PlainAuth("", c.Username, c.Password, c.Host, unencryptedToo)
	case Login:
		return gomail.LoginAuth(c.Username, c.Password, c.Host, unencryptedToo)
	case CramMD5:
		return gomail.CRAMMD5Auth(c.Username, c.Password)
	case XOAuth2:
		return gomail.XOAuth2Auth(c.Username, c.Password)
	default:
		return nil
	}
}

// maxRounds is how much hashing a server may ask for. It takes a tenth of a second or so, which no context interrupts.
const maxRounds = 200_000

var (
	rounds     = regexp.MustCompile(`,i=([0-9]+)`)
	errTooMuch = errors.New("smtp: the server asks for too much hashing")
)

// scram bounds the work of a login.
type scram struct{ gomail.Auth }

// Next answers the server.
func (s scram) Next(fromServer []byte, more bool) ([]byte, error) {
	if asked := rounds.FindSubmatch(fromServer); more && asked != nil {
		if n, err := strconv.Atoi(string(asked[1])); err != nil || n > maxRounds {
			return nil, errTooMuch
		}
	}
	return s.Auth.Next(fromServer, more)
}
