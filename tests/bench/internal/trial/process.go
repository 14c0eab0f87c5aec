package trial

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

// process is a child process as its parent sees it.
type process struct {
	task    Task
	cmd     *exec.Cmd
	in      io.WriteCloser
	out     *json.Decoder
	errText bytes.Buffer
	ended   bool
}

// startProcess starts a child and gives it its task. It is killed when ctx ends.
func startProcess(ctx context.Context, task Task) (*process, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{task: task, cmd: exec.CommandContext(ctx, program)}
	p.cmd.Env = append(os.Environ(), childEnv+"=1")
	p.cmd.Stderr = &p.errText
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = json.NewDecoder(out)
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	if err := json.NewEncoder(p.in).Encode(task); err != nil {
		return nil, errors.Join(err, p.end())
	}
	return p, nil
}

// ready waits until the child only waits for begin.
func (p *process) ready() error {
	var answer json.RawMessage
	if err := p.out.Decode(&answer); err != nil {
		return p.explain(err)
	}
	if string(answer) == "true" {
		return nil
	}
	var r Result // it failed on the way there
	if err := json.Unmarshal(answer, &r); err != nil {
		return p.explain(err)
	}
	return p.explain(errors.New(r.Error))
}

func (p *process) begin() error {
	_, err := io.WriteString(p.in, "begin\n")
	return err
}

// result waits for what the child found.
func (p *process) result() (Result, error) {
	var r Result
	if err := p.out.Decode(&r); err != nil {
		return r, p.explain(err)
	}
	if r.Error != "" {
		return r, p.explain(errors.New(r.Error))
	}
	return r, nil
}

// end closes the child's input, on which it ends, and waits for that.
func (p *process) end() error {
	if p.ended {
		return nil
	}
	p.ended = true
	_ = p.in.Close() // a child that has ended has closed it
	if err := p.cmd.Wait(); err != nil {
		return p.explain(err)
	}
	return nil
}

func (p *process) explain(err error) error {
	text := strings.TrimSpace(p.errText.String())
	if text != "" {
		text = "; it said:\n" + text
	}
	return fmt.Errorf("%s of %s: %w%s", p.task.Role, p.task.Contender, err, text)
}
