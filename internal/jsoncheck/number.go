package jsoncheck

import "fmt"

// jsonb's numbers are numeric, which ends 131072 digits before the decimal point
// and 16383 after it. These limits are far inside that.
const (
	maxDigits   = 1000
	maxExponent = 1000
)

// maxZeros bounds the sum of a text's exponents. jsonb comes back with exponents
// written out, 1e1000 as 1001 digits, and PostgreSQL stores but can't read what
// would then be over 1 GB: 8 MB of such numbers would be a row that none can send.
const maxZeros = 1 << 26

func (s *scanner) number() error {
	start := s.pos
	s.take('-')
	zero := s.peek() == '0'
	count := s.digits()
	if count == 0 || zero && count > 1 {
		return s.invalid("a number with digits and no leading zero")
	}
	if s.take('.') {
		fraction := s.digits()
		if fraction == 0 {
			return s.invalid("digits after the decimal point")
		}
		count += fraction
	}
	if s.take('e') || s.take('E') {
		if err := s.exponent(start); err != nil {
			return err
		}
	}
	if count > maxDigits {
		return fmt.Errorf("number of %d digits at byte %d of the JSON text: databases keep "+
			"at most %d for certain, send it as a string", count, start, maxDigits)
	}
	return nil
}

// exponent checks what follows the e of the number that begins at start.
func (s *scanner) exponent(start int) error {
	if !s.take('+') {
		s.take('-')
	}
	from, magnitude := s.pos, 0
	if s.digits() == 0 {
		return s.invalid("digits in the exponent")
	}
	for _, c := range s.text[from:s.pos] {
		magnitude = min(magnitude*10+int(c-'0'), maxExponent+1)
	}
	if magnitude > maxExponent {
		return fmt.Errorf("number with an exponent beyond %d at byte %d of the JSON text: "+
			"databases can't keep it for certain, send it as a string", maxExponent, start)
	}
	if s.zeros += magnitude; s.zeros > maxZeros {
		return fmt.Errorf("numbers with exponents of more than %d in total at byte %d of the JSON text: "+
			"PostgreSQL writes them out in full, send them as strings", maxZeros, start)
	}
	return nil
}

// digits consumes digits and counts them.
func (s *scanner) digits() int {
	start := s.pos
	for isDigit(s.peek()) {
		s.pos++
	}
	return s.pos - start
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }
