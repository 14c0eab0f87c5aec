package trial

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"time"

	"github.com/gorm-outbox/outbox/tests/bench/internal/contender"
	"github.com/gorm-outbox/outbox/tests/bench/internal/ledger"
)

// childEnv turns this program into a child process.
const childEnv = "OUTBOX_BENCH_CHILD"

// IsChild says whether this process is to call Child.
func IsChild() bool { return os.Getenv(childEnv) != "" }

// Child speaks with the measuring process over stdin and stdout, one line of JSON at a time: it gets its task, says
// when it is ready, waits for the word to begin, answers with its result, and ends when its input does: until then
// its connections stay, since the server is looked at meanwhile. It gives the exit status.
func Child() int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	in, out := bufio.NewReader(os.Stdin), json.NewEncoder(os.Stdout)
	var task Task
	line, err := in.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &task)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "read the task:", err)
		return 2
	}
	begin := func() error {
		if err := out.Encode(true); err != nil {
			return err
		}
		if _, err := in.ReadBytes('\n'); err != nil {
			return err
		}
		go func() { // nobody writes more: an end of input is the end of the measuring process
			_, _ = in.ReadByte()
			cancel()
		}()
		return nil
	}
	result := func(r Result) error {
		if err := out.Encode(r); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	}
	if err := perform(ctx, task, begin, result); err != nil {
		if err := out.Encode(Result{Error: err.Error()}); err != nil {
			fmt.Fprintln(os.Stderr, "write the result:", err)
			return 2
		}
	}
	return 0
}

// job is a role at work. warm is what comes before the clock runs, run what it measures.
type job struct {
	warm, run func(context.Context) error
	finish    func(*Result) error // adds what is not measured
}

// perform does a task, with its clock between begin and the end of the run.
func perform(ctx context.Context, task Task, begin func() error, report func(Result) error) error {
	definition, ok := contender.Find(task.Contender)
	if !ok {
		return fmt.Errorf("no contender %q", task.Contender)
	}
	c, err := definition.Open(ctx, contender.Options{DSN: task.DSN, Conns: conns(task)})
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	defer c.Close()
	var book *ledger.Ledger
	if task.Ledger != "" {
		if book, err = ledger.Open(task.Ledger); err != nil {
			return err
		}
	}
	j := roles[task.Role](task, c, book)
	if j.warm != nil {
		if err := j.warm(ctx); err != nil {
			return fmt.Errorf("warm up: %w", err)
		}
	}
	if err := begin(); err != nil {
		return err
	}
	before := look()
	if err := j.run(ctx); err != nil {
		return err
	}
	result := look().since(before)
	if j.finish != nil {
		if err := j.finish(&result); err != nil {
			return err
		}
	}
	return report(result)
}

// conns is how many transactions a task runs at once.
func conns(task Task) int {
	const workers, spare = 10, 2 // a few more than any claimer, recorder and listener need
	return max(workers, task.Goroutines+spare, task.Concurrency)
}

// state is what this process has used so far.
type state struct {
	at      time.Time
	cpu     time.Duration
	mallocs uint64
	bytes   uint64
}

func look() state {
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage) // fails for no valid argument
	cpu := time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	return state{time.Now(), cpu, memory.Mallocs, memory.TotalAlloc}
}

func (s state) since(earlier state) Result {
	return Result{
		Began: earlier.at.UnixNano(), Ended: s.at.UnixNano(), CPU: s.cpu - earlier.cpu,
		Mallocs: s.mallocs - earlier.mallocs, Bytes: s.bytes - earlier.bytes,
	}
}
