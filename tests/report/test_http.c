/* The HTTP server: routes, refusals, bodies and their limits, streams and how they end. */
#include "ask.h"

#include <time.h>

#include "serve/http.h"

enum { LIMIT = 1000, LONG = 1 << 20 };
#define HEAD_OF(method, path, more) method " " path " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" more "\r\n"

static struct wn_http *http;
static wn_context *ctx;
static pthread_t writer;
static bool writing;
static int heard;        /* pieces that the last writer could send */
static _Atomic int left; /* answers sent completely */

static void on_sent(void *user) {
  ++*(_Atomic int *)user;
}

static void answer_hello(const struct wn_http_request *request, struct wn_http_answer *answer) {
  const char *name = wn_http_query(request, "name"), *agent = wn_http_header(request, "X-Agent");
  wn_text_add(&answer->text, "hello %s by %s", name ? name : "you", agent ? agent : "none");
  answer->sent = on_sent;
}

static void answer_fixed(const struct wn_http_request *request, struct wn_http_answer *answer) {
  (void)request;
  answer->fixed = "as it is";
  answer->fixed_bytes = 8;
}

static void answer_echo(const struct wn_http_request *request, struct wn_http_answer *answer) {
  if (request->body_bytes == 0) {
    wn_http_say(answer, 400, "an empty body");
    return;
  }
  assert_int_equal(strlen(request->body), request->body_bytes);
  wn_text_add(&answer->text, "%s:%s", request->method, request->body);
}

/* Writes all, waiting while the stream is full. False: the client has gone. */
static bool write_all(struct wn_http_stream *stream, const char *data, size_t bytes) {
  while (bytes > 0) {
    const size_t n = wn_http_stream_offer(stream, data, bytes);
    if (n == SIZE_MAX) return false;
    if (n == 0) nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    data += n, bytes -= n;
  }
  return true;
}

static void *write_events(void *user) {
  static const char *const data[] = {"data: one\n\n", "event: twice\ndata: two\n\n", "data: end\n\n"};
  struct wn_http_stream *stream = user;
  heard = 0;
  for (int i = 0; i < 3; i++) {
    heard += write_all(stream, data[i], strlen(data[i]));
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL); /* meanwhile the connection is suspended */
  }
  wn_http_stream_end(stream);
  return NULL;
}

/* Writes more than the stream can buffer, until nobody listens. */
static void *write_much(void *user) {
  struct wn_http_stream *stream = user;
  char *much = malloc(LONG);
  memset(much, 'x', LONG);
  heard = 0;
  while (write_all(stream, much, LONG)) heard++;
  wn_http_stream_end(stream);
  free(much);
  return NULL;
}

static void *write_once(void *user) {
  struct wn_http_stream *stream = user;
  char *much = malloc(LONG);
  for (int i = 0; i < LONG; i++) much[i] = (char)('a' + i % 23);
  heard = write_all(stream, much, LONG);
  wn_http_stream_end(stream);
  free(much);
  return NULL;
}

static void start_writer(const struct wn_http_request *request, struct wn_http_answer *answer, void *(*run)(void *)) {
  struct wn_http_stream *stream = wn_http_stream_open(request, answer);
  assert_non_null(stream);
  writing = pthread_create(&writer, NULL, run, stream) == 0;
  assert_true(writing);
}
static void answer_events(const struct wn_http_request *request, struct wn_http_answer *answer) {
  start_writer(request, answer, write_events);
}
static void answer_much(const struct wn_http_request *request, struct wn_http_answer *answer) {
  start_writer(request, answer, write_much);
}
static void answer_once(const struct wn_http_request *request, struct wn_http_answer *answer) {
  start_writer(request, answer, write_once);
}
static void answer_slowly(const struct wn_http_request *request, struct wn_http_answer *answer) {
  start_writer(request, answer, write_much);
  answer->waits = true;
}
enum { HELD = 40 }; /* bodies: more than may be held at once */
static struct wn_http_stream *_Atomic held[HELD];
static void answer_held(const struct wn_http_request *request, struct wn_http_answer *answer) {
  static int next;
  held[next++] = wn_http_stream_open(request, answer);
  answer->waits = true;
}
static int written(void) {
  assert_int_equal(pthread_join(writer, NULL), 0);
  return heard;
}

static const struct wn_http_route routes[] = {
    {.method = "GET", .path = "/hello", .type = "text/plain", .handle = answer_hello},
    {.method = "GET", .path = "/both", .type = "text/plain", .handle = answer_fixed},
    {.method = "POST", .path = "/both", .type = "text/plain", .body_limit = LIMIT, .handle = answer_echo},
    {.method = "GET", .path = "/events", .type = "text/event-stream", .handle = answer_events},
    {.method = "GET", .path = "/once", .type = "text/plain", .handle = answer_once},
    {.method = "GET", .path = "/much", .type = "text/plain", .handle = answer_much},
    {.method = "POST", .path = "/held", .type = "text/plain", .body_limit = 2 * LONG, .handle = answer_held},
    {.method = "GET", .path = "/slow", .type = "text/plain", .handle = answer_slowly},
};

static int begin(void **state) {
  (void)state;
  const struct wn_http_options options = {
      .routes = routes, .route_count = sizeof routes / sizeof *routes, .user = &left};
  ctx = make_context();
  if (wn_http_start(ctx, &options, &http) == WN_OK) return 0;
  print_message("%s\n", wn_context_error(ctx));
  return -1;
}
static int end(void **state) {
  (void)state;
  wn_http_stop(http);
  wn_context_destroy(ctx);
  return 0;
}

static void test_routes(void **state) {
  (void)state;
  const int port = wn_http_port(http);
  char *text = ask(port, HEAD_OF("GET", "/hello?name=a%20b", "X-Agent: test\r\n"));
  assert_non_null(strstr(text, "200 OK"));
  assert_non_null(strstr(text, "Content-Type: text/plain\r\n"));
  assert_non_null(strstr(text, "Cache-Control: no-store\r\n"));
  assert_string_equal(ask_body(text), "hello a b by test");
  free(text);
  text = ask_for(port, "HEAD", "/hello");
  assert_non_null(strstr(text, "200 OK"));
  assert_non_null(strstr(text, "Content-Length: 17\r\n"));
  assert_string_equal(ask_body(text), "");
  free(text);
  text = ask_for(port, "GET", "/both");
  assert_string_equal(ask_body(text), "as it is");
  free(text);
}

static void test_refused(void **state) {
  (void)state;
  const int port = wn_http_port(http);
  char *text = ask_for(port, "GET", "/hello/more");
  assert_non_null(strstr(text, "404"));
  assert_string_equal(ask_body(text), "not here\n");
  free(text);
  text = ask_for(port, "DELETE", "/both");
  assert_non_null(strstr(text, "405"));
  assert_non_null(strstr(text, "Allow: GET, HEAD, POST\r\n"));
  assert_string_equal(ask_body(text), "not by this method\n");
  free(text);
  ask_expect(port, HEAD_OF("POST", "/hello", "Content-Length: 3\r\n") "abc", "405");
  ask_expect(port, HEAD_OF("POST", "/nowhere", "Content-Length: 3\r\n") "abc", "404");
  ask_expect(port, "GET /hello HTTP/1.1\r\nHost: elsewhere.example\r\nConnection: close\r\n\r\n", "403");
  ask_expect(port, "GET /hello HTTP/1.1\r\nHost: localhost.elsewhere.example\r\nConnection: close\r\n\r\n", "403");
  static const char *const hosts[] = {"localhost", "LocalHost:80", "localhost.",  "LOCALHOST.:1", "127.0.0.1",
                                      "[::1]:80",  "localhost..",  "localhost.x", "127.0.0.2",    "localhost-"};
  for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
    char request[200];
    snprintf(request, sizeof request, "GET /hello HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", hosts[i]);
    ask_expect(port, request, i < 6 ? "200" : "403");
  }
  char *head = malloc(100000); /* a head that never ends */
  memset(head, 'a', 99999);
  memcpy(head, "GET /hello?", 11);
  head[99999] = 0;
  const int s = ask_connect(port);
  if (write(s, head, 99999) < 0) print_message("the server has hung up\n");
  text = ask_read(s);
  assert_null(strstr(text, "200 OK"));
  free(text);
  free(head);
  wn_http_stop(NULL);
}

static void test_bodies(void **state) {
  (void)state;
  const int port = wn_http_port(http);
  char request[4096], body[LIMIT + 2];
  char *text = ask(port, HEAD_OF("POST", "/both", "Content-Length: 3\r\n") "abc");
  assert_string_equal(ask_body(text), "POST:abc");
  free(text);
  text = ask(port, HEAD_OF("POST", "/both", "Transfer-Encoding: chunked\r\n") "2\r\nab\r\n3\r\ncde\r\n0\r\n\r\n");
  assert_string_equal(ask_body(text), "POST:abcde");
  free(text);
  text = ask(port, HEAD_OF("POST", "/both", "Content-Length: 0\r\n"));
  assert_non_null(strstr(text, "400"));
  assert_string_equal(ask_body(text), "an empty body\n");
  free(text);
  memset(body, 'x', sizeof body);
  body[LIMIT + 1] = 0;
  for (int more = 0; more < 2; more++) { /* the largest body, and one byte more; with and without an announced length */
    snprintf(request, sizeof request, HEAD_OF("POST", "/both", "Content-Length: %d\r\n") "%.*s", LIMIT + more,
             LIMIT + more, body);
    ask_expect(port, request, more ? "413" : "200");
    snprintf(request, sizeof request,
             HEAD_OF("POST", "/both", "Transfer-Encoding: chunked\r\n") "%x\r\n%.*s\r\n0\r\n\r\n", LIMIT + more,
             LIMIT + more, body);
    ask_expect(port, request, more ? "413" : "200");
  }
  /* A client that sends its whole body before it reads still gets the reason of a refusal. */
  const int much = 8 << 20;
  char *long_request = malloc((size_t)much + 300);
  const int before = snprintf(long_request, 300, HEAD_OF("POST", "/both", "Content-Length: %d\r\n"), much);
  memset(long_request + before, 'x', (size_t)much);
  long_request[before + much] = 0;
  ask_expect(port, long_request, "413");
  free(long_request);
  /* A far too large body is refused before it arrives. */
  text = ask(port, HEAD_OF("POST", "/both", "Content-Length: 1000000000000\r\n"));
  assert_non_null(strstr(text, "413"));
  assert_string_equal(ask_body(text), "the request's body is too large\n");
  free(text);
  /* A route that takes no body. */
  ask_expect(port, HEAD_OF("GET", "/hello", "Content-Length: 1\r\n") "a", "413");
  /* An endless body without an announced length is not read for ever. */
  const int s = ask_connect(port);
  const char *head = HEAD_OF("POST", "/both", "Transfer-Encoding: chunked\r\n");
  assert_int_equal(write(s, head, strlen(head)), strlen(head));
  snprintf(request, sizeof request, "%x\r\n%.*s\r\n", LIMIT, LIMIT, body);
  ssize_t sent = 1;
  for (int i = 0; i < 100000 && sent > 0; i++) sent = send(s, request, strlen(request), MSG_NOSIGNAL);
  assert_true(sent < 0);
  free(ask_read(s));
}

/* A body's memory is free once the body has been read: requests that take long to answer leave room for others. */
static void test_room_for_bodies(void **state) {
  (void)state;
  char *request = malloc(2 * LONG + 300);
  const int n = snprintf(request, 300, HEAD_OF("POST", "/held", "Content-Length: %d\r\n"), 2 * LONG);
  int s[HELD], kept = 0, answered = 0;
  memset(request + n, 'x', 2 * LONG);
  for (int i = 0; i < HELD; i++) {
    s[i] = ask_connect(wn_http_port(http));
    assert_int_equal(write(s[i], request, (size_t)n + 2 * LONG), n + 2 * LONG);
    for (int k = 0; k < 200 && !held[i]; k++) nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    if (!held[i]) break;
    kept++;
  }
  for (int i = 0; i < kept; i++) {
    wn_http_stream_end(held[i]);
    char *text = ask_read(s[i]);
    answered += strstr(text, "200 OK") != NULL;
    free(text);
  }
  free(request);
  assert_int_equal(kept, HELD);
  assert_int_equal(answered, HELD);
}

static void test_streams(void **state) {
  (void)state;
  const int port = wn_http_port(http);
  char *text = ask(port, "GET /events HTTP/1.0\r\nHost: localhost\r\n\r\n"); /* HTTP/1.0: not chunked */
  assert_non_null(strstr(text, "Content-Type: text/event-stream\r\n"));
  assert_string_equal(ask_body(text), "data: one\n\nevent: twice\ndata: two\n\ndata: end\n\n");
  free(text);
  assert_int_equal(written(), 3);
  text = ask(port, "GET /once HTTP/1.0\r\nHost: localhost\r\n\r\n");
  const char *body = ask_body(text);
  assert_int_equal(strlen(body), LONG);
  for (int i = 0; i < LONG; i++) assert_int_equal(body[i], 'a' + i % 23);
  free(text);
  assert_int_equal(written(), 1);
  /* A client closes in the middle: the writer is told. */
  const int s = ask_connect(port);
  const char *request = HEAD_OF("GET", "/much", "");
  char some[1000];
  assert_int_equal(write(s, request, strlen(request)), strlen(request));
  assert_true(read(s, some, sizeof some) > 0);
  close(s);
  written();
  text = ask_for(port, "HEAD", "/much"); /* nobody reads a body at all */
  assert_string_equal(ask_body(text), "");
  free(text);
  assert_int_equal(written(), 0);
}

/* A server that stops ends its streams, even if the client reads nothing. */
static void test_stop(void **state) {
  (void)state;
  struct wn_http *other;
  const struct wn_http_options options = {.routes = routes, .route_count = sizeof routes / sizeof *routes};
  assert_ok(ctx, wn_http_start(ctx, &options, &other));
  const struct wn_http_options taken = {.port = wn_http_port(other)}, nowhere = {.address = "nowhere"};
  struct wn_http *none;
  assert_refused(ctx, wn_http_start(ctx, &taken, &none), WN_ERR_IO, "taken");
  assert_refused(ctx, wn_http_start(ctx, &nowhere, &none), WN_ERR_ARGUMENT, "nowhere");
  const int s = ask_connect(wn_http_port(other));
  const char *request = HEAD_OF("GET", "/much", "");
  char some[1000];
  assert_int_equal(write(s, request, strlen(request)), strlen(request));
  assert_true(read(s, some, sizeof some) > 0);
  wn_http_stop(other);
  written();
  close(s);
}

/* The server's own address also names this machine. */
static void test_own_address(void **state) {
  (void)state;
  static const char *const hosts[] = {"127.0.0.2", "localhost", "127.0.0.3", "elsewhere.example"};
  struct wn_http *other;
  const struct wn_http_options options = {
      .address = "127.0.0.2", .routes = routes, .route_count = sizeof routes / sizeof *routes, .user = &left};
  assert_ok(ctx, wn_http_start(ctx, &options, &other));
  for (int i = 0; i < 4; i++) {
    const int port = wn_http_port(other), s = ask_connect_at("127.0.0.2", port);
    char request[200];
    const int n = snprintf(request, sizeof request, "GET /hello HTTP/1.1\r\nHost: %s:%d\r\nConnection: close\r\n\r\n",
                           hosts[i], port);
    assert_int_equal(write(s, request, (size_t)n), n);
    char *text = ask_read(s);
    if (!strstr(text, i < 2 ? "200 OK" : "403")) fail_msg("%s: %s", hosts[i], text);
    free(text);
  }
  wn_http_stop(other);
}

/* An answer that waited for its writer must leave within an answer's time limit, not a stream's. */
static void test_answer_leaves(void **state) {
  (void)state;
  struct wn_http *other;
  const struct wn_http_options options = {
      .routes = routes, .route_count = sizeof routes / sizeof *routes, .answer_seconds = 0.5};
  assert_ok(ctx, wn_http_start(ctx, &options, &other));
  const int s = ask_connect(wn_http_port(other));
  const char *request = HEAD_OF("GET", "/slow", "");
  char some[1000];
  assert_int_equal(write(s, request, strlen(request)), strlen(request));
  assert_true(read(s, some, sizeof some) > 0); /* its writer has started */
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += 10; /* less than the 30 seconds for an idle connection */
  assert_int_equal(pthread_timedjoin_np(writer, NULL, &until), 0);
  close(s);
  wn_http_stop(other);
}

static void test_sent(void **state) {
  (void)state;
  const int before = left;
  free(ask_for(wn_http_port(http), "GET", "/hello"));
  for (int i = 0; i < 500 && left == before; i++) nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
  assert_int_equal(left, before + 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_routes),       cmocka_unit_test(test_refused),
                                     cmocka_unit_test(test_bodies),       cmocka_unit_test(test_room_for_bodies),
                                     cmocka_unit_test(test_streams),      cmocka_unit_test(test_stop),
                                     cmocka_unit_test(test_sent),         cmocka_unit_test(test_own_address),
                                     cmocka_unit_test(test_answer_leaves)};
  return cmocka_run_group_tests(tests, begin, end);
}
