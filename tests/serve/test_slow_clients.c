/* Clients that are slow, idle or never read do not keep others out, and the memory that they make the server hold is
 * bounded. */
#include "serve/place.h"

#include <fcntl.h>
#include <poll.h>

#include "base/clock.h"
#include "serve/http.h"

enum { SLOW = 200 };

static void answer_hello(const struct wn_http_request *request, struct wn_http_answer *answer) {
  wn_text_add(&answer->text, "hello %zu", request->body_bytes);
}

static const struct wn_http_route routes[] = {
    {.method = "GET", .path = "/hello", .type = "text/plain", .handle = answer_hello},
    {.method = "POST", .path = "/hello", .type = "text/plain", .body_limit = 1000, .handle = answer_hello}};

static struct wn_http *start(wn_context *ctx, int connections, double seconds) {
  const struct wn_http_options options = {.routes = routes,
                                          .route_count = sizeof routes / sizeof *routes,
                                          .connections = connections,
                                          .head_seconds = seconds,
                                          .body_seconds = seconds};
  struct wn_http *http;
  OK(ctx, wn_http_start(ctx, &options, &http));
  return http;
}

static void say(int s, const char *text) {
  (void)!send(s, text, strlen(text), MSG_NOSIGNAL);
}

/* Whether the other end closes within so many seconds. */
static bool is_closed(int s, double seconds) {
  char byte;
  for (const double until = wn_seconds_now() + seconds; wn_seconds_now() < until;) {
    struct pollfd p = {.fd = s, .events = POLLIN};
    if (poll(&p, 1, 20) > 0 && recv(s, &byte, 1, 0) <= 0) return true;
  }
  return false;
}

static const char *const slow_words[] = {
    "", "GET /hel", "POST /hello HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nabc",
    "GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n" /* answered, and then it is idle */};

/* Many more such clients than connections allowed. Once, they blocked all others for half a minute. */
static void test_do_not_keep_others_out(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  for (size_t way = 0; way < sizeof slow_words / sizeof *slow_words; way++) {
    struct wn_http *http = start(ctx, 20, 0);
    const int port = wn_http_port(http);
    int s[SLOW];
    for (int i = 0; i < SLOW; i++) say(s[i] = ask_connect(port), slow_words[way]);
    const double begun = wn_seconds_now();
    for (int i = 0; i < 5; i++)
      ask_expect(port, "POST /hello HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc",
                 "200");
    assert_true(wn_seconds_now() - begun < 8); /* far below every time limit; usually milliseconds */
    for (int i = 0; i < SLOW; i++) close(s[i]);
    wn_http_stop(http);
  }
  wn_context_destroy(ctx);
}

/* Sending a byte now and then does not extend the time limit. A request that arrived in time is not cut off. */
static void test_times(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  struct wn_http *http = start(ctx, 0, 0.5);
  const char *texts[] = {
      "GET /hello?a=aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
      "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"};
  for (int way = 0; way < 2; way++) {
    const int s = ask_connect(wn_http_port(http));
    if (way) say(s, "POST /hello HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n");
    bool closed = false;
    for (const char *c = texts[way]; *c && !closed; c++) {
      send(s, c, 1, MSG_NOSIGNAL);
      closed = is_closed(s, 0.1);
    }
    assert_true(closed);
    close(s);
  }
  const int idle = ask_connect(wn_http_port(http));
  say(idle, "GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n");
  assert_true(is_closed(idle, 8)); /* the answer, then the end */
  close(idle);
  wn_http_stop(http);
  wn_context_destroy(ctx);
}

/* While every connection is busy, connections in reserve still answer /health and tell other requests when to try
 * again. */
static void test_reserve(void **state) {
  (void)state;
  struct place p;
  open_place(&p, &(wn_server_options){.slots = 1, .connections = 4});
  char *request = request_of("POST", "/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":199,\"n\":100}", NULL);
  int s[4];
  for (int i = 0; i < 4; i++) say(s[i] = ask_connect(p.port), request);
  char *answer = NULL;
  for (int i = 0; i < 500; i++) { /* until all four were received */
    answer = ask_for(p.port, "GET", "/v1/models");
    if (status_of(answer) == 503) break;
    free(answer);
    nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
  }
  assert_true(status_of(answer) == 503 && strstr(answer, "Retry-After: 1"));
  free(answer);
  for (int i = 0; i < 3; i++) {
    answer = ask_for(p.port, "GET", "/health");
    assert_int_equal(status_of(answer), 200);
    free(answer);
  }
  for (int i = 0; i < 4; i++) close(s[i]);
  for (int i = 0; i < 500; i++) {
    answer = ask_for(p.port, "GET", "/v1/models");
    const int status = status_of(answer);
    free(answer);
    if (status == 200) break;
    assert_true(i < 499);
    nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
  }
  wait_for(p.port, "requests", 0);
  free(request);
  close_place(&p);
}

size_t __sanitizer_get_current_allocated_bytes(void) __attribute__((weak)); /* present if there is a sanitizer */

/* The process's memory. A sanitizer's allocator keeps freed memory and returns tens of megabytes at a timer's pace, so
 * there it is the allocated memory. */
static long held(void) {
  if (__sanitizer_get_current_allocated_bytes) return (long)__sanitizer_get_current_allocated_bytes();
  long pages = 0;
  FILE *f = fopen("/proc/self/statm", "r");
  assert_non_null(f);
  assert_int_equal(fscanf(f, "%*d %ld", &pages), 1);
  fclose(f);
  return pages * sysconf(_SC_PAGESIZE);
}

/* A stream that nobody reads stops being written: 112 answers with 20 probabilities a token are 9 MB. */
static void test_streams_wait(void **state) {
  (void)state;
  struct place p;
  open_place(&p, &(wn_server_options){.slots = 8});
  char *request = request_of("POST", "/v1/completions",
                             "{\"prompt\":\"a\",\"max_tokens\":199,\"n\":112,\"stream\":true,\"logprobs\":20}", NULL);
  const double begun = wn_seconds_now();
  char *answer = ask(p.port, request); /* a client that reads has everything by then */
  const double seconds = wn_seconds_now() - begun;
  assert_non_null(strstr(answer, "data: [DONE]"));
  assert_true(strlen(answer) > 8 << 20);
  free(answer);
  const int s = ask_connect(p.port), small = 4096;
  setsockopt(s, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
  const long before = held();
  say(s, request);
  while (wn_seconds_now() < begun + 2.2 * seconds) {
    answer = post(p.port, "/tokenize", "{\"prompt\":\"others are answered\"}");
    assert_int_equal(status_of(answer), 200);
    free(answer);
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
  }
  assert_true(slot_number(p.port, "waiting") > 0); /* most of it has not been written */
  assert_true(held() - before < 7 << 20);
  close(s);
  wait_for(p.port, "requests", 0);
  free(request);
  close_place(&p);
}

/* A request that takes too long is told so. */
static void test_timeout(void **state) {
  (void)state;
  struct place p;
  open_place(&p, &(wn_server_options){.slots = 1, .timeout = 0.2});
  char *answer = post(p.port, "/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":199,\"n\":128,\"logprobs\":20}");
  assert_true(status_of(answer) == 504 && strstr(answer, "not answered within 0.2 seconds"));
  free(answer);
  assert_int_equal(slot_number(p.port, "running"), 0);
  answer = post(p.port, "/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":1}");
  assert_int_equal(status_of(answer), 200);
  free(answer);
  close_place(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_do_not_keep_others_out), cmocka_unit_test(test_times),   cmocka_unit_test(test_reserve),
      cmocka_unit_test(test_streams_wait),           cmocka_unit_test(test_timeout),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
