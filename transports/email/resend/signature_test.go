package resend

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The example of Svix's own documents.
func TestVerifyKnowsSvixsOwnExample(t *testing.T) {
	keys, err := parseSecrets([]string{"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"})
	require.NoError(t, err)
	header := http.Header{}
	header.Set("svix-id", "msg_p5jXN8AQM9LWM0D4loKWxJek")
	header.Set("svix-timestamp", "1614265330")
	header.Set("svix-signature", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=")
	body := []byte(`{"test": 2432232314}`)
	at := time.Unix(1614265330, 0)

	require.NoError(t, verify(keys, header, body, at))
	require.NoError(t, verify(keys, header, body, at.Add(tolerance)))
	require.NoError(t, verify(keys, header, body, at.Add(-tolerance)))
	require.ErrorIs(t, verify(keys, header, body, at.Add(tolerance+time.Second)), errStale)
	require.ErrorIs(t, verify(keys, header, body, at.Add(-tolerance-time.Second)), errStale)
	require.ErrorIs(t, verify(keys, header, []byte(`{"test": 2432232315}`), at), errForged)
}
