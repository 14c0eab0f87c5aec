package shape_test

import (
	"os"
	"testing"

	"github.com/gorm-outbox/outbox/tests/internal/shape"
	"github.com/stretchr/testify/require"
)

const root = "../../.."

func TestRepository(t *testing.T) {
	require.FileExists(t, root+"/go.work", "the root of the repository")

	problems, err := shape.Check(os.DirFS(root))

	require.NoError(t, err)
	for _, p := range problems {
		t.Error(p)
	}
}
