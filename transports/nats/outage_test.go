package nats_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox/policy"
	"github.com/gorm-outbox/outbox/transports/nats"
	"github.com/gorm-outbox/outbox/transports/transporttest"
	client "github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
)

// failed sends and gives the failure, which must be transient.
func failed(ctx context.Context, t *testing.T, transport *nats.Transport) policy.Failure {
	t.Helper()
	_, err := transport.Send(ctx, order)
	f, ok := policy.AsFailure(err)
	require.True(t, ok, "%v", err)
	require.Equal(t, policy.Transient, policy.Classify(err))
	return f
}

func TestNoStreamIsTheOperatorsFault(t *testing.T) {
	js := connect(t, startServer(t).ClientURL())
	f := failed(context.Background(), t, newTransport(t, nats.Config{JetStream: js}))
	require.Equal(t, policy.Failure{Category: policy.CategoryNetwork, Code: "no_stream", RetryAfter: time.Minute}, f)
}

func TestMissingPermissionIsFound(t *testing.T) {
	s := startServer(t)
	stream(t, connect(t, s.ClientURL()))
	js := connect(t, s.ClientURL(), client.UserInfo("limited", password))
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	f := failed(ctx, t, newTransport(t, nats.Config{JetStream: js}))
	require.Equal(t, policy.CategoryCredentials, f.Category)
	require.Equal(t, "permission_violation", f.Code)
	require.Equal(t, time.Minute, f.RetryAfter)
}

// eventually waits for the connection to be in a state.
func eventually(t *testing.T, conn *client.Conn, state client.Status) {
	t.Helper()
	require.Eventually(t, func() bool { return conn.Status() == state }, 10*time.Second, 5*time.Millisecond)
}

func TestOutage(t *testing.T) {
	s := startServer(t)
	admin := connect(t, s.ClientURL())
	stream(t, admin)
	proxy := transporttest.NewProxy(t, s.Addr().String())
	js := connect(t, "nats://"+proxy.Addr())
	transport := newTransport(t, nats.Config{JetStream: js})

	proxy.Refuse()
	eventually(t, js.Conn(), client.RECONNECTING)
	f := failed(context.Background(), t, transport)
	require.Equal(t, policy.Failure{Category: policy.CategoryNetwork, Code: "disconnected"}, f)

	proxy.Pass()
	eventually(t, js.Conn(), client.CONNECTED)
	id, err := transport.Send(context.Background(), order)
	require.NoError(t, err)
	require.Equal(t, "ORDERS:1", id, "nothing was left over from the outage")

	js.Conn().Close()
	f = failed(context.Background(), t, transport)
	require.Equal(t, policy.Failure{Category: policy.CategoryNetwork, Code: "closed", RetryAfter: time.Minute}, f)
}

func TestRefusedPassword(t *testing.T) {
	s := startServer(t)
	var current atomic.Value
	current.Store(user)
	js := connect(t, s.ClientURL(), client.UserInfoHandler(func() (string, string) { return current.Load().(string), password }))
	current.Store("somebody else")
	require.NoError(t, js.Conn().ForceReconnect())
	eventually(t, js.Conn(), client.CLOSED)
	f := failed(context.Background(), t, newTransport(t, nats.Config{JetStream: js}))
	require.Equal(t, policy.CategoryCredentials, f.Category)
	require.Equal(t, "authorization", f.Code)
	require.Equal(t, time.Minute, f.RetryAfter)
}
