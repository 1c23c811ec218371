// Command shop is the program of the example application deploy/examples/shop. It uses nothing of
// Treeline: it reads files and environment variables, and finds the database by its name.
//
//	shop web       answer HTTP on port 8080:
//	                 GET  /         a page with the products
//	                 POST /orders   store an order (form field "item") and answer with its number
//	                 GET  /orders   the number of orders, and the latest, as JSON
//	                 GET  /healthz  200 if the database answers, otherwise 503
//	                 GET  /version  the variable VERSION
//	shop db        run Redis, which the image has, with the password from PASSWORD_FILE and its files in DATA
//	shop check     exit with 0 if the database on this host answers
//	shop report    write the number of orders of each product to standard output, and exit
//
// DB is the database's HOST:PORT, and PASSWORD_FILE the file with its password.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"log"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/gomodule/redigo/redis"
)

const (
	orders      = "orders" // the list of ordered items in Redis
	answerTime  = 5 * time.Second
	maxOrder    = 100
	redisServer = "/redis-check-rdb" // in Debian's package redis-tools; it is the server if it is called so
)

var products = []string{"apples", "bread", "cheese"}

func main() {
	mode := "web"
	if len(os.Args) > 1 {
		mode = os.Args[1]
	}
	run, ok := map[string]func(context.Context) error{"web": web, "db": db, "check": check, "report": report}[mode]
	if !ok {
		log.Fatalf("unknown mode %q", mode)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		log.Fatal(err) //nolint:gocritic // stop only matters while the program runs
	}
}

func env(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}

func password() (string, error) {
	text, err := os.ReadFile(env("PASSWORD_FILE", "/run/secrets/password"))
	return strings.TrimSpace(string(text)), err
}

// pool returns connections to the database at addr. The password is read again for each of them,
// so that a changed one is used.
func pool(addr string) *redis.Pool {
	return &redis.Pool{
		MaxIdle: 16, MaxActive: 64, Wait: true, IdleTimeout: time.Minute,
		DialContext: func(ctx context.Context) (redis.Conn, error) {
			p, err := password()
			if err != nil {
				return nil, err
			}
			return redis.DialContext(ctx, "tcp", addr, redis.DialPassword(p),
				redis.DialConnectTimeout(answerTime), redis.DialReadTimeout(answerTime), redis.DialWriteTimeout(answerTime))
		},
		TestOnBorrow: func(c redis.Conn, since time.Time) error {
			if time.Since(since) < time.Second {
				return nil
			}
			_, err := c.Do("PING")
			return err
		},
	}
}

// do sends one command to the database.
func do(ctx context.Context, p *redis.Pool, command string, args ...any) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	c, err := p.GetContext(ctx)
	if err != nil {
		return nil, fmt.Errorf("database: %w", err)
	}
	defer c.Close()
	reply, err := redis.DoContext(c, ctx, command, args...)
	if err != nil {
		return nil, fmt.Errorf("database: %s: %w", command, err)
	}
	return reply, nil
}

var page = template.Must(template.New("page").Parse(`<!doctype html><title>Shop</title><h1>Shop</h1>
<p>{{.Count}} orders so far.</p>
{{range .Products}}<form method="post" action="/orders"><button name="item" value="{{.}}">Order {{.}}</button></form>
{{end}}`))

func web(ctx context.Context) error {
	p := pool(env("DB", "db:6379"))
	mux := http.NewServeMux()
	fail := func(w http.ResponseWriter, err error) {
		log.Print(err)
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	}
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		count, err := redis.Int(do(r.Context(), p, "LLEN", orders))
		if err != nil {
			fail(w, err)
			return
		}
		_ = page.Execute(w, map[string]any{"Count": count, "Products": products})
	})
	mux.HandleFunc("POST /orders", func(w http.ResponseWriter, r *http.Request) {
		item := r.PostFormValue("item")
		if item == "" || len(item) > maxOrder {
			http.Error(w, fmt.Sprintf("item has %d bytes, want 1 to %d", len(item), maxOrder), http.StatusBadRequest)
			return
		}
		number, err := redis.Int(do(r.Context(), p, "RPUSH", orders, item))
		if err != nil {
			fail(w, err)
			return
		}
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintln(w, number)
	})
	mux.HandleFunc("GET /orders", func(w http.ResponseWriter, r *http.Request) {
		count, err := redis.Int(do(r.Context(), p, "LLEN", orders))
		if err != nil {
			fail(w, err)
			return
		}
		latest, err := redis.Strings(do(r.Context(), p, "LRANGE", orders, -10, -1))
		if err != nil {
			fail(w, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"count": count, "latest": latest})
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) {
		if _, err := do(r.Context(), p, "PING"); err != nil {
			fail(w, err)
		}
	})
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, env("VERSION", "1")) })
	s := &http.Server{Addr: ":8080", Handler: mux, ReadHeaderTimeout: answerTime}
	ended := make(chan error, 1)
	go func() {
		<-ctx.Done()
		drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTime)
		defer cancel()
		ended <- s.Shutdown(drain)
	}()
	if err := s.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-ended
}

// db becomes Redis. It syncs each write to disk before it answers. The configuration goes through a
// pipe, because the arguments of a process are no place for a password.
func db(context.Context) error {
	p, err := password()
	if err != nil {
		return err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(w, "port 6379\nbind *\ndir %s\nappendonly yes\nappendfsync always\nsave \"\"\nrequirepass %q\n", env("DATA", "/data"), p); err != nil {
		return err
	}
	if err := errors.Join(w.Close(), syscall.Dup2(int(r.Fd()), 0)); err != nil {
		return err
	}
	return fmt.Errorf("run Redis: %w", syscall.Exec(redisServer, []string{"redis-server", "-"}, os.Environ()))
}

func check(ctx context.Context) error {
	_, err := do(ctx, pool("127.0.0.1:6379"), "PING")
	return err
}

func report(ctx context.Context) error {
	items, err := redis.Strings(do(ctx, pool(env("DB", "db:6379")), "LRANGE", orders, 0, -1))
	if err != nil {
		return err
	}
	sold := map[string]int{}
	for _, item := range items {
		sold[item]++
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{"orders": len(items), "sold": sold})
}
