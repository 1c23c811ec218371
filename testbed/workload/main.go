// Command workload is the program in the image of the examples. Tests use it as a workload with a
// given behaviour.
//
//	workload serve               answer HTTP with its name (the default); /healthz answers with the status of
//	                             the variable HEALTH, or the one in the last request of /set?status=N;
//	                             /metrics counts the other requests for Prometheus
//	workload check URL           exit with 0 if the URL answers with 200, otherwise with 1
//	workload sleep [DURATION]    sleep forever or for a duration
//	workload exit CODE [AFTER]   exit with CODE
//	workload eat MIB             allocate memory and keep it
//	workload ignore-term         ignore SIGTERM
//	workload log RATE [COUNT]    write numbered lines, RATE a second (0: at once), then exit
//	workload open FILE…          open files for writing, print the results, then exit
//	workload write FILE MIB      write a file of this size, print the result, then exit
//	workload journal FILE        append a line with its name to a file, print the file, then sleep
//	workload env                 print the environment and the user, then exit
//	workload cat                 copy stdin to stdout
//	workload source              send zeros to each TCP connection at PORT
//	workload busy                compute while a TCP connection to PORT is open
//	workload echo                answer TCP and UDP at PORT with what it receives
//	workload size                print the terminal's size, and again when it changes, until SIGINT
//	workload spawn [-leave] PROGRAM ARG…   run a program in a session of its own and wait for it, or leave it
//
// Without arguments the mode comes from the variable WORKLOAD. The program uses only the standard
// library and no cgo, so that it runs in an empty image.
package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

func main() {
	args := os.Args[1:]
	if len(args) == 0 {
		args = strings.Fields(os.Getenv("WORKLOAD"))
	}
	if len(args) == 0 {
		args = []string{"serve"}
	}
	mode, ok := modes[args[0]]
	if !ok {
		fmt.Fprintf(os.Stderr, "workload: unknown mode %q\n", args[0])
		os.Exit(2)
	}
	code, err := mode(args[1:])
	if err != nil {
		fmt.Fprintf(os.Stderr, "workload: %s: %v\n", args[0], err)
		code = 1
	}
	os.Exit(code)
}

var modes = map[string]func(args []string) (code int, err error){
	"serve":       serve,
	"check":       check,
	"sleep":       sleep,
	"exit":        exit,
	"eat":         eat,
	"ignore-term": ignoreTerm,
	"log":         logLines,
	"open":        openFiles,
	"write":       writeFile,
	"journal":     journal,
	"writer":      writer,
	"env":         printEnv,
	"cat":         cat,
	"echo":        echo,
	"source":      source,
	"busy":        busy,
	"size":        size,
	"spawn":       spawn,
}

// Identity is the answer of serve: the name of the workload from its environment and, if the variable
// ASK has a URL, the answer of that URL.
type Identity struct {
	Instance string `json:"instance"`
	Service  string `json:"service"`
	Epoch    string `json:"epoch"`
	Attempt  string `json:"attempt"`
	Hostname string `json:"hostname"`
	PID      int    `json:"pid"`
	// Since is when it began to listen, so that tests can subtract the start.
	Since time.Time `json:"since"`
	Asked any       `json:"asked,omitempty"` // the answer, or the error
	// Healthy is when /healthz answered with 200 for the first time.
	Healthy time.Time `json:"healthy,omitzero"`
}

func identity() Identity {
	host, _ := os.Hostname()
	return Identity{
		Instance: os.Getenv("TREELINE_INSTANCE"),
		Service:  os.Getenv("TREELINE_SERVICE"),
		Epoch:    os.Getenv("TREELINE_EPOCH"),
		Attempt:  os.Getenv("TREELINE_ATTEMPT"),
		Hostname: host,
		PID:      os.Getpid(),
	}
}

func serve([]string) (int, error) {
	port, err := servePort()
	if err != nil {
		return 2, err
	}
	if wait := os.Getenv("LISTEN_AFTER"); wait != "" {
		d, err := time.ParseDuration(wait)
		if err != nil {
			return 2, fmt.Errorf("LISTEN_AFTER: %w", err)
		}
		time.Sleep(d)
	}
	l, err := net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(port)))
	if err != nil {
		return 1, err
	}
	since := time.Now()
	fmt.Println("listening on", l.Addr())
	var health health
	status, err := strconv.Atoi(cmp.Or(os.Getenv("HEALTH"), "200"))
	if err != nil {
		return 2, fmt.Errorf("HEALTH: %w", err)
	}
	health.status.Store(int64(status))
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", health.serve)
	mux.HandleFunc("/set", health.set)
	var requests atomic.Int64
	mux.HandleFunc("/metrics", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "# TYPE http_requests_total counter\nhttp_requests_total %d\n", requests.Load())
	})
	mux.HandleFunc("/bulk", func(w http.ResponseWriter, _ *http.Request) { // 4 MiB, for measuring bandwidth
		for range 64 {
			_, _ = w.Write(make([]byte, 64<<10))
		}
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		w.Header().Set("Content-Type", "application/json")
		me := identity()
		me.Since = since
		if at := health.since.Load(); at != nil {
			me.Healthy = *at
		}
		_ = json.NewEncoder(w).Encode(asking(me))
	})
	srv := &http.Server{ReadHeaderTimeout: 5 * time.Second, Handler: mux}
	go func() {
		<-term()
		_ = srv.Close()
	}()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return 1, err
	}
	return 0, nil
}

// health is the state of /healthz.
type health struct {
	status atomic.Int64
	since  atomic.Pointer[time.Time] // of the first answer with 200
}

func (h *health) serve(w http.ResponseWriter, _ *http.Request) {
	status := int(h.status.Load())
	if status == http.StatusOK {
		now := time.Now()
		h.since.CompareAndSwap(nil, &now)
	}
	w.WriteHeader(status)
}

func (h *health) set(w http.ResponseWriter, r *http.Request) {
	n, err := strconv.Atoi(r.FormValue("status"))
	if err != nil || n < 200 || n > 599 {
		http.Error(w, "status: want 200 to 599", http.StatusBadRequest)
		return
	}
	h.status.Store(int64(n))
}

func check(args []string) (int, error) {
	if len(args) == 0 {
		return 2, errors.New("check: want a URL")
	}
	c := http.Client{Timeout: 5 * time.Second}
	resp, err := c.Get(args[0])
	if err != nil {
		return 1, err
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return 1, fmt.Errorf("status %d", resp.StatusCode)
	}
	return 0, nil
}

// asking adds the answer of the URL in ASK, each time on a new connection.
func asking(me Identity) Identity {
	url := os.Getenv("ASK")
	if url == "" {
		return me
	}
	c := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := c.Get(url)
	if err == nil {
		defer resp.Body.Close()
		err = json.NewDecoder(io.LimitReader(resp.Body, 1<<16)).Decode(&me.Asked)
	}
	if err != nil {
		me.Asked = err.Error()
	}
	return me
}

// servePort returns PORT, where 0 lets the kernel choose, or PORT_BASE plus the instance's number, so
// that instances on one host network have different ports, or 8080.
func servePort() (int, error) {
	if p := os.Getenv("PORT"); p != "" {
		return strconv.Atoi(p)
	}
	base := os.Getenv("PORT_BASE")
	if base == "" {
		return 8080, nil
	}
	b, err := strconv.Atoi(base)
	if err != nil {
		return 0, fmt.Errorf("PORT_BASE %q: %w", base, err)
	}
	n, err := strconv.Atoi(os.Getenv("TREELINE_INSTANCE_NUMBER"))
	if err != nil {
		return 0, fmt.Errorf("TREELINE_INSTANCE_NUMBER: %w", err)
	}
	return b + n, nil
}

func sleep(args []string) (int, error) {
	var after <-chan time.Time
	if len(args) > 0 {
		d, err := time.ParseDuration(args[0])
		if err != nil {
			return 2, err
		}
		after = time.After(d)
	}
	stopped := term()
	fmt.Println("sleeping")
	select {
	case <-stopped:
	case <-after:
	}
	return 0, nil
}

func exit(args []string) (int, error) {
	if len(args) == 0 {
		return 2, errors.New("exit: want an exit code")
	}
	code, err := strconv.Atoi(args[0])
	if err != nil {
		return 2, err
	}
	if len(args) > 1 {
		d, err := time.ParseDuration(args[1])
		if err != nil {
			return 2, err
		}
		time.Sleep(d)
	}
	return code, nil
}

func eat(args []string) (int, error) {
	if len(args) == 0 {
		return 2, errors.New("eat: want an amount in MiB")
	}
	mib, err := strconv.Atoi(args[0])
	if err != nil {
		return 2, err
	}
	held := make([][]byte, 0, mib)
	for range mib {
		b := make([]byte, 1<<20)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1 // the kernel allocates a page at the first write
		}
		held = append(held, b)
	}
	fmt.Println("ate", len(held), "MiB")
	<-term()
	return 0, nil
}

func ignoreTerm([]string) (int, error) {
	signal.Ignore(syscall.SIGTERM)
	fmt.Println("ignoring SIGTERM")
	for {
		time.Sleep(time.Hour) // Go would report an empty select as a deadlock
	}
}

func logLines(args []string) (int, error) {
	if len(args) == 0 {
		return 2, errors.New("log: want a number of lines per second")
	}
	rate, err := strconv.Atoi(args[0])
	if err != nil {
		return 2, err
	}
	count := -1
	if len(args) > 1 {
		if count, err = strconv.Atoi(args[1]); err != nil {
			return 2, err
		}
	}
	for i := 0; i != count; i++ {
		out := os.Stdout
		if i%2 == 1 {
			out = os.Stderr
		}
		fmt.Fprintln(out, "line", i)
		if rate > 0 {
			time.Sleep(time.Second / time.Duration(rate))
		}
	}
	return 0, nil
}

func printEnv([]string) (int, error) {
	for _, kv := range os.Environ() {
		fmt.Println(kv)
	}
	fmt.Printf("uid=%d gid=%d\n", os.Getuid(), os.Getgid())
	return 0, nil
}

func cat([]string) (int, error) {
	_, err := io.Copy(os.Stdout, os.Stdin)
	return 0, err
}

func source([]string) (int, error) {
	return eachConn(func(c net.Conn) {
		var err error
		for block := make([]byte, 64<<10); err == nil; {
			_, err = c.Write(block)
		}
	})
}

func busy([]string) (int, error) {
	return eachConn(func(c net.Conn) {
		var closed atomic.Bool
		go func() {
			_, _ = io.Copy(io.Discard, c)
			closed.Store(true)
		}()
		for !closed.Load() {
		}
	})
}

// eachConn serves TCP connections to PORT until SIGTERM.
func eachConn(serve func(net.Conn)) (int, error) {
	port, err := servePort()
	if err != nil {
		return 2, err
	}
	l, err := net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(port)))
	if err != nil {
		return 1, err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				serve(c)
			}()
		}
	}()
	<-term()
	return 0, nil
}

func echo([]string) (int, error) {
	port, err := servePort()
	if err != nil {
		return 2, err
	}
	at := net.JoinHostPort("", strconv.Itoa(port))
	packets, err := net.ListenPacket("udp", at)
	if err != nil {
		return 1, err
	}
	go func() {
		buf := make([]byte, 1<<16)
		for {
			if n, from, err := packets.ReadFrom(buf); err == nil {
				_, _ = packets.WriteTo(buf[:n], from)
			}
		}
	}()
	l, err := net.Listen("tcp", at)
	if err != nil {
		return 1, err
	}
	fmt.Println("listening on", l.Addr())
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	<-term()
	return 0, nil
}

// size reads the size with the system call, because the program uses only the standard library.
func size([]string) (int, error) {
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, syscall.SIGWINCH)
	stopped := term()
	for {
		var s struct{ rows, cols, x, y uint16 }
		if _, _, err := syscall.Syscall(syscall.SYS_IOCTL, os.Stdin.Fd(), syscall.TIOCGWINSZ, uintptr(unsafe.Pointer(&s))); err != 0 {
			return 1, err
		}
		fmt.Printf("%dx%d\n", s.cols, s.rows)
		select {
		case <-changed:
		case <-stopped:
			return 0, nil
		}
	}
}

func spawn(args []string) (int, error) {
	leave := len(args) > 0 && args[0] == "-leave"
	if leave {
		args = args[1:]
	}
	if len(args) == 0 {
		return 2, errors.New("spawn: want a program")
	}
	cmd := &exec.Cmd{Path: args[0], Args: args, Env: os.Environ(), Stdout: os.Stdout, SysProcAttr: &syscall.SysProcAttr{Setsid: true}}
	err := cmd.Start()
	if err == nil && !leave {
		err = cmd.Wait()
	}
	return 0, err
}

func openFiles(paths []string) (int, error) {
	for _, p := range paths {
		f, err := os.OpenFile(p, os.O_WRONLY, 0)
		if err == nil {
			err = f.Close()
		}
		fmt.Println("open", p, err)
	}
	return 0, nil
}

func writeFile(args []string) (int, error) {
	if len(args) != 2 {
		return 2, errors.New("want FILE and MIB")
	}
	mib, err := strconv.Atoi(args[1])
	if err != nil {
		return 2, err
	}
	f, err := os.Create(args[0])
	if err != nil {
		return 1, err
	}
	n := 0
	for block := make([]byte, 1<<20); n < mib && err == nil; n++ {
		_, err = f.Write(block)
	}
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return 1, err
	}
	fmt.Println("wrote", args[0])
	return 0, nil
}

func journal(args []string) (int, error) {
	if len(args) != 1 {
		return 2, errors.New("want FILE")
	}
	f, err := os.OpenFile(args[0], os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return 1, err
	}
	me := identity()
	_, err = fmt.Fprintln(f, me.Instance, me.Epoch, me.Attempt)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return 1, err
	}
	text, err := os.ReadFile(args[0])
	if err != nil {
		return 1, err
	}
	fmt.Print(string(text))
	return sleep(nil)
}

// writer writes numbered lines to the file log of a directory, and the same numbers to the beginning of the file page, each
// synced, until SIGTERM; it goes on for a while after that, and ends the log with a line "end". It begins with a
// file of 24 MiB, and continues after the lines that exist.
func writer(args []string) (int, error) {
	if len(args) != 1 {
		return 2, errors.New("want DIR")
	}
	bulk := filepath.Join(args[0], "bulk")
	if _, err := os.Stat(bulk); err != nil {
		noise := make([]byte, 24<<20)
		_, _ = rand.NewChaCha8([32]byte{}).Read(noise)
		if err := os.WriteFile(bulk, noise, 0o600); err != nil {
			return 1, err
		}
	}
	text, _ := os.ReadFile(filepath.Join(args[0], "log"))
	f, err := os.OpenFile(filepath.Join(args[0], "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return 1, err
	}
	page, err := os.OpenFile(filepath.Join(args[0], "page"), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return 1, err
	}
	ending, last := term(), (<-chan time.Time)(nil)
	for n := strings.Count(string(text), "\n") + 1; ; n++ {
		_, err := fmt.Fprintln(f, n)
		if err == nil {
			_, err = page.WriteAt(fmt.Appendf(nil, "%08d", n), 0)
		}
		if err = errors.Join(err, f.Sync(), page.Sync()); err != nil {
			return 1, err
		}
		select {
		case <-ending:
			last = time.After(300 * time.Millisecond)
		case <-last:
			_, err := fmt.Fprintln(f, "end")
			return 0, errors.Join(err, f.Sync())
		case <-time.After(2 * time.Millisecond):
		}
	}
}

func term() <-chan os.Signal {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGTERM, syscall.SIGINT)
	return c
}
