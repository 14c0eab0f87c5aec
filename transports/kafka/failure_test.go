package kafka_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/gorm-outbox/outbox"
	"github.com/gorm-outbox/outbox/policy"
	"github.com/gorm-outbox/outbox/transports/kafka"
	"github.com/gorm-outbox/outbox/transports/transporttest"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// failed sends and gives the failure.
func failed(ctx context.Context, t *testing.T, transport *kafka.Transport, d outbox.Delivery) policy.Failure {
	t.Helper()
	_, err := transport.Send(ctx, d)
	f, ok := policy.AsFailure(err)
	require.True(t, ok, "%v", err)
	return f
}

func TestBrokersAnswers(t *testing.T) {
	for _, c := range []struct {
		answer *kerr.Error
		want   policy.Failure
	}{
		{kerr.MessageTooLarge, policy.Failure{Category: policy.CategoryRejected}},
		{kerr.RecordListTooLarge, policy.Failure{Category: policy.CategoryRejected}},
		{kerr.InvalidRecord, policy.Failure{Category: policy.CategoryRejected}},
		{kerr.PolicyViolation, policy.Failure{Category: policy.CategoryRejected}},
		{kerr.TopicAuthorizationFailed, policy.Failure{Category: policy.CategoryCredentials, Class: policy.Transient, RetryAfter: time.Minute}},
		{kerr.ClusterAuthorizationFailed, policy.Failure{Category: policy.CategoryCredentials, Class: policy.Transient, RetryAfter: time.Minute}},
		{kerr.InvalidTopicException, policy.Failure{Category: policy.CategoryNetwork, RetryAfter: time.Minute}},
		{kerr.UnknownServerError, policy.Failure{Category: policy.CategoryNetwork, OutcomeUnknown: true}},
		{kerr.InvalidRequiredAcks, policy.Failure{Category: policy.CategoryNetwork, OutcomeUnknown: true}},
		{kerr.NotEnoughReplicas, policy.Failure{Category: policy.CategoryNetwork, OutcomeUnknown: true}},
	} {
		t.Run(c.answer.Message, func(t *testing.T) {
			cluster := startCluster(t)
			cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: c.answer, Count: -1})
			transport := newTransport(t, kafka.Config{Client: connect(t, cluster.ListenAddrs()[0], kgo.RecordRetries(1))})
			c.want.Code = c.answer.Message
			require.Equal(t, c.want, failed(context.Background(), t, transport, order))
		})
	}
}

func TestTooLargeForTheClient(t *testing.T) {
	client := connect(t, startCluster(t).ListenAddrs()[0], kgo.ProducerBatchMaxBytes(1000))
	d := order
	d.Payload = []byte(`"` + strings.Repeat("x", 2000) + `"`)
	f := failed(context.Background(), t, newTransport(t, kafka.Config{Client: client}), d)
	require.Equal(t, policy.Failure{Category: policy.CategoryRejected, Code: "MESSAGE_TOO_LARGE"}, f)
}

func TestUnknownTopic(t *testing.T) {
	client := connect(t, startCluster(t).ListenAddrs()[0], kgo.UnknownTopicRetries(0))
	transport := newTransport(t, kafka.Config{Client: client})
	for topic, code := range map[string]string{
		"nowhere": "UNKNOWN_TOPIC_OR_PARTITION", "no topic": "INVALID_TOPIC_EXCEPTION", "": "INVALID_TOPIC_EXCEPTION",
	} {
		d := order
		d.Topic = topic
		f := failed(context.Background(), t, transport, d)
		require.Equal(t, policy.Failure{Category: policy.CategoryNetwork, Code: code, RetryAfter: time.Minute}, f)
	}
}

// TestWrongPassword answers as Kafka does; kfake would cut the connection.
func TestWrongPassword(t *testing.T) {
	cluster := startCluster(t)
	cluster.ControlKey(int16(kmsg.SASLAuthenticate), func(request kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		response := request.ResponseKind().(*kmsg.SASLAuthenticateResponse)
		response.ErrorCode = kerr.SaslAuthenticationFailed.Code
		response.ErrorMessage = kmsg.StringPtr("no such user: " + user)
		return response, nil, true
	})
	transport := newTransport(t, kafka.Config{Client: connect(t, cluster.ListenAddrs()[0])})
	_, err := transport.Send(context.Background(), order)
	require.Equal(t, &policy.Failure{
		Category: policy.CategoryCredentials, Code: "SASL_AUTHENTICATION_FAILED", Class: policy.Transient, RetryAfter: time.Minute,
	}, err)
}

func TestOutage(t *testing.T) {
	proxy := transporttest.NewProxy(t, startCluster(t).ListenAddrs()[0])
	transport := newTransport(t, kafka.Config{Client: connect(t, proxy.Addr())})
	_, err := transport.Send(context.Background(), order)
	require.NoError(t, err)

	proxy.Refuse()
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	f := failed(ctx, t, transport, order)
	require.Equal(t, policy.CategoryTimeout, f.Category)
	require.True(t, f.OutcomeUnknown, "it may have been on its way")
	f = failed(context.Background(), t, transport, order)
	require.Equal(t, policy.Failure{Category: policy.CategoryNetwork, Code: "no_connection"}, f, "it has not been sent")

	proxy.Pass()
	_, err = transport.Send(context.Background(), order)
	require.NoError(t, err)
}

func TestClosedClient(t *testing.T) {
	client := connect(t, startCluster(t).ListenAddrs()[0])
	transport := newTransport(t, kafka.Config{Client: client})
	client.Close()
	require.Equal(t, "no_connection", failed(context.Background(), t, transport, order).Code)
}

func TestNew(t *testing.T) {
	_, err := kafka.New(kafka.Config{})
	require.ErrorIs(t, err, outbox.ErrInvalid)
	require.ErrorContains(t, err, "Client is nil")
	for want, options := range map[string][]kgo.Opt{
		"AllISRAcks":    {kgo.RequiredAcks(kgo.LeaderAck()), kgo.DisableIdempotentWrite()},
		"idempotent":    {kgo.DisableIdempotentWrite()},
		"manually":      {kgo.ManualFlushing()},
		"transactional": {kgo.TransactionalID("tx")},
	} {
		_, err := kafka.New(kafka.Config{Client: connect(t, "127.0.0.1:1", options...)})
		require.ErrorIs(t, err, outbox.ErrInvalid)
		require.ErrorContains(t, err, want)
	}
}
