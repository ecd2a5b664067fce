/* Bodies that take long to read keep nobody waiting but those behind them, and no time limit counts the server's own
 * lateness. */
#include "serve/place.h"

#include <fcntl.h>
#include <semaphore.h>

#include "base/clock.h"
#include "serve/http.h"

enum { LARGE = 100000, SMALL = 10, WAITING = 24 };
static sem_t begun, go;
static _Atomic int others; /* handlers that ran outside the server's thread */

static void answer_hello(const struct wn_http_request *request, struct wn_http_answer *answer) {
  assert_int_equal(request->thread, 0);
  wn_text_add(&answer->text, "hello");
}

/* A large body takes until the test says go. */
static void answer_read(const struct wn_http_request *request, struct wn_http_answer *answer) {
  others += request->thread != 0;
  if (request->body_bytes == LARGE) {
    sem_post(&begun);
    sem_wait(&go);
  }
  wn_text_add(&answer->text, "read %zu", request->body_bytes);
}

/* Takes a second of the server's own thread. */
static void answer_late(const struct wn_http_request *request, struct wn_http_answer *answer) {
  (void)request;
  nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
  wn_text_add(&answer->text, "late");
}

static const struct wn_http_route routes[] = {
    {.method = "GET", .path = "/hello", .type = "text/plain", .handle = answer_hello},
    {.method = "GET", .path = "/late", .type = "text/plain", .handle = answer_late},
    {.method = "POST",
     .path = "/read",
     .type = "text/plain",
     .body_limit = LARGE,
     .reads = true,
     .handle = answer_read}};

static struct wn_http *start(wn_context *ctx, double seconds) {
  const struct wn_http_options options = {.routes = routes,
                                          .route_count = sizeof routes / sizeof *routes,
                                          .head_seconds = seconds,
                                          .body_seconds = seconds,
                                          .answer_seconds = seconds};
  struct wn_http *http;
  OK(ctx, wn_http_start(ctx, &options, &http));
  return http;
}

/* Sends a request without waiting for its answer. */
static int send_body(int port, size_t bytes) {
  char *body = calloc(1, bytes + 1);
  memset(body, 'x', bytes);
  char *request = request_of("POST", "/read", body, NULL);
  const int s = ask_connect(port);
  assert_int_equal(send(s, request, strlen(request), MSG_NOSIGNAL), strlen(request));
  free(body), free(request);
  return s;
}

static void expect_answer(int s, const char *text) {
  char *answer = ask_read(s);
  if (!strstr(answer, text)) fail_msg("expected %s, found \"%.200s\"", text, answer);
  free(answer);
}

/* While one body is read, others wait, for longer than a time limit: they are answered all the same. Meanwhile small
 * bodies and requests without one are served. */
static void test_beside(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  struct wn_http *http = start(ctx, 0.3);
  const int port = wn_http_port(http);
  int s[WAITING];
  for (int i = 0; i < WAITING; i++) s[i] = send_body(port, LARGE);
  sem_wait(&begun);
  for (const double until = wn_seconds_now() + 1; wn_seconds_now() < until;) {
    char *answer = ask_for(port, "GET", "/hello");
    assert_int_equal(status_of(answer), 200);
    free(answer);
    expect_answer(send_body(port, SMALL), "read 10");
  }
  for (int i = 0; i < WAITING; i++) sem_post(&go);
  for (int i = 0; i < WAITING; i++) expect_answer(s[i], "read 100000");
  for (int i = 1; i < WAITING; i++) sem_wait(&begun);
  assert_true(others > WAITING);
  wn_http_stop(http);
  wn_context_destroy(ctx);
}

/* A client that left while it waited is not read for. */
static void test_left(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  struct wn_http *http = start(ctx, 0);
  const int first = send_body(wn_http_port(http), LARGE);
  sem_wait(&begun);
  const int second = send_body(wn_http_port(http), LARGE), third = send_body(wn_http_port(http), SMALL);
  expect_answer(third, "read 10"); /* so the second has been received */
  close(second);
  const int last = send_body(wn_http_port(http), LARGE);
  sem_post(&go), sem_post(&go);
  expect_answer(first, "read 100000");
  expect_answer(last, "read 100000");
  sem_wait(&begun);
  assert_int_equal(sem_trywait(&begun), -1);
  wn_http_stop(http);
  wn_context_destroy(ctx);
}

static void *stop_http(void *user) {
  wn_http_stop(user);
  return NULL;
}

/* The end comes while some wait: the one that is being read is answered, the others are told. */
static void test_stop(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  struct wn_http *http = start(ctx, 0);
  const int port = wn_http_port(http);
  int s[WAITING];
  pthread_t stopper;
  for (int i = 0; i < WAITING; i++) s[i] = send_body(port, LARGE);
  sem_wait(&begun);
  expect_answer(send_body(port, SMALL), "read 10");
  wn_http_close(http);
  assert_int_equal(pthread_create(&stopper, NULL, stop_http, http), 0);
  sem_post(&go);
  pthread_join(stopper, NULL);
  for (int i = 0; i < WAITING; i++) free(ask_read(s[i])); /* all are closed */
  assert_int_equal(sem_trywait(&begun), -1);
  wn_context_destroy(ctx);
}

/* A body that came in time is not cut off because the server reads it late. */
static void test_late_server(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  struct wn_http *http = start(ctx, 0.3);
  const int port = wn_http_port(http), s = ask_connect(port), late = ask_connect(port);
  const char *head = "POST /read HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 10\r\n\r\n",
             *slow = "GET /late HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
  assert_int_equal(send(s, head, strlen(head), MSG_NOSIGNAL), strlen(head));
  nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL); /* it is received */
  assert_int_equal(send(late, slow, strlen(slow), MSG_NOSIGNAL), strlen(slow));
  nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL); /* the server is busy */
  assert_int_equal(send(s, "0123456789", 10, MSG_NOSIGNAL), 10);
  expect_answer(s, "read 10");
  expect_answer(late, "late");
  wn_http_stop(http);
  wn_context_destroy(ctx);
}

/* A text that cannot fit is refused by its bytes. With a byte for each token the bound is exact, up to the space that a
 * tokenizer may leave out. */
static void test_unread(void **state) {
  (void)state;
  static const struct {
    const char *path, *form;
  } rows[] = {{"/v1/completions", "{\"prompt\":\"%s\",\"max_tokens\":1}"},
              {"/v1/completions", "{\"prompt\":[\"a\",\"%s\"],\"max_tokens\":1}"},
              {"/v1/embeddings", "{\"input\":\"%s\"}"}};
  struct place p;
  char text[3 * CONTEXT] = "", body[4 * CONTEXT];
  open_place(&p, NULL);
  memset(text, 'a', sizeof text - 1);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    snprintf(body, sizeof body, rows[i].form, text);
    char *answer = post(p.port, rows[i].path, body);
    if (status_of(answer) != 400 || !strstr(answer, "599 bytes, more than the context of 200 tokens can hold"))
      fail_msg("%zu: %s", i, answer);
    free(answer);
  }
  snprintf(body, sizeof body, "{\"prompt\":\"%s\"}", text); /* no limit here */
  char *answer = post(p.port, "/tokenize", body);
  assert_int_equal(status_of(answer), 200);
  free(answer);
  close_place(&p);
}

int main(void) {
  sem_init(&begun, 0, 0), sem_init(&go, 0, 0);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_beside),      cmocka_unit_test(test_left),   cmocka_unit_test(test_stop),
      cmocka_unit_test(test_late_server), cmocka_unit_test(test_unread),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
